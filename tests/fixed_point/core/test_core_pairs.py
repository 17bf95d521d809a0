"""Sums and products of many 8-bit codes, which go through a table of all pairs, are those of few, which do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quant.fixed_point import Requant, Rounding, add, mul
from quant.fixed_point.pointwise.pair_tables import compute_pairs

INT32 = (-(1 << 31), (1 << 31) - 1)


def requant(multiplier: int, shift: int, zero_point: int = 0, limits: tuple[int, int] = INT32) -> Requant:
    return Requant(np.array([multiplier]), np.array([shift]), Rounding.DOUBLE_ROUND, zero_point, *limits)


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return rng.integers(0, 256, shape, np.uint8).view(dtype)


@pytest.mark.parametrize("a_type", [np.int8, np.uint8])
@pytest.mark.parametrize("b_type", [np.int8, np.uint8])
@pytest.mark.parametrize("subtract", [False, True])
def test_sums_by_pairs(a_type: Any, b_type: Any, subtract: bool):
    rng = np.random.default_rng(0)
    a, b = draw(rng, (2, 150, 250), a_type), draw(rng, (150, 1), b_type)
    inner, out = (requant(1 << 30, 31), requant(1_300_000_000, 32)), requant(1_400_000_000, 49, 5, (-100, 120))
    keys: Any = {"a_zero_point": 3, "b_zero_point": -7, "left_shift": 20, "subtract": subtract}
    few = np.stack([add(a[:, k], b[k], *inner, requant(1_400_000_000, 49, 5, (-100, 120)), **keys) for k in range(150)], axis=1)
    for _ in range(2):  # the table is made after the first
        assert np.array_equal(add(a, b, *inner, out, **keys), few)


def test_products_by_pairs_in_wide_codes():
    rng = np.random.default_rng(1)
    a, b = draw(rng, (300, 250), np.int8), draw(rng, (250,), np.uint8)
    out, keys = requant(1_500_000_000, 33, -9, (-20_000, 20_000)), {"a_zero_point": -4, "b_zero_point": 100}
    products = (a.astype(np.int64) + 4) * (b.astype(np.int64) - 100) * 1_500_000_000
    nudge = np.where(products >= 0, 1 << 30, -(1 << 30))
    expected = np.clip(((products + (1 << 32) + nudge) >> 33) - 9, -20_000, 20_000)
    for _ in range(2):
        assert np.array_equal(mul(a, b, out, dtype=np.int16, **keys), expected)  # type: ignore[arg-type]


def test_scales_of_each_channel_have_no_table():
    rng = np.random.default_rng(2)
    a, b = draw(rng, (400, 250), np.int8), draw(rng, (400, 250), np.int8)
    shifts = rng.integers(34, 40, 250)
    out = Requant(np.array([1 << 30]), shifts, Rounding.DOUBLE_ROUND, 0, -128, 127)
    first = mul(a[:1], b[:1], out)
    for _ in range(2):
        assert np.array_equal(mul(a, b, out)[:1], first)


def test_a_table_is_made_once_and_has_all_pairs():
    calls: list[int] = []

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        calls.append(np.broadcast(a, b).size)
        return (a.astype(np.int16) * 3 - b).astype(np.int16)

    codes = np.arange(256, dtype=np.uint8).view(np.int8)
    a, b = np.repeat(codes, 256), np.tile(codes, 256)
    for _ in range(3):
        assert np.array_equal(compute_pairs(compute, "test", a, b), a.astype(np.int16) * 3 - b)
    assert compute_pairs(compute, "test", np.int8(-1) * np.ones((), np.int8), codes[5]).item() == -8
    assert calls == [1 << 16, 1 << 16]


def test_small_operands_soon_take_the_table() -> None:
    sizes: list[int] = []

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        sizes.append(np.broadcast(a, b).size)
        return np.add(a, b)

    codes = np.arange(16, dtype=np.int8)
    for _ in range(20):
        assert np.array_equal(compute_pairs(compute, "small operands", codes, codes), codes + codes)
    assert sizes == [16] * 8 + [1 << 16]
