"""Computes ONNX's quantized operators in the float32 arithmetic of onnxruntime's CPU kernels (x86-64, AVX2 or AVX512).

They serve comparison with QDQ models. Every intermediate is float32; rounding is to nearest, ties to even. Scales are taken as
float32. Maps are channels-last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.widths import type_limits
from quant.fixed_point.pointwise.float32 import adds_right_last, float32_product, float32_sum
from quant.fixed_point.sums.window_patches import Pads, Pair, pad_spatial, slide_over, tap

Array = NDArray[Any]


def quantize_linear(x: Array, scale: float | Array, zero_point: int | Array, dtype: DTypeLike, axis: int = -1) -> Array:
    """Return saturate(rint(x / scale) + zero_point) as dtype, for x: float32[...]; scale, zero_point: scalar or [c] on `axis`.

    ONNX QuantizeLinear. NaN becomes the code of the lowest value, as in onnxruntime's vector kernel. Raise FixedPointError for
    scales or zero points of more than one dimension, as `dequantize_linear` does.
    """
    lowest, highest = type_limits(np.dtype(dtype))
    scales, zeros = _on_axis(scale, zero_point, x.ndim, axis)
    with np.errstate(invalid="ignore", over="ignore"):
        v = np.asarray(x, np.float32) / scales
        v = np.fmin(np.fmax(v, (lowest - zeros).astype(np.float32)), (highest - zeros).astype(np.float32))
    return (np.rint(v).astype(np.int64) + zeros).astype(dtype)


def dequantize_linear(q: Array, scale: float | Array, zero_point: int | Array, axis: int = -1) -> Array:
    """Return float32(q - zero_point) scale as float32[...], for integers q. ONNX DequantizeLinear."""
    scales, zeros = _on_axis(scale, zero_point, q.ndim, axis)
    return (q.astype(np.int64) - zeros).astype(np.float32) * scales


def _on_axis(scale: float | Array, zero_point: int | Array, ndim: int, axis: int) -> tuple[Array, Array]:
    """Return scale and zero point, reshaped to broadcast along `axis` where they are [c]. Raise FixedPointError for more
    dimensions."""
    scales = np.asarray(scale, np.float32)
    zeros = np.asarray(zero_point, np.int64)
    if scales.ndim > 1 or zeros.ndim > 1:
        raise FixedPointError(f"scale {scales.shape}, zero point {zeros.shape}; must be scalars or [c]")
    shape = [1] * ndim
    if ndim:
        shape[axis] = -1
    return scales.reshape(shape) if scales.ndim else scales, zeros.reshape(shape) if zeros.ndim else zeros


def _saturate(v: Array, dtype: DTypeLike) -> Array:
    """Return rint(v) as dtype, clipped to its limits."""
    lowest, highest = type_limits(np.dtype(dtype))
    return np.clip(np.rint(v), lowest, highest).astype(dtype)


def qlinear_add(
    a: Array,
    b: Array,
    *,
    a_scale: float,
    b_scale: float,
    out_scale: float,
    a_zero_point: int,
    b_zero_point: int,
    out_zero_point: int,
) -> Array:
    """Return the sum of broadcastable a, b: int8 or uint8, in the same type.

    This is com.microsoft QLinearAdd, its AVX2 kernel as compiled with fma: `float32_sum` of the ratios of scales. The operands
    are exchanged where `adds_right_last`.
    """
    ra, rb = (np.float32(s) / np.float32(out_scale) for s in (a_scale, b_scale))
    if adds_right_last(a.shape, b.shape):
        a, ra, a_zero_point, b, rb, b_zero_point = b, rb, b_zero_point, a, ra, a_zero_point
    return _saturate(float32_sum(a, b, (ra, rb), (a_zero_point, b_zero_point, out_zero_point)), a.dtype)


def qlinear_mul(
    a: Array,
    b: Array,
    *,
    a_scale: float,
    b_scale: float,
    out_scale: float,
    a_zero_point: int,
    b_zero_point: int,
    out_zero_point: int,
) -> Array:
    """Return the product of broadcastable a, b: int8 or uint8, in the same type.

    This is com.microsoft QLinearMul: `float32_product` of the ratio of scales.
    """
    ratio = np.float32(a_scale) * np.float32(b_scale) / np.float32(out_scale)
    return _saturate(float32_product(a, b, ratio, (a_zero_point, b_zero_point, out_zero_point)), a.dtype)


def qlinear_average_pool(
    x: Array,
    *,
    kernel: Pair,
    strides: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    count_include_pad: bool = False,
    x_scale: float,
    x_zero_point: int,
    out_scale: float,
    out_zero_point: int,
) -> Array:
    """Return the average pool of x: int8 or uint8 [n, h, w, c], in the same type [n, oh, ow, c].

    The dequantized elements are added one after the other in float32, / n, rint(mean / out_scale + out_zero_point).
    With `count_include_pad` n counts the padding, too. This is com.microsoft QLinearAveragePool.
    """
    slide = slide_over(x, kernel, strides, (1, 1), pads, "qlinear_average_pool")
    values = np.float32(x_scale) * (x.astype(np.int32) - x_zero_point).astype(np.float32)
    padded = pad_spatial(values, pads, 0)
    inside = pad_spatial(np.ones((1, *x.shape[1:3], 1), np.int32), pads, 0)
    total = np.zeros((x.shape[0], *slide.size, x.shape[3]), np.float32)
    count = np.zeros((1, *slide.size, 1), np.int32)
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            total += tap(padded, ky, kx, slide)
            count += tap(inside, ky, kx, slide)
    if count_include_pad:
        count[:] = kernel[0] * kernel[1]
    mean = total / count.astype(np.float32)
    return _saturate(mean / np.float32(out_scale) + np.float32(out_zero_point), x.dtype)


def qlinear_table(
    function: Callable[[Array], Array],
    *,
    x_scale: float,
    x_zero_point: int,
    out_scale: float,
    out_zero_point: int,
    dtype: DTypeLike,
) -> Array:
    """Return dtype[256], indexed by the code's bits (uint8): quantize_linear(function(x_scale (q - x_zero_point))).

    `function`: float32[256] -> float32[256].

    This is how onnxruntime computes QLinearLeakyRelu and QLinearSigmoid.
    """
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    real = np.float32(x_scale) * (codes.astype(np.int32) - x_zero_point).astype(np.float32)
    return quantize_linear(function(real), out_scale, out_zero_point, dtype)


def qlinear_leaky_relu(
    x: Array, alpha: float, *, x_scale: float, x_zero_point: int, out_scale: float, out_zero_point: int
) -> Array:
    """Return the leaky ReLU of x: int8 or uint8, in the same type, by a table of 256 entries. com.microsoft QLinearLeakyRelu."""
    table = qlinear_table(
        lambda v: np.where(v >= 0, v, np.float32(alpha) * v),
        x_scale=x_scale,
        x_zero_point=x_zero_point,
        out_scale=out_scale,
        out_zero_point=out_zero_point,
        dtype=x.dtype,
    )
    return table[x.view(np.uint8)]


def qlinear_concat(
    parts: Sequence[Array],
    *,
    scales: Sequence[float],
    zero_points: Sequence[int],
    out_scale: float,
    out_zero_point: int,
    axis: int = -1,
) -> Array:
    """Dequantize each part, quantize it to the common scale, and return the parts joined; equal parameters leave codes as they
    are.

    This is com.microsoft QLinearConcat.
    """
    joined: list[Array] = []
    for part, scale, zero in zip(parts, scales, zero_points, strict=True):
        if np.float32(scale) == np.float32(out_scale) and zero == out_zero_point:
            joined.append(part)
        else:
            real = np.float32(scale) * (part.astype(np.int32) - zero).astype(np.float32)
            joined.append(quantize_linear(real, out_scale, out_zero_point, part.dtype))
    return np.concatenate(joined, axis=axis)
