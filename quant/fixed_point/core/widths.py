"""Computes with widths of integers: the limits of a type, and a value wrapped to some bits."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@lru_cache(maxsize=32)
def type_limits(dtype: np.dtype) -> tuple[int, int]:
    """Return the least and the largest value of an integer type."""
    limits = np.iinfo(dtype.name)
    return int(limits.min), int(limits.max)


def wrap_to_bits(x: Array, bits: int, signed: bool = True) -> Array:
    """Return the low `bits` (1..64) of x, int64[...], read as two's complement, or unsigned (then at most 63 bits)."""
    if not signed:
        return x & ((1 << bits) - 1)
    spare = 64 - bits
    return (x << spare) >> spare
