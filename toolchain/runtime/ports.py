"""Between the model's real arrays and the chip's codes: quantize, dequantize, permute."""

from __future__ import annotations

import numpy as np

from toolchain.codegen import Port

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def to_codes(value: np.ndarray, port: Port) -> np.ndarray:
    """Real array in the model's order -> codes as the chip holds them. round half even of x / scale (ONNX QuantizeLinear)."""
    if port.layout == "nhwc":
        value = value.transpose(_TO_NHWC)
    limits = np.iinfo(port.dtype)
    with np.errstate(over="ignore"):  # infinity saturates
        codes = np.rint(value.astype(np.float32) / np.float32(port.scale)) + port.zero_point
    codes = np.nan_to_num(codes, nan=port.zero_point)
    if np.dtype(port.dtype).itemsize > 2:  # float32 has no largest code of 32 bits
        codes = codes.astype(np.float64)
    return np.clip(codes, limits.min, limits.max).astype(port.dtype).reshape(port.shape)


def to_real(codes: np.ndarray, port: Port) -> np.ndarray:
    """Codes -> float32 in the model's order (ONNX DequantizeLinear)."""
    value = (codes.astype(np.float32) - np.float32(port.zero_point)) * np.float32(port.scale)
    # numpy makes a scalar of arithmetic on an array without dimensions
    return np.ascontiguousarray(value.transpose(_TO_NCHW)) if port.layout == "nhwc" else np.asarray(value)
