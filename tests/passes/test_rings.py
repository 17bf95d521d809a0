"""States whose oldest rows go with every run: on machines that read base registers from memory nothing of them is moved."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.cli.commands import run
from tests.semantics.case import Case
from tests.semantics.judge import sqnr_db
from tests.support.control_flow_machines import with_control
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region, State, container_from_bytes, container_to_bytes
from toolchain.errors import ProgramError
from toolchain.ir.graph import TensorType
from toolchain.ir.states import CircularState
from toolchain.isa import Machine, load_machine
from toolchain.ops.kit.tile import round_up
from toolchain.passes.circular_states import _gains
from toolchain.runtime import EntriesSession, Session, verify
from toolchain.schedule.text import print_schedule

MACHINE = "transformer64"
_ENDS = "b = Constant<value_ints = [{first}]>() e = Constant<value_ints = [1000]>() a = Constant<value_ints = [{axis}]>() "
_ATTEND = "kt = Transpose<perm = [0, 1, 3, 2]>(seen) s = MatMul(x, kt) p = Softmax(s) y = MatMul(p, seen)"
CASES = {
    case.name: case
    for case in (
        Case(  # a cache of keys, that are values too
            "joined, then cut",
            "x 1,4,1,32; h 1,4,1,32; past 1,4,96,32",
            _ENDS.format(first=1, axis=2) + "whole = Concat<axis = 2>(past, h) present = Slice(whole, b, e, a) "
            "seen = Identity(present) " + _ATTEND,
            "y present",
        ),
        Case(
            "cut, then joined",
            "x 1,4,1,32; h 1,4,1,32; past 1,4,96,32",
            _ENDS.format(first=1, axis=2) + "old = Slice(past, b, e, a) present = Concat<axis = 2>(old, h) "
            "seen = Identity(present) " + _ATTEND,
            "y present",
        ),
        Case(
            "all are read",
            "x 1,4,1,32; h 1,4,1,32; past 1,4,96,32",
            _ENDS.format(first=1, axis=2) + "seen = Concat<axis = 2>(past, h) present = Slice(seen, b, e, a) " + _ATTEND,
            "y present",
        ),
        Case(  # 100 steps of sound, that do not go into rows of three
            "a convolution over time",
            "x 1,16,3; past 1,256,100; v 256,16,1; w 32,256,3",
            _ENDS.format(first=3, axis=2) + "c = Conv(x, v) r = Relu(c) seen = Concat<axis = 2>(past, r) "
            "present = Slice(seen, b, e, a) y = Conv<dilations = [50]>(seen, w)",
            "y present",
        ),
        Case(  # what is older is read by itself
            "read apart",
            "x 1,2,96; past 1,120,96",
            _ENDS.format(first=2, axis=1) + "old = Slice(past, b, e, a) present = Concat<axis = 1>(old, x) m = Relu(past) "
            "s = ReduceMax<keepdims = 1>(m, a) y = Add(x, s)",
            "y present",
        ),
    )
}
STATES = ("past=present",)


def steps(name: str, count: int, seed: int = 3) -> list[dict[str, np.ndarray]]:
    case, rng = CASES[name], np.random.default_rng(seed)
    input_names = [i.name for i in case.proto.graph.input if i.name != "past"]
    return [{n: rng.uniform(-1, 1, case.shapes[n]).astype(np.float32) for n in input_names} for _ in range(count)]


@cache
def built(name: str, rows: bool = True, level: int = 2) -> Build:
    """Build a case with states.

    `rows`: on a machine that reads base registers from memory.
    """
    with TemporaryDirectory() as folder:
        path, samples = Path(folder) / "n.onnx", steps(name, 48)
        onnx.save(CASES[name].proto, path)
        np.savez(path.with_name("data.npz"), allow_pickle=False, **{n: np.stack([s[n] for s in samples]) for n in samples[0]})
        options = BuildOptions(
            MACHINE if rows else without_rows(), str(path.with_name("data.npz")), states=STATES, repair="none", level=level
        )
        return build(path, options)


def places(name: str) -> tuple[int, int]:
    """Return the places of the state, and the rows of a run."""
    ring = state(built(name)).ring
    assert ring is not None
    return ring.places, ring.rows


def state(network_build: Build) -> State:
    ((_, chip_state),) = network_build.container.states
    return chip_state


@cache
def without_rows() -> Machine:
    """The same machine, which cannot read base registers from memory."""
    machine = load_machine(MACHINE)
    return with_control(machine, control={**machine.chip.control.model_dump(), "indirect": None})


@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_a_state_that_moves_and_what_float_says(name: str) -> None:
    """Check the bits until all rows have been replaced."""
    count, rows = places(name)
    assert state(built(name, False)).ring is None
    chip, reference = (Session(built(name).data, backend=backend) for backend in ("simulator", "reference"))
    moved = Session(built(name, False).data, backend="reference")
    runner = onnxruntime.InferenceSession(CASES[name].proto.SerializeToString())
    past = np.zeros(CASES[name].shapes["past"], np.float32)
    expected, got = list[np.ndarray](), list[np.ndarray]()
    for feeds in steps(name, count // rows + 8, seed=4):
        real, past = (np.asarray(v) for v in runner.run(["y", "present"], {**feeds, "past": past}))
        y, present = moved.run(["y", "present"], feeds)
        for session in (chip, reference):
            again, left_there = session.run(["y", "present"], feeds)
            assert np.array_equal(y, again) and np.array_equal(present, left_there)
            assert np.array_equal(session.state("past"), present)
        expected.append(real)
        got.append(y)
    assert sqnr_db(np.stack(expected), np.stack(got)) > 20 and sqnr_db(past, moved.state("past")) > 30


@pytest.mark.parametrize("name", CASES)
def test_of_the_state_only_new_rows_are_written_and_none_is_read_twice(name: str) -> None:
    network_build, before = built(name), built(name, False)
    (region,) = (s for s in network_build.container.segments if isinstance(s, Region))
    count, rows = places(name)
    state_bytes = state(before).port.size_bytes
    result, new = sum(p.size_bytes for p in region.outputs), rows * state_bytes // count
    assert network_build.figures["dram_write_bytes"] == result + 2 * new
    assert before.figures["dram_write_bytes"] >= result + state_bytes
    assert network_build.figures["dram_read_bytes"] <= before.figures["dram_read_bytes"] + 2 + 2 * new  # of DRAM by each put
    assert state(network_build).port.size_bytes <= 2 * state_bytes * (count + rows) // count
    assert network_build.figures["cycles"] <= before.figures["cycles"]


@pytest.mark.parametrize("level", [0, 1, 3])
def test_at_every_level(level: int) -> None:
    name = "a convolution over time"
    assert state(built(name, level=level)).ring is not None
    session, other = Session(built(name, level=level).data), Session(built(name, False).data)
    for feeds in steps(name, 40):
        assert np.array_equal(session.run(None, feeds)[0], other.run(None, feeds)[0])


def test_all_bytes_are_what_they_should_be_wherever_rows_go() -> None:
    data = built("a convolution over time").data
    sessions = Session(data), Session(data, backend="reference")
    for feeds in steps("a convolution over time", 4):
        ran, difference = verify(*sessions, feeds)
        assert difference is None and not [w for part in ran.segments for w in part.warnings]


def test_a_run_may_be_given_the_state_and_reset_begins_anew() -> None:
    name, feeds = "all are read", steps("all are read", 6)
    session, other = Session(built(name).data), Session(built(name, False).data)
    past = np.random.default_rng(1).uniform(-1, 1, CASES[name].shapes["past"]).astype(np.float32)
    for index, x in enumerate(feeds):
        inputs = {**x, "past": past} if index == 3 else x
        assert np.array_equal(session.run(None, inputs)[0], other.run(None, inputs)[0])
        assert np.array_equal(session.state("past"), other.state("past"))
    session.reset()
    assert not session.state("past").any()
    assert [t.shape for t in session.get_states()] == [past.shape]
    assert [t.name for t in session.get_inputs()] == ["x", "h"]
    other.reset()
    assert np.array_equal(session.run(None, feeds[0])[0], other.run(None, feeds[0])[0])


def test_a_run_that_fails_leaves_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    name, feeds = "all are read", steps("all are read", 3)
    session, sound = Session(built(name).data), Session(built(name).data)
    for one in (session, sound):
        one.run(None, feeds[0])

    class Failing:
        def run(self, dram: np.ndarray, **options: object) -> None:
            dram[:] = 99
            raise ProgramError("no")

    with monkeypatch.context() as broken, pytest.raises(ProgramError, match="no"):
        broken.setattr(session, "_loaded", lambda index: Failing())
        session.run(None, feeds[1])
    assert np.array_equal(session.state("past"), sound.state("past"))
    assert np.array_equal(session.run(None, feeds[2])[0], sound.run(None, feeds[2])[0])


def test_commands_hand_it_on(tmp_path: Path) -> None:
    name = "a convolution over time"
    npu, x, state_file = tmp_path / "n.npu", tmp_path / "x.npz", tmp_path / "left.npz"
    npu.write_bytes(built(name).data)
    session, handed = Session(npu), dict[str, np.ndarray]()
    for sample in steps(name, 3):
        np.savez(x, allow_pickle=False, **sample, **handed)
        ran = run(f"npu-sim {npu} --input {x} --output {state_file} --verify")
        assert ran.code == 0, ran.err
        with np.load(state_file) as stored:
            assert np.array_equal(stored["y"], session.run(None, sample)[0])
            handed = {"past": stored["past"]}
    assert np.array_equal(handed["past"], session.state("past"))
    onnx.save(CASES[name].proto, tmp_path / "n.onnx")
    built_to = f"-o {tmp_path / 'm.npu'} --image {tmp_path / 'image'}"
    image = run(f"npu-build {tmp_path / 'n.onnx'} --hw {MACHINE} --state past=present {built_to}")
    assert image.code == 0, image.err
    (segment,) = json.loads((tmp_path / "image" / "ports.json").read_text())["segments"]
    ring, (number,) = segment["states"][0]["ring"], [p for p in segment["inputs"] if p["tensor"] != "x"]
    assert (ring["places"], ring["period"], ring["rows"], ring["number"]) == (100, 102, 3, number["tensor"])


def test_a_schedule_is_taken_back(tmp_path: Path) -> None:
    name, samples = "a convolution over time", steps("a convolution over time", 48)
    onnx.save(CASES[name].proto, tmp_path / "n.onnx")
    np.savez(tmp_path / "data.npz", allow_pickle=False, x=np.stack([s["x"] for s in samples]))
    options = BuildOptions(MACHINE, str(tmp_path / "data.npz"), states=STATES, level=2)
    network_build = build(tmp_path / "n.onnx", options)
    (tmp_path / "schedule.txt").write_text(print_schedule(network_build.schedule))
    assert build(tmp_path / "n.onnx", replace(options, schedule=str(tmp_path / "schedule.txt"))).data == network_build.data


def test_entries_hand_on_a_state_that_moves(tmp_path: Path) -> None:
    """A chunk and a step put different numbers of rows."""
    body = f"{_ENDS.format(first=-120, axis=1)} whole = Concat<axis = 1>(past, x) present = Slice(whole, b, e, a) y = Neg(x)"
    ports = "(float[1,n,96] x, float[1,120,96] past) => (float[1,n,96] y, float[1,120,96] present)"
    text = f'<ir_version: 9, opset_import: ["" : 17]> g {ports} {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    x = np.random.default_rng(3).uniform(-1, 1, (24, 1, 1, 96)).astype(np.float32)
    np.savez(tmp_path / "data.npz", allow_pickle=False, x=x)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {f"n{n}": {"x": (1, n, 96)} for n in (1, 4)}
    network_build = build(tmp_path / "n.onnx", BuildOptions(MACHINE, str(tmp_path / "data.npz"), entries=shapes, states=STATES))
    assert "entries n1, n4: 1 state in common, as the last run leaves them" in network_build.notes
    session = EntriesSession(network_build.data)
    for count in (1, 4, 1, 4):
        session.run(None, {"x": np.repeat(x[count], count, 1)})
    assert np.abs(session.state("past")[0, -4:] - x[4, 0]).max() < 0.01


def test_more_of_them_than_registers(tmp_path: Path) -> None:
    """The largest are rings; the others move."""
    names, sizes = [f"s{i}" for i in range(20)], [128 + 4 * i for i in range(20)]
    state_inputs = ", ".join(f"float[1,{n},{96 + i}] {s}" for i, (s, n) in enumerate(zip(names, sizes)))
    state_outputs = ", ".join(f"float[1,{n},{96 + i}] {s}_out" for i, (s, n) in enumerate(zip(names, sizes)))
    body = " ".join(
        f"w{i} = Concat<axis = 1>({s}, x{i}) {s}_out = Slice(w{i}, b, e, b) y{i} = Neg(x{i})" for i, s in enumerate(names)
    )
    xs = ", ".join(f"float[1,1,{96 + i}] x{i}" for i in range(20))
    ys = ", ".join(f"float[1,1,{96 + i}] y{i}" for i in range(20))
    ends = "b = Constant<value_ints = [1]>() e = Constant<value_ints = [1000]>()"
    text = f'<ir_version: 9, opset_import: ["" : 17]> g ({xs}, {state_inputs}) => ({ys}, {state_outputs}) {{ {ends} {body} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    container = build(tmp_path / "n.onnx", BuildOptions(MACHINE, states=tuple(f"{s}={s}_out" for s in names))).container
    ring_states = [s.port.model for _, s in container.states if s.ring is not None]
    free = load_machine(MACHINE).chip.control.bases - 1
    assert ring_states == names[-free:] and len(container.states) == 20


def test_small_ones_move(tmp_path: Path) -> None:
    """Less than it costs to read a register."""
    ports = "(float[1,1,32] x, float[1,64,32] past) => (float[1,1,32] y, float[1,64,32] present)"
    text = f'<ir_version: 9, opset_import: ["" : 17]> g {ports}'
    body = f"{_ENDS.format(first=1, axis=1)} whole = Concat<axis = 1>(past, x) present = Slice(whole, b, e, a) y = Neg(x)"
    onnx.save(onnx.parser.parse_model(f"{text} {{ {body} }}"), tmp_path / "n.onnx")
    assert state(build(tmp_path / "n.onnx", BuildOptions(MACHINE, states=STATES))).ring is None


def test_headers_that_contradict_themselves() -> None:
    container = built("all are read").container
    (region,) = (s for s in container.segments if isinstance(s, Region))
    (region_state,) = region.states
    ring = region_state.ring
    assert isinstance(ring, CircularState)
    for wrong, reason in (
        (ring._replace(period=95), "the state 'past' is a ring of another size than its port [1, 4, 192, 32]"),
        (ring._replace(places=97), "the state 'past' is a ring of 96 rows: 97 in steps of 1 do not fit"),
        (ring._replace(rows=5), "the state 'past' is a ring of 96 rows: 96 in steps of 5 do not fit"),
        (ring._replace(number="x"), "the state 'past' is a ring whose number 'x' is no input of one element"),
        (ring._replace(axis=4), "the state 'past' is a ring of another size than its port [1, 4, 192, 32]"),
    ):
        changed = replace(region, states=(replace(region_state, ring=wrong),))
        data = container_to_bytes(replace(container, segments=(changed,)))
        with pytest.raises(ProgramError, match=re.escape(reason)):
            container_from_bytes(data, "model")


def test_keys_and_values_share_a_number(tmp_path: Path) -> None:
    """Check states that each lie in their own area, which has a register."""
    case = Case(
        "attention",
        "x 1,4,1,32; h 1,4,1,32; q 1,4,1,32; past_k 1,4,96,32; past_v 1,4,96,32",
        _ENDS.format(first=1, axis=2)
        + "keys = Concat<axis = 2>(past_k, h) present_k = Slice(keys, b, e, a) values = Concat<axis = 2>(past_v, q) "
        "present_v = Slice(values, b, e, a) kt = Transpose<perm = [0, 1, 3, 2]>(keys) s = MatMul(x, kt) p = Softmax(s) "
        "y = MatMul(p, values)",
        "y present_k present_v",
    )
    rng = np.random.default_rng(6)
    onnx.save(case.proto, tmp_path / "n.onnx")
    np.savez(tmp_path / "data.npz", allow_pickle=False, **{n: rng.uniform(-1, 1, (24, 1, 4, 1, 32)).astype("f") for n in "xhq"})
    network_build, before = (
        build(tmp_path / "n.onnx", BuildOptions(machine, str(tmp_path / "data.npz"), repair="none"))
        for machine in (MACHINE, without_rows())
    )
    rings = [chip_state.ring for _, chip_state in network_build.container.states]
    assert len({ring.number for ring in rings if ring is not None}) == 1 and None not in rings
    chip, moved = Session(network_build.data), Session(before.data, backend="reference")
    for _ in range(100):
        feeds = {n: rng.uniform(-1, 1, (1, 4, 1, 32)).astype(np.float32) for n in "xhq"}
        assert np.array_equal(chip.run(None, feeds)[0], moved.run(None, feeds)[0])
    for name in ("past_k", "past_v"):
        assert np.array_equal(chip.state(name), moved.state(name))


@pytest.mark.parametrize("name", ["all are read", "cut, then joined"])
def test_errors_of_layers_are_those_of_a_state_that_moves(name: str, tmp_path: Path) -> None:
    onnx.save(CASES[name].proto, tmp_path / "n.onnx")
    samples = steps(name, 24)
    np.savez(tmp_path / "data.npz", allow_pickle=False, **{n: np.stack([s[n] for s in samples]) for n in samples[0]})
    error_reports = [
        build(tmp_path / "n.onnx", BuildOptions(machine, str(tmp_path / "data.npz"), states=STATES, error_report=True)).errors
        for machine in (MACHINE, without_rows())
    ]
    rows = [[row.as_json() for row in report.rows] for report in error_reports if report is not None]
    assert rows[0] == rows[1] and rows[0]


def test_a_state_moves_where_two_rows_and_two_waits_take_less() -> None:
    chip = load_machine("edge16").chip
    put_bytes = 2 * round_up(64, chip.dram.burst_bytes) + 2 * chip.dram.latency_cycles * chip.dram.write_bytes_per_cycle
    most_rows = int(put_bytes // 64)
    kinds = [TensorType((1, rows, 64), "int8") for rows in (most_rows, most_rows + 1)]
    assert [_gains(kind, 1, 1, chip) for kind in kinds] == [False, True]
