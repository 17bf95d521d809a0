"""Memories beside the SRAM: what programs put there, what that spares the SRAM, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from simulator import chrome_trace
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import CompileError
from toolchain.hw import load_chip
from toolchain.hw.describe import chip_lines
from toolchain.isa import Machine, decode, load_machine, make_default_table
from toolchain.isa.manual import manual
from toolchain.machine import Copy, MachineOp, Space, accesses
from toolchain.report.report_text import totals_text
from toolchain.runtime import Session, random_feeds, verify

WEIGHTS, CONSTANTS = "weights: wbuf", "weights: wbuf, parameters: wbuf"
WBUF = int(Space.MEMORY2)
Make = Callable[..., Machine]
Net = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make_machine(memories: str = "", mac: str = "", changes: Sequence[tuple[str, str]] = (), dma: str = "") -> Machine:
        """edge16 with further memories, and further keys of its engines: a YAML file and a first table, no more."""
        text = (files("hw_configs") / "edge16.yaml").read_text()
        replacements = [
            ("engines:\n", f"{memories}engines:\n"),
            ("    kind: mac_array\n", f"    kind: mac_array\n{mac}"),
            ("    kind: dma\n", f"    kind: dma\n{dma}"),
            ("isa/descriptors1024.yaml", "isa/mine.yaml"),
            *changes,
        ]
        for old, new in replacements:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / "mine.yaml").write_text(text)
        (tmp_path / "isa").mkdir(exist_ok=True)
        (tmp_path / "isa/mine.yaml").write_text(make_default_table(load_chip(str(tmp_path / "mine.yaml"))))
        return load_machine(str(tmp_path / "mine.yaml"))

    return make_machine


def memory(size: str = "64 KiB", name: str = "wbuf", rate: float = 64.0, more: str = "") -> str:
    return f"  {name}: {{size: {size}, read_bytes_per_cycle: {rate}, write_bytes_per_cycle: 32.0, alignment_bytes: 16{more}}}\n"


def operands(roles: str, more: str = "") -> str:
    return f"    memories: {{{roles}}}\n{more}"


@pytest.fixture
def net(tmp_path: Path) -> Net:
    def saved(nodes: Sequence[onnx.NodeProto], weights: dict[str, tuple[int, ...]], inputs: Sequence[str] = ("x",)) -> Path:
        rng = np.random.default_rng(1)
        constants = {n: rng.normal(size=s).astype(np.float32) for n, s in weights.items()}
        path, shapes = tmp_path / "model.onnx", dict.fromkeys(inputs, (1, 32, 12, 12))
        onnx.save(build_model(nodes, shapes, {nodes[-1].output[0]: None}, constants), path)
        return path

    return saved


def convolution(x: str, w: str, y: str, group: int = 1) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], name=y, kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=group)


@pytest.fixture
def residual(net: Net) -> Path:
    """Convolutions with a residual sum, a table and groups: a small ResNet's block and what else has constants."""
    nodes = [
        convolution("x", "w", "a"),
        helper.make_node("Sigmoid", ["a"], ["b"], name="b"),
        convolution("b", "v", "c"),
        helper.make_node("Add", ["c", "x"], ["d"], name="d"),
        convolution("d", "g", "e", group=4),
        convolution("e", "k", "y", group=32),
    ]
    return net(nodes, {"w": (32, 32, 3, 3), "v": (32, 32, 3, 3), "g": (32, 8, 3, 3), "k": (32, 1, 3, 3)})


def built(path: Path, machine: Machine, level: int = 2) -> tuple[Build, list[MachineOp]]:
    """Compiled, and once more held against the reference; with the operations of its one region."""
    network = build(path, BuildOptions(machine, level=level))
    (region,) = network.container.segments
    assert isinstance(region, Region)
    feeds = random_feeds(network.container.inputs, seed=5)
    _, difference = verify(Session(network.data, timing=True), Session(network.data, backend="reference"), feeds)
    assert difference is None
    return network, list(decode(region.program, machine.isa).ops)


def read_from(ops: Sequence[MachineOp], machine: Machine, kind: str) -> set[str]:
    """Names of the memories that operations of this kind read."""
    spaces = (a.space for op in ops if kind == op.ENGINE for a in accesses(op, machine.chip) if not a.write)
    return {machine.chip.spaces[space].name for space in spaces}


def constants_go_to(network: Build, ops: Sequence[MachineOp], machine: Machine) -> set[str]:
    """Names of the memories that constant blocks are copied into."""
    region = network.container.segments[0]
    assert isinstance(region, Region)
    copied = [op for op in ops if isinstance(op, Copy) and op.source_space == Space.DRAM]
    constant_copies = [op for op in copied if any(a <= op.source_address < a + len(data) for a, data in region.constants)]
    return {machine.chip.spaces[op.destination_space].name for op in constant_copies}


def test_constants_lie_in_their_own_memory_and_spare_the_sram(residual: Path, make: Make) -> None:
    plain, _ = built(residual, make())
    machine = make(memory(), operands(CONSTANTS))
    network, ops = built(residual, machine)
    assert constants_go_to(network, ops, machine) == {"wbuf"}
    assert read_from(ops, machine, "mac_array") == {"sram", "wbuf"}
    assert network.figures["sram_peak_bytes"] < plain.figures["sram_peak_bytes"]
    assert network.figures["cycles"] <= plain.figures["cycles"]
    (used,) = network.figures["buffers"]
    assert used["memory"] == "wbuf" and 0 < used["bound_bytes"] <= used["peak_bytes"] <= used["size_bytes"] == 1 << 16
    assert f"wbuf peak bytes  {used['peak_bytes']:>6,}" in totals_text(network.figures)
    assert plain.figures["buffers"] == [] and "wbuf" not in totals_text(plain.figures)


@pytest.mark.parametrize("level", [0, 1, 3])
def test_every_level_uses_it(level: int, residual: Path, make: Make) -> None:
    """Without fusion the table is the vector engine's, and in the SRAM."""
    machine = make(memory("8 KiB"), operands(CONSTANTS))
    network, ops = built(residual, machine, level)
    assert constants_go_to(network, ops, machine) == ({"wbuf", "sram"} if level == 0 else {"wbuf"})
    assert network.figures["buffers"][0]["peak_bytes"] > 1000


def test_parameters_stay_where_the_machine_has_them(residual: Path, make: Make) -> None:
    machine = make(memory(), operands(WEIGHTS))
    network, ops = built(residual, machine)
    assert constants_go_to(network, ops, machine) == {"sram", "wbuf"}
    swapped = make(memory(), operands("parameters: wbuf"))
    network, ops = built(residual, swapped)
    assert constants_go_to(network, ops, swapped) == {"sram", "wbuf"}


def test_its_bandwidth_is_charged(residual: Path, make: Make) -> None:
    fast, _ = built(residual, make(memory(), operands(CONSTANTS)))
    slow, _ = built(residual, make(memory(rate=0.25), operands(CONSTANTS)))
    assert slow.figures["cycles"] > 1.5 * fast.figures["cycles"]


def test_its_latency_and_filling_are_charged(net: Net, make: Make) -> None:
    path = net([convolution("x", "w", "y")], {"w": (32, 32, 3, 3)})
    near, _ = built(path, make(memory(more=", latency_cycles: 0"), operands(CONSTANTS)))
    far, _ = built(path, make(memory(more=", latency_cycles: 5000"), operands(CONSTANTS)))
    assert far.figures["cycles"] >= near.figures["cycles"] + 5000
    slow = memory().replace("write_bytes_per_cycle: 32.0", "write_bytes_per_cycle: 0.125")
    filled, _ = built(path, make(slow, operands(CONSTANTS)))
    assert filled.figures["cycles"] >= 8 * 9 * 32 * 32


@pytest.mark.slow
def test_a_small_buffer_has_smaller_tiles(residual: Path, make: Make) -> None:
    large, more = built(residual, make(memory("64 KiB"), operands(CONSTANTS)))
    small, fewer = built(residual, make(memory("2 KiB"), operands(CONSTANTS)))
    assert small.figures["buffers"][0]["peak_bytes"] <= 2048 < large.figures["buffers"][0]["peak_bytes"]
    assert len(fewer) > len(more)


@pytest.mark.slow
def test_what_does_not_fit_is_refused(residual: Path, make: Make) -> None:
    with pytest.raises(CompileError) as caught:
        build(residual, BuildOptions(make(memory("128 B"), operands(CONSTANTS))))
    lines = str(caught.value).split("\n")
    assert lines[0] == "a (Convolution): its smallest tile needs 1280 bytes of wbuf at once, edge16 has 128 (memories.wbuf.size)"
    assert lines[1] == "  live at step 1 of 4, the peak ('|' is the end of the wbuf):"
    assert lines[-1] == "  help: the smallest wbuf that would do for the network is 1280 bytes"
    assert lines[2].startswith("    constants         1024 bytes  [")
    assert lines[3].startswith("    constants 2        256 bytes  [") and len(lines) == 5
    built(residual, make(memory("1280 B"), operands(CONSTANTS)))


@pytest.mark.parametrize("roles", [WEIGHTS, CONSTANTS])
def test_each_of_two_arrays_reads_its_own(roles: str, residual: Path, make: Make) -> None:
    machine = make(memory("16 KiB", more=", private_to: mac"), operands(roles, "    count: 2\n"))
    network, ops = built(residual, machine)
    memories = {
        (op.unit_in(machine.chip).name, machine.chip.spaces[a.space].name)
        for op in ops
        if op.ENGINE == "mac_array"
        for a in accesses(op, machine.chip)
        if a.space != Space.SRAM
    }
    assert memories == {("mac0", "wbuf0"), ("mac1", "wbuf1")}
    assert [b["memory"] for b in network.figures["buffers"]] == ["wbuf0", "wbuf1"]
    assert network.figures["arrays_overlap"] > 0.2


SECOND = (
    "  small:\n    kind: mac_array\n    rows: 16\n    columns: 16\n    dataflow: os\n    accumulators: {entries: 4096}\n"
    "    types: [{activation: int8, weight: int8}]\n    post: [table, add]\n    memories: {ROLES}\n  vector:\n"
)


def test_an_array_whose_buffer_is_too_small_gets_nothing(net: Net, make: Make) -> None:
    """One row of weights has 288 bytes: the second array's buffer does not hold 16 of them, in no tiling."""
    path = net([convolution("x", "w", "y")], {"w": (32, 32, 3, 3)})
    tiny = memory("64 KiB") + memory("256 B", "nbuf")
    second = SECOND.replace("{ROLES}", "{weights: nbuf, parameters: nbuf}")
    machine = make(tiny, operands(CONSTANTS), [("  vector:\n", second)])
    _, ops = built(path, machine)
    assert read_from(ops, machine, "mac_array") == {"sram", "wbuf"}
    roomy = make(memory("64 KiB") + memory("32 KiB", "nbuf"), operands(CONSTANTS), [("  vector:\n", second)])
    _, ops = built(path, roomy)
    assert read_from(ops, roomy, "mac_array") == {"sram", "wbuf", "nbuf"}


def test_arrays_that_have_their_weights_in_different_places_share_a_layer(net: Net, make: Make) -> None:
    path = net([convolution("x", "w", "y")], {"w": (32, 32, 3, 3)})
    machine = make(memory(), operands(WEIGHTS), [("  vector:\n", SECOND.replace("{ROLES}", "{weights: sram}"))])
    network, ops = built(path, machine)
    assert constants_go_to(network, ops, machine) == {"sram", "wbuf"} and network.figures["arrays_overlap"] > 0.2


def test_a_channel_of_its_own_fills_it(residual: Path, make: Make) -> None:
    filler = "  filler: {kind: dma, bytes_per_cycle: 16.0, memories: [dram, wbuf]}\n  vector:\n"
    only = "    memories: [dram, sram]\n"
    machine = make(memory(), operands(CONSTANTS), [("  vector:\n", filler)], only)
    assert machine.chip.unused == {}
    network, ops = built(residual, machine)
    spaces = machine.chip.spaces
    used = {(op.unit_in(machine.chip).engine, spaces[op.destination_space].name) for op in ops if isinstance(op, Copy)}
    assert used == {("filler", "wbuf"), ("dma", "sram"), ("dma", "dram")}
    shared, _ = built(residual, make(memory(), operands(CONSTANTS)))
    assert network.figures["cycles"] < 1.05 * shared.figures["cycles"]


def test_a_buffer_that_nothing_fills_leaves_its_array_out(residual: Path, make: Make) -> None:
    machine = make(memory(), operands(CONSTANTS), dma="    memories: [dram, sram]\n")
    reason = "engines.mac.memories.weights is wbuf, which engines.dma does not fill from dram"
    assert machine.chip.unused == {"mac": reason}
    with pytest.raises(CompileError, match=f"^edge16: nothing that multiplies can be used: {reason}$"):
        build(residual, BuildOptions(machine))


def test_tables_of_the_vector_engine_have_a_memory(net: Net, make: Make) -> None:
    path = net([helper.make_node("Sigmoid", ["x"], ["y"], name="y")], {})
    tables = [("    kind: vector\n", "    kind: vector\n    memories: {tables: tbuf}\n")]
    machine = make(memory("1 KiB", "tbuf"), changes=tables)
    network, ops = built(path, machine)
    assert constants_go_to(network, ops, machine) == {"tbuf"} and read_from(ops, machine, "vector") == {"sram", "tbuf"}


def product() -> list[onnx.NodeProto]:
    return [
        helper.make_node("Relu", ["x"], ["a"], name="a"),
        helper.make_node("Transpose", ["a"], ["t"], name="t", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["a", "t"], ["m"], name="m"),
        helper.make_node("Add", ["m", "t"], ["y"], name="y"),
    ]


def test_the_second_operand_of_a_product_is_brought_to_the_weights(net: Net, make: Make) -> None:
    """It comes through the weight port, from the SRAM where it stays for others."""
    path, machine = net(product(), {}), make(memory("4 KiB"), operands(CONSTANTS))
    network, ops = built(path, machine)
    assert {f["node"] for f in network.figures["fallbacks"]} == set()
    products = [op for op in ops if op.NAME == "matrix_product"]
    assert products and read_from(products, machine, "mac_array") == {"sram", "wbuf"}
    ways = {(op.source_space, op.destination_space) for op in ops if isinstance(op, Copy)}
    assert (Space.SRAM, WBUF) in ways


def test_a_product_needs_a_way_from_the_sram(net: Net, make: Make) -> None:
    filler = "  filler: {kind: dma, bytes_per_cycle: 16.0, memories: [dram, wbuf]}\n  vector:\n"
    machine = make(memory(), operands(CONSTANTS), [("  vector:\n", filler)], "    memories: [dram, sram]\n")
    path = net([*product()[:3], convolution("m", "w", "y")], {"w": (32, 32, 3, 3)})
    network = build(path, BuildOptions(machine))
    reason = "engines.mac.memories.weights is wbuf, which engines.dma, engines.filler does not fill from sram"
    assert [(f["node"], f["reason"]) for f in network.figures["fallbacks"] if f["op"] == "MatMul"] == [("m", reason)]


def test_a_copy_fills_a_memory_larger_than_the_sram(make: Make) -> None:
    chip = make(memory("1 MiB"), operands(CONSTANTS)).chip
    need = Copy.need("inner_bytes", chip)
    assert (need.high, need.reason) == (1 << 20, "memories.wbuf.size")


def test_everyone_knows_it(residual: Path, make: Make, tmp_path: Path) -> None:
    """Trace, plan, `npu-hw show`, manual and memory images name the memory."""
    machine = make(memory(), operands(CONSTANTS))
    texts: dict[str, str] = {}
    network = build(residual, BuildOptions(machine), lambda stage, text: texts.update({stage: text()}))
    assert "wbuf peak " in texts["schedule"] and "ring constant 0 in wbuf" in texts["schedule"]
    session, feeds = Session(network.data, timing=True), random_feeds(network.container.inputs, seed=5)
    run = session.run_detailed(feeds).segments[0].simulation
    assert run is not None
    events = chrome_trace(machine.chip, run.flow, run)["traceEvents"]
    live, sram = ([e["args"]["bytes"] for e in events if e["name"] == f"{name} live bytes"] for name in ("wbuf", "sram"))
    largest = max(op.inner_bytes for op in run.flow if isinstance(op, Copy) and op.destination_space == WBUF)
    assert largest <= max(live) <= network.figures["buffers"][0]["peak_bytes"] and live[-1] == 0
    assert live != sram
    shown = "# wbuf: 64 KiB for weights of mac, parameters of mac, filled with at most 8 bytes a cycle"
    assert shown in chip_lines(machine.chip)
    assert "| 2 | wbuf | " in manual(machine)
    assert "- mac: input, output in sram; weights, parameters in wbuf" in manual(machine)


CLASSIFIER = Path(__file__).parents[2] / "examples" / "classifier" / "classifier.onnx"
LIGHT = [Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx" for name in ("squeezenet", "inception_v1")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [CLASSIFIER, *(pytest.param(p, marks=pytest.mark.exhaustive) for p in LIGHT)], ids=lambda p: p.stem
)
def test_real_networks(path: Path, make: Make) -> None:
    plain = build(path, BuildOptions(load_machine("edge16"))).figures
    wide = build(path, BuildOptions(make(memory("128 KiB"), operands(CONSTANTS)))).figures
    assert wide["cycles"] < 1.01 * plain["cycles"]
