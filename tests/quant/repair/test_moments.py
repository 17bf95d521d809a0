"""The rows that a layer is looked at by are what its convolution sums."""

from __future__ import annotations

import numpy as np
import pytest

from quant.fixed_point.sums.conv import conv2d
from quant.repair.moments import Window, moments


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
    window = Window(kernel, strides, pads, dilations, groups)
    rows = window.rows(x, 10**9, (0,), 5)
    made = np.matmul(rows, w.reshape(groups, 16 // groups, -1).transpose(0, 2, 1).astype(np.float64))
    assert np.array_equal(made.transpose(1, 0, 2).reshape(sums.shape), sums)


def test_places_are_drawn_once_each_and_the_same_for_integers_and_float() -> None:
    x = np.arange(2 * 5 * 5, dtype=np.int16).reshape(2, 5, 5, 1)
    window = Window((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)
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
    assert found.cross is not None and found.lacking is not None
    np.testing.assert_allclose(found.mean, rows.mean(1), rtol=1e-6)
    np.testing.assert_allclose(found.lacking, lacking.mean(1), atol=1e-5)
    for g in range(2):
        np.testing.assert_allclose(found.hessian[g], 29 * np.cov(rows[g].T), rtol=1e-4, atol=1e-4)
        both = np.cov(lacking[g].T, rows[g].T)[:5, 5:]
        np.testing.assert_allclose(found.cross[g], 29 * both, rtol=1e-4, atol=1e-4)
    assert moments(rows, None).cross is None
