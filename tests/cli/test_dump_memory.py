"""npu-sim --dump-memory: the memories behind an operation, what they hold, and the one index by which operations are named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from commands import run
from onnx import numpy_helper, parser
from test_backends import installed  # noqa: F401

from simulator import simulate
from toolchain.api import BuildOptions, build
from toolchain.codegen import Container, Region, read_container
from toolchain.errors import CompileError, ProgramError
from toolchain.ir.graph import INNER, Origin
from toolchain.isa import decode, load_machine
from toolchain.machine import MachineOp, Signal, Wait
from toolchain.runtime import (
    DumpPoint,
    Execution,
    Program,
    Session,
    dram_image,
    memory_files,
    parse_stop,
    random_feeds,
    write_port,
)

BRANCHES = (
    "a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, k) b = Conv<kernel_shape=[1,1]>(a, v) c = Add(a, b) "
    "d = Concat<axis=1>(b, c) s = MeanVarianceNormalization<axes=[1]>(d) y = MaxPool<kernel_shape=[3,3], strides=[2,2]>(s)"
)
MACHINES = ["edge16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ethos_u55_256", "wide32_w4a16"))]


@pytest.fixture(scope="module", params=MACHINES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two programs with an island between; a Concat made in place."""
    folder = tmp_path_factory.mktemp("dump")
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,12,12] x) => (float[1,16,5,5] y) {{ {BRANCHES} }}'
    )
    rng = np.random.default_rng(0)
    for name, shape in (("k", (8, 8, 3, 3)), ("v", (8, 8, 1, 1))):
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(proto, folder / "m.onnx")
    (folder / "m.npu").write_bytes(build(folder / "m.onnx", BuildOptions(request.param)).data)
    return folder / "m.npu"


def dump(session: Session, stop: DumpPoint, feeds: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    files = memory_files(session, stop, feeds)
    contents = json.loads(files["memory.json"])
    return contents, {n: np.frombuffer(files[m["file"]], np.uint8) for n, m in contents["memories"].items()}


def programs(container: Container) -> list[tuple[int, Region, tuple[MachineOp, ...]]]:
    regions = [(i, s) for i, s in enumerate(container.segments) if isinstance(s, Region)]
    return [(i, s, tuple(decode(s.program, container.machine.isa).ops)) for i, s in regions]


def stops(region: Region, count: int) -> list[int]:
    """Operations: the last of each layer, and some fifty besides; each stop is a run."""
    last = {layer: index for index, layer in enumerate(region.op_layers[:count])}
    return sorted({*last.values(), *range(0, count, max(1, count // 50))})


def test_tensors_that_are_whole_hold_what_the_reference_says(model: Path) -> None:
    """Dumps are taken after the last operation of each layer and many others.

    Each layer's tensor is complete after some operation, but none before the layer's first operation.
    """
    session = Session(model)
    feeds = random_feeds(session.get_inputs(), seed=1)
    codes = Session(model, backend="reference").run_detailed(feeds).codes
    for segment, region, ops in programs(session.container):
        complete_layers: set[str] = set()
        for index in stops(region, len(ops)):
            contents, memory = dump(session, DumpPoint(segment, index), feeds)
            assert contents["after"]["operation"] == ops[index].NAME
            for item in contents["contents"]:
                memory_bytes = memory[item["memory"]]
                assert item["address"] + item["bytes"] <= memory_bytes.size or item["kind"] == "tensor"
                if item["kind"] == "input":
                    port = next(p for p in region.inputs if p.tensor == item["name"])
                    assert item["tensor"] == port.model
                    assert np.array_equal(
                        memory_bytes[item["address"] :][: item["bytes"]].view(item["dtype"]), codes[port.tensor].ravel()
                    )
                if item["kind"] == "tensor" and item["written_bytes"] == item["bytes"]:
                    tensor = np.ndarray(item["shape"], item["dtype"], memory_bytes, item["address"], item["strides"])
                    assert np.array_equal(tensor, codes[item["name"]])
                    complete_layers.add(item["layer"])
            started_layers = {region.layers[i].name for i in region.op_layers[: index + 1] if i >= 0}
            assert complete_layers - {"Concat_3"} <= started_layers  # which other layers make in place
        assert complete_layers == {info.name for info in region.layers}


def test_tensors_have_the_names_of_the_model(tmp_path: Path) -> None:
    """Tensors named as the model's hold float's values in the given layout; the others are inside a node."""
    body = (
        "c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, k) d = Concat<axis=1>(c, x) t = Transpose<perm=[0,2,1,3]>(d) "
        "f = Flatten(t) y = Gemm(f, w)"
    )
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,6,6] x) => (float[1,10] y, float[1,16,6,6] d) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    for name, shape in (("k", (8, 8, 3, 3)), ("w", (576, 10))):
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(proto, tmp_path / "m.onnx")
    session = Session(build(tmp_path / "m.onnx", BuildOptions("edge16")).data)
    feeds = random_feeds(session.get_inputs(), seed=1)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("c", "t", "f"))
    names = [output.name for output in proto.graph.output]
    float_values: Any = onnxruntime.InferenceSession(proto.SerializeToString()).run(names, feeds)
    real = dict(zip(names, float_values))
    segment, _, ops = programs(session.container)[0]
    inner, compared = set[tuple[str, str]](), set[tuple[str, str, None]]()
    for contents, memory in (dump(session, DumpPoint(segment, index), feeds) for index in range(len(ops))):
        for item in (c for c in contents["contents"] if c["kind"] == "tensor" and c["written_bytes"] == c["bytes"]):
            if item["layout"] == "inner":
                inner.add((item["tensor"], item["inside"]))
                continue
            codes = np.ndarray(item["shape"], item["dtype"], memory[item["memory"]], item["address"], item["strides"])
            quant = session.container.graph.types[item["name"]].quant
            values = (codes.astype(float) - quant.zero_point) * quant.scale  # type: ignore[union-attr]
            values = values.transpose(0, 3, 1, 2) if item["layout"] == "nhwc" else values
            assert np.abs(values - real[item["tensor"]]).max() < 0.05 * np.abs(real[item["tensor"]]).max()
            compared.add((item["tensor"], item["layout"], item["inside"]))
    assert compared == {("c", "nhwc", None), ("d", "nhwc", None), ("t", "plain", None)}
    assert inner == {("d", "Concat_1"), ("y", "Gemm_4")}  # x at the scale of d; y before it has its shape


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, {"tensor": "x", "layout": "nhwc", "inside": None}),  # in a file of an older build
        (Origin("c", INNER), {"tensor": "c", "layout": "inner", "inside": "Conv_0"}),  # what only regions exchange
    ],
)
def test_ports_have_the_names_of_the_model(origin: Origin | None, expected: dict[str, Any], model: Path) -> None:
    session = Session(model)
    graph, ((segment, region, ops), *_) = session.container.graph, programs(session.container)
    object.__setattr__(graph, "origins", {} if origin is None else {region.inputs[0].tensor: origin})
    contents = dump(session, DumpPoint(segment, len(ops) - 1), random_feeds(session.get_inputs(), seed=1))[0]["contents"]
    (port,) = [item for item in contents if item["kind"] == "input"]
    assert port["name"] == region.inputs[0].tensor and {key: port[key] for key in expected} == expected


def test_memories_are_those_of_a_program_that_ends_there(model: Path) -> None:
    session = Session(model)
    feeds = random_feeds(session.get_inputs(), seed=1)
    codes = session.run_detailed(feeds).codes
    segment, region, ops = programs(session.container)[0]
    dram = dram_image(region)
    for port in region.inputs:
        write_port(dram, port, codes[port.tensor])
    for index in stops(region, len(ops)):
        ended = simulate(session.container.machine.chip, ops[: index + 1], None, dram, (), check=False, timing=False)
        _, memory = dump(session, DumpPoint(segment, index), feeds)
        assert np.array_equal(memory["dram"], ended.memory["dram"])
        assert np.array_equal(memory["sram"], ended.memory["sram"])


def test_the_end_holds_the_outputs(model: Path, tmp_path: Path) -> None:
    session = Session(model)
    feeds = random_feeds(session.get_inputs(), seed=1)
    np.savez(tmp_path / "x.npz", **feeds)  # pyright: ignore[reportArgumentType]
    printed = run(f"npu-sim {model} --input {tmp_path}/x.npz --dump-memory 2:end --out {tmp_path}/made/dump")
    last = len(programs(session.container)[1][2]) - 1
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.endswith(f"\nbehind op {last} of segment 2, on simulator\n")
    contents = json.loads((tmp_path / "made/dump/memory.json").read_text())
    (item,) = [c for c in contents["contents"] if c["kind"] == "output"]
    assert item["written_bytes"] == item["bytes"]
    dram = np.fromfile(tmp_path / "made/dump/dram.bin", np.uint8)
    codes = dram[item["address"] :][: item["bytes"]].view(item["dtype"]).reshape(item["shape"])
    real = (codes.astype(np.float32) - np.float32(item["zero_point"])) * np.float32(item["scale"])
    assert np.array_equal(real.transpose(0, 3, 1, 2), session.run(None, feeds)[0])


def test_nothing_is_overwritten(in_workshop: Path, tmp_path: Path) -> None:
    assert run(f"npu-sim good.npu --dump-memory 3 --out {tmp_path}/d").code == 0
    before = (tmp_path / "d/memory.json").read_bytes()
    printed = run(f"npu-sim good.npu --dump-memory 4 --out {tmp_path}/d")
    reason = f"--out {tmp_path}/d: is not empty, and nothing in it is overwritten; give a new folder\n"
    assert (printed.code, printed.out, printed.err) == (2, "", reason)
    assert (tmp_path / "d/memory.json").read_bytes() == before


def test_another_backend_gives_the_same_bytes(installed: None, in_workshop: Path, tmp_path: Path) -> None:  # noqa: F811
    for after in ("0:2", "2:5", "2:end"):
        for backend in ("simulator", "toy"):
            line = f"--input good.npz --dump-memory {after} --out {tmp_path}/{after}{backend} --backend {backend}"
            assert run(f"npu-sim island.npu {line}").code == 0
        ours, theirs = (tmp_path / f"{after}{backend}" for backend in ("simulator", "toy"))
        assert sorted(p.name for p in ours.iterdir()) == ["dram.bin", "dram.mask", "memory.json", "sram.bin", "sram.mask"]
        for name in ("dram.bin", "dram.mask", "sram.bin", "sram.mask"):
            assert (ours / name).read_bytes() == (theirs / name).read_bytes()
        toy_contents = json.loads((theirs / "memory.json").read_text())
        assert toy_contents["backend"] == "toy"
        assert toy_contents | {"backend": "simulator"} == json.loads((ours / "memory.json").read_text())


def test_a_program_cannot_stop_in_front_of_a_signal_that_is_waited_for() -> None:
    chip = load_machine("edge16").chip
    ops = (Wait(engine=1, semaphore=0), Signal(engine=0, semaphore=0))
    simulate(chip, ops, None, np.zeros(16, np.uint8), (), until=1)
    with pytest.raises(ProgramError) as refused:
        simulate(chip, ops, None, np.zeros(16, np.uint8), (), until=0)
    assert str(refused.value) == (
        "op 0 wait semaphore 0 (vector) waits for op 1 signal semaphore 0 (mac): the program cannot stop behind op 0; stop "
        "behind op 1 or later"
    )


def test_a_model_without_programs(in_workshop: Path) -> None:
    session = Session("good.npu")
    object.__setattr__(session.container, "segments", ())
    with pytest.raises(CompileError, match=r"^end: the model has no program, the host runs all of it$"):
        parse_stop("end", session)


# --- one index everywhere


def test_listing_trace_report_and_explanation_count_alike(model: Path, tmp_path: Path) -> None:
    container = read_container(model)
    line = f"--json {tmp_path}/s.json --trace {tmp_path}/t.json"
    assert run(f"npu-sim {model} {line}").code == 0
    figures = json.loads((tmp_path / "s.json").read_text())
    listed = _list_operations(run(f"npu-dis {model}").out)
    assert len(listed) == len(programs(container)) == 2
    events = [
        e["args"] | {"label": e["name"]}
        for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        if e["ph"] == "X" and "op" in e["args"]
    ]
    for (segment, region, ops), listing in zip(programs(container), listed, strict=True):
        names = {i: op.NAME for i, op in enumerate(ops)}
        assert listing == names
        traced = [e for e in events if e["segment"] == segment]
        assert all(names[e["op"]] == e["operation"] for e in traced)
        moved = {i for i, op in enumerate(ops) if not isinstance(op, Signal | Wait) and op.ENGINE is not None}
        assert moved <= {e["op"] for e in traced}
        for layer, row in enumerate(r for r in figures["layers"] if r["segment"] == segment):
            layer_ops = [i for i, owner in enumerate(region.op_layers) if owner == layer]
            assert row["operations"] == ([layer_ops[0], layer_ops[-1]] if layer_ops else None)


def _list_operations(text: str) -> list[dict[int, str]]:
    """Operation by index of each program of a listing, as its comments count."""
    names_by_program: list[dict[int, str]] = []
    for line in text.splitlines():
        if line.startswith("isa "):
            names_by_program.append({})
        match = re.match(r"\d+: (?:start )?(\w+)([^;]*)  ; op (\d+)(?:-(\d+))?", line)
        if match:
            name, fields, first, _ = match.groups()
            names = ["wait"] * (" wait=" in fields) + [name] + ["signal"] * (" signal=" in fields)
            names_by_program[-1] |= dict(zip(count(int(first)), names))
    return names_by_program


def test_explanations_have_the_report_s_operations(model: Path, tmp_path: Path) -> None:
    built = build(model.with_suffix(".onnx"), BuildOptions(read_container(model).machine))
    layers = {row["name"]: row for row in built.figures["layers"]}
    rows = [row for row in built.figures["nodes"] if row["layer"] is not None]
    assert rows
    for row in rows:
        assert (row["segment"], row["operations"]) == tuple(layers[row["layer"]][k] for k in ("segment", "operations"))


def test_faults_of_several_programs_say_which(in_workshop: Path) -> None:
    session = Session("island.npu")
    region = session.container.segments[2]
    assert isinstance(region, Region)
    object.__setattr__(region, "constants", ())
    with pytest.raises(ProgramError, match=r"^segment 2: op \d+ copy \(dma\d\) reads dram\["):
        session.run(None, random_feeds(session.get_inputs()))


class Board:
    """A backend whose memories hold noise at power-on. wrong: the address in the sram of a byte that it gets wrong."""

    observes = False

    def __init__(self, wrong: int | None = None, program: Program | None = None):
        self._wrong, self._given = wrong, program

    def load(self, program: Program, *, timing: bool, check: bool) -> Board:
        return Board(self._wrong, program)

    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        assert self._given is not None
        chip, rng = self._given.machine.chip, np.random.default_rng(7)
        region = self._given.region
        noisy = rng.integers(0, 256, dram.size, dtype=np.uint8)
        for address, size in [(a, len(data)) for a, data in region.constants] + [
            (p.address, p.size_bytes) for p in region.inputs
        ]:
            noisy[address : address + size] = dram[address : address + size]
        noise = {s.name: rng.integers(0, 256, s.memory.size, dtype=np.uint8) for s in chip.spaces[1:]}
        flow = self._given.flow
        ended = simulate(chip, flow, flow.words, noisy, (), until=until, check=False, timing=False, initial_memory=noise)
        if self._wrong is not None:
            ended.memory["sram"][self._wrong] ^= 1
        return Execution(ended.memory)


def compare_dumps(ours: Path, theirs: Path) -> tuple[int, str]:
    """Exit code and output of what docs/backends.md says to compare two dumps with."""
    page = Path(__file__).parents[2] / "docs/backends.md"
    (script,) = re.findall(r"```python\n(# compare\.py .*?)```", page.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", script, ours, theirs], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_noise_at_power_on_is_no_difference_under_the_mask(model: Path, tmp_path: Path) -> None:
    ours, board = Session(model), Session(model, backend=Board())
    feeds = random_feeds(ours.get_inputs(), seed=1)
    for segment, region, ops in programs(ours.container):
        for index in stops(region, len(ops)):
            files, theirs = (memory_files(session, DumpPoint(segment, index), feeds) for session in (ours, board))
            assert files["sram.bin"] != theirs["sram.bin"]
            for name in json.loads(files["memory.json"])["memories"]:
                known_mask = np.frombuffer(files[f"{name}.mask"], np.bool_)
                one, other = (np.frombuffer(images[f"{name}.bin"], np.uint8) for images in (files, theirs))
                assert np.array_equal(one[known_mask], other[known_mask]) and known_mask.any() >= (name == "dram")


def test_the_page_compares_two_dumps(model: Path, tmp_path: Path) -> None:
    ours = Session(model)
    feeds = random_feeds(ours.get_inputs(), seed=1)
    segment, region, _ = programs(ours.container)[0]
    stop = DumpPoint(segment, region.op_layers.index(1))
    known_mask = np.frombuffer(memory_files(ours, stop, feeds)["sram.mask"], np.bool_)
    written, free = int(np.flatnonzero(known_mask)[-1]), int(np.flatnonzero(~known_mask)[-1])
    boards = {"right": Board(), "wrong": Board(written), "free": Board(free)}
    for name, session in {"ours": ours, **{n: Session(model, backend=b) for n, b in boards.items()}}.items():
        (tmp_path / name).mkdir()
        for file, data in memory_files(session, stop, feeds).items():
            (tmp_path / name / file).write_bytes(data)
    same = "dram: 0 bytes differ\nsram: 0 bytes differ\n"
    assert compare_dumps(tmp_path / "ours", tmp_path / "right") == (0, same)
    assert compare_dumps(tmp_path / "ours", tmp_path / "free") == (0, same)
    first = f"dram: 0 bytes differ\nsram: 1 bytes differ, the first at {written:#x}\n"
    assert compare_dumps(tmp_path / "ours", tmp_path / "wrong") == (1, first)
