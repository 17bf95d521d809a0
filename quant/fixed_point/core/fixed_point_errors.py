"""Errors of the fixed-point core. Each names the thing, its value, the limit and the way out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class FixedPointError(ValueError):
    """Arguments that describe no arithmetic a machine can do: shapes that disagree, a parameter out of its range."""


class ScaleRangeError(FixedPointError):
    """A real scale that the machine's scale form (multiplier width, shift range) cannot express."""


def require_type(x: NDArray[Any], function: str, *dtypes: type[np.integer]) -> None:
    """Raises FixedPointError unless x is one of dtypes."""
    if x.dtype not in map(np.dtype, dtypes):
        raise FixedPointError(f"{function}: input is {x.dtype}; must be {' or '.join(d.__name__ for d in dtypes)}")
