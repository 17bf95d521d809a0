"""Computes integer convolutions of channels-last feature maps: accumulators, which `requantize` turns into outputs.

`acc[n, y, x, o]` = bias[o] + sum over (ky, kx, i) of (in - x_zero_point) (w[o, ky, kx, i] - w_zero_point[o]). Padding contributes
nothing. The sum is exact, then wrapped to accumulator_bits (two's complement), as an accumulator of that width would after every
step. Sources: ONNX ConvInteger, QLinearConv; TFLite CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quant.fixed_point.core.device_arrays import as_contiguous, is_foreign
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize, requantize_with_bias
from quant.fixed_point.core.widths import wrap_to_bits
from quant.fixed_point.sums.depthwise_sums import DepthwiseKernel, depthwise_sums
from quant.fixed_point.sums.products import Matrix, ProductMethod, product
from quant.fixed_point.sums.window_patches import Pads, Pair, Slide, pad_spatial, slide_over, windows

Array = NDArray[Any]
_STRIP = 64
_PATCH_BYTES = 1 << 20  # patches are built and multiplied in pieces that stay in cache


@dataclass(frozen=True, eq=False)
class ConvWeights:
    """Weights prepared once for many convolutions, which then are faster; the integers are the same.

    `values`: int8, uint8 or int16 [oc, kh, kw, ic / groups].
    `zero_point`: int or int64[oc].
    `prepared`: more than one use is to come.

    FixedPointError where the shape has not four dimensions or oc does not divide into the groups.
    """

    values: Array
    groups: int = 1
    zero_point: int | Array = 0
    prepared: bool = True

    def __post_init__(self) -> None:
        if self.values.ndim != 4:
            raise FixedPointError(f"conv weights have shape {self.values.shape}; must be [oc, kh, kw, ic / groups]")
        if self.groups < 1 or self.values.shape[0] % self.groups:
            raise FixedPointError(f"conv weights: {self.values.shape[0]} output channels do not divide into groups={self.groups}")

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """The right operands [kh kw ic/groups, oc/groups] of the matrix products, one for each group."""
        oc, kh, kw, ic = self.values.shape
        each = oc // self.groups
        # weights that are a transposed view of [kh, kw, ic, oc] become a matrix without a copy
        matrix = (
            _transpose(self.values.reshape(oc, -1))
            if self.values.flags.c_contiguous
            else (self.values.transpose(1, 2, 3, 0).reshape(kh * kw * ic, oc))
        )
        zero = self.zero_point
        parts: list[Matrix] = []
        for g in range(self.groups):
            columns = slice(g * each, (g + 1) * each)
            part_zero = zero[columns] if isinstance(zero, np.ndarray) else zero
            parts.append(Matrix(as_contiguous(matrix[:, columns]), part_zero))
        return tuple(parts)

    @cached_property
    def depthwise(self) -> DepthwiseKernel:
        """The taps of a depthwise kernel; only for ic / groups = 1."""
        return DepthwiseKernel(self.values, self.zero_point, self.prepared)


def _transpose(values: Array) -> Array:
    """Return [oc, k] as contiguous [k, oc], in strips that stay in cache."""
    oc, k = values.shape
    if is_foreign(values) or values.size < 1 << 15:
        return as_contiguous(values.T)
    out = np.empty((k, oc), values.dtype)
    for start in range(0, oc, _STRIP):
        out[:, start : start + _STRIP] = values[start : start + _STRIP].T
    return out


def as_zero_point(zero_point: ArrayLike, channels: int, what: str) -> int | Array:
    """Return an int, or int64[channels]; arrays of equal entries become an int. Raise FixedPointError for other shapes."""
    if isinstance(zero_point, int):
        return zero_point
    zero = np.asarray(zero_point, np.int64)
    if zero.ndim > 1 or zero.size not in (1, channels):
        raise FixedPointError(f"{what} has shape {zero.shape}; must be a scalar or [{channels}]")
    if zero.size == 1 or not np.ptp(zero):
        return int(zero.flat[0])
    return zero


def conv2d(
    x: Array,
    w: Array | ConvWeights,
    *,
    strides: Pair = (1, 1),
    dilations: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    groups: int = 1,
    x_zero_point: int = 0,
    w_zero_point: ArrayLike = 0,
    bias: Array | None = None,
    accumulator_bits: int = 32,
    method: ProductMethod | None = None,
) -> Array:
    """Return the convolution of x: int8, uint8 or int16 [n, h, w, ic] as [n, oh, ow, oc].

    `w`: int8, uint8 (or int16) [oc, kh, kw, ic / groups]. ConvWeights carries groups and w_zero_point itself.
    `pads`: (top, left, bottom, right).
    `w_zero_point`: scalar or [oc].
    `bias`: int [oc], added in full, then wrapped.

    The result is int32, or int64 if accumulator_bits (2..64) is above 32. Raise FixedPointError where shapes disagree.
    """
    weights = w
    if not isinstance(weights, ConvWeights):
        zero = as_zero_point(w_zero_point, weights.shape[0], "conv2d: w_zero_point")
        weights = ConvWeights(weights, groups, zero, prepared=False)
    _, kh, kw, ic = weights.values.shape
    slide = slide_over(x, (kh, kw), strides, dilations, pads, "conv2d")
    if x.shape[3] != ic * weights.groups:
        raise FixedPointError(
            f"conv2d: x has {x.shape[3]} channels, w {weights.values.shape} with groups={weights.groups} takes "
            f"{ic * weights.groups}"
        )
    wide = accumulator_bits > 32
    padded = pad_spatial(x, pads, x_zero_point)
    if ic == 1 and weights.groups == x.shape[3] and weights.groups > 1:
        sums = depthwise_sums(padded, weights.depthwise, slide, x_zero_point, wide, method)
    elif weights.groups == 1:
        sums = _dense_sums(padded, weights.matrices[0], (kh, kw), slide, x_zero_point, wide, method)
    else:
        sums = _sum_groups(padded, weights, slide, x_zero_point, wide, method)
    return finish_sums(sums, bias, accumulator_bits)


def finish_sums(sums: Array, bias: Array | None, accumulator_bits: int) -> Array:
    """Return the sums with the bias, wrapped to accumulator_bits; `sums` is changed in place.

    `sums`: int32[..., c], or int64 where accumulator_bits is above 32. int32 sums are modulo 2**32, so wrapping last is exact.
    `bias`: int[c]; None: no bias.

    Raise FixedPointError where accumulator_bits is not 2..64 or the bias has another shape.
    """
    if not 2 <= accumulator_bits <= 64:
        raise FixedPointError(f"accumulator_bits={accumulator_bits}; must be 2..64")
    if bias is not None:
        if bias.shape != (sums.shape[-1],):
            raise FixedPointError(f"bias has shape {bias.shape}; must be [{sums.shape[-1]}]")
        sums += bias.astype(sums.dtype)
    if accumulator_bits in (32, 64):
        return sums
    if accumulator_bits > 32:
        return wrap_to_bits(sums, accumulator_bits)
    spare = np.int32(32 - accumulator_bits)
    return (sums << spare) >> spare


def requantize_sums(sums: Array, bias: Array, accumulator_bits: int, r: Requant, dtype: np.dtype) -> Array:
    """Return requantize(finish_sums(sums, bias, accumulator_bits), r, dtype). `sums` may be changed."""
    codes = requantize_with_bias(sums, bias, r, dtype) if accumulator_bits == 32 else None
    return requantize(finish_sums(sums, bias, accumulator_bits), r, dtype) if codes is None else codes


def _dense_sums(
    x: Array,
    b: Matrix,
    kernel: Pair,
    slide: Slide,
    x_zero_point: int,
    wide: bool,
    method: ProductMethod | None,
) -> Array:
    """Return the sums as int32 or int64 [n, oh, ow, oc], for padded x: [n, h, w, ic]."""
    n, _, _, ic = x.shape
    oc, size = b.values.shape[1], slide.size
    depth = kernel[0] * kernel[1] * ic
    rows = n * size[0] * size[1]
    if kernel == (1, 1) and slide.strides == (1, 1):
        flat = product(x.reshape(rows, depth), b, a_zero_point=x_zero_point, wide=wide, method=method)
        return flat.reshape(n, *size, oc)
    view = windows(x, kernel, slide)
    if is_foreign(x) or rows * depth * x.itemsize <= 2 * _PATCH_BYTES:
        flat = product(view.reshape(rows, depth), b, a_zero_point=x_zero_point, wide=wide, method=method)
        return flat.reshape(n, *size, oc)
    out = np.empty((n, *size, oc), np.int64 if wide else np.int32)
    lines = max(1, _PATCH_BYTES // (size[1] * depth * x.itemsize))
    for image in range(n):
        for y in range(0, size[0], lines):
            part = view[image, y : y + lines].reshape(-1, depth)
            sums = product(part, b, a_zero_point=x_zero_point, wide=wide, method=method)
            out[image, y : y + lines] = sums.reshape(-1, size[1], oc)
    return out


def _sum_groups(
    x: Array,
    weights: ConvWeights,
    slide: Slide,
    x_zero_point: int,
    wide: bool,
    method: ProductMethod | None,
) -> Array:
    """Return the sums as int32 or int64 [n, oh, ow, oc], for padded x and weights of several groups."""
    oc, kh, kw, ic = weights.values.shape
    each = oc // weights.groups
    out = np.empty((x.shape[0], *slide.size, oc), np.int64 if wide else np.int32, like=x)
    for g, matrix in enumerate(weights.matrices):
        part = as_contiguous(x[..., g * ic : (g + 1) * ic])
        sums = _dense_sums(part, matrix, (kh, kw), slide, x_zero_point, wide, method)
        out[..., g * each : (g + 1) * each] = sums
    return out


def conv1d(
    x: Array,
    w: Array,
    *,
    stride: int = 1,
    dilation: int = 1,
    pads: Pair = (0, 0),
    groups: int = 1,
    x_zero_point: int = 0,
    w_zero_point: ArrayLike = 0,
    bias: Array | None = None,
    accumulator_bits: int = 32,
    method: ProductMethod | None = None,
) -> Array:
    """Return the convolution [n, ol, oc] of x: [n, l, ic] and w: [oc, k, ic / groups]: `conv2d` with h = 1.

    `pads`: (before, after).
    """
    out = conv2d(
        x[:, None],
        w[:, None],
        strides=(1, stride),
        dilations=(1, dilation),
        pads=(0, pads[0], 0, pads[1]),
        groups=groups,
        x_zero_point=x_zero_point,
        w_zero_point=w_zero_point,
        bias=bias,
        accumulator_bits=accumulator_bits,
        method=method,
    )
    return out[:, 0]


def conv_transpose2d(
    x: Array,
    w: Array,
    *,
    strides: Pair = (1, 1),
    dilations: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    output_padding: Pair = (0, 0),
    groups: int = 1,
    x_zero_point: int = 0,
    w_zero_point: ArrayLike = 0,
    bias: Array | None = None,
    accumulator_bits: int = 32,
    method: ProductMethod | None = None,
) -> Array:
    """Return the transposed convolution of x: [n, h, w, ic] as int32 or int64 [n, oh, ow, oc].

    `w`: [oc, kh, kw, ic / groups], as it scatters.
    `pads`: (top, left, bottom, right), cut from the result.

    The output height is oh = (h - 1) stride - top - bottom + (kh - 1) dilation + 1 + output_padding. Output (y, x) sums in (j, i)
    w[ky, kx] where y = j stride - top + ky dilation. Source: ONNX ConvTranspose (pads crop the result); TFLite TRANSPOSE_CONV;
    TOSA 1.0 TRANSPOSE_CONV2D with out_pad = -pads. The computation is a convolution of the input, spread by the strides, with the
    flipped kernel: the same sums. All else is as in `conv2d`.
    """
    kh, kw = w.shape[1:3]
    n, h, width, c = x.shape
    top, left, bottom, right = pads
    reach = ((kh - 1) * dilations[0], (kw - 1) * dilations[1])
    full = ((h - 1) * strides[0] + 1, (width - 1) * strides[1] + 1)
    spread = np.full((n, *full, c), x_zero_point, x.dtype)
    spread[:, :: strides[0], :: strides[1]] = x
    margins = (
        reach[0] - top,
        reach[1] - left,
        reach[0] - bottom + output_padding[0],
        reach[1] - right + output_padding[1],
    )
    crop = [max(0, -m) for m in margins]
    spread = spread[:, crop[0] : full[0] - crop[2], crop[1] : full[1] - crop[3]]
    return conv2d(
        np.ascontiguousarray(spread),
        w[:, ::-1, ::-1],
        dilations=dilations,
        pads=(max(0, margins[0]), max(0, margins[1]), max(0, margins[2]), max(0, margins[3])),
        groups=groups,
        x_zero_point=x_zero_point,
        w_zero_point=w_zero_point,
        bias=bias,
        accumulator_bits=accumulator_bits,
        method=method,
    )
