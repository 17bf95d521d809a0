"""Check how many elements of a window lie inside the input, against counting them."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.ops.pool.geometry import Geometry, all_windows_meet, axis_counts


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_elements_inside_the_input(stride: int, dilation: int) -> None:
    for size, kernel, before, after in np.ndindex(9, 4, 4, 4):
        kernel, reach = kernel + 1, kernel * dilation
        outputs = (size + before + after - reach - 1) // stride + 1
        if outputs < 1:
            continue
        taps = np.arange(outputs)[:, None] * stride - before + np.arange(kernel) * dilation
        geometry = Geometry((kernel, kernel), (stride, stride), (before, 0, after, 0), (dilation, dilation))
        assert axis_counts(geometry, 0, size).tolist() == np.maximum(((taps >= 0) & (taps < size)).sum(1), 1).tolist()
        for start in (0, 2):
            met = ((taps >= start) & (taps < start + 3)).any(1).all()
            assert all_windows_meet(geometry, 0, size, start, 3) == met


def test_a_window_costs_nothing_by_its_size() -> None:
    half = 5 * 10**8
    geometry = Geometry((10**9, 10**9), (1, 1), (half, half, half, half))
    assert axis_counts(geometry, 0, 8).tolist() == [8] * 9
