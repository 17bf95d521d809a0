"""Computes the squared error of rounding a histogram of real values to a grid of codes, for the search for a best scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def rounding_error(low: Array, high: Array, counts: Array, step: Array, first: Array, last: Array) -> Array:
    """Return the sum of squared errors after rounding to the nearest of step * {first..last}, as float64[candidates].

    `low`, `high`: float64[bins], values spread evenly between them (high = low: one value).
    `counts`: [bins].
    `step`, `first`, `last`: float64[candidates], first <= last integers.

    Values beyond the grid saturate to its ends. The result is exact, by integration.
    """
    low, high, counts = low[None, :], high[None, :], counts[None, :]
    step, first, last = (np.asarray(v, np.float64)[:, None] for v in (step, first, last))
    width = high - low
    point = width <= 1e-6 * np.maximum(np.abs(high), np.abs(low))  # the difference of primitives would cancel
    middle = (low + high) / 2
    spread = (_primitive(high, step, first, last) - _primitive(low, step, first, last)) / np.where(point, 1.0, width)
    exact = (middle - step * np.clip(np.rint(middle / step), first, last)) ** 2
    return (counts * np.where(point, exact, spread)).sum(1)


def _primitive(x: Array, step: Array, first: Array, last: Array) -> Array:
    """Return the integral from 0 to x of (t - nearest(t))**2 dt; values beyond the grid round to its ends."""
    n = np.clip(np.rint(x / step), first, last)
    return n * step**3 / 12 + (x - n * step) ** 3 / 3
