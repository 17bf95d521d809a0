"""Resizes channels-last feature maps [n, h, w, c]: nearest, and bilinear with integer weights.

First the input positions of each axis are computed from sizes alone, then they are applied to an array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError

Array = NDArray[Any]
CoordinateMode = Literal["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners"]
NearestMode = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def onnx_coordinates(in_size: int, out_size: int, scale: float | None, mode: CoordinateMode) -> Array:
    """Return float32[out_size]: the place of each output on the input axis. ONNX Resize; float32 as onnxruntime computes them.

    `scale`: out / in where the model gives scales, None where it gives sizes.

    Raise FixedPointError for an unknown mode.
    """
    ratio = np.float32(out_size / in_size if scale is None else scale)
    out = np.arange(out_size, dtype=np.float32)
    half = np.float32(0.5)
    if mode == "asymmetric":
        return out / ratio
    if mode == "align_corners":
        if out_size == 1:
            return np.zeros(1, np.float32)
        return out * np.float32(in_size - 1) / np.float32(out_size - 1)
    if mode == "pytorch_half_pixel" and out_size == 1:
        return np.zeros(1, np.float32)
    if mode == "half_pixel_symmetric":
        adjustment = np.float32(out_size) / (ratio * np.float32(in_size))
        center = np.float32(in_size) / np.float32(2)
        offset = center * (np.float32(1) - adjustment)
        return offset + (out + half) / ratio - half
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (out + half) / ratio - half
    raise FixedPointError(f"coordinate mode {mode!r}; see CoordinateMode")


def nearest_indices(
    in_size: int,
    out_size: int,
    *,
    scale: float | None = None,
    coordinates: CoordinateMode = "half_pixel",
    nearest: NearestMode = "round_prefer_floor",
) -> Array:
    """Return int64[out_size]: the index of the input that each output copies. ONNX Resize, mode nearest.

    `scale`, `coordinates`: as in `onnx_coordinates`.

    Raise FixedPointError for an unknown mode.
    """
    at = onnx_coordinates(in_size, out_size, scale, coordinates)
    if nearest == "floor":
        index = np.floor(at)
    elif nearest == "ceil":
        index = np.ceil(at)
    elif nearest == "round_prefer_ceil":
        index = np.floor(at + np.float32(0.5))
    elif nearest == "round_prefer_floor":
        index = np.ceil(at - np.float32(0.5))
    else:
        raise FixedPointError(f"nearest mode {nearest!r}; see NearestMode")
    return np.clip(index, 0, in_size - 1).astype(np.int64)


def nearest_indices_tflite(in_size: int, out_size: int, *, align_corners: bool, half_pixel_centers: bool) -> Array:
    """Return int64[out_size]: the index of the input that each output copies. TFLite RESIZE_NEAREST_NEIGHBOR, in its float32."""
    if align_corners and out_size > 1:
        scale = np.float32(in_size - 1) / np.float32(out_size - 1)
    else:
        scale = np.float32(in_size) / np.float32(out_size)
    offset = np.float32(0.5 if half_pixel_centers else 0.0)
    at = (np.arange(out_size, dtype=np.float32) + offset) * scale
    # C's round(): half away from zero; at >= 0
    index = np.floor(at.astype(np.float64) + 0.5) if align_corners else np.floor(at)
    index = np.minimum(index, in_size - 1)
    return np.maximum(index, 0).astype(np.int64)


def resize_nearest(x: Array, rows: Array, columns: Array) -> Array:
    """Return the nearest elements of x: [n, h, w, c], in the same type [n, oh, ow, c].

    `rows`, `columns`: int[oh] and int[ow], input indices.
    """
    return np.take(np.take(x, rows, axis=1), columns, axis=2)


def upsample_nearest(x: Array, factors: tuple[int, int]) -> Array:
    """Return x: [n, h, w, c] with every element repeated, in the same type [n, h fy, w fx, c], factors >= 1."""
    return np.repeat(np.repeat(x, factors[0], axis=1), factors[1], axis=2)


@dataclass(frozen=True, eq=False)
class LinearAxis:
    """An interpolation along one axis: out = (in[lower] (unit - weight) + in[upper] weight) / unit.

    `lower`, `upper`: int64[out_size], indices of the input.
    `weight`: int64[out_size], 0 to unit - 1. Where `lower` and `upper` are equal it does not matter; there TFLite's may be
    below 0, and above at the far end.
    """

    lower: Array
    upper: Array
    weight: Array
    unit: int


def linear_axis_tflite(in_size: int, out_size: int, *, align_corners: bool, half_pixel_centers: bool) -> LinearAxis:
    """Return the interpolation with 10-bit weights of TFLite RESIZE_BILINEAR, `ComputeInterpolationValuesInteger`.

    Like TFLite, it rounds the scale to 10 bits, so that enlargements of about 1000 times and more may index beyond the input.
    """
    if align_corners and out_size > 1:
        scale = (1024 * (in_size - 1) + (out_size - 1) // 2) // (out_size - 1)
    else:
        scale = (1024 * in_size + out_size // 2) // out_size
    at = np.arange(out_size, dtype=np.int64) * scale
    if half_pixel_centers:
        at = at + scale // 2 - 512
    # C's division truncates; below 0 both bounds are 0 afterwards
    lower = np.maximum(np.where(at >= 0, at // 1024, -(-at // 1024)), 0)
    above = at + 1023
    upper = np.minimum(np.where(above >= 0, above // 1024, -(-above // 1024)), in_size - 1)
    return LinearAxis(lower, upper, at - 1024 * lower, 1024)


def linear_axis_tosa(in_size: int, out_size: int, scale_n: int, scale_d: int, offset: int) -> LinearAxis:
    """Return the interpolation at positions (out scale_d + offset) / scale_n. TOSA 1.0 RESIZE, mode BILINEAR.

    TOSA's border only changes out_size.
    """
    at = np.arange(out_size, dtype=np.int64) * scale_d + offset
    index = np.floor_divide(at, scale_n)
    weight = at - index * scale_n
    return LinearAxis(np.clip(index, 0, in_size - 1), np.clip(index + 1, 0, in_size - 1), weight, scale_n)


def nearest_indices_tosa(in_size: int, out_size: int, scale_n: int, scale_d: int, offset: int) -> Array:
    """Return int64[out_size]: the index of the input that each output copies. TOSA 1.0 RESIZE, mode NEAREST_NEIGHBOR.

    The upper neighbour is taken from 2 weight >= scale_n on.
    """
    axis = linear_axis_tosa(in_size, out_size, scale_n, scale_d, offset)
    return np.where(2 * axis.weight >= scale_n, axis.upper, axis.lower)


def linear_axis_onnx(
    in_size: int, out_size: int, *, scale: float | None = None, coordinates: CoordinateMode = "half_pixel", bits: int = 10
) -> LinearAxis:
    """Return ONNX's coordinates with weights rounded to `bits` fraction bits (half up), for machines that interpolate so."""
    at = np.clip(onnx_coordinates(in_size, out_size, scale, coordinates), 0, in_size - 1).astype(np.float64)
    unit = 1 << bits
    fixed = np.floor(at * unit + 0.5).astype(np.int64)
    lower = np.minimum(fixed >> bits, in_size - 1)
    return LinearAxis(lower, np.minimum(lower + 1, in_size - 1), fixed & (unit - 1), unit)


def bilinear_sums(x: Array, rows: LinearAxis, columns: LinearAxis, *, x_zero_point: int = 0) -> Array:
    """Return the exact interpolated x - x_zero_point times rows.unit columns.unit as int64 [n, oh, ow, c], for x: [n, h, w, c].

    TOSA 1.0 RESIZE BILINEAR gives these sums (int32 for int8, int48 for int16); `requantize` turns them into outputs.
    """
    centred = x.astype(np.int64) - x_zero_point
    wy = rows.weight[:, None, None]
    vertical = centred[:, rows.lower] * (rows.unit - wy) + centred[:, rows.upper] * wy
    wx = columns.weight[:, None]
    return vertical[:, :, columns.lower] * (columns.unit - wx) + vertical[:, :, columns.upper] * wx


def resize_bilinear_tflite(x: Array, rows: LinearAxis, columns: LinearAxis) -> Array:
    """Return the interpolated codes, sums over rows.unit columns.unit, half away from zero, for x: int8 or int16 [n, h, w, c].

    TFLite RESIZE_BILINEAR; the result has the type of x.
    """
    sums = bilinear_sums(x, rows, columns)
    unit = rows.unit * columns.unit
    magnitude = (np.abs(sums) + unit // 2) // unit
    return np.where(sums > 0, magnitude, -magnitude).astype(x.dtype)
