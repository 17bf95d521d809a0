"""Blocks of layers that are alike are quantized as one, so that their program stands once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from quant.observe import Range
from quant.repair.choices import Quantization
from scripts.onnx_builder import build_model
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.frontend import load_model, tie_block_ranges
from toolchain.ir.graph import Quant

WIDTH, ROWS = 32, 8


def stack(folder: Path, blocks: int, between: int = 0) -> Path:
    """x -> blocks of product, scaled scores, softmax, product and sum -> y. between: nodes that only the first block has, in its
    middle."""
    rng, nodes, last = np.random.default_rng(blocks), list[onnx.NodeProto](), "x"
    arrays: dict[str, np.ndarray] = {}

    def add(kind: str, name: str, *inputs: str) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name=name))
        return name

    for i in range(blocks):
        arrays |= {f"{w}{i}": rng.normal(0, 0.2 + i / 20, (WIDTH, WIDTH)) for w in ("q", "k", "o")}
        arrays[f"factor{i}"] = np.array(0.25)
        query, key = (add("MatMul", f"{w}{i}.y", last, f"{w}{i}") for w in ("q", "k"))
        transposed_key = add("Transpose", f"t{i}", key)
        for extra in range(between if i == 0 else 0):
            transposed_key = add("Relu" if extra % 2 else "Neg", f"extra{extra}", transposed_key)
        scores = add("Mul", f"scaled{i}", add("MatMul", f"s{i}", query, transposed_key), f"factor{i}")
        attended = add("MatMul", f"a{i}", add("Softmax", f"p{i}", scores), key)
        last = add("Add", f"sum{i}", last, add("MatMul", f"out{i}", attended, f"o{i}"))
    path, constants = folder / f"blocks{blocks}.onnx", {n: v.astype(np.float32) for n, v in arrays.items()}
    onnx.save(build_model(nodes, {"x": [ROWS, WIDTH]}, {last: [ROWS, WIDTH]}, constants), path)
    return path


def words(built: Build) -> int:
    (region,) = built.container.segments
    assert isinstance(region, Region)
    return len(region.program) // built.container.machine.isa.word_bytes


def built(folder: Path, blocks: int, shares_ranges: bool) -> Build:
    path = stack(folder, blocks)
    np.savez(folder / "d.npz", x=np.random.default_rng(1).normal(0, 1, (4, ROWS, WIDTH)).astype(np.float32))
    return build(path, BuildOptions("transformer64", str(folder / "d.npz"), repair="none", blocks_alike=shares_ranges))


def test_a_block_more_costs_its_call_and_its_registers(tmp_path: Path) -> None:
    shared_words, separate_words = ([words(built(tmp_path, blocks, how)) for blocks in (4, 7)] for how in (True, False))
    assert shared_words[1] - shared_words[0] <= 3 * 8 < separate_words[1] - separate_words[0]
    assert shared_words[1] < 0.8 * separate_words[1], (shared_words, separate_words)


def test_tensors_of_blocks_have_one_scale(tmp_path: Path) -> None:
    def quants(shares_ranges: bool) -> set[Quant | None]:
        types = built(tmp_path, 4, shares_ranges).container.graph.types
        return {types[name].quant for name in ("scaled1", "scaled2", "scaled3")}

    assert len(quants(True)) == 1 and len(quants(False)) == 3


@pytest.mark.parametrize("between", [0, 3])
def test_which_tensors_are_alike(tmp_path: Path, between: int) -> None:
    range_owners = tie_block_ranges(load_model(stack(tmp_path, 3, between=between))).twin_by_tensor
    one = {name: range_owners.get(name, name) for name in ("s0", "s1", "s2", "p1", "p2", "sum0", "sum1", "sum2", "x", "q0", "q1")}
    assert one["s0"] == one["s1"] == one["s2"] != one["p1"]
    assert one["sum0"] == one["sum1"] == one["sum2"] == one["x"]  # what a block reads is one with what it gives
    assert (one["q0"], one["q1"]) == ("q0", "q1")  # weights are none
    assert not any(name.startswith("extra") for name in range_owners)


def test_a_block_of_one_node_repeats_too(tmp_path: Path) -> None:
    nodes = [helper.make_node("Tanh", [f"t{i}"], [f"t{i + 1}"]) for i in range(6)]
    onnx.save(build_model(nodes, {"t0": [ROWS, WIDTH]}, {"t6": [ROWS, WIDTH]}), tmp_path / "n.onnx")
    assert tie_block_ranges(load_model(tmp_path / "n.onnx")).twin_by_tensor == {f"t{i}": "t0" for i in range(1, 7)}


def test_what_comes_once_is_like_nothing(tmp_path: Path) -> None:
    assert not tie_block_ranges(load_model(stack(tmp_path, 1))).twin_by_tensor


def test_one_range_holds_those_of_all() -> None:
    ranges = {"a": Range(-1.0, 2.0), "b": Range(-3.0, 1.0), "c": Quant(0.1, 0), "d": Range(0.0, 9.0)}
    levelled = Quantization(ranges, range_owners={"b": "a", "c": "a"}).levelled
    assert levelled.ranges == {"a": Range(-3.0, 2.0), "b": Range(-3.0, 2.0), "c": Quant(0.1, 0), "d": Range(0.0, 9.0)}


def test_a_range_that_is_much_wider_than_a_blocks_own_is_warned_of(tmp_path: Path) -> None:
    path = stack(tmp_path, 2)
    proto = onnx.load(path)
    for initializer in proto.graph.initializer:
        if initializer.name in ("q0", "k0", "o0"):
            initializer.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(initializer) / 8, initializer.name))
    onnx.save(proto, path)
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(1).normal(0, 1, (4, ROWS, WIDTH)).astype(np.float32))
    options = BuildOptions("transformer64", str(tmp_path / "d.npz"), repair="none", blocks_alike=True)
    (warning,) = [w for w in build(path, options).warnings if w.startswith("--blocks-alike: ")]
    assert "more than 4 times a block's own" in warning and "s0 " in warning
    assert not [w for w in build(path, replace(options, blocks_alike=False)).warnings if "--blocks-alike" in w]
