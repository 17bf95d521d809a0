"""Convert between the model's real arrays and the chip's codes at the ports of a region: quantize, dequantize, permute.

A port is an input, output or state of a region, with its layout, type, scale and zero point.
"""

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
    """Return the codes of a real array as the chip holds them, in the port's layout and shape.

    A code is x / scale, rounded half to even, plus the zero point, saturated (ONNX QuantizeLinear). NaN becomes the zero point.

    `value`: in the model's order of dimensions; float32 arithmetic is used.
    """
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
    """Return the port's shape in the model's order of dimensions."""
    return tuple(port.shape[i] for i in channels_second(len(port.shape))) if port.layout == "nhwc" else port.shape


def to_real(codes: np.ndarray, port: Port) -> np.ndarray:
    """Return the real values of codes as float32, in the model's order of dimensions (ONNX DequantizeLinear)."""
    value = (codes.astype(np.float32) - np.float32(port.zero_point)) * np.float32(port.scale)
    # numpy makes a scalar of arithmetic on an array without dimensions
    return np.ascontiguousarray(value.transpose(channels_second(value.ndim))) if port.layout == "nhwc" else np.asarray(value)


def in_type(value: np.ndarray, dtype: str) -> np.ndarray:
    """Return real values in the model's type: rounded to whole numbers for bools and integers, unchanged for others."""
    return value if dtype not in INTEGER_TYPES or value.dtype.kind != "f" else np.rint(value).astype(dtype)


def make_host_feeds(session: Any, names: Iterable[str], real: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the feeds of a host subgraph, in the types that its session of onnxruntime takes.

    `names`: its inputs; `real`: values of at least these, in float or in their type.
    """
    types = {i.name: i.type.removeprefix("tensor(").removesuffix(")") for i in session.get_inputs()}
    return {n: in_type(real[n], types.get(n, "")) for n in names}


def arrange_codes(codes: np.ndarray, port: Port) -> np.ndarray:
    """Return the codes of a port in the order in which they lie in memory.

    Where the machine stores channels in blocks (granules), zeros fill the last one of each pixel. Else the codes are returned
    as they are.
    """
    if port.maps is None:
        return codes
    cut = in_granules(codes.reshape(port.shape), port.maps.granule)
    return np.ascontiguousarray(cut.transpose(_GRANULES[port.maps.order]))


def restore_codes(stored_codes: np.ndarray, port: Port) -> np.ndarray:
    """Return the codes of a port, in its shape, from the order in which they lie in memory; the inverse of `arrange_codes`."""
    if port.maps is None:
        return stored_codes.reshape(port.shape)
    n, h, w, c = port.shape
    sizes = (n, h, w, -(-c // port.maps.granule), port.maps.granule)
    order = _GRANULES[port.maps.order]
    return out_of_granules(stored_codes.reshape([sizes[i] for i in order]).transpose(np.argsort(order)), c)
