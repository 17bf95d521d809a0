"""Convert between the model's real arrays and the chip's codes: quantize, dequantize, permute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from toolchain.codegen import Port
from toolchain.machine import in_granules, out_of_granules
from toolchain.ops.kit.layout import channels_last, channels_second

INTEGER_TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_GRANULES = {"surface": (0, 3, 1, 2, 4), "line": (0, 1, 3, 2, 4)}  # of [n, h, w, granules, channels of one]


def to_codes(value: np.ndarray, port: Port) -> np.ndarray:
    """Real array in the model's order -> codes as the chip holds them. round half even of x / scale (ONNX QuantizeLinear)."""
    if port.layout == "nhwc":
        value = value.transpose(channels_last(value.ndim))
    limits = np.iinfo(port.dtype)
    with np.errstate(over="ignore"):  # infinity saturates
        codes = np.rint(value.astype(np.float32) / np.float32(port.scale)) + port.zero_point
    if codes.size and np.isnan(codes.min()):  # it is NaN where one is, in 1 / 20 of the time
        codes = np.nan_to_num(codes, nan=port.zero_point)
    if np.dtype(port.dtype).itemsize > 2:  # float32 has no largest code of 32 bits
        codes = codes.astype(np.float64)
    return np.clip(codes, limits.min, limits.max).astype(port.dtype).reshape(port.shape)


def model_shape(port: Port) -> tuple[int, ...]:
    """Return the shape in the model's order."""
    return tuple(port.shape[i] for i in channels_second(len(port.shape))) if port.layout == "nhwc" else port.shape


def to_real(codes: np.ndarray, port: Port) -> np.ndarray:
    """Codes -> float32 in the model's order (ONNX DequantizeLinear)."""
    value = (codes.astype(np.float32) - np.float32(port.zero_point)) * np.float32(port.scale)
    # numpy makes a scalar of arithmetic on an array without dimensions
    return np.ascontiguousarray(value.transpose(channels_second(value.ndim))) if port.layout == "nhwc" else np.asarray(value)


def in_type(value: np.ndarray, dtype: str) -> np.ndarray:
    """Real numbers in the type that the model has them in: bools and whole numbers, which codes hold exactly."""
    return value if dtype not in INTEGER_TYPES or value.dtype.kind != "f" else np.rint(value).astype(dtype)


def make_host_feeds(session: Any, names: Iterable[str], real: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the feeds of a host subgraph's session of onnxruntime."""
    types = {i.name: i.type.removeprefix("tensor(").removesuffix(")") for i in session.get_inputs()}
    return {n: in_type(real[n], types.get(n, "")) for n in names}


def arrange_codes(codes: np.ndarray, port: Port) -> np.ndarray:
    """Codes of a port in the order in which they lie in memory; zeros fill the last granules of channels."""
    if port.maps is None:
        return codes
    cut = in_granules(codes.reshape(port.shape), port.maps.granule)
    return np.ascontiguousarray(cut.transpose(_GRANULES[port.maps.order]))


def restore_codes(stored_codes: np.ndarray, port: Port) -> np.ndarray:
    """The inverse."""
    if port.maps is None:
        return stored_codes.reshape(port.shape)
    n, h, w, c = port.shape
    sizes = (n, h, w, -(-c // port.maps.granule), port.maps.granule)
    order = _GRANULES[port.maps.order]
    return out_of_granules(stored_codes.reshape([sizes[i] for i in order]).transpose(np.argsort(order)), c)
