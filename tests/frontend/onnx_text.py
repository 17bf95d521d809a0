"""Small models from ONNX text; inputs named w... become random weights, `c = float[2] {1,2}` constants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

CONSTANT = re.compile(r"(\w+) = (int64|float)(?:\[([\d,]+)\])? \{([^}]*)\}")
KINDS = {"int64": np.int64, "float": np.float32}


def model(graph: str, opset: int = 21, weights: Mapping[str, object] | None = None) -> onnx.ModelProto:
    """`graph` in ONNX text, from the inputs on: "(float[1,3] x, float[4,3] w) => (float[1,4] y) { y = Gemm(x, w) }"."""
    constants = CONSTANT.findall(graph)
    text = CONSTANT.sub("", graph).replace("'", '"')
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> test {text}')
    for name, kind, shape, values in constants:
        value = np.asarray([float(v) for v in values.split(",") if v.strip()], KINDS[kind])
        value = value.reshape([int(d) for d in shape.split(",")] if shape else [])
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    weight_values = weights or {}
    rng = np.random.default_rng(1)
    inputs = list(proto.graph.input)
    del proto.graph.input[:]
    for info in inputs:
        if not info.name.startswith("w") and info.name not in weight_values:
            proto.graph.input.append(info)
            continue
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        value = np.asarray(weight_values.get(info.name, rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)), dtype)
        proto.graph.initializer.append(numpy_helper.from_array(value.reshape(shape), info.name))
    return proto


def save(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path
