"""Defines the errors of the fixed-point core. Each message names the thing, its value, the limit and the way out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class FixedPointError(ValueError):
    """An error: arguments describe no arithmetic a machine can do, as shapes that disagree or a parameter out of its range."""


class ScaleRangeError(FixedPointError):
    """An error: the machine's scale form (multiplier width, shift range) cannot express a real scale."""


def require_type(x: NDArray[Any], function: str, *dtypes: type[np.integer]) -> None:
    """Raise FixedPointError unless x is of one of the types; `function` begins the message."""
    if x.dtype not in map(np.dtype, dtypes):
        raise FixedPointError(f"{function}: input is {x.dtype}; must be {' or '.join(d.__name__ for d in dtypes)}")
