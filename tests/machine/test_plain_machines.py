"""Machines that have few functions: what a convolution's clamp can do needs no other engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from toolchain.api import BuildOptions, build
from toolchain.isa import Machine, load_machine


def bare(name: str) -> Machine:
    """The machine without a vector engine's operations and with nothing behind its array."""
    machine = load_machine(name)
    engines = machine.chip.engines
    vector = engines["vector"].model_copy(update={"functions": {}})
    mac = engines["mac"].model_copy(update={"post": ()})
    return replace(machine, chip=machine.chip.model_copy(update={"engines": {**engines, "vector": vector, "mac": mac}}))


def save(nodes: list[onnx.NodeProto], outputs: dict[str, list[int]], path: Path) -> Path:
    rng = np.random.default_rng(1)
    weights = {"w1": (24, 36), "b1": (24,), "w2": (10, 24)}
    graph = helper.make_graph(
        nodes,
        "plain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 36])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("name", ["edge16", "ws8_pow2"])
def test_relu_behind_a_gemm_is_its_clamp(name: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2"], ["y"], transB=1),
    ]
    figures = build(save(nodes, {"y": [3, 10]}, tmp_path / "mlp.onnx"), BuildOptions(bare(name))).figures
    assert figures["fallbacks"] == [] and len(figures["layers"]) == 2


def test_a_sum_that_is_read_before_its_relu_too_keeps_the_relu_apart(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1), helper.make_node("Relu", ["h"], ["y"])]
    path = save(nodes, {"y": [3, 24], "h": [3, 24]}, tmp_path / "both.onnx")
    fallbacks = build(path, BuildOptions(bare("edge16"))).figures["fallbacks"]
    assert [f["reason"] for f in fallbacks] == ["engines.vector.functions has neither rescale nor table"]


@pytest.mark.parametrize(("value", "reasons"), [(0.0, []), (1.0, ["a value of 1 may need a scale of its own"])])
def test_padding_with_zero_needs_no_rescaling(value: float, reasons: list[str], tmp_path: Path) -> None:
    padding = [
        helper.make_node("Constant", [], ["p"], value=numpy_helper.from_array(np.array([0, 1, 0, 2]), "p")),
        helper.make_node("Constant", [], ["v"], value=numpy_helper.from_array(np.array(value, np.float32), "v")),
    ]
    nodes = [
        *padding,
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Pad", ["h", "p", "v"], ["y"]),
    ]
    fallbacks = build(save(nodes, {"y": [3, 27]}, tmp_path / "pad.onnx"), BuildOptions(bare("edge16"))).figures["fallbacks"]
    assert [f["reason"].split(":")[0] for f in fallbacks] == reasons
