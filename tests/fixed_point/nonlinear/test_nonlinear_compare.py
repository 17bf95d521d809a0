"""Comparisons, argmax and top-k against exact arithmetic; refusals."""

from __future__ import annotations

import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import FixedPointError
from quant.fixed_point.pointwise.compare import Relation, arg_max, arg_min, compare, compare_scaled, top_k

OPERATORS = {
    Relation.EQUAL: operator.eq,
    Relation.NOT_EQUAL: operator.ne,
    Relation.LESS: operator.lt,
    Relation.LESS_EQUAL: operator.le,
    Relation.GREATER: operator.gt,
    Relation.GREATER_EQUAL: operator.ge,
}


@pytest.mark.parametrize("relation", Relation)
def test_compare_is_the_order_of_codes(relation: Relation) -> None:
    a, b = (x.astype(np.int8) for x in np.meshgrid(np.arange(-4, 4), np.arange(-4, 4)))
    expected = [[OPERATORS[relation](int(p), int(q)) for p, q in zip(r, s)] for r, s in zip(a, b)]
    np.testing.assert_array_equal(compare(a, b, relation), expected)


@settings(max_examples=80)
@given(
    st.sampled_from(list(Relation)),
    st.floats(2**-20, 10, width=32),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(-32768, 32767),
    st.integers(-128, 127),
    st.integers(0, 2**31),
)
def test_compare_scaled_is_exact(relation: Relation, s: float, m: int, n: int, za: int, zb: int, seed: int) -> None:
    """Scales in a small ratio, so that equal values come up."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-32768, 32768, 60).astype(np.int16), rng.integers(-128, 128, (7, 1)).astype(np.int8)
    sa, sb = np.float32(s * m), np.float32(s * n)
    exact_a = [Fraction(float(sa)) * (int(v) - za) for v in a]
    exact_b = [Fraction(float(sb)) * (int(v) - zb) for v in b[:, 0]]
    expected = [[OPERATORS[relation](p, q) for p in exact_a] for q in exact_b]
    np.testing.assert_array_equal(compare_scaled(a, b, relation, float(sa), za, float(sb), zb), expected)


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.sampled_from([np.int8, np.uint8, np.int16, np.int32]), st.booleans(), st.integers(1, 9))
def test_top_k_is_a_stable_sort(seed: int, dtype: type, largest: bool, k: int) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(seed).choice([limits.min, limits.max, 0, 1, 2], (3, 9)).astype(dtype)
    values, indices = top_k(x, k, largest=largest)
    for row, v, i in zip(x.tolist(), values.tolist(), indices.tolist()):
        order = sorted(range(9), key=lambda j: (-row[j] if largest else row[j], j))[:k]
        assert i == order and v == [row[j] for j in order]


def test_arg_takes_the_first_or_the_last_of_equals() -> None:
    x = np.array([[3, 7, 7, 1, 1]], np.int8)
    assert arg_max(x).tolist() == [1] and arg_max(x, last_index=True).tolist() == [2]
    assert arg_min(x).tolist() == [3] and arg_min(x, last_index=True).tolist() == [4]
    assert arg_max(x, axis=0).tolist() == [0] * 5 and arg_max(x, keep_dims=True).shape == (1, 1)


REFUSALS = [
    (lambda: top_k(np.zeros((2, 3), np.int8), 4), "top_k: k=4; must be 1..3, the size of axis -1"),
    (
        lambda: compare(np.zeros(1, np.int8), np.zeros(1, np.uint8), Relation.LESS),
        "compare: int8 with uint8; codes of one scale have one type",
    ),
    (
        lambda: compare_scaled(np.zeros(1, np.int32), np.zeros(1, np.int8), Relation.LESS, 1, 0, 1, 0),
        "compare_scaled: a is int32; must be int8, uint8 or int16",
    ),
    (lambda: arg_max(np.zeros((2, 0), np.int8)), "argmax: shape (2, 0) has no elements on axis -1"),
    (lambda: arg_min(np.zeros((2, 0), np.int8)), "argmin: shape (2, 0) has no elements on axis -1"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusals(call, message: str) -> None:
    with pytest.raises(FixedPointError) as error:
        call()
    assert str(error.value) == message
