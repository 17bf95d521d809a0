"""Computes square roots, their reciprocals, and quotients in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError, require_type
from quant.fixed_point.core.q31 import INT32_MAX, Q31_MULTIPLIER, inverse_sqrt_multiplier, multiply_by_multiplier
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import choose_scale

Array = NDArray[Any]


def integer_sqrt(x: Array, *, nearest: bool = False) -> Array:
    """Return the exact floor of the square root, or the nearest integer, as int64[...], for x: int64[...], 0 <= x < 2**62.

    Raise FixedPointError for other values.
    """
    x = np.asarray(x, np.int64)
    if x.size and (x.min() < 0 or x.max() >= 1 << 62):
        raise FixedPointError(f"integer_sqrt: values {x.min()}..{x.max()}; must be 0..2**62-1")
    root = np.floor(np.sqrt(x.astype(np.float64))).astype(np.int64)
    # Above 2**53 the conversion may round up past a square; rounded down it still has the right root.
    root = root - (root * root > x)
    return root + (x - root * root > root) if nearest else root


def sqrt_quantized(x: Array, input_zero_point: int, r: Requant, fraction_bits: int, dtype: DTypeLike) -> Array:
    """Return requantize(floor(sqrt((x - z) << 2 fraction_bits)), r) as dtype[...], for x: int8 or int16[...].

    z is `input_zero_point`; codes below it count as z.
    `r`: scales by sqrt(S) / (2**fraction_bits S_o), of the scales of input and output, and adds the output's zero point.

    Error: half a step plus one unit of the root (docs/nonlinear.md).
    """
    value = np.maximum(x.astype(np.int64) - input_zero_point, 0)
    return requantize(integer_sqrt(value << (2 * fraction_bits)), r, dtype)


def rsqrt8(x: Array, input_scale: float, input_zero_point: int, output_scale: float, output_zero_point: int) -> Array:
    """Return the code of 1 / sqrt(the real input) as int8[...], saturated, for x: int8[...].

    Codes at or below the input's zero point give 127. Raise FixedPointError where x has another type.

    Error: at most 1 step (see docs/nonlinear.md). Source: TFLite RSQRT, int8 (TFLite refuses x < z).
    """
    require_type(x, "rsqrt8", np.int8)
    value = x.astype(np.int64) - input_zero_point
    kept_bits = 20
    multiplier, shift = inverse_sqrt_multiplier(np.maximum(value, 1))
    data = multiply_by_multiplier(np.ones_like(value), multiplier, shift + kept_bits)
    root = np.sqrt(np.float32(input_scale)) * np.float32(output_scale)
    q = choose_scale(1.0 / float(root), Q31_MULTIPLIER)
    y = multiply_by_multiplier(data, q.multiplier[0], 31 - q.shift[0] - kept_bits) + output_zero_point
    return np.where(value <= 0, 127, np.clip(y, -128, 127)).astype(np.int8)


def divide(a: Array, b: Array, rounding: Rounding) -> Array:
    """Return a / b exactly rounded as int64[...], for a, b: int64[...], |a| < 2**61, |b| < 2**61.

    `rounding`: FLOOR, TRUNCATE (C), HALF_AWAY, HALF_EVEN or SINGLE_HALF_UP; FixedPointError for others.

    A divisor of 0 gives 2**31 - 1 with the sign of a; 0 / 0 = 0. The caller keeps the limits: nothing checks them.
    """
    a, b = np.asarray(a, np.int64), np.asarray(b, np.int64)
    zero = b == 0
    b = np.where(zero, 1, b)
    a_up, b_up = np.where(b < 0, -a, a), np.abs(b)
    floor = a_up // b_up
    rest = 2 * (a_up - floor * b_up)
    if rounding is Rounding.FLOOR:
        y = floor
    elif rounding is Rounding.TRUNCATE:
        y = floor + ((a_up < 0) & (rest > 0))
    elif rounding is Rounding.SINGLE_HALF_UP:
        y = floor + (rest >= b_up)
    elif rounding is Rounding.HALF_AWAY:
        y = floor + ((rest > b_up) | ((rest == b_up) & (a_up >= 0)))
    elif rounding is Rounding.HALF_EVEN:
        y = floor + ((rest > b_up) | ((rest == b_up) & ((floor & 1) == 1)))
    else:
        raise FixedPointError(f"divide: rounding={rounding}; must be floor, truncate, half_away, half_even or single_half_up")
    return np.where(zero, np.sign(a) * INT32_MAX, y)


def divide_quantized(
    a: Array,
    b: Array,
    zero_points: tuple[int, int],
    r: Requant,
    fraction_bits: int,
    rounding: Rounding,
    dtype: DTypeLike,
) -> Array:
    """Return requantize(divide((a - z_a) << fraction_bits, b - z_b), r) as dtype[...], for a, b: int8 or int16[...], broadcast.

    `zero_points`: z_a and z_b.
    `r` scales by S_a / (S_b S_o 2**fraction_bits), and rounds a second time.
    A divisor b = z_b counts as in `divide`: `r` gets 2**31 - 1 with the numerator's sign, or 0 for 0 / 0.
    """
    numerator = (a.astype(np.int64) - zero_points[0]) << fraction_bits
    return requantize(divide(numerator, b.astype(np.int64) - zero_points[1], rounding), r, dtype)
