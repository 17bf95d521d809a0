"""Tensors that stay in the chip's memory from run to run: as bits handed over by the host, and as float says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import onnxruntime
import pytest

from quant.calibration_data import Samples, open_data
from quant.file import read_parameters
from tests.cli.commands import run
from tests.codegen.test_feature_maps import machine as with_granules
from tests.quantized.forms import script
from tests.schedule.test_placement import edge16 as edge16_with
from tests.semantics.case import Case
from tests.semantics.judge import sqnr_db
from tests.semantics.machines import int16_machine
from tests.support.control_flow_machines import CONTROL, with_control
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Container, Region, State, container_from_bytes, container_to_bytes
from toolchain.errors import CompileError, ProgramError
from toolchain.frontend import load_model, pair_states
from toolchain.frontend.state_pairs import pair_by_name
from toolchain.ir.states import StatePart
from toolchain.isa import Machine, load_machine
from toolchain.judging.evaluation_data import inputs_of
from toolchain.judging.stateful_samples import open_samples
from toolchain.runtime import EntriesSession, Session, verify
from toolchain.schedule.goals import Goal
from toolchain.schedule.region_planner import RegionPlanner
from toolchain.schedule.text import print_schedule

STEPS = 12
CASES = {
    case.name: case
    for case in (
        Case("cell", "x 1,8; h 1,8; w 8,8; u 8,8; v 8,4",
             "a = MatMul(x, w) b = MatMul(h, u) k = Constant<value_float = 0.2>() r = Mul(b, k) "
             "t = Add(a, r) hn = Tanh(t) y = MatMul(hn, v)", "y hn"),
        Case("sum", "x 2,5,8; h 2,5,8",
             "half = Constant<value_float = 0.5>() b = Mul(h, half) hn = Add(b, x) y = Relu(hn)", "y hn"),
        Case(  # the oldest step goes, the new one comes: every element moves
            "delay",
            "x 1,2,8; cache 1,6,8",
            "whole = Concat<axis = 1>(cache, x) b = Constant<value_ints = [2]>() e = Constant<value_ints = [8]>() "
            "a = Constant<value_ints = [1]>() cache_out = Slice(whole, b, e, a) y = ReduceMax<keepdims = 0>(whole, a)",
            "y cache_out",
        ),
        Case(  # a feature map of the convolution, and read again behind what writes it
            "map",
            "x 1,4,6,6; h 1,4,6,6; w 4,8,3,3",
            "both = Concat<axis = 1>(x, h) c = Conv<pads = [1, 1, 1, 1]>(both, w) hn = Tanh(c) y = Add(hn, h)",
            "y hn",
        ),
        Case("late", "x 1,16,32,32; h 1,16,32,32; w 16,16,3,3; v 16,16,3,3; u 16,16,3,3",  # read after its next value is there
             "c = Conv<pads = [1, 1, 1, 1]>(x, w) hn = Tanh(c) d = Conv<pads = [1, 1, 1, 1]>(hn, v) r = Relu(d) "
             "e = Conv<pads = [1, 1, 1, 1]>(r, u) y = Add(e, h)", "y hn"),
        Case(
            "two", "x 1,8; h 1,8; c 1,8; w 8,8",
            "a = MatMul(x, w) f = Sigmoid(a) g = Mul(f, c) cn = Add(g, a) t = Tanh(cn) hn = Mul(t, f) y = Add(hn, h)", "y hn cn",
        ),
        Case(  # of an LSTM that has one tensor for both: a small one, and one of 20 times its size
            "in parts", "x 1,1,8; h 2,1,8",
            "a = Constant<value_ints = [0]>() b = Constant<value_ints = [1]>() e = Constant<value_ints = [2]>() "
            "p = Slice(h, a, b, a) q = Slice(h, b, e, a) half = Constant<value_float = 0.5>() m = Mul(q, half) "
            "big = Constant<value_float = 20.0>() z = Mul(x, big) cn = Add(m, z) t = Add(p, x) pn = Tanh(t) "
            "hn = Concat<axis = 0>(pn, cn) y = Sub(pn, x)", "y hn",
        ),
        Case(
            "in parts, with weights", "x 1,1,8; h 2,1,8; w 8,8",
            "a = Constant<value_ints = [0]>() b = Constant<value_ints = [1]>() e = Constant<value_ints = [2]>() "
            "p = Slice(h, a, b, a) q = Slice(h, b, e, a) half = Constant<value_float = 0.5>() cn = Mul(q, half) "
            "r = MatMul(p, w) t = Add(r, x) pn = Tanh(t) hn = Concat<axis = 0>(pn, cn) y = Sub(pn, x)", "y hn",
        ),
        Case("clipped", "x 1,8; h 1,8", "t = Add(x, h) least = Constant<value_float = -0.5>() "
             "most = Constant<value_float = 0.5>() "
             "hn = Clip(t, least, most) y = Sub(hn, x)", "y hn"),
        Case("turned", "x 1,6,4,4; h 1,4,4,6", "t = Transpose<perm = [0, 2, 3, 1]>(x) k = MaxPool<kernel_shape = [1, 1]>(x) "
             "p = Transpose<perm = [0, 2, 3, 1]>(k) hn = Add(p, h) y = Relu(hn)", "y hn"),
        Case("only moved", "x 1,8; h 1,8; c 1,8",  # each is the other's next value
             "s = Add(x, h) d = Sub(c, x) y = Mul(s, d) hn = Identity(c) cn = Identity(h)", "y hn cn"),
        Case("handed on", "x 1,8; h 1,8; c 1,8", "s = Add(x, h) y = Mul(s, c) hn = Identity(x) cn = Identity(h)", "y hn cn"),
        Case("given out too", "x 1,8; h 1,8", "s = Add(x, h) y = Tanh(s) hn = Identity(y)", "y hn"),
        Case("as it was", "x 1,8; h 1,8", "y = Add(x, h) hn = Identity(h)", "y hn"),
        Case("read in both orders", "x 1,3,4,4; h 1,3,4,4; w 4,4",
             "a = MatMul(h, w) k = MaxPool<kernel_shape = [1, 1]>(h) s = Add(a, k) "
             "m = MaxPool<kernel_shape = [1, 1]>(x) hn = Tanh(m) y = Relu(s)", "y hn"),
        Case("behind the host", "x 1,4,6,6; h 1,4,6,6",  # what changes the scale of h could run in front of it
             "a = Constant<value_float = 0.1>() p = MaxPool<kernel_shape = [1, 1]>(x) m = Greater(p, a) s = Softmax(p) "
             "hn = Where(m, s, h) t = Softmax(hn) y = Relu(t)", "y hn"),
    )
}  # fmt: skip
PAIRS = {"delay": ["cache=cache_out"], **{n: ["h=hn", "c=cn"] for n in ("two", "only moved", "handed on")}}


@cache
def machines() -> dict[str, Machine]:
    two = edge16_with({"mac1": {}, "vector1": {"kind": "vector"}})
    names = ("edge16", "transformer64", "wide32_w4a16", "ws8_pow2", "nvdla_small")
    shipped = {name: load_machine(name) for name in names}
    bases = {**CONTROL, "bases": 8, "host_bases": 5}
    return {
        "granules": with_granules("edge16", 8, "line"),
        "surfaces": with_granules("edge16", 16, "surface"),
        **shipped,
        "two arrays": two,
        "16 bits": int16_machine(),
        "bases": with_control(load_machine("edge16"), control=bases),
    }


def pairs_of(name: str) -> list[tuple[str, str]]:
    return [(past, present) for past, _, present in (p.partition("=") for p in PAIRS.get(name, ["h=hn"]))]


def sequence(name: str, steps: int = STEPS, seed: int = 5) -> list[dict[str, np.ndarray]]:
    rng, pasts = np.random.default_rng(seed), [past for past, _ in pairs_of(name)]
    input_names = [i.name for i in CASES[name].proto.graph.input if i.name not in pasts]
    return [{n: rng.uniform(-1, 1, CASES[name].shapes[n]).astype(np.float32) for n in input_names} for _ in range(steps)]


def save_case(name: str, folder: Path) -> tuple[Path, str]:
    """The file, and data that say nothing of states."""
    path, data = folder / f"{name}.onnx", folder / "data.npz"
    onnx.save(CASES[name].proto, path)
    samples = sequence(name, 24)  # what is run later begins like them: nothing ends beyond a range
    np.savez(data, allow_pickle=False, **{n: np.stack([s[n] for s in samples]) for n in samples[0]})
    return path, str(data)


def built_on(machine: Machine, name: str, folder: Path, states: tuple[str, ...] | None = None) -> Build:
    path, data = save_case(name, folder)
    return build(path, BuildOptions(machine, data, states=states, repair="none"))


def get_states(built: Build) -> dict[str, State]:
    return {state.port.model: state for _, state in built.container.states}


def each_on_half() -> list[object]:
    """Machines and cases: all of both, each with every other one; the rest is exhaustive."""
    marks = ([], [pytest.mark.exhaustive])
    pairs = [(i + j, machine, name) for i, machine in enumerate(machines()) for j, name in enumerate(CASES)]
    return [pytest.param(machine, name, marks=marks[place % 2]) for place, machine, name in pairs]


@pytest.mark.parametrize(("machine", "name"), each_on_half())
def test_kept_on_the_chip_as_if_the_host_handed_it_over(machine: str, name: str, tmp_path: Path) -> None:
    built = built_on(machines()[machine], name, tmp_path)
    pairs = pairs_of(name)
    if set(get_states(built)) != {past for past, _ in pairs}:
        host_notes = [n for n in built.notes if "goes through the host" in n]
        assert machine in ("ws8_pow2", "nvdla_small") and len(host_notes) + len(get_states(built)) == len(pairs), built.notes
        return
    assert {t.name for t in built.container.outputs} == {"y"}
    chip, reference, host = Session(built.data), Session(built.data, backend="reference"), Session(built.data)
    handed = {past: np.zeros(CASES[name].shapes[past], np.float32) for past, _ in pairs}
    for feeds in sequence(name):
        (y,) = chip.run(None, feeds)
        (expected,) = reference.run(None, feeds)
        host.reset()
        again, *present_values = host.run(["y", *(present for _, present in pairs)], {**feeds, **handed})
        handed = {past: value for (past, _), value in zip(pairs, present_values)}
        assert np.array_equal(y, expected) and np.array_equal(y, again)
        for past, _ in pairs:
            assert np.array_equal(chip.state(past), reference.state(past))
            assert np.array_equal(chip.state(past), handed[past])
    last, difference = verify(Session(built.data), Session(built.data, backend="reference"), sequence(name)[0])
    assert difference is None and not [w for ran in last.segments for w in ran.warnings]


@pytest.mark.parametrize("name", CASES)
def test_a_sequence_is_what_float_makes_of_it(name: str, tmp_path: Path) -> None:
    built, pairs = built_on(int16_machine(), name, tmp_path), pairs_of(name)
    runner = onnxruntime.InferenceSession(CASES[name].proto.SerializeToString())
    outputs = [o.name for o in runner.get_outputs()]
    session, expected, got = Session(built.data), list[np.ndarray](), list[np.ndarray]()
    state = {past: np.zeros(CASES[name].shapes[past], np.float32) for past, _ in pairs}
    for feeds in sequence(name):
        outputs_by_name = dict(zip(outputs, runner.run(None, {**feeds, **state})))
        state = {past: np.asarray(outputs_by_name[present]) for past, present in pairs}
        expected.append(np.asarray(outputs_by_name["y"]))
        got.append(session.run(None, feeds)[0])
    assert sqnr_db(np.stack(expected), np.stack(got)) > 40
    for past, value in state.items():
        assert sqnr_db(value, session.state(past)) > 40


def test_the_program_of_one_scale_is_that_of_the_host(tmp_path: Path) -> None:
    """Check that with one range for both, only the place differs from a build whose state the host passes on."""
    path, _ = save_case("clipped", tmp_path)
    data = tmp_path / "whole.npz"
    x = np.random.default_rng(2).uniform(-1, 1, (24, 1, 8)).astype(np.float32)
    h = 0.5 * np.sin(np.linspace(-np.pi / 2, np.pi / 2, 8, dtype=np.float32))  # an input in whole steps has a scale of its own
    np.savez(data, allow_pickle=False, x=x, h=np.tile(h, (24, 1, 1)))
    here, host_build = (build(path, BuildOptions("edge16", str(data), states=states)) for states in (("h=hn",), ("none",)))
    port = next(p for s in host_build.container.segments if isinstance(s, Region) for p in s.inputs if p.model == "h")
    assert (port.scale, port.zero_point) == (get_states(here)["h"].port.scale, get_states(here)["h"].port.zero_point)
    chip, host = Session(here.data), Session(host_build.data)
    state = np.zeros((1, 8), np.float32)
    for feeds in sequence("clipped"):
        y, state = host.run(["y", "hn"], {**feeds, "h": state})
        assert np.array_equal(chip.run(None, feeds)[0], y)
        assert np.array_equal(chip.state("h"), state)


def region(container: Container) -> Region:
    (npu_region,) = (s for s in container.segments if isinstance(s, Region))
    return npu_region


@pytest.mark.parametrize("name", ["cell", "sum", "two", "delay"])
def test_what_is_read_before_it_is_written_needs_no_copy(name: str, tmp_path: Path) -> None:
    npu_region = region(built_on(load_machine("edge16"), name, tmp_path).container)
    assert "Pad" not in [layer.op for layer in npu_region.layers]
    places = {s.port.address for s in npu_region.states}
    join_addresses = {layer.result.address for layer in npu_region.layers if layer.result is not None and layer.op == "Join"}
    assert places == join_addresses


def test_what_is_read_later_is_copied_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(RegionPlanner, "_space_out", lambda _, plan: plan)  # where tensors have other places, none needs a copy
    npu_region = region(built_on(load_machine("edge16"), "map", tmp_path).container)
    assert npu_region.layers[-1].op == "Pad"
    assert npu_region.layers[-1].result is not None and npu_region.layers[-1].result.address == npu_region.states[0].port.address


@pytest.mark.parametrize("name", ["two", "map"])
@pytest.mark.parametrize("level", [0, 2])
def test_a_schedule_is_taken_back(level: int, name: str, tmp_path: Path) -> None:
    path, data = save_case(name, tmp_path)
    built = build(path, BuildOptions("edge16", data, level=level))
    schedule = tmp_path / "schedule.txt"
    schedule.write_text(print_schedule(built.schedule))
    assert build(path, BuildOptions("edge16", data, level=level, schedule=str(schedule))).data == built.data


def test_every_entry_has_states_of_its_own(tmp_path: Path) -> None:
    proto, data = onnx.load(save_case("two", tmp_path)[0]), tmp_path / "data.npz"
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(proto, tmp_path / "n.onnx")
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        name: dict.fromkeys(("x", "h", "c"), (count, 8)) for name, count in (("one", 1), ("four", 4))
    }
    built = build(tmp_path / "n.onnx", BuildOptions("edge16", str(data), entries=shapes))
    for name, count in (("one", 1), ("four", 4)):
        session, reference = (Session(built.data, backend=b, entry=name) for b in ("simulator", "reference"))
        assert [t.shape for t in session.get_states()] == [(count, 8)] * 2
        for feeds in sequence("two", 3):
            x = {"x": np.repeat(feeds["x"], count, 0)}
            assert np.array_equal(session.run(None, x)[0], reference.run(None, x)[0])
    assert [n for n in built.notes if n.endswith("each entry has its own, of another shape, type or scale")] == [
        f"state {name}: each entry has its own, of another shape, type or scale" for name in "hc"
    ]
    either, alone = EntriesSession(built.data), Session(built.data, entry="one")
    x = sequence("two", 2)
    (first,) = alone.run(None, x[0])
    for feeds in ({"x": x[0]["x"]}, {"x": np.repeat(x[0]["x"], 4, 0)}):
        (y,) = either.run(None, feeds)
        assert np.array_equal(y, np.repeat(first, len(y), 0))
    assert np.array_equal(either.run(None, x[1])[0], alone.run(None, x[1])[0])
    with pytest.raises(CompileError, match=r"^no entry takes x \[2, 8\]; entries are one \(x \[1, 8\]\); four \(x \[4, 8\]\)$"):
        either.run(None, {"x": np.zeros((2, 8), np.float32)})


def test_entries_of_one_state_go_on_from_each_other(tmp_path: Path) -> None:
    """A sum over any number of rows, in the order of the runs."""
    body = "s = ReduceSum<keepdims = 1>(x, a) hn = Add(s, h) y = Neg(hn)"
    ports = "(float[n,8] x, float[1,8] h) => (float[1,8] y, float[1,8] hn)"
    text = f'<ir_version: 9, opset_import: ["" : 17]> g {ports} <int64[1] a = {{0}}> {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    rng, data = np.random.default_rng(3), tmp_path / "data.npz"
    np.savez(data, allow_pickle=False, x=rng.uniform(-1, 1, (24, 2, 8)).astype(np.float32))
    entries: dict[str, dict[str, tuple[int, ...]]] = {"two": {"x": (2, 8)}, "four": {"x": (4, 8)}}
    built = build(tmp_path / "n.onnx", BuildOptions("edge16", str(data), entries=entries))
    assert "entries two, four: 1 state in common, as the last run leaves them" in built.notes
    session, total = EntriesSession(built.data), np.zeros((1, 8), np.float32)
    for count in (2, 4, 4, 2, 2):
        x = rng.uniform(-0.5, 0.5, (count, 8)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        total += x.sum(0)
        assert np.abs(y + total).max() < 0.15
        assert np.abs(session.state("h") + y).max() < 0.05
    session.reset()
    assert not any(one.state("h").any() for one in session.entries.values())


def test_reset_and_read(tmp_path: Path) -> None:
    built = built_on(load_machine("edge16"), "two", tmp_path)
    session, feeds = Session(built.data), sequence("two")
    first = session.run(None, feeds[0])[0]
    second = session.run(None, feeds[0])[0]
    assert not np.array_equal(first, second)
    session.reset()
    assert not session.state("h").any() and not session.state("c").any()
    assert np.array_equal(session.run(None, feeds[0])[0], first)
    h, c = session.state("h"), session.state("c")
    session.run(None, feeds[1])
    session.reset({"h": h, "c": c})
    assert np.array_equal(session.run(None, feeds[0])[0], second)
    session.reset({"c": c})
    assert not session.state("h").any() and np.array_equal(session.state("c"), c)
    assert [(t.name, t.shape) for t in session.get_states()] == [("h", (1, 8)), ("c", (1, 8))]
    with pytest.raises(CompileError, match=r"^no state 'hn'; the model's states are h, c$"):
        session.state("hn")
    with pytest.raises(CompileError, match=r"^there is no state 'z'; the model's states are c, h\nstate 'h' has shape \[8\]"):
        session.reset({"z": h, "h": h[0]})
    with pytest.raises(CompileError, match=r"^reset: is NoneType; give a mapping from the states' names, {'h': array, 'c'"):
        session.reset(None)  # type: ignore[arg-type]


def in_parts(folder: Path) -> Build:
    return built_on(int16_machine(), "in parts", folder)


def test_parts_of_a_state_have_scales_of_their_own(tmp_path: Path) -> None:
    built = in_parts(tmp_path)
    states = [state for _, state in built.container.states]
    assert [(s.name, s.part, s.port.shape) for s in states] == [("h[0:1]", (0, 2), (1, 1, 8)), ("h[1:2]", (1, 2), (1, 1, 8))]
    assert states[1].port.scale > 10 * states[0].port.scale
    runner = onnxruntime.InferenceSession(CASES["in parts"].proto.SerializeToString())
    session, expected_state = Session(built.data), np.zeros((2, 1, 8), np.float32)
    for feeds in sequence("in parts"):
        expected_state = np.asarray(runner.run(["hn"], {**feeds, "h": expected_state})[0])
        session.run(None, feeds)
    assert all(sqnr_db(expected_state[i], session.state("h")[i]) > 70 for i in (0, 1))


def test_a_state_in_parts_is_repaired(tmp_path: Path) -> None:
    """Check that layers which read a part of a state are repaired on that part of the samples' states."""
    path, data = save_case("in parts, with weights", tmp_path)
    built = build(path, BuildOptions(int16_machine(), data, repair="fast"))
    tried = {step["step"]: step["after_db"] for step in built.figures["repair"]["steps"]}
    assert tried["rounding"] is not None


def test_a_state_in_parts_is_read_and_set_whole(tmp_path: Path) -> None:
    built = in_parts(tmp_path)
    session, feeds = Session(built.data), sequence("in parts")
    assert [(t.name, t.shape) for t in session.get_states()] == [("h", (2, 1, 8))]
    session.run(None, feeds[0])
    state = session.state("h")
    (second,) = session.run(None, feeds[1])
    other = Session(built.data, backend="reference")
    other.reset({"h": state})
    assert np.array_equal(other.run(None, feeds[1])[0], second)
    other.reset()
    y, hn = other.run(["y", "hn"], {**feeds[1], "h": state})
    assert np.array_equal(y, second) and np.array_equal(hn, session.state("h"))
    with pytest.raises(CompileError, match=r"state 'h' has shape \[1, 1, 8\]"):
        session.reset({"h": state[:1]})


def test_headers_whose_parts_do_not_fit(tmp_path: Path) -> None:
    built = in_parts(tmp_path)
    npu_region = region(built.container)
    first, second = npu_region.states
    for wrong in ((first,), (first, first), (first, replace(second, part=StatePart(1, 3))), (first, replace(second, output="x"))):
        data = container_to_bytes(replace(built.container, segments=(replace(npu_region, states=wrong, areas=()),)))
        with pytest.raises(ProgramError, match="the state 'h' is made of parts that do not fit together"):
            container_from_bytes(data, "model")


def test_a_stopped_run_leaves_no_state(tmp_path: Path) -> None:
    session, feeds = Session(built_on(load_machine("edge16"), "cell", tmp_path).data), sequence("cell")[0]
    count = len(session.program(0).flow)
    before = session.state("h")
    session.memory_behind(0, count - 1, feeds)
    assert np.array_equal(session.state("h"), before)


def test_a_file_of_parameters_is_of_the_same_states(tmp_path: Path) -> None:
    """Check states without naming hints: a sum's next value goes further than the data hold of it."""
    proto = onnx.load(save_case("sum", tmp_path)[0])
    text = onnx.printer.to_text(proto).replace("hn", "left")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    rng, data = np.random.default_rng(3), tmp_path / "whole.npz"
    x, h = (rng.uniform(-1, 1, (24, 2, 5, 8)).astype(np.float32) for _ in range(2))
    for arrays in ({"x": x}, {"x": x, "h": h}):
        np.savez(data, allow_pickle=False, **arrays)
        completed = run(f"scripts/calibrate.py {tmp_path}/n.onnx --data {data} --hw edge16 --state h=left -o {tmp_path}/p.yaml")
        assert completed.code == 0 and ("taken as one sequence" in completed.out) == ("h" not in arrays), completed.err
        by_data = build(tmp_path / "n.onnx", BuildOptions("edge16", str(data), states=("h=left",)))
        by_file = build(tmp_path / "n.onnx", BuildOptions("edge16", parameters=str(tmp_path / "p.yaml"), states=("h=left",)))
        assert by_file.data == by_data.data
        tensors = read_parameters(tmp_path / "p.yaml").tensors
        assert tensors["h"] == tensors["left"]
    refused = run(f"scripts/calibrate.py {tmp_path}/n.onnx --data {data} --state z=left -o {tmp_path}/q.yaml")
    assert refused.code == 2 and "state z=left: there is no input 'z'" in refused.err and not (tmp_path / "q.yaml").exists()


def test_data_that_lack_what_could_be_a_state(tmp_path: Path) -> None:
    path, data = save_case("sum", tmp_path)
    with pytest.raises(CompileError) as fault:
        build(path, BuildOptions("edge16", data, states=("none",)))
    message = f"{data}: no array for input 'h' (arrays: 'x'); save it as numpy.savez(path, **{{'h': x}})"
    way_out = "what is an output of the run before needs no data: --state h=y or --state h=hn"
    assert str(fault.value) == f"{message}\n  help: {way_out}"


def open_case(name: str, data: Path | str, states: tuple[str, ...], folder: Path) -> tuple[Samples, tuple[str, ...]]:
    """Return samples and notes that the data give for a case with these pairs of states."""
    model = pair_states(load_model(save_case(name, folder)[0]), states)
    return open_samples(str(data), model, inputs_of(model))


def save_samples(data: Path, samples: list[dict[str, np.ndarray]], folders: tuple[str, ...] = ()) -> None:
    """Save each sample as an .npz in the directory `data`. `folders`: instead, .npy of these inputs, in a directory for each."""
    for index, sample in enumerate(samples):
        for name in folders:
            (data / name).mkdir(parents=True, exist_ok=True)
            np.save(data / name / f"{index:03}.npy", sample[name])
        if not folders:
            data.mkdir(exist_ok=True)
            np.savez(data / f"{index:03}.npz", allow_pickle=False, **sample)


def test_a_directory_for_each_input_may_lack_those_of_the_states(tmp_path: Path) -> None:
    """Check that it gives the samples of an .npz without the states."""
    steps, data = sequence("two", 24), tmp_path / "folders"
    save_samples(data, steps, ("x",))
    samples, notes = open_case("two", data, ("h=hn", "c=cn"), tmp_path)
    expected, _ = open_case("two", tmp_path / "data.npz", ("h=hn", "c=cn"), tmp_path)
    for sample, other in zip(samples, expected, strict=True):
        assert sample.keys() == other.keys() and all(np.array_equal(sample[n], other[n]) for n in other)
    how = "the samples are taken as one sequence, in order, with states of the float model from zeros on"
    assert notes == (f"{data} has no h, c: {how}",)


def test_data_that_hold_one_of_two_states_say_that_it_is_not_read(tmp_path: Path) -> None:
    steps, data = sequence("two", 24), tmp_path / "one.npz"
    ones = np.ones((24, 1, 8), np.float32)
    np.savez(data, allow_pickle=False, x=np.stack([s["x"] for s in steps]), h=ones)
    samples, notes = open_case("two", data, ("h=hn", "c=cn"), tmp_path)
    how = "the samples are taken as one sequence, in order, with states of the float model from zeros on"
    assert notes == (f"{data} has no c: {how}; what it holds of h is not read",)
    assert not next(iter(samples))["h"].any()


def test_a_missing_state_that_shows_when_samples_are_read_is_explained(tmp_path: Path) -> None:
    """Check files that are opened sample by sample, without paired states, and with one of two."""
    save_samples(tmp_path / "samples", sequence("two", 2))
    module = "import numpy\ndef make():\n    yield {'x': numpy.zeros((1, 8), 'f')}\n"
    (tmp_path / "g.py").write_text(module, "utf-8")
    for data in (tmp_path / "samples", f"{tmp_path / 'g.py'}:make"):
        for states, way_out in (
            (("none",), "--state h=y or --state h=hn or --state h=cn"),
            (("h=hn",), "--state c=y or --state c=cn"),
        ):
            samples, _ = open_case("two", data, states, tmp_path)
            help_line = f"\n  help: what is an output of the run before needs no data: {way_out}"
            with pytest.raises(CompileError, match=f"no array for input '.'.*{re.escape(help_line)}$"):
                next(iter(samples))


def test_data_that_hold_a_state_of_another_shape_are_refused(tmp_path: Path) -> None:
    path, _ = save_case("sum", tmp_path)
    np.savez(tmp_path / "d.npz", allow_pickle=False, x=np.zeros((3, 2, 5, 8), np.float32), h=np.zeros((3, 2, 5, 9), np.float32))
    with pytest.raises(CompileError, match=r"array for input 'h' has shape \[3, 2, 5, 9\]"):
        build(path, BuildOptions("edge16", str(tmp_path / "d.npz")))


def test_data_may_hold_the_states(tmp_path: Path) -> None:
    path, _ = save_case("cell", tmp_path)
    samples = CASES["cell"].samples
    data = tmp_path / "whole.npz"
    np.savez(data, allow_pickle=False, **{n: np.stack([s[n] for s in samples]) for n in samples[0]})
    built = build(path, BuildOptions("edge16", str(data)))
    assert not [n for n in built.notes if "taken as one sequence" in n]
    port, state_quant = get_states(built)["h"].port, built.container.graph.types["hn"].quant
    assert state_quant is not None and (state_quant.scale, state_quant.zero_point) == (
        port.scale,
        port.zero_point,
    )  # of one range
    stepped = built_on(load_machine("edge16"), "cell", tmp_path)
    assert [n for n in stepped.notes if n.endswith("data.npz has no h: the samples are taken as one sequence, in order, with "
                                                   "states of the float model from zeros on")]  # fmt: skip
    assert get_states(built)["h"].port.scale != get_states(stepped)["h"].port.scale


FAULTS = {
    ("z=hn",): "state z=hn: there is no input 'z'; inputs are x, h",
    ("h=hm",): "state h=hm: there is no output 'hm'; outputs are y, hn",
    ("hn=h",): "state hn=h: 'hn' is an output; the input comes first: h=hn",
    ("h",): "state h: must be PAST=PRESENT, for example state=stateN",
    ("h=y",): "state h=y: input 'h' is [1, 8], output 'y' [1, 4]; a state has one shape, or its place would not hold it",
    ("x=hn", "h=hn"): "state h=hn: output 'hn' is given twice; an output is the next value of one input\n"
    "state: no input is left that is none; a run would have nothing to take",
    ("h=hn", "h=hn"): "state h=hn: input 'h' is given twice\n"
    "state h=hn: output 'hn' is given twice; an output is the next value of one input",
    ("none", "h=hn"): "state none: stands alone; leave it out, or the others",
    ("none", "none"): "state none: stands alone; leave it out, or the others",
    ("z=hn", "h=y"): "state z=hn: there is no input 'z'; inputs are x, h\n"
    "state h=y: input 'h' is [1, 8], output 'y' [1, 4]; a state has one shape, or its place would not hold it",
}  # fmt: skip


@pytest.mark.parametrize("states", FAULTS)
def test_states_that_cannot_be(states: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(CompileError) as fault:
        built_on(load_machine("edge16"), "cell", tmp_path, states)
    way_out = "  help: --state PAST=PRESENT names an input and the output that is its next value; --state none carries nothing"
    assert str(fault.value) == f"{FAULTS[states]}\n{way_out}"


@pytest.mark.parametrize("form", ["qop_s8_tensor", "qdq_s16"])
def test_a_state_of_a_quantized_model_that_is_read_too(form: str, tmp_path: Path) -> None:
    path, _ = save_case("map", tmp_path)
    rng, data = np.random.default_rng(1), tmp_path / "whole.npz"
    np.savez(data, allow_pickle=False, **{n: rng.uniform(-1, 1, (24, 1, 4, 6, 6)).astype(np.float32) for n in ("x", "h")})
    model = load_model(path)
    quantized = script().quantize_form(onnx.load(path), open_data(data, {n: model.types[n] for n in model.inputs}), form)
    onnx.save(quantized, tmp_path / "q.onnx")
    built = build(tmp_path / "q.onnx", BuildOptions("transformer64", str(data), states=("h=hn",)))
    assert set(get_states(built)) == {"h"} and not built.container.fallbacks
    host_build = build(tmp_path / "q.onnx", BuildOptions("transformer64", str(data), states=("none",)))
    chip, host, state = Session(built.data), Session(host_build.data), np.zeros((1, 4, 6, 6), np.float32)
    for feeds in sequence("map", 4):  # h and hn have scales of their own in the file
        y, state_out = host.run(["y", "hn"], {**feeds, "h": state})
        assert np.array_equal(chip.run(None, feeds)[0], y)
        state = chip.state("h")
        assert np.abs(state - state_out).max() <= 0.51 * get_states(built)["h"].port.scale


def test_a_state_of_whole_numbers(tmp_path: Path) -> None:
    body = "y = Relu(x) m = Add(n, n)"
    text = f'<ir_version: 9, opset_import: ["" : 17]> g (float[4] x, int64[4] n) => (float[4] y, int64[4] m) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    with pytest.raises(CompileError, match=r"^state n=m: 'n' is int64; the chip keeps codes of float32"):
        build(tmp_path / "n.onnx", BuildOptions("edge16", states=("n=m",)))


def test_a_state_that_the_host_reads(tmp_path: Path) -> None:
    region_reason = "it is read in one region and made in another, with nodes of the host between them"
    for name, node, past, reason in (
        ("two", "cn", "c", "'cn' is made on the host, by cn"),
        ("two", "g", "c", "'c' is read on the host, by g"),
        ("cell", "t", "h", region_reason),
    ):
        path, data = save_case(name, tmp_path)
        options = BuildOptions("edge16", data, host_nodes=(node,), states=tuple(PAIRS.get(name, ("h=hn",))))
        with pytest.raises(CompileError) as fault:
            build(path, options)
        handed = "leave it out, and it goes through the host at every run, as input and output"
        way_out = f"  help: leave out the --host-node that keeps {node} there; or {handed}"
        assert str(fault.value) == f"state {past}={past}n: {reason}\n{way_out}"
        built = build(path, replace(options, states=None))
        assert past in [t.name for t in built.container.inputs]
        assert f"state {past}={past}n: goes through the host at every run, as input and output: {reason}" in built.notes


def test_the_copy_of_a_state_is_last_where_the_order_of_layers_is_open(tmp_path: Path) -> None:
    path, data = save_case("late", tmp_path)
    built = build(path, BuildOptions("edge16", data, goal=Goal("memory")))
    assert set(get_states(built)) == {"h"}


def test_an_operation_that_reads_what_the_state_has_lost_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that bits differ where every next value is written in place."""
    monkeypatch.setattr(RegionPlanner, "_space_out", lambda _, plan: plan)
    monkeypatch.setattr("toolchain.codegen.place_states._still_read", lambda placed, state: False)
    from toolchain.errors import InternalError

    with pytest.raises(InternalError, match="differs from the integer reference"):
        built_on(load_machine("edge16"), "map", tmp_path)


def test_headers_that_contradict_themselves(tmp_path: Path) -> None:
    built = built_on(load_machine("edge16"), "cell", tmp_path)
    npu_region = region(built.container)
    (state,) = npu_region.states
    for wrong, reason in (
        (replace(state, output=""), "port 'h' is of kind state; states have the keys made and output, nothing else does"),
        (replace(state, port=replace(state.port, model="x")), "'x' is a state, and is made or kept elsewhere too"),
        (replace(state, present_tensor="nothing"), "graph: no node makes the state 'h'"),
        (replace(state, present_tensor="y"), "graph: the state 'h' is left in another type than it is read in"),
    ):
        data = container_to_bytes(replace(built.container, segments=(replace(npu_region, states=(wrong,), areas=()),)))
        with pytest.raises(ProgramError, match=re.escape(reason)):
            container_from_bytes(data, "model")


def test_an_area_of_a_state_lies_where_the_host_puts_it(tmp_path: Path) -> None:
    built = built_on(machines()["bases"], "cell", tmp_path)
    moved_session = Session(built.data, bases={"state:h": 0x8000})
    here = Session(built.data)
    for feeds in sequence("cell"):
        assert np.array_equal(here.run(None, feeds)[0], moved_session.run(None, feeds)[0])
    assert region(moved_session.container).states[0].port.address == 0x8000


def test_commands_take_and_leave_states(tmp_path: Path) -> None:
    path, data = save_case("two", tmp_path)
    npu, x, state_file = tmp_path / "two.npu", tmp_path / "x.npz", tmp_path / "left.npz"
    completed = run(f"npu-build {path} --hw edge16 --calib {data} --state h=hn --state c=cn -o {npu}")
    assert completed.code == 0 and "note: state h=hn: stays in the chip's memory" in completed.out, completed.err
    session, feeds = Session(npu), sequence("two", 3)
    handed: dict[str, np.ndarray] = {}
    for sample in feeds:
        np.savez(x, allow_pickle=False, **sample, **handed)
        ran = run(f"npu-sim {npu} --input {x} --output {state_file} --verify")
        assert ran.code == 0, ran.err
        with np.load(state_file) as stored:
            assert sorted(stored) == ["c", "h", "y"]
            assert np.array_equal(stored["y"], session.run(None, sample)[0])
            handed = {name: stored[name] for name in ("h", "c")}
    assert np.array_equal(handed["h"], session.state("h"))
    listed = run(f"npu-dis {npu}")
    assert "; state h [1, 8] int8 at DRAM" in listed.out
    refused = run(f"npu-build {path} --hw edge16 --state h=cn --state c=cn -o {tmp_path / 'no.npu'}")
    assert refused.code == 2 and "state c=cn: output 'cn' is given twice" in refused.err and "Traceback" not in refused.err
    assert not (tmp_path / "no.npu").exists()
    image = run(f"npu-build {path} --hw edge16 --calib {data} -o {npu} --image {tmp_path / 'image'}")
    assert image.code == 0, image.err
    (region_,) = json.loads((tmp_path / "image" / "ports.json").read_text())["segments"]
    assert [(s["tensor"], s["output"]) for s in region_["states"]] == [("h", "hn"), ("c", "cn")]


def test_a_run_that_fails_leaves_states_as_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session, feeds = Session(built_on(load_machine("edge16"), "cell", tmp_path).data), sequence("cell")
    session.run(None, feeds[0])
    before = session.state("h")

    class Failing:
        def run(self, dram: np.ndarray, **options: object) -> None:
            dram[:] = 99
            raise ProgramError("no")

    monkeypatch.setattr(session, "_loaded", lambda index: Failing())
    with pytest.raises(ProgramError, match="no"):
        session.run(None, feeds[1])
    assert np.array_equal(session.state("h"), before)


def test_a_run_that_fails_behind_the_chip_leaves_states_as_they_were(tmp_path: Path) -> None:
    path, data = save_case("two", tmp_path)
    built = build(path, BuildOptions("edge16", data, host_nodes=("y",)))
    assert set(get_states(built)) == {"c"}
    session, feeds = Session(built.data), {**sequence("two")[0], "h": np.zeros((1, 8), np.float32)}
    session.run(None, feeds)
    before = session.state("c")
    with pytest.raises(CompileError, match="onnxruntime cannot run them"):
        session.run(None, feeds, "no options")
    assert np.array_equal(session.state("c"), before)


NAMED = {
    ("state",): ["stateN"],
    ("past_key_values.3.key", "past_key_values.3.value"): ["present.3.key", "present.3.value"],
    ("h0", "c0"): ["hn", "cn"],
    ("cache_in_2",): [],
    ("conv_cache",): ["conv_cache_out"],
    ("img_in",): [],
}


@pytest.mark.parametrize("inputs", NAMED)
def test_names_that_say_it(inputs: tuple[str, ...]) -> None:
    outputs = ["img_out", "y", *NAMED[inputs]]
    assert list(pair_by_name(["x", *inputs], outputs)) == list(zip(inputs, NAMED[inputs]))


WRITTEN = {
    "one": ("b = TensorScatter(a, x, at) d = Add(c, c)", ["a=b"]),
    "both, and by the name": ("b = TensorScatter(a, x, at) d = TensorScatter(c, x, at) hn = Neg(h)", ["h=hn", "a=b", "c=d"]),
    "crossed": ("d = TensorScatter(a, x, at) b = TensorScatter(c, x, at)", ["a=d", "c=b"]),
    "of one cache": ("b = TensorScatter(a, x, at) d = TensorScatter(a, x, later)", []),
    "not as it comes": ("e = Neg(a) b = TensorScatter(e, x, at) d = Neg(c)", []),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_caches_that_rows_are_written_to(name: str, tmp_path: Path) -> None:
    """Whatever they are called."""
    body, expected = WRITTEN[name]
    cache, hidden = "float[1,2,8,4]", "float[2]"
    input_text = f"({hidden} h, {cache} a, {cache} c, float[1,2,1,4] x, int64[1] at, int64[1] later)"
    output_text = f"{cache} b, {cache} d, {cache} y" + (f", {hidden} hn" if "hn" in body else "")
    text = f'<ir_version: 11, opset_import: ["" : 24]> g {input_text} => ({output_text}) {{ {body} y = Relu(c) }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    model = pair_states(load_model(tmp_path / "n.onnx"), None)
    assert [f"{past}={present}" for past, present in model.states] == expected


def test_a_region_that_only_looks_at_its_inputs_otherwise(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[4,2] x) => (float[8] y) <int64[1] s = {8}> { y = Reshape(x, s) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    for level in (0, 2, 3):
        built = build(tmp_path / "n.onnx", BuildOptions("edge16", level=level))
        assert not region(built.container).layers


LIKELY = {
    "one": ("float[1,4] x, float[1,8] a", "float[1,4] y, float[1,8] b", "y = Neg(x) b = Relu(a)", ["a=b"]),
    "two of one shape": ("float[1,8] x, float[1,8] a", "float[1,8] y, float[1,8] b", "y = Neg(x) b = Add(a, x)", []),
    "not computed of it": ("float[1,4] x, float[1,8] a", "float[1,4] y, float[1,8] b", "y = Relu(x) b = Pad(y, pads)", []),
    "nothing left to give": ("float[1,4] x, float[1,8] a", "float[1,8] b", "z = Pad(x, pads) b = Add(a, z)", []),
    "its name says so": ("float[1,4] x, float[1,8] h", "float[1,4] y, float[1,8] hn", "y = Neg(x) hn = Relu(h)", []),
}


@pytest.mark.parametrize("name", LIKELY)
def test_a_pair_that_may_be_a_state_is_told(name: str, tmp_path: Path) -> None:
    """Check that such a pair is no state unless the user says so."""
    input_text, output_text, body, expected = LIKELY[name]
    pads = "pads = Constant<value = int64[4] {0,0,0,4}>()"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({input_text}) => ({output_text}) {{ {pads} {body} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    notes = [n for n in build(tmp_path / "n.onnx", BuildOptions("edge16")).notes if "may be a state" in n]
    assert [n.partition("--state ")[2].split()[0] for n in notes] == expected
    for states in (("none",), *((pair,) for pair in expected)):
        assert "may be a state" not in str(build(tmp_path / "n.onnx", BuildOptions("edge16", states=states)).notes)
