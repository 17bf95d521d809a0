"""python examples/schedules/networks.py FOLDER: the networks of docs/schedules.md as ONNX files, with seeded weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = list[int]


def convolution() -> onnx.ModelProto:
    """3x3, from 64 to 96 channels."""
    conv = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1] * 4)
    return _model([conv], {"x": [1, 64, 56, 56]}, {"y": [1, 96, 56, 56]}, {"w": [96, 64, 3, 3]})


def residual() -> onnx.ModelProto:
    """Widened, filtered and narrowed again, then added to what it was made of."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["wide"], "widen"),
        helper.make_node("Relu", ["wide"], ["wide.relu"], "relu1"),
        helper.make_node("Conv", ["wide.relu", "w2"], ["filtered"], "filter", pads=[1] * 4, group=96),
        helper.make_node("Relu", ["filtered"], ["filtered.relu"], "relu2"),
        helper.make_node("Conv", ["filtered.relu", "w3"], ["narrow"], "narrow"),
        helper.make_node("Add", ["narrow", "x"], ["y"], "add"),
    ]
    weights = {"w1": [96, 24, 1, 1], "w2": [96, 1, 3, 3], "w3": [24, 96, 1, 1]}
    return _model(nodes, {"x": [1, 24, 64, 64]}, {"y": [1, 24, 64, 64]}, weights)


def attention() -> onnx.ModelProto:
    """softmax(q k) v of four heads: 256 queries of 64 elements, as many keys."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"], "scores"),
        helper.make_node("Softmax", ["scores"], ["shares"], "softmax", axis=-1),
        helper.make_node("MatMul", ["shares", "v"], ["y"], "mix"),
    ]
    return _model(nodes, {"q": [4, 256, 64], "k": [4, 64, 256], "v": [4, 256, 64]}, {"y": [4, 256, 64]}, {})


NETWORKS = {"convolution": convolution, "residual": residual, "attention": attention}


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Shape], outputs: dict[str, Shape], weights: dict[str, Shape]
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    initializers: list[onnx.TensorProto] = []
    for name, shape in weights.items():
        value = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        initializers.append(numpy_helper.from_array(value.astype(np.float32), name))
    input_infos, output_infos = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in some.items()] for some in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "network", input_infos, output_infos, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    for name, network in NETWORKS.items():
        onnx.save(network(), folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
