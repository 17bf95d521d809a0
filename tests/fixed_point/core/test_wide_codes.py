"""Codes of 32 bits element by element, in whole numbers of Python."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from quant.fixed_point import Requant, Rounding, add, mul, pool_sum, requantize, rescale
from quant.fixed_point.core.codes import CodeType

LOW, HIGH = CodeType.INT32.limits
ENDS = np.array([LOW, LOW + 1, -(1 << 30) - 1, -3, -1, 0, 1, 2, (1 << 29) + 7, HIGH - 1, HIGH], np.int32)


def by(multiplier: int, shift: int, low: int = LOW, high: int = HIGH) -> Requant:
    return Requant(np.array([multiplier]), np.array([shift]), Rounding.HALF_EVEN, 0, low, high)


def exact(value: int, r: Requant) -> int:
    return max(r.low, min(r.high, round(Fraction(value * int(r.multiplier[0]), 1 << int(r.shift[0])))))


@pytest.mark.parametrize(("multiplier", "shift"), [(1, 0), ((1 << 31) - 1, 31), (1431655765, 60), (1 << 30, 62), (3, 1)])
def test_products_have_all_their_bits(multiplier: int, shift: int) -> None:
    a, b = np.meshgrid(ENDS, ENDS)
    r = by(multiplier, shift)
    expected = [exact(int(x) * int(y), r) for x, y in zip(a.ravel(), b.ravel())]
    assert mul(a, b, r, dtype=np.int32).ravel().tolist() == expected


@pytest.mark.parametrize("subtract", [False, True])
def test_sums_of_unlike_types_have_all_their_bits(subtract: bool) -> None:
    narrow = np.array([-128, -1, 0, 5, 127], np.int8)
    a, b = ENDS[:, None], narrow[None, :]
    fine, coarse, out = by(1 << 29, 31), by(1 << 30, 9), by(1 << 30, 29)  # 1/4, 2**21, 2
    sums = add(a, b, fine, coarse, out, b_zero_point=-3, subtract=subtract, dtype=np.int32)
    for i, x in enumerate(ENDS):
        for j, y in enumerate(narrow):
            other = exact(int(y) + 3, coarse)
            assert sums[i, j] == exact(exact(int(x), fine) + (-other if subtract else other), out)


def test_windows_are_summed_beyond_32_bits() -> None:
    x = np.full((1, 4, 4, 1), LOW, np.int32)
    for kernel, dilations in (((4, 4), (1, 1)), ((2, 2), (1, 1)), ((2, 2), (2, 2))):
        sums = pool_sum(x, kernel=kernel, dilations=dilations)
        assert sums.dtype == np.int64 and (sums == LOW * kernel[0] * kernel[1]).all()
    mean = requantize(pool_sum(x, kernel=(4, 4)), by(1 << 26, 30), np.int32)
    assert mean.ravel().tolist() == [LOW]


def test_to_and_from_narrower_codes() -> None:
    r = by(1 << 30, 42, -128, 127)
    assert rescale(ENDS, r, dtype=np.int8).tolist() == [exact(int(x), r) for x in ENDS]
    back = by(1 << 30, 6)
    narrow = np.arange(-128, 128).astype(np.int8)
    assert rescale(narrow, back, dtype=np.int32).tolist() == [exact(int(x), back) for x in narrow]
