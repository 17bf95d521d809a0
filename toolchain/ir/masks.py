"""Recognise additive attention masks: constants that hold minus infinity, or a large negative number, where a score is hidden."""

from __future__ import annotations

import numpy as np

MASK_LOW = -1000.0  # an additive attention mask is meant as minus infinity well before this
_LET_THROUGH = 100.0  # a mask that lets a score through moves it by less


def is_mask(value: np.ndarray) -> bool:
    """Return whether a float constant is such a mask.

    Some of its elements, but not all, are at most `MASK_LOW`; all others have a magnitude below 100. None is NaN.
    """
    if value.dtype.kind != "f" or np.isnan(value).any():
        return False
    low = value <= MASK_LOW
    return bool(low.any()) and not low.all() and float(np.abs(value[~low]).max()) < _LET_THROUGH
