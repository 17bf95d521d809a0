"""Blocks of layers that are alike are quantized as one, so that their program stands once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quant.observe import Range
from quant.repair.choices import Quantization
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.frontend import load_model, tie_block_ranges
from toolchain.ir.graph import Quant

WIDTH, ROWS = 32, 8


def stack(folder: Path, blocks: int, between: int = 0) -> Path:
    """x -> blocks of product, scaled scores, softmax, product and sum -> y. between: nodes that only the first block has, in its
    middle."""
    rng, nodes, last = np.random.default_rng(blocks), list[onnx.NodeProto](), "x"
    held: dict[str, np.ndarray] = {}

    def add(kind: str, name: str, *inputs: str) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name=name))
        return name

    for i in range(blocks):
        held |= {f"{w}{i}": rng.normal(0, 0.2 + i / 20, (WIDTH, WIDTH)) for w in ("q", "k", "o")}
        held[f"factor{i}"] = np.array(0.25)
        query, key = (add("MatMul", f"{w}{i}.y", last, f"{w}{i}") for w in ("q", "k"))
        turned = add("Transpose", f"t{i}", key)
        for extra in range(between if i == 0 else 0):
            turned = add("Relu" if extra % 2 else "Neg", f"extra{extra}", turned)
        scores = add("Mul", f"scaled{i}", add("MatMul", f"s{i}", query, turned), f"factor{i}")
        seen = add("MatMul", f"a{i}", add("Softmax", f"p{i}", scores), key)
        last = add("Add", f"sum{i}", last, add("MatMul", f"out{i}", seen, f"o{i}"))
    constants = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in held.items()]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [ROWS, WIDTH]) for n in ("x", last))
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = folder / f"blocks{blocks}.onnx"
    onnx.save(model, path)
    return path


def words(built: Build) -> int:
    (region,) = built.container.segments
    assert isinstance(region, Region)
    return len(region.program) // built.container.machine.isa.word_bytes


def built(folder: Path, blocks: int, alike: bool) -> Build:
    path = stack(folder, blocks)
    np.savez(folder / "d.npz", x=np.random.default_rng(1).normal(0, 1, (4, ROWS, WIDTH)).astype(np.float32))
    return build(path, BuildOptions("transformer64", str(folder / "d.npz"), repair="none", blocks_alike=alike))


def test_a_block_more_costs_its_call_and_its_registers(tmp_path: Path) -> None:
    alike, apart = ([words(built(tmp_path, blocks, how)) for blocks in (4, 7)] for how in (True, False))
    assert alike[1] - alike[0] <= 3 * 8 < apart[1] - apart[0]
    assert alike[1] < 0.8 * apart[1], (alike, apart)


def test_tensors_of_blocks_have_one_scale(tmp_path: Path) -> None:
    def quants(alike: bool) -> set[Quant | None]:
        types = built(tmp_path, 4, alike).container.graph.types
        return {types[name].quant for name in ("scaled1", "scaled2", "scaled3")}

    assert len(quants(True)) == 1 and len(quants(False)) == 3


@pytest.mark.parametrize("between", [0, 3])
def test_which_tensors_are_alike(tmp_path: Path, between: int) -> None:
    found = tie_block_ranges(load_model(stack(tmp_path, 3, between=between))).alike
    one = {name: found.get(name, name) for name in ("s0", "s1", "s2", "p1", "p2", "sum0", "sum1", "sum2", "x", "q0", "q1")}
    assert one["s0"] == one["s1"] == one["s2"] != one["p1"]
    assert one["sum0"] == one["sum1"] == one["sum2"] == one["x"]  # what a block reads is one with what it gives
    assert (one["q0"], one["q1"]) == ("q0", "q1")  # weights are none
    assert not any(name.startswith("extra") for name in found)


def test_what_comes_once_is_like_nothing(tmp_path: Path) -> None:
    assert not tie_block_ranges(load_model(stack(tmp_path, 1))).alike


def test_one_range_holds_those_of_all() -> None:
    given = {"a": Range(-1.0, 2.0), "b": Range(-3.0, 1.0), "c": Quant(0.1, 0), "d": Range(0.0, 9.0)}
    levelled = Quantization(given, alike={"b": "a", "c": "a"}).levelled
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
