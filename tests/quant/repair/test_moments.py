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
    made = np.matmul(rows, w.reshape(groups, 16 // groups, -1).transpose(0, 2, 1).astype(np.float64))
    assert np.array_equal(made.transpose(1, 0, 2).reshape(sums.shape), sums)


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
    rows, lacking = (rng.standard_normal((2, 30, n)).astype(np.float32) + np.float32(7) for n in (3, 5))
    found = moments(rows, lacking)
    assert found.lacking is not None and found.count == 30
    np.testing.assert_allclose(found.mean, rows.mean(1), rtol=1e-6)
    np.testing.assert_allclose(found.lacking.mean, lacking.mean(1), atol=1e-5)
    np.testing.assert_allclose(found.lacking.power, 30 * lacking.var(1), rtol=1e-4)
    for g in range(2):
        np.testing.assert_allclose(found.hessian[g], 29 * np.cov(rows[g].T), rtol=1e-4, atol=1e-4)
        both = np.cov(lacking[g].T, rows[g].T)[:5, 5:]
        np.testing.assert_allclose(found.lacking.cross[g], 29 * both, rtol=1e-4, atol=1e-4)
    assert moments(rows, None).lacking is None


def same(one: Moments, other: Moments) -> None:
    assert one.count == other.count and one.lacking is not None and other.lacking is not None
    for name in ("mean", "hessian"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-3)
    for name in ("mean", "cross", "power"):
        np.testing.assert_allclose(getattr(one.lacking, name), getattr(other.lacking, name), rtol=1e-3, atol=1e-3)


def test_moments_of_parts_make_those_of_the_whole() -> None:
    """Rows of every third sample, which lie apart; the means of the parts differ."""
    rng = np.random.default_rng(1)
    rows, lacking = (rng.standard_normal((2, 9, 4, n)).astype(np.float32) for n in (3, 5))
    for x in (rows, lacking):
        x += 3 * np.arange(9, dtype=np.float32)[None, :, None, None]
    first, second, third = (moments(rows[:, i::3], lacking[:, i::3]) for i in range(3))
    same(first.joined(second).joined(third), moments(rows, lacking))
    assert first.joined(second).lacking is not None
    alone = moments(rows[:, ::3], None)
    assert alone.joined(second).lacking is None


def test_moments_about_the_means_of_others() -> None:
    rng = np.random.default_rng(2)
    rows, lacking = (rng.standard_normal((2, 20, n)).astype(np.float32) + np.float32(n) for n in (3, 5))
    here, there = (moments(rows[:, part], lacking[:, part]) for part in (slice(12), slice(12, 20)))
    found = here.about(there)
    assert found.lacking is not None and there.lacking is not None
    x, y = rows[:, :12] - there.mean[:, None], lacking[:, :12] - there.lacking.mean[:, None]
    np.testing.assert_allclose(found.hessian, np.einsum("gni,gnj->gij", x, x), rtol=1e-4)
    np.testing.assert_allclose(found.lacking.cross, np.einsum("gno,gnj->goj", y, x), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.lacking.power, np.square(y).sum(1), rtol=1e-4)
