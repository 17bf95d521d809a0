"""Minus infinity as models write it into constants that are added to scores."""

from __future__ import annotations

import numpy as np

MASK_LOW = -1000.0  # an additive attention mask is meant as minus infinity well before this
_LET_THROUGH = 100.0  # a mask that lets a score through moves it by less


def is_mask(value: np.ndarray) -> bool:
    """Return whether a constant holds nothing but small numbers and minus infinity, or what stands for it."""
    if value.dtype.kind != "f" or np.isnan(value).any():
        return False
    low = value <= MASK_LOW
    return bool(low.any()) and not low.all() and float(np.abs(value[~low]).max()) < _LET_THROUGH
