"""Computes in Q0.31 and its neighbours, as TFLite and gemmlowp do: products, shifts, exp, log, reciprocal, 1 / sqrt.

Qm.n is an int32 with m integer bits and n = 31 - m fraction bits. All functions take and return int64 arrays that hold such
values, unless a type is named. Softmax and roots (`quant.fixed_point.curves`) use them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.rounding import Rounding, round_shift
from quant.fixed_point.core.scale import ScaleForm

Array = NDArray[Any]
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
Q31_MULTIPLIER = ScaleForm("multiplier", 31, 0, 62)  # what TFLite's QuantizeMultiplier gives


def _q31(real: float) -> int:
    """Return a constant as Q0.31."""
    return round(real * 2**31)


# gemmlowp's fixedpoint.h and TFLite's common.h list these as integers; they are the nearest to what is written here.
_EXP_MINUS_EIGHTH, _THIRD, _SQRT_HALF = _q31(math.exp(-1 / 8)), _q31(1 / 3), _q31(math.sqrt(0.5))
_EXP_MINUS_POWERS = tuple((k, _q31(math.exp(-(2.0**k)))) for k in range(-2, 5))
_48_OVER_17_Q2, _MINUS_32_OVER_17_Q2 = _q31(48 / 17 / 4), _q31(-32 / 17 / 4)
_ROOT4_2 = 2**0.25
_LOG_2, _ROOT4_HALF = _q31(math.log(2)), _q31(1 / _ROOT4_2)
_LOG_N, _LOG_D = _q31(11 / 240 * _ROOT4_2), _q31(_ROOT4_2 / 20)
_LOG_I, _LOG_F = _q31(2 / _ROOT4_2 - _ROOT4_2), _q31(_ROOT4_2 / 4)


def multiply_q31(a: Array, b: Array | int) -> Array:
    """Return a b / 2**31 rounded half up; Q(m) times Q(n) gives Q(m + n). Only min times min saturates.

    Source: gemmlowp SaturatingRoundingDoublingHighMul, Arm SQRDMULH.
    """
    product = np.asarray(a, np.int64) * b
    return np.minimum(round_shift(product, np.asarray(31), Rounding.SINGLE_HALF_UP), INT32_MAX)


def shift_q31(x: Array, exponent: int) -> Array:
    """Return x * 2**exponent: left saturating to int32, right rounded half away. gemmlowp SaturatingRoundingMultiplyByPOT.

    `exponent`: 32 at most, beyond which int64 overflows.
    """
    x = np.asarray(x, np.int64)
    if exponent >= 0:
        return np.clip(x << exponent, INT32_MIN, INT32_MAX)
    return divide_by_power(x, np.asarray(-exponent))


def divide_by_power(x: Array, exponent: Array) -> Array:
    """Return x / 2**exponent, rounded half away from zero, for exponent >= 0. gemmlowp RoundingDivideByPOT."""
    return round_shift(np.asarray(x, np.int64), np.asarray(exponent, np.int64), Rounding.HALF_AWAY)


def exp_q31(x: Array, integer_bits: int = 5) -> Array:
    """Return exp(x) as Q0.31 for x <= 0 in Q(integer_bits); 0 gives 2**31 - 1.

    The largest error is 2.4e-7, the mean one below 1e-7. Source: gemmlowp exp_on_negative_values. No x is refused.
    The remainder of x by 1/4 goes through a fourth-order polynomial around -1/8.
    The rest goes through products with exp(-2**k), k = -2..4.
    Raise FixedPointError where integer_bits is not 0..5.
    """
    if not 0 <= integer_bits <= 5:
        raise FixedPointError(f"integer_bits={integer_bits}: exp_q31 takes Q0 to Q5")
    x = np.asarray(x, np.int64)
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    low = (x & (quarter - 1)) - quarter
    a = shift_q31(low, integer_bits) + (1 << 28)
    a2 = multiply_q31(a, a)
    a3, a4 = multiply_q31(a2, a), multiply_q31(a2, a2)
    series = shift_q31(multiply_q31(shift_q31(a4, -2) + a3, _THIRD) + a2, -1)
    result = _EXP_MINUS_EIGHTH + multiply_q31(a + series, _EXP_MINUS_EIGHTH)
    remainder = low - x
    for power, factor in _EXP_MINUS_POWERS:
        if power < integer_bits:
            bits = (remainder >> (fraction_bits + power)) & 1
            result = np.where(bits == 1, multiply_q31(result, factor), result)
    return np.where(x == 0, INT32_MAX, result)


def one_over_one_plus_q31(x: Array) -> Array:
    """Return 1 / (1 + x) as Q0.31 for x in Q0.31 in [0, 1), by three Newton steps. Source: gemmlowp
    one_over_one_plus_x_for_x_in_0_1.
    """
    half_denominator = divide_by_power(np.asarray(x, np.int64) + INT32_MAX, np.asarray(1))
    y = _48_OVER_17_Q2 + multiply_q31(half_denominator, _MINUS_32_OVER_17_Q2)
    for _ in range(3):
        error = (1 << 29) - multiply_q31(half_denominator, y)
        y = y + shift_q31(multiply_q31(y, error), 2)
    return shift_q31(y, 1)


def reciprocal_q31(x: Array, integer_bits: int) -> tuple[Array, Array]:
    """Return (mantissa Q0.31, bits) with 1 / x = mantissa / 2**31 / 2**bits, for x > 0 in Q(integer_bits).

    Source: TFLite GetReciprocal. `bits` is integer_bits less the leading zeros of x, and so may be negative.
    """
    x = np.asarray(x, np.int64)
    headroom = count_leading_zeros32(x)
    return one_over_one_plus_q31(np.left_shift(x, headroom) - (1 << 31)), integer_bits - headroom


def count_leading_zeros32(x: Array) -> Array:
    """Return int64[...], the leading zeros of 32 bits of x: int64[...], 0 <= x < 2**32; 32 for 0."""
    return 32 - np.frexp(np.asarray(x, np.float64))[1].astype(np.int64)


def log_q31(x: Array, input_integer_bits: int = 12, output_integer_bits: int = 5) -> Array:
    """Return log(x) as Q(output) for x >= 1 in Q(input).

    The largest error is 5e-8 with the default bits. A logarithm that does not fit Q(output) saturates or is wrong; x < 1 is not
    checked. Source: TFLite log_x_for_x_greater_than_or_equal_to_1.
    x is brought to [2**-0.5, 1) in two ways, of which the closer is used. A rational function of its distance to 2**-0.25
    follows.
    """
    accumulator_bits = output_integer_bits + 1
    quarter = shift_q31(np.asarray(1 << 29), -accumulator_bits)
    x = np.asarray(x, np.int64)
    headroom_a = count_leading_zeros32(x)
    scaled_a = np.clip(np.left_shift(x, headroom_a - 1), INT32_MIN, INT32_MAX)
    r_a = shift_q31(multiply_q31(scaled_a, _SQRT_HALF), 1)
    power_a = np.clip(_q(input_integer_bits - headroom_a, accumulator_bits) + quarter, INT32_MIN, INT32_MAX)
    headroom_b = count_leading_zeros32(multiply_q31(x, _SQRT_HALF)) - 1
    r_b = np.clip(np.left_shift(x, headroom_b), INT32_MIN, INT32_MAX)
    power_b = np.clip(_q(input_integer_bits - headroom_b, accumulator_bits) - quarter, INT32_MIN, INT32_MAX)
    r, power = np.minimum(r_a, r_b), np.maximum(power_a, power_b)
    p = divide_by_power(r + _ROOT4_HALF, np.asarray(1))
    q = 2 * (r - _ROOT4_HALF)
    q2 = multiply_q31(q, q)
    numerator = multiply_q31(q, r) + multiply_q31(multiply_q31(q, q2), _LOG_N)
    denominator = multiply_q31(p, _LOG_I + q + multiply_q31(q2, _LOG_D)) + multiply_q31(q, _LOG_F)
    ratio = multiply_q31(shift_q31(numerator, -accumulator_bits), one_over_one_plus_q31(denominator))
    return shift_q31(multiply_q31(power, _LOG_2) + ratio, accumulator_bits - output_integer_bits)


def _q(x: Array, integer_bits: int) -> Array:
    """Return a whole number as Q(integer_bits), saturated."""
    return shift_q31(x, 31 - integer_bits)


def inverse_sqrt_multiplier(x: Array) -> tuple[Array, Array]:
    """Return (multiplier Q0.31, shift) with 1 / sqrt(x) = multiplier / 2**31 * 2**shift, for x: int64[...], 0 <= x < 2**31.

    `x` is normalised to [2**27, 2**29), five Newton steps from 1, times sqrt(1/2); 0 and 1 give 2**31 - 1, shift 0.
    The relative error is at most 1.3e-6, and the shift is 0 or less.
    Source: TFLite GetInvSqrtQuantizedMultiplierExp with reverse_shift -1.
    """
    x = np.asarray(x, np.int64)
    wide = (x >= 1 << 29).astype(np.int64)
    y = np.maximum(x >> (2 * wide), 2)
    pairs = (count_leading_zeros32(y) - 1) // 2 - 1
    y = np.left_shift(y, 2 * pairs)
    shift = 11 + wide - pairs
    value = y >> 1
    half = shift_q31(value, -1)
    three_halves = (1 << 28) + (1 << 27)
    z = np.full_like(y, 1 << 28)
    for _ in range(5):
        cube = shift_q31(multiply_q31(multiply_q31(z, z), z), 6)
        z = shift_q31(multiply_q31(z, three_halves) - multiply_q31(half, cube), 3)
    z = multiply_q31(z, _SQRT_HALF)
    left_shift = np.maximum(-shift, 0)
    multiplier = np.where(x <= 1, INT32_MAX, np.left_shift(z, left_shift))
    return multiplier, np.where(x <= 1, 0, -np.maximum(shift, 0))


def multiply_by_multiplier(x: Array, multiplier: Array, shift: Array) -> Array:
    """Return x * multiplier / 2**31 * 2**shift for int32 values x, with one multiplier (Q0.31) and one shift for each value.

    Left shift first, then two roundings. Source: TFLite MultiplyByQuantizedMultiplier (double rounding), for multipliers
    that are data. Constant multipliers go through `requantize` with Rounding.DOUBLE_ROUND; clamped to int32, this gives the same.
    Where x * 2**shift leaves int32 it neither wraps nor saturates, and the result may leave int32 below.
    """
    product = multiply_q31(np.left_shift(np.asarray(x, np.int64), np.maximum(shift, 0)), multiplier)
    return divide_by_power(product, np.maximum(-np.asarray(shift, np.int64), 0))
