"""Compares quantized values: relations, argmax and argmin, top-k."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.q31 import multiply_by_multiplier
from quant.fixed_point.core.scale import ScaleForm, choose_scale

Array = NDArray[Any]


class Relation(StrEnum):
    """A relation of two values."""

    EQUAL = "equal"
    NOT_EQUAL = "not_equal"
    LESS = "less"
    LESS_EQUAL = "less_equal"
    GREATER = "greater"
    GREATER_EQUAL = "greater_equal"


_UFUNCS = {
    Relation.EQUAL: np.equal,
    Relation.NOT_EQUAL: np.not_equal,
    Relation.LESS: np.less,
    Relation.LESS_EQUAL: np.less_equal,
    Relation.GREATER: np.greater,
    Relation.GREATER_EQUAL: np.greater_equal,
}
_MULTIPLIER = ScaleForm("multiplier", 31, 31, 62)
_LEFT_SHIFT = 8


def compare(a: Array, b: Array, relation: Relation) -> Array:
    """Return bool[...] of the relation, for broadcast integers a, b of one scale and zero point.

    It is exact, since the order of codes is that of values. Raise FixedPointError where the types differ.
    """
    if a.dtype != b.dtype:
        raise FixedPointError(f"compare: {a.dtype} with {b.dtype}; codes of one scale have one type")
    return _UFUNCS[relation](a, b)


def compare_scaled(
    a: Array,
    b: Array,
    relation: Relation,
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
) -> Array:
    """Return bool[...] of the relation of real values, for broadcast a, b: int8, uint8 or int16[...] of different scales.

    It is exact for float32 scales: S (q - z) has at most 24 + 17 bits, so float64 holds both sides. The types of a and b
    may differ. Raise FixedPointError for wider types.
    """
    for name, x in (("a", a), ("b", b)):
        if x.dtype.itemsize > 2:
            raise FixedPointError(f"compare_scaled: {name} is {x.dtype}; must be int8, uint8 or int16")
    left = float(np.float32(a_scale)) * (a.astype(np.float64) - a_zero_point)
    right = float(np.float32(b_scale)) * (b.astype(np.float64) - b_zero_point)
    return _UFUNCS[relation](left, right)


def tflite_compare8(
    a: Array,
    b: Array,
    relation: Relation,
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
) -> Array:
    """Return bool[...] of the relation between round((q - z) 2**8 S) of both sides, for broadcast a, b: int8 or uint8[...].

    It is not exact: values that differ by less than 2**-8 may count as equal. Raise FixedPointError for a scale of 1 or more.
    Source: TFLite EQUAL, LESS, ... with int8 inputs.
    """

    def scaled(x: Array, scale: float, zero_point: int) -> Array:
        s = choose_scale(float(np.float32(scale)), _MULTIPLIER)
        value = (x.astype(np.int64) - zero_point) << _LEFT_SHIFT
        return multiply_by_multiplier(value, s.multiplier[0], 31 - s.shift[0])

    return _UFUNCS[relation](scaled(a, a_scale, a_zero_point), scaled(b, b_scale, b_zero_point))


def arg_max(x: Array, axis: int = -1, *, keep_dims: bool = False, last_index: bool = False) -> Array:
    """Return int64, the index of the largest along `axis`, for x: integers[...]; of equals the first, or the last (`last_index`).

    Raise FixedPointError for an empty axis. ONNX, TFLite.
    """
    return _arg(x, axis, keep_dims, last_index, np.argmax)


def arg_min(x: Array, axis: int = -1, *, keep_dims: bool = False, last_index: bool = False) -> Array:
    """Return int64, the index of the smallest along `axis`, for x: integers[...]; of equals the first, or the last
    (`last_index`).

    Raise FixedPointError for an empty axis. ONNX, TFLite.
    """
    return _arg(x, axis, keep_dims, last_index, np.argmin)


def _arg(x: Array, axis: int, keep_dims: bool, last_index: bool, find: Callable[..., Any]) -> Array:
    if x.shape[axis] == 0:
        raise FixedPointError(f"{find.__name__}: shape {x.shape} has no elements on axis {axis}")
    if not last_index:
        return find(x, axis=axis, keepdims=keep_dims).astype(np.int64)
    return x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=keep_dims).astype(np.int64)


def top_k(x: Array, k: int, axis: int = -1, *, largest: bool = True) -> tuple[Array, Array]:
    """Return (values, int64 indices), the k largest or smallest along `axis`, in order, for x: integers[...].

    Of equals the lower index comes first. Raise FixedPointError unless 1 <= k <= size of the axis. ONNX, TFLite.
    """
    n = x.shape[axis]
    if not 1 <= k <= n:
        raise FixedPointError(f"top_k: k={k}; must be 1..{n}, the size of axis {axis}")
    # ~x turns the order of any integer type around without overflow
    key = np.moveaxis(~x if largest else x, axis, -1)
    indices = np.argsort(key, axis=-1, kind="stable")[..., :k]
    values = np.take_along_axis(np.moveaxis(x, axis, -1), indices, axis=-1)
    return np.moveaxis(values, -1, axis), np.moveaxis(indices, -1, axis).astype(np.int64)
