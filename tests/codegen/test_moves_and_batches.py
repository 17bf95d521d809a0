"""Machines whose DMA has four dimensions or transposes, and that make several matrix products at once: fewer operations, the same
bits, and never more cycles."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.force_cascades import first_way
from tests.support.random_cases import DrawnMachine, first_table, machines
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import CompileError
from toolchain.hw import read_source
from toolchain.isa import Isa, Machine, decode, load_machine, make_default_table
from toolchain.isa.encoding_needs import find_encoding_gaps
from toolchain.isa.machine import read_table
from toolchain.machine import Copy, Fill, MachineOp, MatrixProduct
from toolchain.runtime import Session
from toolchain.schedule.region_planner import RegionPlanner

PERMS = [(0, 2, 3, 1), (0, 2, 1, 3), (0, 3, 2, 1), (1, 3, 0, 2), (3, 2, 1, 0), (2, 0, 1, 3)]


def edge16(sram_kib: int = 512, max_batches: int = 1, **dma: int) -> Machine:
    machine = load_machine("edge16")
    chip = machine.chip
    engines = {**chip.engines, "dma": chip.engines["dma"].model_copy(update=dma)}
    memories = {**chip.memories, "sram": chip.sram.model_copy(update={"size": sram_kib << 10})}
    product = chip.limits.matrix_product.model_copy(update={"max_batches": max_batches})
    limits = chip.limits.model_copy(update={"matrix_product": product})
    chip = chip.model_copy(update={"engines": engines, "memories": memories, "limits": limits})
    assert not find_encoding_gaps(chip, machine.isa)
    return replace(machine, chip=chip)


def save_model(
    path: Path, nodes: list[Any], inputs: dict[str, tuple[int, ...]], y: tuple[int, ...], **constants: np.ndarray
) -> Path:
    onnx.save(build_model(nodes, inputs, {"y": y}, constants, opset=20), path)
    return path


def operations(built: Build) -> list[MachineOp]:
    machine = built.container.machine
    regions = [s for s in built.container.segments if isinstance(s, Region)]
    return [op for region in regions for op in decode(region.program, machine.isa).ops]


def count(built: Build, kind: type[MachineOp]) -> int:
    return sum(isinstance(op, kind) for op in operations(built))


def outputs(built: Build, seed: int = 1) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs, and what the program's bytes make of them."""
    session = Session(built.data)
    rng = np.random.default_rng(seed)
    feeds = {i.name: rng.uniform(-1, 1, i.shape).astype(np.float32) for i in session.get_inputs()}
    return feeds, session.run(None, feeds)[0]


@pytest.mark.parametrize("perm", PERMS, ids=str)
def test_transposes_take_fewer_operations_and_no_more_cycles(perm: tuple[int, ...], tmp_path: Path) -> None:
    shape = (3, 12, 8, 16)
    node = helper.make_node("Transpose", ["x"], ["y"], perm=perm)
    path = save_model(tmp_path / "m.onnx", [node], {"x": shape}, tuple(shape[p] for p in perm))
    plain, four, transposing, both = (
        build(path, BuildOptions(edge16(**dma)))
        for dma in ({}, {"dimensions": 4}, {"transpose_block": 16}, {"dimensions": 4, "transpose_block": 16})
    )
    assert count(four, Copy) == count(both, Copy) == 1
    assert count(transposing, Copy) <= count(plain, Copy)
    assert (count(plain, Copy) > 1) == (perm in ((0, 3, 2, 1), (1, 3, 0, 2), (3, 2, 1, 0)))
    assert both.figures["cycles"] <= min(four.figures["cycles"], transposing.figures["cycles"])
    assert max(four.figures["cycles"], transposing.figures["cycles"]) <= plain.figures["cycles"]
    if perm[-1] != 3:  # single elements from and to DRAM, else runs of 16
        assert transposing.figures["cycles"] < plain.figures["cycles"] / 2
    assert {op.transpose for op in operations(transposing) if isinstance(op, Copy)} == {int(perm[-1] != 3)}
    feeds, expected = outputs(plain)
    assert np.abs(expected - feeds["x"].transpose(perm)).max() < 0.02
    for built in (four, transposing, both):
        assert np.array_equal(outputs(built)[1], expected)


def test_channels_over_space_in_one_copy(tmp_path: Path) -> None:
    """DepthToSpace in column-row-depth order moves five dimensions, of which two are a matrix."""
    node = helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode="CRD")
    path = save_model(tmp_path / "m.onnx", [node], {"x": (2, 16, 6, 8)}, (2, 4, 12, 16))
    counts = [
        count(build(path, BuildOptions(edge16(**dma))), Copy)
        for dma in ({}, {"dimensions": 4}, {"dimensions": 4, "transpose_block": 8})
    ]
    assert counts[0] > counts[1] > counts[2] == 1


def test_a_matrix_is_turned_only_where_it_pays(tmp_path: Path) -> None:
    """Check a transpose from sram, which has no bursts, to DRAM: gathering single elements costs nothing there, pieces of 2
    elements do.
    """
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Transpose", ["s"], ["y"], perm=[1, 0])]
    path = save_model(tmp_path / "m.onnx", nodes, {"x": (64, 64)}, (64, 64))
    plain, small = (build(path, BuildOptions(edge16(**dma))) for dma in ({}, {"transpose_block": 2}))
    assert small.figures["cycles"] == plain.figures["cycles"]
    assert not any(op.transpose for op in operations(small) if isinstance(op, Copy))


def attention(path: Path, heads: int, length: int, width: int, second: tuple[int, ...] = ()) -> Path:
    """y = (q k) v for each head. second: the batch dimensions of k and v where they are others."""
    lead = second or (1, heads)
    shapes = {"q": (1, heads, length, width), "k": (*lead, width, length), "v": (*lead, length, width)}
    nodes = [helper.make_node("MatMul", ["q", "k"], ["a"]), helper.make_node("MatMul", ["a", "v"], ["y"])]
    return save_model(path, nodes, shapes, (1, heads, length, width))


@pytest.mark.parametrize("second", [(), (1,), (1, 1)], ids=["each its own", "one for all", "one for all, of rank 4"])
def test_heads_are_one_operation(second: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegionPlanner, "_layer_by_layer", first_way)  # a raced plan is faster, of more operations
    path = attention(tmp_path / "m.onnx", 12, 16, 8, second)
    single, together, some = (build(path, BuildOptions(edge16(max_batches=n))) for n in (1, 64, 5))
    # Not one for all twelve: the first heads are multiplied while others are loaded.
    assert count(single, MatrixProduct) == 24 and 2 <= count(together, MatrixProduct) <= 7
    assert count(together, MatrixProduct) < count(some, MatrixProduct) <= 10
    assert 3 <= max(op.batches for op in operations(some) if isinstance(op, MatrixProduct)) <= 5
    assert len(operations(together)) < len(operations(single))
    assert together.figures["cycles"] <= single.figures["cycles"]
    feeds, expected = outputs(single)
    real = feeds["q"] @ feeds["k"] @ feeds["v"]
    assert np.abs(expected - real).max() < 0.08 * np.abs(real).max()
    for built in (together, some):
        assert np.array_equal(outputs(built)[1], expected)


def test_products_whose_sums_are_cut_are_made_one_by_one(tmp_path: Path) -> None:
    machine = edge16(max_batches=64)
    product = machine.chip.limits.matrix_product.model_copy(update={"max_k": 4})
    limits = machine.chip.limits.model_copy(update={"matrix_product": product})
    machine = replace(machine, chip=machine.chip.model_copy(update={"limits": limits}))
    built = build(attention(tmp_path / "m.onnx", 3, 8, 8), BuildOptions(machine))
    products = [op for op in operations(built) if isinstance(op, MatrixProduct)]
    assert {op.batches for op in products} == {1} and any(op.accumulate for op in products)


def block(path: Path, length: int, width: int, heads: int) -> Path:
    """A transformer's block with a function in place of its softmax, all of it on the chip."""
    rng, each = np.random.default_rng(0), width // heads
    constants: dict[str, np.ndarray] = {"heads": np.array([1, length, heads, each]), "flat": np.array([1, length, width])}
    shapes = {"wq": (width, width), "wk": (width, width), "wv": (width, width), "wo": (width, width)}
    shapes |= {"w1": (width, 4 * width), "w2": (4 * width, width)}
    constants |= {n: rng.normal(0, s[0] ** -0.5, s).astype(np.float32) for n, s in shapes.items()}
    nodes = []
    for name in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            helper.make_node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
            helper.make_node("Transpose", [f"{name}1"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    steps = ("MatMul q k a", "Sigmoid a b", "MatMul b v c", "Transpose c d", "Reshape d flat e", "MatMul e wo f", "Add f x h")
    for step in (*steps, "MatMul h w1 i", "Gelu i j", "MatMul j w2 l", "Add l h y"):
        kind, *read, output = step.split()
        order: dict[str, Any] = {"perm": [0, 2, 1, 3]} if kind == "Transpose" else {}
        nodes.append(helper.make_node(kind, read, [output], **order))
    return save_model(path, nodes, {"x": (1, length, width)}, (1, length, width), **constants)


@pytest.mark.parametrize("sram_kib", [pytest.param(512, marks=pytest.mark.exhaustive), 64])
def test_a_block_of_a_transformer(sram_kib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegionPlanner, "add_prefetch", lambda _, plan, most: plan)  # constants in pieces would be counted too
    monkeypatch.setattr(RegionPlanner, "retile", lambda _, plan: plan)  # and finer tiles
    path = block(tmp_path / "m.onnx", 64, 96, 6)
    plain = build(path, BuildOptions(edge16(sram_kib)))
    built = build(path, BuildOptions(edge16(sram_kib, 64, dimensions=4, transpose_block=16)))
    assert len(operations(built)) < len(operations(plain)) and built.figures["cycles"] <= plain.figures["cycles"]
    assert np.array_equal(outputs(built)[1], outputs(plain)[1])


@pytest.mark.parametrize("kind", ["descriptors", "registers"])
def test_bits_only_where_the_machine_has_them(kind: str) -> None:
    def parameters(machine: Machine) -> Counter[str]:
        text = make_default_table(machine.chip, kind)
        names = ("count_outer", "source_stride_outer", "transpose", "batches", "a_batch_stride")
        return Counter({name: text.count(f"{name}: ") for name in names if f"{name}: " in text})

    assert not parameters(edge16())
    assert parameters(edge16(dimensions=4)).keys() == {"count_outer", "source_stride_outer"}
    assert parameters(edge16(transpose_block=4)).keys() == {"transpose"}
    assert parameters(edge16(max_batches=12)).keys() == {"batches", "a_batch_stride"}
    table, _ = read_table(read_source(make_default_table(edge16().chip, kind), "first.yaml"))
    assert table is not None
    wide = edge16(dimensions=4, transpose_block=4, max_batches=12).chip
    reasons = {reason for _, reason in find_encoding_gaps(wide, Isa(table, wide))}
    assert "has no bits for batches, but this chip uses 1 to 12 (limits.matrix_product.max_batches)" in reasons
    assert "has no bits for transpose, but this chip uses 0 to 1 (engines.dma.transpose_block)" in reasons
    assert any(reason.startswith("has no bits for count_outer, but this chip uses 1 to ") for reason in reasons)


@pytest.mark.slow
def test_random_moves_and_products(tmp_path: Path) -> None:
    """A build holds its program against the reference: x in any order, multiplied by another matrix for each or for all."""
    op_counts: Counter[str] = Counter()

    @settings(
        max_examples=16,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(machines(), st.permutations(range(4)), st.tuples(*[st.integers(2, 6)] * 4), st.booleans())
    def check(drawn: DrawnMachine, perm: list[int], shape: tuple[int, ...], shared: bool) -> None:
        moved = tuple(shape[p] for p in perm)
        other = (*((1, 1) if shared else moved[:2]), moved[3], moved[2])
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=perm),
            helper.make_node("Relu", ["t"], ["r"]),
            helper.make_node("MatMul", ["r", "z"], ["y"]),
        ]
        path = save_model(tmp_path / "m.onnx", nodes, {"x": shape, "z": other}, (*moved[:3], moved[2]))
        try:
            built = build(path, BuildOptions(drawn.machine))
        except CompileError as fault:
            assert "smallest tile needs" in str(fault), fault
            return
        for op in operations(built):
            op_counts["turned"] += isinstance(op, Copy) and op.transpose
            op_counts["several products"] += isinstance(op, MatrixProduct) and op.batches > 1

    check()
    assert op_counts["turned"] and op_counts["several products"], op_counts


@pytest.mark.parametrize("dma", [{}, {"transpose_block": 16}], ids=str)
def test_moves_of_more_than_an_operation_says_are_several(dma: dict[str, int], tmp_path: Path) -> None:
    """Check copies between tensors in DRAM whose runs and counts exceed what a first table holds, the bytes of the SRAM."""
    machine = edge16(4, **dma)
    machine = replace(machine, isa=first_table(machine.chip, "descriptors"))
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=0),
        helper.make_node("Transpose", ["twice"], ["turned"], perm=[0, 2, 3, 1]),
        helper.make_node("Pad", ["turned", "pads"], ["y"]),
    ]
    pads = np.array([0, 0, 0, 0, 2, 0, 0, 0])
    built = build(save_model(tmp_path / "m.onnx", nodes, {"x": (1, 3, 70, 70)}, (4, 70, 70, 3), pads=pads), BuildOptions(machine))
    moves = [op for op in operations(built) if isinstance(op, Copy | Fill)]
    runs = [op.inner_bytes if isinstance(op, Copy) else op.inner_elements for op in moves]
    assert max(runs) == 4096 and max(n for op in moves for n in op.counts()) <= 4096
    x = np.random.default_rng(3).standard_normal((1, 3, 70, 70)).astype(np.float32)
    (got,), (expected,) = (Session(built.data, backend=b).run(None, {"x": x}) for b in ("simulator", "reference"))
    np.testing.assert_array_equal(got, expected)
