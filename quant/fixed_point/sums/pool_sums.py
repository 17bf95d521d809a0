"""Computes max and average pooling and means over channels-last feature maps. Padding contributes nothing to any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.sums.window_patches import Pads, Pair, Slide, pad_spatial, slide_over, tap

Array = NDArray[Any]


def max_pool(
    x: Array,
    *,
    kernel: Pair,
    strides: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    dilations: Pair = (1, 1),
    low: int | None = None,
    high: int | None = None,
) -> Array:
    """Return the largest element of each window of x: [n, h, w, c], in the same type [n, oh, ow, c].

    `pads`: (top, left, bottom, right). A window of padding alone gives the least value of the type.
    `low`, `high`: clamp of the result, values of x's type; None: no clamp on that side.

    ONNX MaxPool; TFLite MAX_POOL_2D; TOSA 1.0 MAX_POOL2D.
    """
    slide = slide_over(x, kernel, strides, dilations, pads, "max_pool")
    out = _fold(pad_spatial(x, pads, int(np.iinfo(x.dtype).min)), kernel, slide, np.maximum, x.dtype)
    if low is not None or high is not None:
        np.clip(out, low, high, out=out)
    return out


def _fold(padded: Array, kernel: Pair, slide: Slide, combine: np.ufunc, dtype: DTypeLike) -> Array:
    """Return dtype[n, oh, ow, c], the combined elements of each window of padded: [n, h, w, c], in kh + kw passes, not kh kw.
    An axis along which there is one window, without gaps, takes one pass.
    """
    down = Slide((slide.strides[0], 1), slide.dilations, (slide.size[0], padded.shape[2]))
    if slide.size[0] == slide.dilations[0] == 1:
        rows = _combine_all(padded[:, : kernel[0]], 1, combine, dtype)
    else:
        rows = tap(padded, 0, 0, down).astype(dtype)
        for ky in range(1, kernel[0]):
            combine(rows, tap(padded, ky, 0, down), out=rows)
    if slide.size[1] == slide.dilations[1] == 1:
        return _combine_all(rows[:, :, : kernel[1]], 2, combine, dtype)
    across = Slide((1, slide.strides[1]), slide.dilations, slide.size)
    out = tap(rows, 0, 0, across).copy()
    for kx in range(1, kernel[1]):
        combine(out, tap(rows, 0, kx, across), out=out)
    return out


def _combine_all(values: Array, axis: int, combine: np.ufunc, dtype: DTypeLike) -> Array:
    """Return all elements along an axis combined. By methods that arrays of CuPy have too, which have no `ufunc.reduce`."""
    if combine is np.maximum:
        return values.max(axis=axis, keepdims=True)
    return values.sum(axis=axis, dtype=dtype, keepdims=True)


def pool_sum(
    x: Array,
    *,
    kernel: Pair,
    strides: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    dilations: Pair = (1, 1),
    x_zero_point: int = 0,
) -> Array:
    """Return the sums of x - x_zero_point over each window of x: [n, h, w, c], as [n, oh, ow, c].
    The input is int8, uint8, int16 or int32. Sums are int32, and int64 for int32 inputs; larger sums wrap.

    Average with a constant divisor: requantize(pool_sum(x), S_in / (S_out kh kw)).
    """
    slide = slide_over(x, kernel, strides, dilations, pads, "pool_sum")
    padded = pad_spatial(x, pads, x_zero_point)
    kind = np.dtype(np.int64 if x.dtype.itemsize > 2 else np.int32)
    if kernel == padded.shape[1:3]:
        total = padded.sum(axis=(1, 2), dtype=kind, keepdims=True)
    else:
        total = _fold(padded, kernel, slide, np.add, kind)
    if x_zero_point:
        total -= kind.type(x_zero_point * kernel[0] * kernel[1])
    return total


def pool_counts(size: Pair, *, kernel: Pair, strides: Pair, pads: Pads, dilations: Pair = (1, 1)) -> Array:
    """Return int32[oh, ow], how many elements of each window lie inside an input of `size` (h, w)."""
    ones = np.ones((1, *size, 1), np.uint8)
    return pool_sum(ones, kernel=kernel, strides=strides, pads=pads, dilations=dilations)[0, :, :, 0]


def average_pool_tflite(
    x: Array,
    *,
    kernel: Pair,
    strides: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    low: int | None = None,
    high: int | None = None,
) -> Array:
    """Return (sum + (sum > 0 ? n/2 : -n/2)) / n in C's division, in the same type, for x: [n, h, w, c].

    Padding is not counted in n. Input and output share scale and zero point; the zero point takes no part. TFLite
    AVERAGE_POOL_2D.
    Raise FixedPointError where a window holds padding alone.
    """
    sums = pool_sum(x, kernel=kernel, strides=strides, pads=pads).astype(np.int64)
    counts = pool_counts(x.shape[1:3], kernel=kernel, strides=strides, pads=pads).astype(np.int64)[..., None]
    if (counts == 0).any():
        raise FixedPointError(f"average_pool_tflite: pads {pads} leave windows without input; reduce pads")
    # pads hold 0 and x_zero_point is 0, so padding adds nothing to the raw sums
    half = counts // 2
    magnitude = (np.abs(sums) + half) // counts
    y = np.where(sums > 0, magnitude, -magnitude)
    limits = np.iinfo(x.dtype)
    return np.clip(y, limits.min if low is None else low, limits.max if high is None else high).astype(x.dtype)


def tosa_reciprocal(count: Array) -> tuple[Array, Array]:
    """Return int64 multiplier and shift of 1 / count, for count: int[...] >= 1; FixedPointError for less.

    The multiplier is ((2**30 + 1) << k) / count with k = 32 - clz(count - 1), the shift 30 + k. TOSA 1.0, 4.1.3
    `reciprocal_scale`.
    """
    count = np.asarray(count, np.int64)
    if (count < 1).any():
        raise FixedPointError(f"tosa_reciprocal: count {int(count.min())}; must be >= 1")
    k = np.frexp((count - 1).astype(np.float64))[1].astype(np.int64)
    return np.left_shift(np.int64((1 << 30) + 1), k) // count, 30 + k


def average_pool_tosa(
    x: Array,
    *,
    kernel: Pair,
    strides: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    x_zero_point: int = 0,
    out_zero_point: int = 0,
    low: int | None = None,
    high: int | None = None,
) -> Array:
    """Return sum(x - x_zero_point) times `tosa_reciprocal(n)`, half up, in the same type, for x: int8 or int16 [n, h, w, c].

    Here n counts the elements without padding. TOSA 1.0 AVG_POOL2D.
    Raise FixedPointError where a window holds padding alone.
    """
    limits = np.iinfo(x.dtype)
    sums = pool_sum(x, kernel=kernel, strides=strides, pads=pads, x_zero_point=x_zero_point)
    counts = pool_counts(x.shape[1:3], kernel=kernel, strides=strides, pads=pads)
    n, oh, ow, c = sums.shape
    multiplier, shift = tosa_reciprocal(counts.reshape(-1))
    r = Requant(
        multiplier,
        shift,
        Rounding.SINGLE_HALF_UP,
        out_zero_point,
        limits.min if low is None else low,
        limits.max if high is None else high,
    )
    return requantize(sums.reshape(n, oh * ow, c), r, x.dtype, axis=1).reshape(n, oh, ow, c)


def mean_sum(x: Array, axes: tuple[int, ...], *, x_zero_point: int = 0, keepdims: bool = True) -> tuple[Array, int]:
    """Return int64 sums of x - x_zero_point over `axes`, and how many integers were summed for each.

    The mean is requantize(sums, S_in / (S_out count)); TFLite's own multiplier: `tflite_mean_requant`.
    """
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    sums = x.sum(axis=axes, dtype=np.int64, keepdims=keepdims)
    return sums - x_zero_point * count, count


def tflite_mean_requant(multiplier: int, shift: int, count: int, zero_point: int, dtype: DTypeLike) -> Requant:
    """Return the DOUBLE_ROUND Requant of the mean over count elements.

    `multiplier`, `shift`: of S_in / S_out (31 bits).

    The multiplier is divided by count after as many left shifts as fit, rounding down. TFLite `QuantizedMeanOrSum`.
    """
    exponent = 31 - shift
    k = min(count.bit_length() - 1, 32, 31 + exponent)
    limits = np.iinfo(np.dtype(dtype).name)
    divided = (multiplier << k) // count
    return Requant(
        np.array([divided]),
        np.array([31 - exponent + k]),
        Rounding.DOUBLE_ROUND,
        zero_point,
        int(limits.min),
        int(limits.max),
    )
