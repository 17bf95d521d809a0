"""Widths of integers: the limits of a type, and what remains of a value in so many bits."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@lru_cache(maxsize=32)
def type_limits(dtype: np.dtype) -> tuple[int, int]:
    """(lowest, highest) of an integer type."""
    limits = np.iinfo(dtype.name)
    return int(limits.min), int(limits.max)


def wrap_to_bits(x: Array, bits: int, signed: bool = True) -> Array:
    """int64[...] -> int64[...], its low `bits` (1..64) read as two's complement, or unsigned (then at most 63)."""
    if not signed:
        return x & ((1 << bits) - 1)
    spare = 64 - bits
    return (x << spare) >> spare
