"""Small ONNX models for the calibration tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from scripts.onnx_builder import build_model


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray] | None = None,
    input_type: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """opset 17, shapes inferred."""
    proto = build_model(nodes, inputs, dict.fromkeys(outputs), constants, types=dict.fromkeys(inputs, input_type))
    return onnx.shape_inference.infer_shapes(proto)


def node(op_type: str, inputs: str, outputs: str, **attributes) -> onnx.NodeProto:
    """Space-separated names; the node is named like its first output."""
    output_names = outputs.split()
    return helper.make_node(op_type, inputs.split(), output_names, name=f"{output_names[0]}_node", **attributes)


def convolution_net() -> onnx.ModelProto:
    """x[1, 3, 8, 8] -> Conv c -> Relu r -> Conv d -> GlobalAveragePool y."""
    rng = np.random.default_rng(0)
    constants = {
        "w1": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "b1": rng.standard_normal(8).astype(np.float32),
        "w2": rng.standard_normal((4, 8, 1, 1)).astype(np.float32),
    }
    nodes = [
        node("Conv", "x w1 b1", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Conv", "r w2", "d"),
        node("GlobalAveragePool", "d", "y"),
    ]
    return model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants)
