"""Machines that have few functions: what a convolution's clamp can do needs no other engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from scripts.onnx_builder import build_model
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
    shapes = {"w1": (24, 36), "b1": (24,), "w2": (10, 24)}
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    onnx.save(build_model(nodes, {"x": [3, 36]}, outputs, weights), path)
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
