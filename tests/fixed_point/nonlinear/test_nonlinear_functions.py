"""Q0.31 arithmetic, roots, quotients and polynomials: exact where they are exact, errors against float64 elsewhere."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from errors import log_uniform, measure
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import FixedPointError, Requant, Rounding, ScaleForm, make_requant, requantize
from quant.fixed_point.core import q31
from quant.fixed_point.core.q31 import (
    count_leading_zeros32,
    divide_by_power,
    exp_q31,
    inverse_sqrt_multiplier,
    log_q31,
    multiply_by_multiplier,
    multiply_q31,
    one_over_one_plus_q31,
    reciprocal_q31,
    shift_q31,
)
from quant.fixed_point.curves.polynomials import exp_polynomial, gelu_polynomial
from quant.fixed_point.curves.roots import divide, divide_quantized, integer_sqrt, rsqrt8, sqrt_quantized
from quant.fixed_point.pointwise.real_functions import gelu, sigmoid
from quant.fixed_point.reference_ops.tflite_activations import hard_swish8, hard_swish_parameters, logistic16, tanh16

INT8 = np.arange(-128, 128).astype(np.int8)
INT16 = np.arange(-32768, 32768).astype(np.int16)
FORM = ScaleForm()
int32 = st.integers(-(2**31), 2**31 - 1)


def requant(scale: float, zero_point: int, dtype: type = np.int8) -> Requant:
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    return make_requant(scale, FORM, Rounding.SINGLE_HALF_UP, zero_point=zero_point, low=low, high=high)


@given(st.lists(st.tuples(int32, int32), min_size=1, max_size=50))
def test_multiply_q31_is_half_up(pairs: list[tuple[int, int]]) -> None:
    ties = [(2**30, 1), (-(2**30), 1), (-(2**30), 3), (-(2**31), -(2**31))]
    a, b = (np.array(v) for v in zip(*[*pairs, *ties]))
    exact = [min(math.floor(Fraction(int(p) * int(q), 2**31) + Fraction(1, 2)), 2**31 - 1) for p, q in zip(a, b)]
    np.testing.assert_array_equal(multiply_q31(a, b), exact)


@given(st.lists(int32, min_size=1, max_size=50), st.integers(0, 31))
def test_shifts(values: list[int], exponent: int) -> None:
    x = np.array([*values, 2**31 - 1, -(2**31)])
    expected = [min(max(int(v) << exponent, -(2**31)), 2**31 - 1) for v in x]
    np.testing.assert_array_equal(shift_q31(x, exponent), expected)
    half = Fraction(1, 2)
    away = [int(abs(Fraction(int(v), 2**exponent)) + half) * (1 if v >= 0 else -1) for v in x]
    np.testing.assert_array_equal(divide_by_power(x, np.asarray(exponent)), away)
    np.testing.assert_array_equal(shift_q31(x, -exponent), away)


def test_multiply_by_multiplier_is_requantize_with_double_round() -> None:
    """The multiplier that is data and the one that is a parameter give the same numbers."""
    rng = np.random.default_rng(0)
    x = rng.integers(-(1 << 24), 1 << 24, 2000)
    for shift in range(-30, 7):
        multiplier = int(rng.integers(1 << 30, 1 << 31))
        r = Requant(np.array([multiplier]), np.array([31 - shift]), Rounding.DOUBLE_ROUND, 0, -(2**31), 2**31 - 1)
        data = multiply_by_multiplier(x, np.asarray(multiplier), np.asarray(shift))
        np.testing.assert_array_equal(np.clip(data, -(2**31), 2**31 - 1), requantize(x, r, np.int32))


def test_constants_are_those_of_gemmlowp_and_tflite() -> None:
    powers = [1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242]
    assert [value for _, value in q31._EXP_MINUS_POWERS] == powers
    assert (q31._EXP_MINUS_EIGHTH, q31._THIRD, q31._SQRT_HALF) == (1895147668, 715827883, 1518500250)
    assert (q31._48_OVER_17_Q2, q31._MINUS_32_OVER_17_Q2) == (1515870810, -1010580540)
    assert (q31._LOG_2, q31._ROOT4_HALF) == (1488522236, 1805811301)
    log = (q31._LOG_N, q31._LOG_D, q31._LOG_I, q31._LOG_F)
    assert log == (117049297, 127690142, 1057819769, 638450708)


def test_hard_swish_multiplier_saturates_below_a_power_of_two() -> None:
    below = float(np.nextafter(np.float32(0.1), np.float32(0)))
    assert hard_swish_parameters(below, 0, 0.1, 0).output_multiplier == 32767
    assert hard_swish_parameters(0.1, 0, 0.1, 0).output_multiplier == 16384


def test_count_leading_zeros() -> None:
    x = np.array([0, 1, 2, 3, 2**16 - 1, 2**16, 2**30, 2**31 - 1, 2**31, 2**32 - 1])
    np.testing.assert_array_equal(count_leading_zeros32(x), [32 - int(v).bit_length() for v in x])


@pytest.mark.parametrize("integer_bits", [0, 2, 5])
def test_exp_q31_error(integer_bits: int) -> None:
    x = np.concatenate([-np.random.default_rng(1).integers(1, 1 << 31, 100000), -np.arange(1, 2000), [-(1 << 31)]])
    error = exp_q31(x, integer_bits) / 2**31 - np.exp(x / 2.0 ** (31 - integer_bits))
    assert np.abs(error).max() < 2.4e-7 and np.abs(error).mean() < 1e-7
    assert exp_q31(np.array([0]), integer_bits).tolist() == [2**31 - 1]


def test_reciprocal_and_log_q31_error() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(0, 1 << 31, 100000)
    error = one_over_one_plus_q31(x) / 2**31 - 1 / (1 + x / 2**31)
    assert np.abs(error).max() < 3.2e-9
    sums = np.concatenate([rng.integers(1 << 19, 1 << 31, 100000), [1 << 19, (1 << 31) - 1]])
    mantissa, bits = reciprocal_q31(sums, 12)
    assert np.abs(mantissa / 2.0**31 / 2.0**bits * (sums / 2**19) - 1).max() < 6e-9
    assert np.abs(log_q31(sums) / 2**26 - np.log(sums / 2**19)).max() < 5e-8


def test_inverse_sqrt_multiplier_error() -> None:
    x = np.concatenate([np.arange(2, 4000), np.random.default_rng(3).integers(2, 1 << 31, 50000), [(1 << 31) - 1, 1 << 29]])
    multiplier, shift = inverse_sqrt_multiplier(x)
    assert np.abs(multiplier * 2.0 ** (shift - 31) * np.sqrt(x) - 1).max() < 1.3e-6
    assert [v.tolist() for v in inverse_sqrt_multiplier(np.array([0, 1]))] == [[2**31 - 1] * 2, [0, 0]]


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=20), st.integers(0, 2**31 - 1))
def test_integer_sqrt_is_exact(values: list[int], root: int) -> None:
    x = [*values, root * root, max(root * root - 1, 0), root * root + root, root * root + root + 1]
    np.testing.assert_array_equal(integer_sqrt(np.array(x)), [math.isqrt(v) for v in x])
    nearest = [math.isqrt(v) + (v - math.isqrt(v) ** 2 > math.isqrt(v)) for v in x]
    np.testing.assert_array_equal(integer_sqrt(np.array(x), nearest=True), nearest)


def round_exactly(x: Fraction, rounding: Rounding) -> int:
    if rounding is Rounding.FLOOR:
        return math.floor(x)
    if rounding is Rounding.TRUNCATE:
        return math.trunc(x)
    if rounding is Rounding.HALF_EVEN:
        return round(x)
    if rounding is Rounding.SINGLE_HALF_UP:
        return math.floor(x + Fraction(1, 2))
    return int(abs(x) + Fraction(1, 2)) * (1 if x >= 0 else -1)


DIVISIONS = [Rounding.FLOOR, Rounding.TRUNCATE, Rounding.HALF_AWAY, Rounding.HALF_EVEN, Rounding.SINGLE_HALF_UP]


@pytest.mark.parametrize("rounding", DIVISIONS)
@settings(max_examples=60)
@given(st.data())
def test_divide_is_exact(rounding: Rounding, data: st.DataObject) -> None:
    small = st.tuples(st.integers(-20, 20), st.integers(-8, 8))
    large = st.tuples(st.integers(-(2**61) + 1, 2**61 - 1), st.integers(-(2**40), 2**40))
    pairs = [p for p in data.draw(st.lists(small | large, min_size=1, max_size=60)) if p[1] != 0] or [(1, 2)]
    a, b = (np.array(v) for v in zip(*pairs))
    np.testing.assert_array_equal(divide(a, b, rounding), [round_exactly(Fraction(*p), rounding) for p in pairs])


def test_divide_tells_the_roundings_apart_and_saturates() -> None:
    a, b = np.array([5, -5, 7, -7, 3]), np.array([2, 2, 2, 2, 4])
    results = [tuple(divide(a, b, r).tolist()) for r in DIVISIONS]
    assert len(set(results)) == len(DIVISIONS)
    assert divide(np.array([3, -3, 0]), np.array([0, 0, 0]), Rounding.FLOOR).tolist() == [2**31 - 1, -(2**31) + 1, 0]


def test_divide_quantized_error() -> None:
    rng = np.random.default_rng(4)
    pairs = []
    for _ in range(40):
        sa, sb, sy = (log_uniform(rng, 0.01, 0.1) for _ in range(3))
        za, zb, zy = (int(z) for z in rng.integers(-128, 128, 3))
        a, b = rng.integers(-128, 128, (2, 400)).astype(np.int8)
        r = requant(sa / sb / sy / 2**16, zy)
        y = divide_quantized(a, b, (za, zb), r, 16, Rounding.HALF_AWAY, np.int8)
        with np.errstate(all="ignore"):
            pairs.append((y, sa * (a.astype(float) - za) / (sb * (b.astype(float) - zb)) / sy + zy))
    error = measure(pairs)
    assert error.largest < 0.51 and error.share < 2e-3


def test_sqrt_quantized_error() -> None:
    rng = np.random.default_rng(5)
    pairs = []
    for _ in range(40):
        sx, sy = log_uniform(rng, 0.01, 0.1), log_uniform(rng, 0.01, 0.1)
        zx, zy = (int(z) for z in rng.integers(-128, 128, 2))
        y = sqrt_quantized(INT8, zx, requant(math.sqrt(sx) / sy / 256, zy), 8, np.int8)
        pairs.append((y, np.sqrt(np.maximum(sx * (INT8.astype(float) - zx), 0)) / sy + zy))
    error = measure(pairs)
    assert error.largest < 0.56 and error.mean < 0.12


def test_rsqrt8_error() -> None:
    rng = np.random.default_rng(6)
    pairs = []
    for _ in range(60):
        sx, sy = (float(np.float32(log_uniform(rng, 0.01, 0.1))) for _ in range(2))
        zy = int(rng.integers(-128, 128))
        y = rsqrt8(INT8, sx, -128, sy, zy)
        assert y[0] == 127
        pairs.append((y[1:], 1 / np.sqrt(sx * (INT8[1:].astype(float) + 128)) / sy + zy))
    error = measure(pairs)
    assert error.largest < 0.51 and error.share < 5e-4
    assert (rsqrt8(INT8, 0.1, 5, 0.1, 0)[:134] == 127).all()


def test_hard_swish_error() -> None:
    rng = np.random.default_rng(7)
    pairs = []
    for _ in range(100):
        sx, sy = (float(np.float32(log_uniform(rng, 0.01, 0.1))) for _ in range(2))
        zx, zy = (int(z) for z in rng.integers(-128, 128, 2))
        real = sx * (INT8.astype(float) - zx)
        y = hard_swish8(INT8, hard_swish_parameters(sx, zx, sy, zy))
        pairs.append((y, real * np.clip(real + 3, 0, 6) / 6 / sy + zy))
    error = measure(pairs)
    assert error.largest < 0.53 and error.mean < 0.18 and abs(error.bias) < 0.01 and error.share < 2e-3 and error.steps <= 1


# input scale, then largest and mean error of logistic16 and of tanh16 in steps of 1 / 32768
SIGMOID16 = [(2.0**-12, 1.05, 0.28, 1.5, 0.35), (2.0**-11, 1.05, 0.33, 1.5, 0.43), (1e-4, 1.4, 0.37, 2.8, 0.52)]


@pytest.mark.parametrize(("scale", "largest", "mean", "tanh_largest", "tanh_mean"), SIGMOID16)
def test_logistic16_and_tanh16_error(scale: float, largest: float, mean: float, tanh_largest: float, tanh_mean: float) -> None:
    real = INT16 * float(np.float32(scale))
    error = measure([(logistic16(INT16, scale), 32768 * sigmoid(real))])
    assert error.largest < largest and error.mean < mean
    error = measure([(tanh16(INT16, scale), 32768 * np.tanh(real))])
    assert error.largest < tanh_largest and error.mean < tanh_mean


def test_gelu_polynomial_error() -> None:
    """Check the error of its second-order erf in real units, and in int8 steps."""
    rng = np.random.default_rng(8)
    largest, means, pairs = 0.0, [], []
    for _ in range(100):
        sx, sy = log_uniform(rng, 0.01, 0.1), log_uniform(rng, 0.01, 0.1)
        zx, zy = (int(z) for z in rng.integers(-128, 128, 2))
        t = gelu(sx * (INT8.astype(float) - zx))
        acc, scale = gelu_polynomial(INT8, sx, zx)
        assert scale > 0
        largest, means = max(largest, np.abs(acc * scale - t).max()), [*means, np.abs(acc * scale - t).mean()]
        pairs.append((requantize(acc, requant(scale / sy, zy)), t / sy + zy))
    assert largest < 0.035 and np.mean(means) < 0.007
    error = measure(pairs)
    assert error.largest < 2.6 and error.mean < 0.26


# input scales, largest error: the floors of its constants dominate at coarse scales
EXP_POLYNOMIAL = [(0.001, 0.003, 0.0022), (0.003, 0.01, 0.0045), (0.01, 0.03, 0.013), (0.03, 0.1, 0.06)]


@pytest.mark.parametrize(("low", "high", "largest"), EXP_POLYNOMIAL)
def test_exp_polynomial_error(low: float, high: float, largest: float) -> None:
    rng = np.random.default_rng(9)
    for _ in range(20):
        scale = log_uniform(rng, low, high)
        x = -np.arange(0, int(20 / scale))
        acc, out = exp_polynomial(x, scale, 28)
        assert np.abs(acc * out - np.exp(x * scale)).max() < largest
        assert (acc >= 0).all()


REFUSALS = [
    (lambda: exp_q31(np.array([0]), 6), "integer_bits=6: exp_q31 takes Q0 to Q5"),
    (lambda: hard_swish8(INT16, hard_swish_parameters(0.1, 0, 0.1, 0)), "hard_swish8: input is int16; must be int8 or uint8"),
    (lambda: logistic16(INT8, 0.1), "logistic16: input is int8; must be int16"),
    (lambda: integer_sqrt(np.array([-1])), "integer_sqrt: values -1..-1; must be 0..2**62-1"),
    (
        lambda: divide(np.array([1]), np.array([2]), Rounding.POW2),
        "divide: rounding=pow2; must be floor, truncate, half_away, half_even or single_half_up",
    ),
    (
        lambda: hard_swish_parameters(1.0, 0, 0.001, 0),
        "hard swish: input_scale / output_scale = 1000; must be below 128; choose a larger output scale",
    ),
    (
        lambda: exp_polynomial(np.array([0]), 1e-5, 30),
        "exp_polynomial: input_scale=1e-05 and fraction_bits=30 need more than 62 bits; use fewer fraction_bits",
    ),
    (lambda: exp_polynomial(np.array([0]), 1.0), "exp_polynomial: input_scale=1.0; must be at most log 2 = 0.6931"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusals(call, message: str) -> None:
    with pytest.raises(FixedPointError) as error:
        call()
    assert str(error.value) == message
