"""Arithmetic that reads the same for one operation and for columns of many: whole numbers, or int64[n] arrays of them."""

from __future__ import annotations

from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

# int, or int64[n]; an IntEnum or a flag counts as int
Whole = Any
Column = NDArray[np.int64]


def is_column(value: object) -> TypeGuard[Column]:
    """Whether it stands for many operations."""
    return isinstance(value, np.ndarray)


def ceil_div(a: Whole, b: Whole) -> Whole:
    """ceil(a / b), b > 0."""
    return -(-a // b)


def least(a: Whole, b: Whole) -> Whole:
    """The smaller of the two, element by element."""
    return np.minimum(a, b) if is_column(a) or is_column(b) else min(a, b)


def most(a: Whole, b: Whole) -> Whole:
    """The larger of the two, element by element."""
    return np.maximum(a, b) if is_column(a) or is_column(b) else max(a, b)


def where(condition: Whole, a: Whole, b: Whole) -> Whole:
    """a where the condition holds, else b, element by element."""
    if is_column(condition):
        return cast(Whole, np.where(condition, a, b))
    return a if condition else b


def at_rate(steps: Whole, rate: float) -> Whole:
    """ceil(steps / rate)."""
    if rate == 1.0:
        return steps
    if is_column(steps):
        return (-(-steps // rate)).astype(np.int64)
    return -int(-steps // rate)
