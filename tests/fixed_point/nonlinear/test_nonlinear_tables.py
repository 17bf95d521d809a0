"""Tables of 256 and 513 entries, and curve tables: exact rules, saturation, errors against float64, refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from errors import log_uniform, measure
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import FixedPointError, Rounding, ScaleForm
from quant.fixed_point.curves.curve_tables import (
    CurveTable,
    exp2_negative,
    exp_quantized,
    floor_log2,
    inverse_sqrt,
    log2_positive,
    reciprocal,
    reciprocal_quantized,
    rsqrt_quantized,
)
from quant.fixed_point.pointwise.real_functions import gelu, gelu_tanh, round_half_away, sigmoid, silu
from quant.fixed_point.pointwise.tables import build_table8, build_table16, interpolate16, lookup8, lookup16

INT8 = np.arange(-128, 128).astype(np.int8)
UINT8 = np.arange(256).astype(np.uint8)
INT16 = np.arange(-32768, 32768).astype(np.int16)


def half_away(x: Fraction) -> int:
    return int(abs(x) + Fraction(1, 2)) * (1 if x >= 0 else -1)


def test_round_half_away_is_exact_beside_ties() -> None:
    x = np.array([0.49999999999999994, 0.5, -0.5, 2.5, -2.5, 4503599627370497.5, -0.0, 1e300])
    np.testing.assert_array_equal(round_half_away(x), [0, 1, -1, 3, -3, 4503599627370498, 0, 1e300])


@settings(max_examples=60)
@given(st.integers(-128, 127), st.integers(-128, 127), st.integers(1, 4096), st.integers(1, 4096))
def test_table8_of_a_line_is_exact(zx: int, zy: int, sx: int, sy: int) -> None:
    """Scales that are multiples of 2^-10: the line hits many ties, float64 holds everything exactly."""
    table = build_table8(lambda v: v * sy, sx / 1024, zx, sy / 1024 * sy, zy)
    exact = [half_away(Fraction(sx, sy) * (q - zx)) + zy for q in range(-128, 128)]
    np.testing.assert_array_equal(table, np.clip(exact, -128, 127))


def test_table8_rounding_is_chosen() -> None:
    away = build_table8(lambda v: v, 0.5, 0, 1.0, 0)
    even = build_table8(lambda v: v, 0.5, 0, 1.0, 0, rounding=Rounding.HALF_EVEN)
    assert away[[127, 129, 131]].tolist() == [-1, 1, 2]
    assert even[[127, 129, 131]].tolist() == [0, 0, 2]


def test_table8_saturates_where_there_is_no_value() -> None:
    inverse = build_table8(lambda v: 1 / v, 0.1, 5, 0.1, 0)
    assert inverse[128 + 5] == 127  # +inf
    assert build_table8(lambda v: -1 / v, 0.1, 5, 0.1, 0)[128 + 5] == -128  # -inf
    root = build_table8(np.sqrt, 0.1, 5, 0.1, 7)
    assert (root[: 128 + 5] == -128).all() and root[128 + 5] == 7  # nan below the zero point
    assert build_table8(np.exp, 30.0, 0, 1.0, 0)[-1] == 127
    assert build_table8(lambda v: np.full(v.shape, np.nan), 1.0, 0, 1.0, 0, low=-3)[0] == -3


def test_table8_clamps_and_signs() -> None:
    table = build_table8(lambda v: v, 1.0, 0, 1.0, 0, low=-5, high=9)
    assert (table.min(), table.max()) == (-5, 9)
    unsigned = build_table8(lambda v: v, 1.0, 10, 1.0, 10, signed=False)
    assert unsigned.dtype == np.uint8
    np.testing.assert_array_equal(unsigned, UINT8)
    np.testing.assert_array_equal(lookup8(UINT8[::-3], unsigned), UINT8[::-3])


def test_lookup8_finds_each_code() -> None:
    table = np.random.default_rng(0).integers(-128, 128, 256).astype(np.int8)
    np.testing.assert_array_equal(lookup8(INT8, table), table)
    x = np.random.default_rng(1).integers(-128, 128, (3, 40, 5)).astype(np.int8)[:, ::2].transpose(2, 0, 1)
    np.testing.assert_array_equal(lookup8(x, table), table[x.astype(int) + 128])


@pytest.mark.parametrize("f", [sigmoid, np.tanh, gelu, gelu_tanh, silu, np.exp, np.sqrt, np.log], ids=lambda f: f.__name__)
def test_table8_errs_by_half_a_step(f) -> None:
    rng = np.random.default_rng(2)
    pairs = []
    for _ in range(50):
        sx, sy = log_uniform(rng, 0.003, 0.1), log_uniform(rng, 0.003, 0.1)
        zx, zy = rng.integers(-128, 128, 2)
        with np.errstate(all="ignore"):
            real = f(sx * (INT8.astype(np.float64) - zx)) / sy + zy
        pairs.append((lookup8(INT8, build_table8(f, sx, int(zx), sy, int(zy))), real))
    error = measure(pairs)
    assert error.largest <= 0.5 + 1e-9
    assert error.share < 1e-3  # only exact ties, which rint takes to even


def test_lookup16_is_the_stated_formula() -> None:
    rng = np.random.default_rng(3)
    table = rng.integers(-16384, 16384, 513).astype(np.int16)
    x = rng.integers(-32768, 32768, 3000).astype(np.int16)
    exact = []
    for v in x.tolist():
        i, f = (v + 32768) >> 7, v & 127
        low, high = int(table[i]), int(table[i + 1])
        exact.append(128 * low + (high - low) * f)
    np.testing.assert_array_equal(interpolate16(x, table), exact)
    for form in ("tosa", "tflite"):
        np.testing.assert_array_equal(lookup16(x, table, form), (np.array(exact) + 64) >> 7)


def test_lookup16_of_large_inputs_is_the_same() -> None:
    table = np.random.default_rng(4).integers(-32768, 32768, 513).astype(np.int16)
    for form in ("tosa", "tflite"):
        small = lookup16(INT16, table, form)
        np.testing.assert_array_equal(lookup16(np.concatenate([INT16, INT16[::-1]]), table, form), [*small, *small[::-1]])


def test_lookup16_forms_differ_on_steps_beyond_int16() -> None:
    table = np.zeros(513, np.int16)
    table[256], table[257] = -32768, 32767
    x = np.array([64], np.int16)
    assert lookup16(x, table, "tosa").tolist() == [0]
    assert lookup16(x, table, "tflite").tolist() == [-32768]  # the step wraps to -1


# f, input scale, output scale, form: largest and mean error in steps
TABLE16_BOUNDS = [
    (sigmoid, 1 / 4096, 1 / 32768, "tosa", 1.3, 0.33),
    (sigmoid, 1 / 4096, 1 / 32768, "tflite", 2.5, 0.50),
    (sigmoid, 1 / 4096, 1 / 32768, "midpoint", 1.2, 0.31),
    (np.tanh, 1 / 8192, 1 / 32768, "tosa", 1.6, 0.40),
    (np.tanh, 1 / 8192, 1 / 32768, "tflite", 3.8, 0.90),
    (np.tanh, 1 / 8192, 1 / 32768, "midpoint", 1.4, 0.33),
    (gelu_tanh, 1 / 4096, 1 / 4096, "tosa", 1.3, 0.20),
    (gelu_tanh, 1 / 4096, 1 / 4096, "tflite", 2.2, 0.40),
    (gelu_tanh, 1 / 4096, 1 / 4096, "midpoint", 1.1, 0.16),
]


@pytest.mark.parametrize(("f", "sx", "sy", "form", "largest", "mean"), TABLE16_BOUNDS)
def test_table16_error(f, sx: float, sy: float, form, largest: float, mean: float) -> None:
    y = lookup16(INT16, build_table16(f, sx, sy, form=form), "tflite")
    error = measure([(y, f(INT16 * sx) / sy)])
    assert error.largest <= largest and error.mean <= mean


def test_table16_zero_points_and_saturation() -> None:
    plain = build_table16(np.tanh, 1e-4, 1 / 40000, form="tosa")
    moved = build_table16(np.tanh, 1e-4, 1 / 40000, form="tosa", input_zero_point=128, output_zero_point=-100)
    inner = slice(200, 300)
    np.testing.assert_array_equal(moved[201:301], plain[inner] - 100)
    assert build_table16(lambda v: 1e9 * v, 1.0, 1.0, form="tosa")[[0, 512]].tolist() == [-32768, 32767]
    for form in ("tosa", "tflite", "midpoint"):
        log = build_table16(np.log, 1.0, 1 / 2000, form=form)
        assert (log[:257] == -32768).all()  # nan, then -inf
        assert log[300] > 0


REFUSALS = [
    (lambda: build_table8(np.exp, 0.0, 0, 1.0, 0), "input_scale=0.0: a scale must be positive and finite"),
    (lambda: build_table8(np.exp, 1.0, 0, np.nan, 0), "output_scale=nan: a scale must be positive and finite"),
    (
        lambda: build_table8(np.exp, 1.0, 0, 1.0, 0, low=5, high=2),
        "low=5, high=2: must satisfy -128 <= low <= high <= 127 for int8",
    ),
    (
        lambda: build_table8(np.sum, 1.0, 0, 1.0, 0),
        "function of the table returned shape () for (256,); it must work per element",
    ),
    (
        lambda: build_table8(np.exp, 1.0, 0, 1.0, 0, rounding=Rounding.FLOOR),
        "rounding=floor: a table is rounded half_away or half_even",
    ),
    (
        lambda: lookup8(INT16, np.zeros(256, np.int8)),
        "lookup8: input is int16, must be int8 or uint8; 16-bit inputs go through lookup16",
    ),
    (
        lambda: lookup8(INT8, np.zeros(257, np.int8)),
        "table for 8-bit lookup: shape (257,), must be (256,); build it with build_table8",
    ),
    (lambda: lookup16(INT8, np.zeros(513, np.int16), "tosa"), "16-bit lookup: input is int8, must be int16"),
    (
        lambda: lookup16(INT16, np.zeros(512, np.int16), "tosa"),
        "table for 16-bit lookup: int16(512,), must be int16(513,); use build_table16",
    ),
    (
        lambda: build_table16(np.exp, 1.0, 1.0, form="tflite", output_zero_point=1),
        "output_zero_point=1: TFLite's 16-bit table has none; use 0 or 'tosa'",
    ),
    (lambda: CurveTable(0), "CurveTable: index_bits=0; must be 1..12"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=lambda v: v if isinstance(v, str) else "")
def test_refusals(call, message: str) -> None:
    with pytest.raises(FixedPointError) as error:
        call()
    assert str(error.value) == message


def positive(rng: np.random.Generator) -> np.ndarray:
    """Whole numbers over all magnitudes below 2**62, and the powers of two with their neighbours."""
    powers = 2 ** np.arange(1, 62, dtype=np.int64)
    spread = rng.integers(1, 1 << 62, 60000) >> rng.integers(0, 61, 60000)
    return np.concatenate([np.maximum(spread, 1), powers - 1, powers, powers + 1])


def test_floor_log2_is_exact() -> None:
    x = positive(np.random.default_rng(5))
    np.testing.assert_array_equal(floor_log2(x), [int(v).bit_length() - 1 for v in x])


# table, then largest errors in units of the last place: 2**-t (absolute), 1/x and 1/sqrt(x) (relative), log2 (absolute)
CURVE_BOUNDS = [
    (CurveTable(6, 16, 8), 2.6, 8.3, 10.1, 9.0),
    (CurveTable(6, 14, 8), 1.5, 2.7, 3.4, 3.1),
    (CurveTable(4, 12, 8), 1.7, 4.9, 7.1, 4.8),
    (CurveTable(8, 8, 0), 1.0, 1.2, 1.3, 1.2),
    (CurveTable(8, 16, 0), 89.5, 128.5, 128.5, 186),
    (CurveTable(10, 20, 10), 1.3, 2.5, 2.5, 2.4),
]


@pytest.mark.parametrize(("table", "exp2", "inverse", "root", "log2"), CURVE_BOUNDS, ids=str)
def test_curve_errors(table: CurveTable, exp2: float, inverse: float, root: float, log2: float) -> None:
    unit = 2.0**table.value_bits
    t = np.arange(0, 1 << 19, 5)
    assert np.abs(exp2_negative(t, 15, table) - unit * 2.0 ** -(t / 2**15)).max() <= exp2
    x = positive(np.random.default_rng(6))
    mantissa, shift = reciprocal(x, table)
    assert (mantissa < unit).all() and (mantissa >= unit / 2 - 1).all()
    assert np.abs(mantissa * 2.0**-shift * x - 1).max() * unit <= inverse
    mantissa, shift = inverse_sqrt(x, table)
    assert (mantissa < unit).all() and (mantissa >= unit / 2 - 1).all()
    assert np.abs(mantissa * 2.0**-shift * np.sqrt(x) - 1).max() * unit <= root
    assert np.abs(log2_positive(x, table) - np.log2(x) * unit).max() <= log2


def test_curves_never_turn() -> None:
    table = CurveTable(5, 12, 6)
    assert (np.diff(exp2_negative(np.arange(1 << 15), 12, table)) <= 0).all()
    x = np.arange(1, 1 << 15)
    for curve in (reciprocal, inverse_sqrt):
        mantissa, shift = curve(x, table)
        assert (np.diff(mantissa * 2.0**-shift) <= 0).all()
    assert (np.diff(log2_positive(x, table)) >= 0).all()


@pytest.mark.parametrize("bits", [4, 8, 31])
def test_narrow_multipliers_scale_up(bits: int) -> None:
    """Few bits and a large result: the product is shifted left, without overflow, and saturates beyond the type."""
    x = np.array([-4, -1, 1, 2, 4, 100], np.int8)
    y = reciprocal_quantized(x, 1.0, 0, 1 / 30000, 0, CurveTable(4, 4, 0), ScaleForm("multiplier", bits, 0, 62), np.int16)
    np.testing.assert_allclose(y, 30000 / x.astype(float), rtol=0.12)
    far = reciprocal_quantized(x, 1.0, 0, 1e-30, 0, CurveTable(4, 4, 0), ScaleForm("multiplier", bits, 0, 62), np.int16)
    assert far.tolist() == [-32768, -32768, 32767, 32767, 32767, 32767]


QUANTIZED = [
    # function, float64, table, multiplier bits, type, largest and mean error in steps
    (exp_quantized, np.exp, CurveTable(6, 16, 8), 15, np.int8, 0.52, 0.15),
    (reciprocal_quantized, lambda v: 1 / v, CurveTable(6, 16, 8), 15, np.int8, 0.52, 0.18),
    (rsqrt_quantized, lambda v: 1 / np.sqrt(v), CurveTable(6, 16, 8), 15, np.int8, 0.52, 0.18),
    (exp_quantized, np.exp, CurveTable(8, 20, 10), 31, np.int16, 1.0, 0.2),
    (reciprocal_quantized, lambda v: 1 / v, CurveTable(8, 20, 10), 31, np.int16, 1.0, 0.25),
    (rsqrt_quantized, lambda v: 1 / np.sqrt(v), CurveTable(8, 20, 10), 31, np.int16, 1.0, 0.3),
]


@pytest.mark.parametrize(("function", "real", "table", "bits", "dtype", "largest", "mean"), QUANTIZED)
def test_quantized_curves(function, real, table: CurveTable, bits: int, dtype: type, largest: float, mean: float) -> None:
    rng = np.random.default_rng(7)
    limits = np.iinfo(dtype)
    fine = 1 if dtype == np.int8 else 1 / 128
    x = INT8 if dtype == np.int8 else INT16[rng.permutation(1 << 16)[:6000]]
    pairs = []
    for _ in range(60):
        sx, sy = log_uniform(rng, 0.004, 0.2) * fine, log_uniform(rng, 0.003, 0.1) * fine
        zx, zy = int(rng.integers(-100, 100)), int(rng.integers(-128, 128))
        with np.errstate(all="ignore"):
            t = real(sx * (x.astype(np.float64) - zx)) / sy + zy
        y = function(x, sx, zx, sy, zy, table, ScaleForm("multiplier", bits, 0, 62), dtype)
        assert y.dtype == dtype
        assert (y[np.isinf(t) & (t > 0)] == limits.max).all()
        pairs.append((y, t))
    error = measure(pairs)
    assert error.largest <= largest and error.mean <= mean
