"""Computes functions element by element: add, sub, mul, rescale, leaky and parametric ReLU; and concatenation.

Every operand is taken relative to its zero point first; all products and shifts are exact in int64. Sums and products that round
by FP32_RNE are computed in float32 instead (`float32.py`). Operands broadcast as in numpy. Requantizations are `Requant`s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.device_arrays import as_contiguous, as_like
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import float32_codes, requantize
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import float32_from_bits
from quant.fixed_point.pointwise.float32 import float32_product, float32_sum
from quant.fixed_point.pointwise.pair_tables import compute_pairs

Array = NDArray[Any]


def _centre(x: Array, zero_point: int) -> Array:
    """Return x - zero_point as int32[...], or int64 for x of more than 16 bits."""
    if x.dtype.itemsize <= 2:
        return np.subtract(x, np.int32(zero_point), dtype=np.int32)
    return x.astype(np.int64) - zero_point


def add(
    a: Array,
    b: Array,
    a_requant: Requant,
    b_requant: Requant,
    out_requant: Requant,
    *,
    a_zero_point: int = 0,
    b_zero_point: int = 0,
    left_shift: int = 0,
    subtract: bool = False,
    dtype: DTypeLike = np.int8,
) -> Array:
    """Return the sum of broadcastable integers a, b as dtype. Both operands meet at a common scale S2 in int32, then are
    rescaled.

    `t = a_requant((a - a_zero_point) << left_shift) +- b_requant((b - b_zero_point) << left_shift)`
    `y = out_requant(t)`.
    `subtract`: a - b.

    TFLite ADD and SUB: S2 = 2 max(S_a, S_b), a_requant of S_a / S2, out_requant of S2 / (2**left_shift S_out). There left_shift
    is 20 (int8, uint8) or 15 (int16). A left_shift of 0 adds at the machine's own precision.
    `a_requant` and `b_requant` give int32 (low, high up to its limits; zero_point 0).
    Where out_requant rounds by FP32_RNE: `float32_sum`, a_requant of S_a / S_out, b_requant of S_b / S_out. There left_shift and
    out_requant's scale are not read. ONNX QLinearAdd.
    Raise FixedPointError where left_shift is not 0..30.
    """
    parameters = ((a_requant, b_requant, out_requant), (a_zero_point, b_zero_point), left_shift, subtract, np.dtype(dtype))
    return _by_pairs(_add_codes, parameters, a, b)


def _by_pairs(compute: Callable[..., Array], parameters: tuple[Any, ...], a: Array, b: Array) -> Array:
    """Return compute(a, b, *parameters), requants first, by a table where these have one scale for all channels."""
    if any(r.channels > 1 for r in parameters[0]):
        return compute(a, b, *parameters)
    return compute_pairs(lambda a, b: compute(a, b, *parameters), (compute, parameters), a, b)


def _add_codes(
    a: Array,
    b: Array,
    requants: tuple[Requant, Requant, Requant],
    zero_points: tuple[int, int],
    left_shift: int,
    subtract: bool,
    dtype: np.dtype,
) -> Array:
    """Return `add` without a table."""
    (a_requant, b_requant, out_requant), (a_zero_point, b_zero_point) = requants, zero_points
    if out_requant.rounding is Rounding.FP32_RNE:
        ra, rb = float32_from_bits(a_requant.multiplier), float32_from_bits(b_requant.multiplier)
        every_zero_point = (a_zero_point, b_zero_point, out_requant.zero_point)
        return float32_codes(float32_sum(a, b, (ra, -rb if subtract else rb), every_zero_point), out_requant, dtype)
    if not 0 <= left_shift <= 30:
        raise FixedPointError(f"add: left_shift={left_shift}; must be 0..30")
    ta = _rescale(a, a_zero_point, left_shift, a_requant, np.int32)
    tb = _rescale(b, b_zero_point, left_shift, b_requant, np.int32)
    total = np.subtract(ta, tb, dtype=np.int64) if subtract else np.add(ta, tb, dtype=np.int64)
    return requantize(_narrow(total), out_requant, dtype)


def _rescale(x: Array, zero_point: int, left_shift: int, r: Requant, dtype: DTypeLike, axis: int = -1) -> Array:
    """Return requantize((x - zero_point) << left_shift); many 8-bit codes of one scale go through a table of all 256 of them."""
    if x.dtype.itemsize > 1 or x.size < 4 * 256 or r.channels > 1:
        return requantize(_shift_codes(x, zero_point, left_shift), r, dtype, axis)
    table = _code_table(x.dtype, zero_point, left_shift, r, np.dtype(dtype))
    return np.take(as_like(table, x), as_contiguous(x).view(np.uint8))


@lru_cache(maxsize=256)
def _code_table(codes: np.dtype, zero_point: int, left_shift: int, r: Requant, dtype: np.dtype) -> Array:
    """Return the requantized integer of each 8-bit code, by its bits. The table is cached, since a layer's tiles share it."""
    every = np.arange(256, dtype=np.uint8).view(codes)
    table = requantize(_shift_codes(every, zero_point, left_shift), r, dtype)
    table.flags.writeable = False
    return table


def _shift_codes(x: Array, zero_point: int, left_shift: int) -> Array:
    """Return (x - zero_point) << left_shift as int32 where all values fit, else int64."""
    centred = _centre(x, zero_point)
    if (x.dtype.itemsize == 1 and left_shift <= 22) or left_shift == 0:
        return centred << np.int32(left_shift) if left_shift else centred
    return _narrow(centred.astype(np.int64) << left_shift)


def _narrow(x: Array) -> Array:
    """Return int64 values as int32 where every one fits (requantization is faster on int32), else unchanged."""
    if x.size == 0:
        return x.astype(np.int32)
    limits = np.iinfo(np.int32)
    fits = limits.min <= int(x.min()) and int(x.max()) <= limits.max
    return x.astype(np.int32) if fits else x


def add_direct(
    a: Array,
    b: Array,
    a_multiplier: int,
    b_multiplier: int,
    out_requant: Requant,
    *,
    a_zero_point: int = 0,
    b_zero_point: int = 0,
    dtype: DTypeLike = np.int8,
) -> Array:
    """Return y = out_requant((a - a_zero_point) a_multiplier + (b - b_zero_point) b_multiplier), with a single rounding.

    This is for machines that scale both operands by small integers into one accumulator and shift once. The integers a_multiplier
    and b_multiplier are below 2**31 in magnitude, negative to subtract; FixedPointError otherwise. Both 1 adds operands of one
    scale.
    """
    if max(abs(a_multiplier), abs(b_multiplier)) >= 1 << 31:
        raise FixedPointError(f"add_direct: multipliers {a_multiplier}, {b_multiplier}; must be below 2**31")
    left = _centre(a, a_zero_point).astype(np.int64) * a_multiplier
    right = _centre(b, b_zero_point).astype(np.int64) * b_multiplier
    return requantize(_narrow(left + right), out_requant, dtype)


def mul(
    a: Array,
    b: Array,
    requant: Requant,
    *,
    a_zero_point: int = 0,
    b_zero_point: int = 0,
    dtype: DTypeLike = np.int8,
) -> Array:
    """Return y = requant((a - a_zero_point) (b - b_zero_point)), requant of S_a S_b / S_out. TFLite MUL; TOSA 1.0 MUL.

    Where requant rounds by FP32_RNE: `float32_product`, the zero point added before it rounds. ONNX QLinearMul.
    """
    return _by_pairs(_multiply_codes, ((requant,), (a_zero_point, b_zero_point), np.dtype(dtype)), a, b)


def _multiply_codes(a: Array, b: Array, requants: tuple[Requant], zero_points: tuple[int, int], dtype: np.dtype) -> Array:
    """Return `mul` without a table."""
    (requant,) = requants
    if requant.rounding is Rounding.FP32_RNE:
        ratio = float32_from_bits(requant.multiplier)
        return float32_codes(float32_product(a, b, ratio, (*zero_points, requant.zero_point)), requant, dtype)
    left, right = _centre(a, zero_points[0]), _centre(b, zero_points[1])
    if a.dtype.itemsize == 1 and b.dtype.itemsize <= 2:
        return requantize(left * right, requant, dtype)
    return requantize(_narrow(left.astype(np.int64) * right), requant, dtype)


def rescale(x: Array, requant: Requant, *, x_zero_point: int = 0, dtype: DTypeLike = np.int8, axis: int = -1) -> Array:
    """Return y = requant(x - x_zero_point), requant of S_in / S_out; with several scales channels lie on `axis`. TOSA 1.0
    RESCALE."""
    return _rescale(x, x_zero_point, 0, requant, dtype, axis)


def leaky_relu(
    x: Array,
    positive: Requant,
    negative: Requant,
    *,
    x_zero_point: int = 0,
    dtype: DTypeLike = np.int8,
) -> Array:
    """Return positive(v) where v = x - x_zero_point >= 0, else negative(v). TFLite LEAKY_RELU.

    `positive`: of S_in / S_out.
    `negative`: of alpha S_in / S_out (alpha >= 0).
    """
    up = _rescale(x, x_zero_point, 0, positive, dtype)
    return np.where(x >= x_zero_point, up, _rescale(x, x_zero_point, 0, negative, dtype))


def prelu(
    x: Array,
    alpha: Array,
    positive: Requant,
    negative: Requant,
    *,
    x_zero_point: int = 0,
    alpha_zero_point: int = 0,
    dtype: DTypeLike = np.int8,
) -> Array:
    """Return positive(v) where v = x - x_zero_point >= 0, else negative(v (alpha - alpha_zero_point)). TFLite PRELU.

    `alpha`: integers broadcastable to x.
    `positive`: of S_in / S_out.
    `negative`: of S_in S_alpha / S_out.
    """
    v = _centre(x, x_zero_point)
    product = _narrow(v.astype(np.int64) * _centre(alpha, alpha_zero_point))
    return np.where(v >= 0, requantize(v, positive, dtype), requantize(product, negative, dtype))


def concatenate(
    parts: Sequence[Array],
    requants: Sequence[Requant | None],
    *,
    zero_points: Sequence[int],
    axis: int = -1,
    dtype: DTypeLike = np.int8,
) -> Array:
    """Rescale each part to the common scale and return the parts joined on `axis`.

    `requants`: one for each part; None leaves a part as it is (same scale).
    `zero_points`: of the parts.

    Raise FixedPointError where the numbers of parts, requants and zero points differ.
    """
    if not len(parts) == len(requants) == len(zero_points):
        raise FixedPointError(
            f"concatenate: {len(parts)} parts, {len(requants)} requants, {len(zero_points)} zero points; give one each"
        )
    scaled = [
        part if r is None else rescale(part, r, x_zero_point=zero, dtype=dtype)
        for part, r, zero in zip(parts, requants, zero_points, strict=True)
    ]
    return np.concatenate(scaled, axis=axis)
