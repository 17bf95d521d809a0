"""Requantization against exact rational arithmetic, and every rounding rule told apart from every other."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import exact_requant as exact
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import (
    FixedPointError,
    Requant,
    Rounding,
    float32_bits,
    float32_from_bits,
    requantize,
    round_shift,
    round_shift_wide,
    type_limits,
)

VALUES = 500
MANY = [pytest.param(90, marks=pytest.mark.slow), pytest.param(220, marks=pytest.mark.exhaustive)]  # 110,000 values a mode
FEW = 30
MULTIPLIER_BITS = {Rounding.SCALE16: 15, Rounding.POW2: 1}
MODES = [r for r in Rounding if r is not Rounding.FP32_RNE]


def accumulators(rng: np.random.Generator, dtype: type, m: int, s: int, count: int = VALUES) -> np.ndarray:
    """Values of every magnitude, extremes, and ones whose product lies at or beside a tie, near 0 and near the clamp."""
    limits = np.iinfo(dtype)
    bits = limits.bits - 1
    spread = rng.integers(-(1 << 62), 1 << 62, count) >> rng.integers(62 - bits, 62, count)
    near = [limits.min, limits.max, limits.min + 1, limits.max - 1, 0, 1, -1]
    for target in rng.integers(-40000, 40000, 20):
        for half in (0, 1):
            tie = ((2 * int(target) + half) << max(s, 0)) // max(2 * m, 1)
            near += [tie - 1, tie, tie + 1, tie >> 7]
    near = [v for v in near if limits.min <= v <= limits.max]
    return np.concatenate([spread[: count - len(near)], np.array(near, np.int64)])[:count].astype(dtype)


@st.composite
def cases(draw: st.DrawFn, rounding: Rounding) -> tuple[np.ndarray, Requant, np.dtype]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits = draw(st.integers(1, MULTIPLIER_BITS.get(rounding, 31)))
    m = draw(st.sampled_from([1 << (bits - 1), (1 << bits) - 1, int(rng.integers(1 << (bits - 1), 1 << bits))]))
    lowest = {Rounding.POW2: -20, Rounding.REDUCED16: 17}.get(rounding, 0)
    s = draw(st.sampled_from([lowest, 62, 31, 32, *range(max(lowest, 0), 63, 3)]))
    dtype = np.dtype(draw(st.sampled_from([np.int8, np.uint8, np.int16, np.int32])))
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    width = None
    if dtype == np.int8 and draw(st.booleans()):
        low, high, width = -8, 7, 4
    zero = draw(st.sampled_from([0, low, high, 3]))
    if draw(st.booleans()):
        low, high = sorted(int(v) for v in rng.integers(low, high + 1, 2))
    wide = draw(st.booleans())
    r = Requant(np.array([m]), np.array([s]), rounding, zero, low, high, draw(st.booleans()), width_bits=width)
    return accumulators(rng, np.int64 if wide else np.int32, m, s), r, dtype


def compute_expected(acc: np.ndarray, r: Requant, dtype: np.dtype) -> np.ndarray:
    bits = (r.width_bits or dtype.itemsize * 8) if r.wrap else None
    m, s = int(r.multiplier[0]), int(r.shift[0])
    values = [
        exact.finish_exactly(exact.scale_exactly(int(x), m, s, r.rounding), r.zero_point, r.low, r.high, bits, dtype.kind == "i")
        for x in acc
    ]
    return np.array(values, dtype)


@pytest.mark.parametrize("examples", [FEW, *MANY])
@pytest.mark.parametrize("rounding", MODES, ids=str)
def test_equals_exact_arithmetic(rounding: Rounding, examples: int) -> None:
    @settings(max_examples=examples)
    @given(cases(rounding))
    def check(case: tuple[np.ndarray, Requant, np.dtype]) -> None:
        acc, r, dtype = case
        if r.wrap and acc.dtype == np.int64 and saturates_int64(acc, r):
            return  # a wrapped result beyond int64 is not defined
        np.testing.assert_array_equal(requantize(acc, r, dtype), compute_expected(acc, r, dtype))

    check()


def saturates_int64(acc: np.ndarray, r: Requant) -> bool:
    m, s = int(r.multiplier[0]), int(r.shift[0])
    return max(abs(exact.scale_exactly(int(v), m, s, r.rounding)) for v in (acc.min(), acc.max())) >= 1 << 61


@pytest.mark.parametrize("examples", [FEW, *MANY])
def test_float32_equals_exact_arithmetic(examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.integers(0, 2**32 - 1), st.floats(2.0**-40, 2.0**10, width=32), st.booleans())
    def check(seed: int, scale: float, wide: bool) -> None:
        rng = np.random.default_rng(seed)
        acc = accumulators(rng, np.int64 if wide else np.int32, 1, max(0, int(-np.log2(scale))))
        r = Requant(float32_bits([scale]), np.array([0]), Rounding.FP32_RNE, -3, -128, 127, kind="float32")
        values = [exact.finish_exactly(exact.scale_float32(int(x), Fraction(scale)), -3, -128, 127) for x in acc]
        np.testing.assert_array_equal(requantize(acc, r), np.array(values, np.int8))

    check()


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.floats(2.0**-35, 2.0**10, width=32), st.sampled_from(MODES))
def test_float32_scale_with_integer_rules(seed: int, scale: float, rounding: Rounding) -> None:
    if rounding in (Rounding.DOUBLE_ROUND, Rounding.SCALE16, Rounding.REDUCED16, Rounding.POW2):
        return
    acc = accumulators(np.random.default_rng(seed), np.int32, 1, max(0, int(-np.log2(scale))))
    r = Requant(float32_bits([scale]), np.array([0]), rounding, 5, -32768, 32767, kind="float32")
    n, d = Fraction(scale).as_integer_ratio()
    values = [
        exact.finish_exactly(exact.scale_exactly(int(x) * n, 1, d.bit_length() - 1, rounding), 5, -32768, 32767) for x in acc
    ]
    np.testing.assert_array_equal(requantize(acc, r, np.int16), np.array(values, np.int16))


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2**31 - 1), st.integers(0, 62), st.sampled_from(MODES))
def test_two_limbs_equal_one(seed: int, m: int, s: int, rounding: Rounding) -> None:
    if rounding in (Rounding.REDUCED16, Rounding.SCALE16):
        return
    x = accumulators(np.random.default_rng(seed), np.int32, m, s).astype(np.int64)
    multiplier, shift = np.array([m]), np.array([s])
    one = round_shift(x * multiplier, shift, rounding, x)
    np.testing.assert_array_equal(round_shift_wide(x, multiplier, shift, rounding), one)


# x, m, s and what each rule gives. 2**30 / 2**33 = 1/8: ties at 4, 12, 20; 3 is the first rounding of two.
EIGHTHS = [4, -4, 12, -12, 20, -20, 5, -5, 3, -3, 7, -7]
PINNED = {
    Rounding.SINGLE_HALF_UP: [1, 0, 2, -1, 3, -2, 1, -1, 0, 0, 1, -1],
    Rounding.DOUBLE_ROUND: [1, -1, 2, -2, 3, -3, 1, -1, 1, 0, 1, -1],
    Rounding.HALF_AWAY: [1, -1, 2, -2, 3, -3, 1, -1, 0, 0, 1, -1],
    Rounding.HALF_EVEN: [0, 0, 2, -2, 2, -2, 1, -1, 0, 0, 1, -1],
    Rounding.TRUNCATE: [0, 0, 1, -1, 2, -2, 0, 0, 0, 0, 0, 0],
    Rounding.FLOOR: [0, -1, 1, -2, 2, -3, 0, -1, 0, -1, 0, -1],
}


def outcome(acc: list[int], m: int, s: int, rounding: Rounding, kind: str = "multiplier") -> list[int] | str:
    """The int32 results, or 'refused'."""
    try:
        r = Requant(np.array([m]), np.array([s]), rounding, 0, -(1 << 31), (1 << 31) - 1, kind=kind)  # type: ignore[arg-type]
    except FixedPointError:
        return "refused"
    return requantize(np.array(acc, np.int64), r, np.int32).tolist()


# One case for each rule that its definition alone passes; `outcome` of any other rule must differ.
BITS_OF_THIRD = int(float32_bits([1 / 3])[0])
CASES = {
    **{rule: (EIGHTHS, 1 << 30, 33, "multiplier", result) for rule, result in PINNED.items()},
    # 48 bits wrap, and a multiplier of 15 bits
    Rounding.SCALE16: ([(1 << 47) + 4, 4], 1, 3, "multiplier", [-(1 << 31), 1]),
    # the multiplier's low bits are lost: 0x40008000 >> 16 rounds up to 0x4001
    Rounding.REDUCED16: ([1 << 17, 1 << 30], 0x40008000, 33, "multiplier", [16385, 134225920]),
    Rounding.POW2: ([3, -3], 1, -2, "multiplier", [12, -12]),
    # 2**24 + 1 is no float32
    Rounding.FP32_RNE: ([(1 << 24) + 1, 7, -7], int(float32_bits([0.5])[0]), 0, "float32", [1 << 23, 4, -4]),
}


@pytest.mark.parametrize(("rule", "other"), list(permutations(Rounding, 2)), ids=str)
def test_rules_are_told_apart(rule: Rounding, other: Rounding) -> None:
    acc, m, s, kind, result = CASES[rule]
    assert outcome(acc, m, s, rule, kind) == result
    swapped = outcome(acc, m, s, other, kind)
    if swapped == result:
        # the rules agree where both are defined; they differ on the other's case
        acc, m, s, kind, result = CASES[other]
        assert outcome(acc, m, s, other, kind) == result != outcome(acc, m, s, rule, kind)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("rounding", list(Rounding), ids=str)
@pytest.mark.parametrize("c", [3, 40, 300])
def test_per_channel_on_any_axis(axis: int, rounding: Rounding, c: int) -> None:
    rng = np.random.default_rng(c)
    shape = [7, 5, 9]
    shape[axis] = c
    acc = rng.integers(-(2**24), 2**24, shape).astype(np.int32)
    bits = MULTIPLIER_BITS.get(rounding, 31)
    m, s = rng.integers(1 << (bits - 1), 1 << bits, c), rng.integers(bits + 6, bits + 14, c)
    kind = "multiplier"
    if rounding is Rounding.FP32_RNE:
        m, s, kind = float32_bits(rng.uniform(1e-5, 1e-3, c)), np.zeros(c, np.int64), "float32"
    r = Requant(m, s, rounding, 4, -128, 127, kind=kind)
    got = np.moveaxis(requantize(acc, r, axis=axis), axis, 0)
    for i in {*range(0, c, 13), c - 1}:
        one = Requant(m[i : i + 1], s[i : i + 1], rounding, 4, -128, 127, kind=kind)
        np.testing.assert_array_equal(got[i], requantize(np.moveaxis(acc, axis, 0)[i], one))


@pytest.mark.parametrize("c", [1, 24, 257])
def test_blocks_and_tails(c: int) -> None:
    rng = np.random.default_rng(1)
    acc = rng.integers(-(2**20), 2**20, (70_001 // c, c)).astype(np.int32)
    m, s = rng.integers(1 << 30, 1 << 31, c), rng.integers(38, 48, c)
    r = Requant(m, s, Rounding.DOUBLE_ROUND, 1, -100, 90)
    want = np.clip(round_shift(acc.astype(np.int64) * m, s, Rounding.DOUBLE_ROUND, acc) + 1, -100, 90)
    np.testing.assert_array_equal(requantize(acc, r), want)
    np.testing.assert_array_equal(requantize(acc[::-1, ::-1][::-1, ::-1], r), want)


@pytest.mark.parametrize("above_zero", [-2, -1, 0, 1])
@pytest.mark.parametrize("shift", [32, 34, 40, 49, 58])
def test_double_rounding_beside_a_clamp_at_zero(shift: int, above_zero: int) -> None:
    """Accumulators around the ties between -3 and 3; a clamp at zero lets all negative ones be rounded as positive ones."""
    m = np.random.default_rng(shift).integers(1 << 30, 1 << 31, 8)
    halves = np.arange(-6, 7)[:, None] * ((1 << (shift - 1)) / m)
    acc = (np.rint(halves)[..., None] + np.arange(-40, 41)).transpose(0, 2, 1).astype(np.int64).astype(np.int32)
    r = Requant(m, np.array([shift]), Rounding.DOUBLE_ROUND, 5, 5 + above_zero, 100)
    s = np.array([shift])
    want = np.clip(round_shift(acc.astype(np.int64) * m, s, Rounding.DOUBLE_ROUND, acc) + 5, 5 + above_zero, 100)
    np.testing.assert_array_equal(requantize(acc, r), want)


def test_empty_and_scalar() -> None:
    r = Requant(np.array([1 << 30]), np.array([31]), Rounding.HALF_EVEN, 0, -128, 127)
    assert requantize(np.zeros((0, 4), np.int32), r).shape == (0, 4)
    assert requantize(np.array(10, np.int32), r) == 5


ERRORS = [
    ({"multiplier": [-1]}, "Requant: multipliers -1..-1; must be 0..2147483647"),
    ({"multiplier": [1 << 31]}, "Requant: multipliers 2147483648..2147483648; must be 0..2147483647"),
    ({"shift": [63]}, "Requant: shifts 63..63; must be 0..62 for rounding single_half_up"),
    ({"shift": [-1]}, "Requant: shifts -1..-1; must be 0..62 for rounding single_half_up"),
    ({"shift": [3, 4], "multiplier": [1, 2, 3]}, "Requant: 3 multipliers and 2 shifts; give one, or one for each channel"),
    ({"low": 5, "high": 4}, "Requant: clamp low=5 is above high=4"),
    ({"rounding": Rounding.FP32_RNE}, "Requant: rounding fp32_rne needs kind='float32'"),
    ({"rounding": Rounding.POW2, "multiplier": [3]}, "Requant: multiplier 3 with powers of two; must be 1"),
    (
        {"rounding": Rounding.SCALE16, "multiplier": [1 << 15]},
        "Requant: multiplier 32768 with rounding scale16; must be below 32768 (multiplier_bits=15)",
    ),
    (
        {"kind": "float32", "shift": [0], "rounding": Rounding.DOUBLE_ROUND},
        "Requant: rounding double_round is defined on integer multipliers; kind is 'float32'",
    ),
    ({"width_bits": 33}, "Requant: width_bits=33; must be 2..32"),
]


@pytest.mark.parametrize(("change", "message"), ERRORS, ids=[m[:40] for _, m in ERRORS])
def test_refusals(change: dict, message: str) -> None:
    fields = {"multiplier": [1], "shift": [1], "rounding": Rounding.SINGLE_HALF_UP, "zero_point": 0, "low": -128, "high": 127}
    with pytest.raises(FixedPointError) as error:
        Requant(**(fields | change))
    assert str(error.value) == message


def test_refusals_of_requantize() -> None:
    r = Requant(np.array([1, 2]), np.array([1]), Rounding.FLOOR, 0, -128, 127)
    with pytest.raises(FixedPointError, match=r"2 multipliers for shape \(4, 3\), axis -1; give one, or one for each"):
        requantize(np.zeros((4, 3), np.int32), r)
    with pytest.raises(FixedPointError, match=r"clamp -128..127 lies outside uint8 \(0..255\); narrow low and high"):
        requantize(np.zeros((4, 2), np.int32), r, np.uint8)
    with pytest.raises(FixedPointError, match="accumulators are float64; must be int32 or int64"):
        requantize(np.zeros((4, 2)), r)


def test_real_scale() -> None:
    r = Requant(np.array([1 << 30]), np.array([33]), Rounding.SINGLE_HALF_UP, 0, -128, 127)
    assert r.real_scale.tolist() == [0.125]
    assert float32_from_bits([BITS_OF_THIRD]).tolist() == [float(np.float32(1 / 3))]
    assert type_limits(np.dtype(np.uint8)) == (0, 255)
