"""Arrays that do not lie in C order in memory mean the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quant.fixed_point.core.requant import identity_requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.pointwise.elementwise import add, mul
from quant.fixed_point.sums.conv import conv2d
from quant.fixed_point.sums.matmul import matmul
from quant.fixed_point.sums.pool_sums import max_pool, pool_sum

Array = np.ndarray
WINDOW = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 1, 1, 0)}
SAME = identity_requant(0, -128, 127)
WIDE = identity_requant(0, -(2**31), 2**31 - 1)


def _depthwise(x: Array, strides: tuple[int, int]) -> Array:
    weights = np.arange(-6, 6, dtype=np.int8).repeat(x.shape[3]).reshape(x.shape[3], -1, order="F")[:, :4]
    return conv2d(x, weights.reshape(-1, 2, 2, 1), groups=x.shape[3], x_zero_point=-128, strides=strides)


def _dense(x: Array) -> Array:
    return conv2d(x, np.arange(-32, 32, dtype=np.int8)[: 3 * 4 * x.shape[3]].reshape(3, 2, 2, -1), x_zero_point=5)


OPERATIONS: dict[str, Callable[[Array], Array]] = {
    "depthwise": lambda x: _depthwise(x, (1, 1)),
    "strided depthwise": lambda x: _depthwise(x, (2, 2)),
    "convolution": _dense,
    "pointwise": lambda x: conv2d(x, np.arange(12, dtype=np.int8)[: 2 * x.shape[3]].reshape(2, 1, 1, -1), x_zero_point=5),
    "max pool": lambda x: max_pool(x, **WINDOW),
    "pool sum": lambda x: pool_sum(x, **WINDOW, x_zero_point=-7),
    "matmul": lambda x: matmul(x, np.swapaxes(x, 2, 3), a_zero_point=3, b_zero_point=-4),
    "add": lambda x: add(x, x[..., :1], WIDE, WIDE, SAME, left_shift=2, dtype=np.int8),
    "mul": lambda x: mul(x, x[:, :1], SAME, dtype=np.int8),
    "requantize": lambda x: requantize(x.astype(np.int32), SAME, np.int8),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_memory_order_does_not_matter(name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        x = rng.integers(-128, 128, rng.integers((1, 2, 2, 1), (3, 6, 6, 5)), dtype=np.int8)
        order = rng.permutation(4)
        reordered = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
        np.testing.assert_array_equal(OPERATIONS[name](reordered), OPERATIONS[name](x))
