"""Models of one ONNX operator, run by onnxruntime on one thread (tests only)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from quant.exact_weights import saturates, with_exact_weights
from scripts.onnx_builder import build_model

PRODUCTS = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")


def run(
    op: str,
    inputs: Mapping[str, np.ndarray | None],
    output: Any,
    *,
    domain: str = "",
    constants: tuple[str, ...] = (),
    **attributes: Any,
) -> np.ndarray:
    """Run a model of one node and return its output.

    `inputs`: name -> array, in the operator's order, None for an omitted input; `constants` become initializers.
    """
    arrays = {name: value for name, value in inputs.items() if value is not None}
    if op in PRODUCTS and saturates():
        constants = tuple(arrays)[1:]
    kind = helper.np_dtype_to_tensor_dtype
    node = helper.make_node(op, [n if n in arrays else "" for n in inputs], ["y"], domain=domain, **attributes)
    types = {n: kind(v.dtype) for n, v in arrays.items()} | {"y": kind(np.dtype(output))}
    inputs_of = {n: v.shape for n, v in arrays.items() if n not in constants}
    model = build_model([node], inputs_of, {"y": None}, {n: arrays[n] for n in constants}, opset=21, types=types)
    model = with_exact_weights(model) if saturates() else model
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {n: v for n, v in arrays.items() if n not in constants})[0])


def nchw(x: np.ndarray) -> np.ndarray:
    """[n, h, w, c] or [oc, kh, kw, ic] -> [n, c, h, w]."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def nhwc(x: np.ndarray) -> np.ndarray:
    """[n, c, h, w] -> [n, h, w, c]."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def scalar(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


FLOAT32 = TensorProto.FLOAT
