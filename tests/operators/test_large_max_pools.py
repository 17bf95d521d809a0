"""A max pool that is larger than the machine's is a chain of small ones, whose padding each can say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from quant.fixed_point import max_pool
from toolchain.ops.pool.geometry import Geometry
from toolchain.ops.pool.select_pool import split_max_pool

CASES = [
    (kernel, limit, (top, left, bottom, right))
    for kernel, limit in (((1, 5), (2, 2)), ((5, 5), (3, 3)), ((4, 7), (2, 3)), ((13, 2), (4, 4)))
    for top, left, bottom, right in product(*({0, (kernel[side % 2] - 1) // 2, kernel[side % 2] - 1} for side in range(4)))
]


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_a_chain_is_the_pool_and_no_window_is_padding_alone(strides: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for kernel, limit, pads in CASES:
        x = rng.integers(-128, 128, (1, 15, 9, 2)).astype(np.int8)
        chain = split_max_pool(Geometry(kernel, strides, pads), limit)
        assert chain is not None and len(chain) > 1
        assert all(step.pads[side] < step.kernel[side % 2] <= limit[side % 2] for step in chain for side in range(4))
        y = x
        for step in chain:
            y = max_pool(y, kernel=step.kernel, strides=step.strides, pads=step.pads)
        np.testing.assert_array_equal(y, max_pool(x, kernel=kernel, strides=strides, pads=pads))


@pytest.mark.parametrize(
    ("kernel", "limit", "strides", "kernels"),
    [
        ((16, 16), (8, 8), (8, 8), [(8, 8), (2, 2)]),
        ((48, 1), (8, 8), (6, 6), [(6, 1), (4, 1), (2, 1)]),
        ((12, 3), (8, 8), (4, 4), [(4, 1), (3, 3)]),
    ],
)
def test_windows_side_by_side_are_those_of_windows_side_by_side(
    kernel: tuple[int, int], limit: tuple[int, int], strides: tuple[int, int], kernels: list[tuple[int, int]]
) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (1, 96, 96, 2)).astype(np.int8)
    chain = split_max_pool(Geometry(kernel, kernel, (0, 0, 0, 0)), limit, strides)
    assert chain is not None and [step.kernel for step in chain] == [step.strides for step in chain] == kernels
    y = x
    for step in chain:
        y = max_pool(y, kernel=step.kernel, strides=step.strides, pads=step.pads)
    np.testing.assert_array_equal(y, max_pool(x, kernel=kernel, strides=kernel, pads=(0, 0, 0, 0)))
