"""The rows that a layer is looked at by are what its convolution sums."""

from __future__ import annotations

import numpy as np
import pytest

from quant.fixed_point.sums.conv import conv2d
from quant.repair.moments import ConvolutionWindow, Moments, moments


@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "dilations", "groups"),
    [
        ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
        ((3, 3), (2, 1), (1, 0, 1, 2), (1, 2), 1),
        ((3, 2), (1, 1), (1, 1, 1, 0), (1, 1), 8),
        ((1, 3), (1, 2), (0, 1, 0, 1), (1, 1), 2),
    ],
    ids=["product", "dense", "depthwise", "grouped"],
)
def test_rows_times_weights_are_sums(kernel, strides, pads, dilations, groups) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (2, 7, 8, 8)).astype(np.int8)
    w = rng.integers(-127, 128, (16, *kernel, 8 // groups)).astype(np.int8)
    sums = conv2d(x, w, strides=strides, pads=pads, dilations=dilations, groups=groups, x_zero_point=5)
    window = ConvolutionWindow(kernel, strides, pads, dilations, groups)
    rows = window.rows(x, 10**9, (0,), 5)
    products = np.matmul(rows, w.reshape(groups, 16 // groups, -1).transpose(0, 2, 1).astype(np.float64))
    assert np.array_equal(products.transpose(1, 0, 2).reshape(sums.shape), sums)


def test_places_are_drawn_once_each_and_the_same_for_integers_and_float() -> None:
    x = np.arange(2 * 5 * 5, dtype=np.int16).reshape(2, 5, 5, 1)
    window = ConvolutionWindow((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    some = window.rows(x, 20, (3, 1), 0)
    assert some.shape == (1, 20, 1) and len(np.unique(some)) == 20
    assert np.array_equal(some, window.rows(x.astype(np.float32), 20, (3, 1), 0))
    assert not np.array_equal(some, window.rows(x, 20, (3, 2), 0))


@pytest.mark.parametrize("groups_at_once", [True, False])
def test_moments_are_about_the_mean(groups_at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not groups_at_once:
        monkeypatch.setattr("quant.repair.moments._COPIED_BYTES", 1)
    rng = np.random.default_rng(0)
    rows, output_gap = (rng.standard_normal((2, 30, n)).astype(np.float32) + np.float32(7) for n in (3, 5))
    row_moments = moments(rows, output_gap)
    assert row_moments.output_gap is not None and row_moments.count == 30
    np.testing.assert_allclose(row_moments.mean, rows.mean(1), rtol=1e-6)
    np.testing.assert_allclose(row_moments.output_gap.mean, output_gap.mean(1), atol=1e-5)
    np.testing.assert_allclose(row_moments.output_gap.power, 30 * output_gap.var(1), rtol=1e-4)
    for g in range(2):
        np.testing.assert_allclose(row_moments.hessian[g], 29 * np.cov(rows[g].T), rtol=1e-4, atol=1e-4)
        both = np.cov(output_gap[g].T, rows[g].T)[:5, 5:]
        np.testing.assert_allclose(row_moments.output_gap.cross[g], 29 * both, rtol=1e-4, atol=1e-4)
    assert moments(rows, None).output_gap is None


def same(one: Moments, other: Moments) -> None:
    assert one.count == other.count and one.output_gap is not None and other.output_gap is not None
    for name in ("mean", "hessian"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-3)
    for name in ("mean", "cross", "power"):
        np.testing.assert_allclose(getattr(one.output_gap, name), getattr(other.output_gap, name), rtol=1e-3, atol=1e-3)


def test_moments_of_parts_make_those_of_the_whole() -> None:
    """Rows of every third sample, which lie apart; the means of the parts differ."""
    rng = np.random.default_rng(1)
    rows, output_gap = (rng.standard_normal((2, 9, 4, n)).astype(np.float32) for n in (3, 5))
    for x in (rows, output_gap):
        x += 3 * np.arange(9, dtype=np.float32)[None, :, None, None]
    first, second, third = (moments(rows[:, i::3], output_gap[:, i::3]) for i in range(3))
    same(first.join(second).join(third), moments(rows, output_gap))
    assert first.join(second).output_gap is not None
    alone = moments(rows[:, ::3], None)
    assert alone.join(second).output_gap is None


def test_moments_about_the_means_of_others() -> None:
    rng = np.random.default_rng(2)
    rows, output_gap = (rng.standard_normal((2, 20, n)).astype(np.float32) + np.float32(n) for n in (3, 5))
    here, second = (moments(rows[:, part], output_gap[:, part]) for part in (slice(12), slice(12, 20)))
    about_second = here.about(second)
    assert about_second.output_gap is not None and second.output_gap is not None
    x, y = rows[:, :12] - second.mean[:, None], output_gap[:, :12] - second.output_gap.mean[:, None]
    np.testing.assert_allclose(about_second.hessian, np.einsum("gni,gnj->gij", x, x), rtol=1e-4)
    np.testing.assert_allclose(about_second.output_gap.cross, np.einsum("gno,gnj->goj", y, x), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(about_second.output_gap.power, np.square(y).sum(1), rtol=1e-4)
