"""Observers: exact, independent of how the stream is cut, bounded in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.observe import Histogram, MinMax, Percentile, Range
from quant.rounding_grid import rounding_error
from toolchain.errors import CompileError

settings.register_profile("quant", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("quant")

FLOATS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)


@given(FLOATS, st.integers(1, 5))
def test_minmax_is_exact_and_blind_to_the_cutting(values: list[float], parts: int) -> None:
    x = np.array(values, np.float32)
    observer = MinMax()
    for piece in np.array_split(x, parts):
        observer.update(piece)
    assert observer.range() == Range.of(x) == Range(float(x.min()), float(x.max()))


@given(FLOATS, st.integers(2, 5), st.randoms(use_true_random=False))
def test_histogram_is_blind_to_cutting_and_order(values: list[float], parts: int, random) -> None:
    x = np.array(values, np.float32)
    single, cut = Histogram(), Histogram()
    single.update(x)
    pieces = np.array_split(x, parts)
    random.shuffle(pieces)
    for piece in pieces:
        cut.update(piece)
    for a, b in zip(single.bins(), cut.bins(), strict=True):
        np.testing.assert_array_equal(a, b)


@given(FLOATS)
def test_histogram_bins_hold_what_was_seen(values: list[float]) -> None:
    x = np.sort(np.array(values, np.float32))
    histogram = Histogram()
    histogram.update(x)
    low, high, counts = histogram.bins()
    assert counts.sum() == x.size and (low <= high).all() and (high[:-1] <= low[1:]).all()
    assert histogram.extremes == Range(float(x[0]), float(x[-1]))
    at = np.repeat(np.arange(counts.size), counts)
    smallest = np.abs(x).max() * 2.0**-22  # smaller ones share the lowest bin of their sign
    inside = (low[at] <= x) & (x <= high[at])
    assert (inside | (np.abs(x) <= smallest)).all()
    wide = np.abs(x) > smallest
    assert ((high - low)[at][wide] <= np.abs(x[wide]) / 63).all()


def test_an_outlier_costs_no_resolution() -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    observer = Percentile(99.0)
    observer.update(x)
    observer.update(np.array([1e5], np.float32))
    tensor_range = observer.range()
    low, high = np.percentile(x, [1, 99])
    assert tensor_range.low == pytest.approx(low, rel=2e-3) and tensor_range.high == pytest.approx(high, rel=2e-3)


@pytest.mark.parametrize("percent", [90.0, 99.0, 99.9, 99.99])
def test_percentile_agrees_with_numpy(percent: float) -> None:
    rng = np.random.default_rng(1)
    for x in (rng.standard_normal(50_000), rng.laplace(3, 2, 50_000), rng.uniform(-4, 9, 50_000)):
        observer = Percentile(percent)
        for piece in np.array_split(x.astype(np.float32), 9):
            observer.update(piece)
        tensor_range, expected = observer.range(), np.percentile(x, [100 - percent, percent])
        assert [tensor_range.low, tensor_range.high] == pytest.approx(list(expected), rel=6e-3, abs=1e-3)


@given(FLOATS, st.floats(51, 100))
def test_percentile_lies_within_the_extremes(values: list[float], percent: float) -> None:
    x = np.array(values, np.float32)
    observer = Percentile(percent)
    observer.update(x)
    tensor_range = observer.range()
    assert float(x.min()) <= tensor_range.low <= tensor_range.high <= float(x.max())
    if percent == 100:
        assert tensor_range == Range(float(x.min()), float(x.max()))


def test_percentile_keeps_a_touched_zero() -> None:
    x = np.maximum(np.random.default_rng(2).standard_normal(10_000), 0).astype(np.float32)
    observer = Percentile(99.0)
    observer.update(x)
    assert observer.range().low == 0.0


def test_memory_is_bounded() -> None:
    histogram = Histogram()
    for exponent in range(-120, 120, 5):
        histogram.update(np.ldexp(np.random.default_rng(3).standard_normal(1000), exponent).astype(np.float32))
    assert histogram._counts.nbytes == 2 * Histogram.BINS * 8 < 50_000
    assert histogram.bins()[2].sum() == 48 * 1000


def test_extreme_floats() -> None:
    histogram = Histogram()
    top = float(np.finfo(np.float32).max)
    histogram.update(np.array([-top, top, 0.0, -0.0, 1e-45], np.float32))
    low, high, counts = histogram.bins()
    assert counts.sum() == 5 and low[0] == -top and high[-1] == top


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Range(1.0, 0.0), "range [1.0, 0.0]: low and high must be finite, and low no larger than high"),
        (lambda: Range(0.0, float("nan")), "range [0.0, nan]: low and high must be finite, and low no larger than high"),
        (lambda: Percentile(50), "percentile 50: must be above 50 and at most 100, such as 99.99"),
    ],
)
def test_refusals(make, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        make()
    assert str(caught.value) == text


@given(
    st.floats(-20, 20), st.floats(0, 10), st.floats(0.01, 3), st.integers(-20, 0), st.integers(0, 20)
)  # fmt: skip
def test_rounding_error_equals_the_sum_over_many_points(low: float, width: float, step: float, first: int, last: int) -> None:
    points = np.linspace(low, low + width, 20_001)
    points = (points[1:] + points[:-1]) / 2 if width else points
    expected = ((points - step * np.clip(np.rint(points / step), first, last)) ** 2).mean()
    got = rounding_error(
        np.array([low]), np.array([low + width]), np.ones(1), np.array([step]), np.array([first]), np.array([last])
    )
    assert got[0] == pytest.approx(expected, rel=1e-3, abs=1e-6)
