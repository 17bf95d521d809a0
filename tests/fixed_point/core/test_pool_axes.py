"""Pools with one window along an axis, whose elements are combined in one pass, see the window alone."""

from __future__ import annotations

import numpy as np
import pytest

from quant.fixed_point.sums.pool_sums import max_pool, pool_sum


@pytest.mark.parametrize("kernel", [(5, 2), (2, 6), (4, 4), (5, 6)])
@pytest.mark.parametrize("strides", [(1, 1), (4, 4)])
def test_windows_are_combined_alone(kernel: tuple[int, int], strides: tuple[int, int]):
    x = np.random.default_rng(0).integers(-128, 128, (1, 5, 6, 3), np.int8)
    largest = max_pool(x, kernel=kernel, strides=strides)
    sums = pool_sum(x, kernel=kernel, strides=strides, x_zero_point=3)
    assert (largest.dtype, sums.dtype) == (np.int8, np.int32)
    for y, column in np.ndindex(largest.shape[1:3]):
        first_row, first_column = y * strides[0], column * strides[1]
        window = x[0, first_row : first_row + kernel[0], first_column : first_column + kernel[1]].astype(np.int32)
        assert np.array_equal(largest[0, y, column], window.max(axis=(0, 1)))
        assert np.array_equal(sums[0, y, column], (window - 3).sum(axis=(0, 1)))
