"""Computes sums and products of codes in float32, for machines whose sums or products round by FP32_RNE.

Every operation named here rounds once, to the nearest float32, ties to even. They are onnxruntime's on x86-64 with AVX2
(QLinearAdd, QLinearMul), in its order, so that the codes are its codes, those next to ties too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.device_arrays import as_like

Array = NDArray[Any]
Float32 = Array | np.float32


def fuse_multiply_add(x: Float32, y: Float32, z: Float32) -> Array:
    """Return x y + z as float32[...], rounded once for any values, for broadcastable x, y, z: float32[...]."""
    product, addend = x.astype(np.float64) * as_like(y, x).astype(np.float64), as_like(z, x).astype(np.float64)  # exact: 48 bits
    with np.errstate(invalid="ignore"):
        total = product + addend
        addend_part = total - product
        error = (product - (total - addend_part)) + (addend - addend_part)  # Knuth's TwoSum: product + addend = total + error
    # to odd in float64, so that rounding again to float32 is rounding once
    even = (total.view(np.int64) & 1) == 0
    neighbour = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even & np.isfinite(total), neighbour, total).astype(np.float32)


def float32_sum(a: Array, b: Array, ratios: tuple[Float32, Float32], zero_points: tuple[int, int, int]) -> Array:
    """Return the sum of broadcastable integers a, b as float32[...], to be rounded to the output's codes.

    `ratios`: float32, ratios of each operand's scale to the output's, negative to subtract.
    `zero_points`: of a, b and the output.

    fma(a, ratio_a, fma(b, ratio_b, zero - fma(zero_a, ratio_a, zero_b ratio_b))): a's product is added last.
    """
    (ra, rb), (za, zb, zero) = ratios, (np.float32(z) for z in zero_points)
    zeros = fuse_multiply_add(za, ra, rb * zb)
    return fuse_multiply_add(_float32(a), ra, fuse_multiply_add(_float32(b), rb, zero - zeros))


def float32_product(a: Array, b: Array, ratio: Float32, zero_points: tuple[int, int, int]) -> Array:
    """Return float32((a - zero_a) (b - zero_b)) ratio + zero as float32[...], to be rounded to the output's codes.

    `a`, `b`: broadcastable integers.
    `ratio`: float32, S_a S_b / S_out.
    `zero_points`: of a, b and the output.
    """
    za, zb, zero = zero_points
    product = (a.astype(np.int64) - za) * (b.astype(np.int64) - zb)
    return _float32(product) * as_like(ratio, product) + np.float32(zero)


def adds_right_last(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether onnxruntime's QLinearAdd of these shapes adds the product of its right operand last, not the left one's.

    It goes by runs along the innermost dimension that is not 1 in both; a left operand that is one number there goes first.
    """
    for left, right in zip_longest(reversed(a), reversed(b), fillvalue=1):
        if (left, right) != (1, 1):
            return left == 1
    return True


def _float32(x: Array) -> Array:
    return x.astype(np.float32)
