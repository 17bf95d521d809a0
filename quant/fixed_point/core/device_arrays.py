"""Lets the reference compute arrays of libraries other than numpy, perhaps on a device, through numpy's protocols.

Functions of numpy hand such arrays to their library (NEP 13, 18, 35). Views by strides, blocks that fit a CPU's cache and results
written into an array of numpy's have no protocol. Where they are used, such arrays take another form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def is_foreign(x: Any) -> bool:
    """Return whether an array is of a library other than numpy."""
    return not isinstance(x, np.ndarray | np.generic)


def as_like(values: Any, x: Any) -> Array:
    """Return values as an array of the library of x, and on its device; what is an array of it already stays as it is."""
    return values if is_foreign(values) or not is_foreign(x) else np.asarray(values, like=x)


def as_contiguous(x: Array) -> Array:
    """Return x in C's order: x itself where it is so."""
    return np.ascontiguousarray(x, like=x) if is_foreign(x) else np.asarray(x, order="C")
