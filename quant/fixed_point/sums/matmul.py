"""Computes integer matrix products with a zero point for each operand: accumulators, which `requantize` turns into outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quant.fixed_point.core.device_arrays import is_foreign
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.sums.conv import as_zero_point, finish_sums
from quant.fixed_point.sums.products import Matrix, ProductMethod, foreign_product, product

Array = NDArray[Any]


def matmul(
    a: Array,
    b: Array | Matrix,
    *,
    a_zero_point: int = 0,
    b_zero_point: ArrayLike = 0,
    bias: Array | None = None,
    accumulator_bits: int = 32,
    method: ProductMethod | None = None,
) -> Array:
    """Return the product of a: int8, uint8 or int16 [..., m, k] and b: [..., k, n] as [..., m, n].

    The product is the sum over k of (a - a_zero_point) (b - b_zero_point) + bias, exact, then wrapped to accumulator_bits
    (2..64). It is int32, or int64 if accumulator_bits > 32.

    `b`: an array, or a `Matrix` (its zero point inside), which keeps what is prepared of b between calls.
    `b_zero_point`: scalar or [n].
    `bias`: int [n]; None: no bias.
    `method`: None: the fastest exact one.

    Leading axes broadcast as in numpy. Sources: ONNX MatMulInteger, QLinearMatMul; TFLite FULLY_CONNECTED, BATCH_MATMUL; TOSA 1.0
    MATMUL. Raise FixedPointError where shapes disagree or a forced method is not exact.
    """
    values = b.values if isinstance(b, Matrix) else b
    if a.ndim < 2 or values.ndim < 2 or a.shape[-1] != values.shape[-2]:
        raise FixedPointError(f"matmul: a {a.shape} by b {values.shape}; must be [..., m, k] by [..., k, n]")
    wide = accumulator_bits > 32
    n = values.shape[-1]
    zero = b.zero_point if isinstance(b, Matrix) else as_zero_point(b_zero_point, n, "matmul: b_zero_point")
    if is_foreign(a):
        sums = foreign_product(a, values, a_zero_point, zero, wide)  # with all leading axes at once
        return finish_sums(sums, bias, accumulator_bits)
    if values.ndim == 2:
        matrix = b if isinstance(b, Matrix) else Matrix(np.ascontiguousarray(b), zero)
        flat = a if a.ndim == 2 else a.reshape(-1, a.shape[-1])
        sums = product(np.ascontiguousarray(flat), matrix, a_zero_point=a_zero_point, wide=wide, method=method)
        return finish_sums(sums, bias, accumulator_bits).reshape(*a.shape[:-1], n)
    lead = np.broadcast_shapes(a.shape[:-2], values.shape[:-2])
    left = np.broadcast_to(a, (*lead, *a.shape[-2:])).reshape(-1, *a.shape[-2:])
    right = np.broadcast_to(values, (*lead, *values.shape[-2:])).reshape(-1, *values.shape[-2:])
    out = np.empty((left.shape[0], a.shape[-2], n), np.int64 if wide else np.int32)
    for i in range(left.shape[0]):
        matrix = Matrix(np.ascontiguousarray(right[i]), zero)
        part = np.ascontiguousarray(left[i])
        out[i] = product(part, matrix, a_zero_point=a_zero_point, wide=wide, method=method)
    return finish_sums(out, bias, accumulator_bits).reshape(*lead, a.shape[-2], n)
