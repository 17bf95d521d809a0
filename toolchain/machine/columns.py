"""Arithmetic that reads the same for one operation and for columns of many: whole numbers, or int64[n] arrays of them."""

from __future__ import annotations

from typing import Any

import numpy as np

# int, or int64[n]; an IntEnum or a flag counts as int
Whole = Any


def ceil_div(a: Whole, b: Whole) -> Whole:
    """ceil(a / b), b > 0."""
    return -(-a // b)


def least(a: Whole, b: Whole) -> Whole:
    """The smaller of the two, element by element."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def most(a: Whole, b: Whole) -> Whole:
    """The larger of the two, element by element."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def where(condition: Whole, a: Whole, b: Whole) -> Whole:
    """a where the condition holds, else b, element by element."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, a, b)
    return a if condition else b


def at_rate(steps: Whole, rate: float) -> Whole:
    """ceil(steps / rate)."""
    if rate == 1.0:
        return steps
    if isinstance(steps, np.ndarray):
        return (-(-steps // rate)).astype(np.int64)
    return -int(-steps // rate)
