"""Functions of one value in integers: TFLite's Q0.31 family, its activations, I-BERT's polynomials, roots, quotients.

Qm.n is an int32 with m integer bits and n = 31 - m fraction bits. All take and give int64 arrays that hold such values,
unless a type is named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import DTypeLike

from quant.fixed_point.errors import FixedPointError
from quant.fixed_point.requant import Requant, requantize
from quant.fixed_point.rounding import Rounding, round_shift
from quant.fixed_point.scale import ScaleForm, choose_scale
from quant.fixed_point.tables import Array, round_half_away

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
_INT16_MIN, _INT16_MAX = -(1 << 15), (1 << 15) - 1
_FULL_SCALE = ScaleForm("multiplier", 31, 0, 62)


def _q31(real: float) -> int:
    """A constant as Q0.31."""
    return round(real * 2**31)


# gemmlowp's fixedpoint.h and TFLite's common.h list these as integers; they are the nearest to what is written here.
_EXP_MINUS_EIGHTH, _THIRD, _SQRT_HALF = _q31(math.exp(-1 / 8)), _q31(1 / 3), _q31(math.sqrt(0.5))
_EXP_MINUS_POWERS = tuple((k, _q31(math.exp(-(2.0**k)))) for k in range(-2, 5))
_48_OVER_17_Q2, _MINUS_32_OVER_17_Q2 = _q31(48 / 17 / 4), _q31(-32 / 17 / 4)
_ROOT4_2 = 2**0.25
_LOG_2, _ROOT4_HALF = _q31(math.log(2)), _q31(1 / _ROOT4_2)
_LOG_N, _LOG_D = _q31(11 / 240 * _ROOT4_2), _q31(_ROOT4_2 / 20)
_LOG_I, _LOG_F = _q31(2 / _ROOT4_2 - _ROOT4_2), _q31(_ROOT4_2 / 4)


def require_type(x: Array, function: str, *dtypes: type[np.integer]) -> None:
    """Raises FixedPointError unless x is one of dtypes."""
    if x.dtype not in dtypes:
        raise FixedPointError(f"{function}: input is {x.dtype}; must be {' or '.join(d.__name__ for d in dtypes)}")


def multiply_q31(a: Array, b: Array | int) -> Array:
    """Q(m).x times Q(n).y -> Q(m + n): a b / 2**31 rounded half up; only min times min saturates.

    Source: gemmlowp SaturatingRoundingDoublingHighMul, Arm SQRDMULH.
    """
    product = np.asarray(a, np.int64) * b
    return np.minimum(round_shift(product, np.asarray(31), Rounding.SINGLE_HALF_UP), INT32_MAX)


def shift_q31(x: Array, exponent: int) -> Array:
    """x * 2**exponent: left saturating to int32, right rounded half away. gemmlowp SaturatingRoundingMultiplyByPOT."""
    x = np.asarray(x, np.int64)
    if exponent >= 0:
        return np.clip(x << exponent, INT32_MIN, INT32_MAX)
    return divide_by_power(x, np.asarray(-exponent))


def divide_by_power(x: Array, exponent: Array) -> Array:
    """x / 2**exponent, half away from zero. gemmlowp RoundingDivideByPOT."""
    return round_shift(np.asarray(x, np.int64), np.asarray(exponent, np.int64), Rounding.HALF_AWAY)


def exp_q31(x: Array, integer_bits: int = 5) -> Array:
    """x: Q(integer_bits) <= 0 -> Q0.31 exp(x); 0 gives 2**31 - 1. Largest error 1e-7. gemmlowp exp_on_negative_values.

    x modulo 1/4 by a fourth-order polynomial around -1/8, the rest by products with exp(-2**k), k = -2..4.
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
            taken = (remainder >> (fraction_bits + power)) & 1
            result = np.where(taken == 1, multiply_q31(result, factor), result)
    return np.where(x == 0, INT32_MAX, result)


def one_over_one_plus_q31(x: Array) -> Array:
    """x: Q0.31 in [0, 1) -> Q0.31 1 / (1 + x), three Newton steps. gemmlowp one_over_one_plus_x_for_x_in_0_1."""
    half_denominator = divide_by_power(np.asarray(x, np.int64) + INT32_MAX, np.asarray(1))
    y = _48_OVER_17_Q2 + multiply_q31(half_denominator, _MINUS_32_OVER_17_Q2)
    for _ in range(3):
        error = (1 << 29) - multiply_q31(half_denominator, y)
        y = y + shift_q31(multiply_q31(y, error), 2)
    return shift_q31(y, 1)


def reciprocal_q31(x: Array, integer_bits: int) -> tuple[Array, Array]:
    """x: Q(integer_bits) > 0 -> (mantissa Q0.31, bits): 1 / x = mantissa / 2**31 / 2**bits. TFLite GetReciprocal."""
    x = np.asarray(x, np.int64)
    headroom = count_leading_zeros32(x)
    return one_over_one_plus_q31(np.left_shift(x, headroom) - (1 << 31)), integer_bits - headroom


def count_leading_zeros32(x: Array) -> Array:
    """x: int64[...], 0 <= x < 2**32 -> int64[...], leading zeros of 32 bits; 32 for 0."""
    return 32 - np.frexp(np.asarray(x, np.float64))[1].astype(np.int64)


def log_q31(x: Array, input_integer_bits: int = 12, output_integer_bits: int = 5) -> Array:
    """x: Q(input) >= 1 -> Q(output) log(x). Largest error 1e-6. TFLite log_x_for_x_greater_than_or_equal_to_1.

    x is brought to [2**-0.5, 1) in two ways, the closer taken, then a rational function of its distance to 2**-0.25.
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
    """A whole number as Q(integer_bits), saturated."""
    return shift_q31(x, 31 - integer_bits)


def inverse_sqrt_multiplier(x: Array) -> tuple[Array, Array]:
    """x: int64[...], 0 <= x < 2**31 -> (multiplier Q0.31, shift): 1 / sqrt(x) = multiplier / 2**31 * 2**shift.

    x is normalised to [2**27, 2**29), five Newton steps from 1, times sqrt(1/2); 0 and 1 give 2**31 - 1, shift 0.
    Relative error 4e-8. Source: TFLite GetInvSqrtQuantizedMultiplierExp with reverse_shift -1.
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
    left = np.maximum(-shift, 0)
    multiplier = np.where(x <= 1, INT32_MAX, np.left_shift(z, left))
    return multiplier, np.where(x <= 1, 0, -np.maximum(shift, 0))


def multiply_by_multiplier(x: Array, multiplier: Array, shift: Array) -> Array:
    """x: int32 values, multiplier Q0.31 and shift one a value -> x * multiplier / 2**31 * 2**shift.

    Left shift first, then two roundings. Source: TFLite MultiplyByQuantizedMultiplier (double rounding), for multipliers
    that are data; constant ones go through `requantize` with Rounding.DOUBLE_ROUND, the same numbers.
    """
    product = multiply_q31(np.left_shift(np.asarray(x, np.int64), np.maximum(shift, 0)), multiplier)
    return divide_by_power(product, np.maximum(-np.asarray(shift, np.int64), 0))


def rsqrt8(x: Array, input_scale: float, input_zero_point: int, output_scale: float, output_zero_point: int) -> Array:
    """x: int8[...] -> int8[...], 1 / sqrt. x <= zero point gives 127. Source: TFLite RSQRT, int8 (TFLite refuses x < z).

    Error: at most 1 step (see docs/nonlinear.md).
    """
    require_type(x, "rsqrt8", np.int8)
    value = x.astype(np.int64) - input_zero_point
    kept_bits = 20
    multiplier, shift = inverse_sqrt_multiplier(np.maximum(value, 1))
    data = multiply_by_multiplier(np.ones_like(value), multiplier, shift + kept_bits)
    root = np.sqrt(np.float32(input_scale)) * np.float32(output_scale)
    q = choose_scale(1.0 / float(root), _FULL_SCALE)
    y = multiply_by_multiplier(data, q.multiplier[0], 31 - q.shift[0] - kept_bits) + output_zero_point
    return np.where(value <= 0, 127, np.clip(y, -128, 127)).astype(np.int8)


# --- activations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HardSwish:
    """Parameters of TFLite's 8-bit hard swish: two 15-bit multipliers with the exponents of their real scales.

    output: S / (128 S_o), exponent <= 0. reluish: S / 128 * 32768 / 3.
    """

    input_zero_point: int
    output_zero_point: int
    output_multiplier: int
    output_exponent: int
    reluish_multiplier: int
    reluish_exponent: int


def hard_swish_parameters(input_scale: float, input_zero_point: int, output_scale: float, output_zero_point: int) -> HardSwish:
    """Refuses S / (128 S_o) >= 1: the output must not be so much finer than the input. Source: TFLite HARD_SWISH."""
    hires = np.float32(1 / 128) * np.float32(input_scale)
    output, output_exponent = _multiplier16(float(hires / np.float32(output_scale)))
    reluish, reluish_exponent = _multiplier16(float(hires / (np.float32(3) / np.float32(32768))))
    if output_exponent > 0:
        raise FixedPointError(
            f"hard swish: input_scale / output_scale = {input_scale / output_scale:.6g}; must be below 128; "
            "choose a larger output scale"
        )
    return HardSwish(input_zero_point, output_zero_point, output, output_exponent, reluish, reluish_exponent)


def _multiplier16(real: float) -> tuple[int, int]:
    """-> (multiplier below 2**15, exponent). TFLite QuantizeMultiplier, then DownScaleInt32ToInt16Multiplier."""
    s = choose_scale(real, _FULL_SCALE)
    multiplier = int(s.multiplier[0])
    if multiplier >= INT32_MAX - (1 << 15):
        return _INT16_MAX, 31 - int(s.shift[0])
    return (multiplier + (1 << 15)) >> 16, 31 - int(s.shift[0])


def hard_swish8(x: Array, p: HardSwish) -> Array:
    """x: int8 or uint8[...] -> same type: x relu6(x + 3) / 6 in 16-bit steps. Source: TFLite HARD_SWISH, reference.

    Error: at most 1 step against float64 where the output scale is no finer than the input's (docs/nonlinear.md).
    """
    require_type(x, "hard_swish8", np.int8, np.uint8)
    limits = np.iinfo(x.dtype)
    hires = (x.astype(np.int64) - p.input_zero_point) << 7
    value = _multiply_q15(hires, p.output_multiplier)
    gate = hires
    if p.reluish_exponent > 0:
        gate = np.clip(gate << (p.reluish_exponent - 1), _INT16_MIN, _INT16_MAX)
    gate = _multiply_q15(gate, p.reluish_multiplier)
    if p.reluish_exponent > 0:
        gate = np.clip(gate << 1, _INT16_MIN, _INT16_MAX)
    if p.reluish_exponent < 0:
        gate = divide_by_power(gate, np.asarray(-p.reluish_exponent))
    gate = (gate + (1 << 15)) >> 1
    y = round_shift(gate * value, np.asarray(15), Rounding.TRUNCATE)
    y = divide_by_power(y, np.asarray(-p.output_exponent)) + p.output_zero_point
    return np.clip(y, limits.min, limits.max).astype(x.dtype)


def _multiply_q15(a: Array, b: int) -> Array:
    return np.minimum(round_shift(a * b, np.asarray(15), Rounding.SINGLE_HALF_UP), _INT16_MAX)


@cache
def _sigmoid_table() -> Array:
    """int64[256], sigmoid(i / 24) with 16 fraction bits: sigmoid_table_uint16 of TFLite's common.h.

    Each entry is moved by half of what the interpolation errs at the midpoint; the last is full scale.
    """
    i = np.arange(256.0)
    here, middle, after = (65536 / (1 + np.exp(-x / 24)) for x in (i, i + 0.5, i + 1))
    table = round_half_away(here - ((here + after) / 2 - middle) / 2).astype(np.int64)
    table[-1] = 65535
    table.flags.writeable = False
    return table


def _logistic_argument(x: Array, input_scale: float, exact_shifts: tuple[int, ...]) -> Array:
    """x scaled to 1 / (3 * 4096): a multiplier of 15 bits, rounded down, and a shift; powers of two exactly."""
    scale = float(np.float32(input_scale))
    log2 = round(np.log2(scale))
    if scale == 2.0**log2 and 12 + log2 in exact_shifts:
        return x.astype(np.int64) * (3 << (12 + log2))
    multiplier, shift = scale * 4096 * 3, 0
    while multiplier <= 32767 / 2 and shift <= 30:
        shift, multiplier = shift + 1, multiplier * 2
    return round_shift(x.astype(np.int64) * int(multiplier), np.asarray(shift), Rounding.SINGLE_HALF_UP)


def logistic16(x: Array, input_scale: float) -> Array:
    """x: int16[...] with scale input_scale, zero point 0 -> int16[...] with scale 1 / 32768.

    256 entries over [0, 10.67), interpolated, symmetric. Largest error in docs/nonlinear.md. Source: TFLite LOGISTIC,
    int16 (reference_integer_ops).
    """
    require_type(x, "logistic16", np.int16)
    argument = _logistic_argument(x, input_scale, (0,))
    distance = np.abs(argument)
    i = np.minimum(distance >> 9, 254)
    table = _sigmoid_table()
    base = table[i]
    result = np.where(distance >> 9 >= 255, 0x7FFF << 10, (base << 9) + (distance & 0x1FF) * (table[i + 1] - base))
    result = np.where(argument >= 0, result + (1 << 9), (1 << 25) - result + (1 << 9) - 1)
    return (result >> 10).astype(np.int16)


def tanh16(x: Array, input_scale: float) -> Array:
    """x: int16[...] with scale input_scale, zero point 0 -> int16[...] with scale 1 / 32768, as 2 sigmoid(2 x) - 1.

    Largest error in docs/nonlinear.md. Source: TFLite TANH, int16 (reference_integer_ops).
    """
    require_type(x, "tanh16", np.int16)
    argument = _logistic_argument(x, input_scale, (0, 1))
    distance = np.abs(argument)
    i = np.minimum(distance >> 8, 254)
    table = _sigmoid_table()
    base = table[i]
    result = np.where(distance >> 8 >= 255, 0xFFFF << 8, (base << 8) + (distance & 0xFF) * (table[i + 1] - base))
    result = np.where(argument >= 0, result - (1 << 23) + (1 << 7), -result + (1 << 23) + (1 << 7) - 1)
    return (result >> 8).astype(np.int16)


# --- real functions, for tables --------------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), float64."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def erf(x: Array) -> Array:
    """The error function, float64, as the C library computes it; for tables, not for bulk."""
    return np.array([math.erf(v) for v in np.ravel(x)]).reshape(np.shape(x))


def gelu(x: Array) -> Array:
    """x (1 + erf(x / sqrt 2)) / 2, float64. ONNX Gelu with approximate 'none'."""
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2, float64. ONNX Gelu with approximate 'tanh'."""
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: Array) -> Array:
    """x sigmoid(x), float64; also called swish."""
    return x * sigmoid(x)


# --- roots, quotients, polynomials -----------------------------------------------------------------------------------


def integer_sqrt(x: Array, *, nearest: bool = False) -> Array:
    """x: int64[...], 0 <= x < 2**62 -> int64[...], floor of the square root, or the nearest whole number. Exact."""
    x = np.asarray(x, np.int64)
    if x.size and (x.min() < 0 or x.max() >= 1 << 62):
        raise FixedPointError(f"integer_sqrt: values {x.min()}..{x.max()}; must be 0..2**62-1")
    root = np.floor(np.sqrt(x.astype(np.float64))).astype(np.int64)
    # Above 2**53 the conversion may round up past a square; rounded down it still has the right root.
    root = root - (root * root > x)
    return root + (x - root * root > root) if nearest else root


def sqrt_quantized(x: Array, input_zero_point: int, r: Requant, fraction_bits: int, dtype: DTypeLike) -> Array:
    """x: int8 or int16[...] -> dtype[...]: requantize(floor(sqrt((x - z) << 2 fraction_bits)), r); below z counts as z.

    r scales by sqrt(S) / (2**fraction_bits S_o). Error: half a step plus one unit of the root (docs/nonlinear.md).
    """
    value = np.maximum(x.astype(np.int64) - input_zero_point, 0)
    return requantize(integer_sqrt(value << (2 * fraction_bits)), r, dtype)


def divide(a: Array, b: Array, rounding: Rounding) -> Array:
    """a, b: int64[...], |a| < 2**61, |b| < 2**61 -> int64[...], a / b exactly rounded.

    rounding: FLOOR, TRUNCATE (C), HALF_AWAY, HALF_EVEN or SINGLE_HALF_UP. b = 0: 2**31 - 1 with the sign of a; 0 / 0 = 0.
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
    """a, b: int8 or int16[...], broadcast -> dtype[...]: requantize(divide((a - z_a) << fraction_bits, b - z_b), r).

    r scales by S_a / (S_b S_o 2**fraction_bits), and rounds a second time. b = z_b saturates.
    """
    numerator = (a.astype(np.int64) - zero_points[0]) << fraction_bits
    return requantize(divide(numerator, b.astype(np.int64) - zero_points[1], rounding), r, dtype)


@dataclass(frozen=True)
class Polynomial:
    """(x + b)**2 + c or (x + b) x + c in the integers of a scale, and the scale of the result."""

    b: int
    c: int
    scale: float


_ERF_A, _ERF_B, _ERF_C = -0.2888, -1.769, 1.0
_EXP_A, _EXP_B, _EXP_C = 0.35815147, 0.96963238, 1.0


def gelu_polynomial(x: Array, input_scale: float, input_zero_point: int) -> tuple[Array, float]:
    """x: int8 or int16[...] -> (int64[...], scale): x (1 + erf(x / sqrt 2)) / 2, erf by a second-order polynomial.

    To be requantized by scale / S_o. Largest error 0.02 in real units, mean in docs/nonlinear.md: beyond half a step of
    most int8 scales, so prefer a table where the chip has one. Source: I-BERT (Kim et al. 2021), I-GELU.
    """
    erf_scale = input_scale / np.sqrt(2.0)
    square_scale = float(_ERF_A * erf_scale**2)
    p = Polynomial(int(np.floor(_ERF_B / erf_scale)), int(np.floor(_ERF_C / square_scale)), square_scale)
    one = int(np.floor(1.0 / square_scale))
    value = x.astype(np.int64) - input_zero_point
    distance = np.minimum(np.abs(value), -p.b)
    erf = np.sign(value) * ((distance + p.b) ** 2 + p.c)
    # square_scale is negative: both signs are turned.
    return -value * (erf + one), -input_scale * square_scale / 2


def exp_polynomial(x: Array, input_scale: float, fraction_bits: int = 30) -> tuple[Array, float]:
    """x: int64[...] <= 0 -> (int64[...], scale): exp(x input_scale), a second-order polynomial of x modulo log 2.

    To be requantized by scale / S_o. Largest error in docs/nonlinear.md. Source: I-BERT (Kim et al. 2021), I-EXP.
    """
    ln2 = int(np.floor(np.log(2.0) / input_scale))
    if ln2 < 1:
        raise FixedPointError(f"exp_polynomial: input_scale={input_scale}; must be at most log 2 = 0.6931")
    p = Polynomial(
        int(np.floor(_EXP_B / _EXP_A / input_scale)),
        int(np.floor(_EXP_C / _EXP_A / input_scale**2)),
        _EXP_A * input_scale**2,
    )
    if p.c << fraction_bits >= 1 << 62:
        raise FixedPointError(
            f"exp_polynomial: input_scale={input_scale} and fraction_bits={fraction_bits} need more than 62 bits; "
            "use fewer fraction_bits"
        )
    x = np.asarray(x, np.int64)
    halvings = np.minimum(-x // ln2, fraction_bits)
    rest = np.maximum(x + halvings * ln2, -ln2)
    return ((rest + p.b) * rest + p.c) << (fraction_bits - halvings), p.scale / (1 << fraction_bits)
