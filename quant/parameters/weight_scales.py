"""Chooses the scales of weights, one for each row: those that cover them, lose least, or hold small integer ratios exactly."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.numerics import Numerics
from quant.parameters.weight_codes import weight_code_range

Array = NDArray[Any]

# A channel this much below the largest cannot reach one step of the output they share, at 16 bits either.
SMALLEST_CHANNEL = 2.0**-32
_BLOCK = 1 << 14
_FLOAT32 = 2.0**-22  # of a ratio of two float32 numbers, each rounded


def weight_scales(rows: Array, numerics: Numerics, method: str) -> Array:
    """Return float64[channels], the scale of each channel.

    `rows`: float64[channels, n].
    `method`: `minmax`: the peak has the largest code; `mse`: the scale of least squared error. Scales that are powers of two are
    of least error in either case. Others hold rows of small integer ratios exactly.

    A channel of zeros takes the largest scale of the others. No scale is below SMALLEST_CHANNEL times the largest.
    """
    first, last = weight_code_range(numerics.weight)
    peaks = np.maximum(rows.max(1, initial=0.0), -rows.min(1, initial=0.0))
    covering = peaks / last
    if numerics.scale.kind == "pow2":
        exponent = np.ceil(np.log2(np.where(covering > 0, covering, 1.0)))
        scales = _best_scales(rows, [np.exp2(exponent - i) for i in range(4)], first, last)
    elif method == "mse":
        safe = np.where(covering > 0, covering, 1.0)
        scales = _best_scales(rows, [safe * f for f in np.linspace(1.0, 0.4, 31)], first, last)
    else:
        scales = covering
    if numerics.scale.kind != "pow2":
        scales = _exact_scales(rows, peaks, scales, last)
    largest = float(scales[covering > 0].max()) if (covering > 0).any() else 2.0**-7
    return np.where(covering > 0, np.maximum(scales, largest * SMALLEST_CHANNEL), largest)


def _exact_scales(rows: Array, peaks: Array, scales: Array, last: int) -> Array:
    """Return the scales, replaced for rows that are whole multiples of a unit, of which the peak is at most `last`.

    Such a row takes its peak over the largest code with which all of its values are whole codes.
    """
    codes, fractions = _ratios(last)
    head = np.abs(rows[:, :4]) / np.where(peaks > 0, peaks, 1.0)[:, None]
    at = np.minimum(np.searchsorted(fractions, head - _FLOAT32), len(fractions) - 1)
    remaining = np.flatnonzero((peaks > 0) & (np.abs(fractions[at] - head) <= _FLOAT32).all(1))  # of common weights next to none
    scales = scales.copy()
    for code in codes if remaining.size else ():
        exact = remaining[_are_multiples(rows, remaining, peaks / code, last * _FLOAT32)]
        scales[exact] = peaks[exact] / code
        remaining = np.setdiff1d(remaining, exact)
    return scales


@cache
def _ratios(last: int) -> tuple[Array, Array]:
    """Return the codes that a peak may have, falling, and every ratio of a code to one of them, rising.

    Codes of up to half of `last` are left out, since they can be doubled.
    """
    codes = np.arange(last, last // 2, -1)
    return codes, np.unique(np.concatenate([np.arange(n + 1) / n for n in codes]))


def _are_multiples(rows: Array, at: Array, scales: Array, tolerance: float) -> Array:
    """Return bool: which of the rows `at` are integer multiples of their scales; the first columns rule out most of the
    others."""
    multiple = np.ones(len(at), bool)
    for left, right in ((0, 64), (64, 4096), (4096, rows.shape[1])):
        some = at[multiple]
        steps = rows[some, left:right] / scales[some, None]
        multiple[multiple] = (np.abs(steps - np.rint(steps)) <= tolerance).all(1)
    return multiple


def _best_scales(rows: Array, candidates: list[Array], first: int, last: int) -> Array:
    """Return for each row the candidate of least squared error, among equals the first; blocks stay in the cache."""
    scales = np.stack(candidates)
    errors = np.zeros(scales.shape)
    columns = min(rows.shape[1], _BLOCK) or 1
    height = max(_BLOCK // columns, 1)
    for top in range(0, rows.shape[0], height):
        for first_column in range(0, rows.shape[1], columns):
            block = rows[top : top + height, first_column : first_column + columns]
            for i, scale in enumerate(scales[:, top : top + height, None]):
                steps = block / scale
                steps -= np.clip(np.rint(steps), first, last)
                errors[i, top : top + height] += np.einsum("rc,rc->r", steps, steps)
    return scales[np.argmin(errors * scales**2, 0), np.arange(rows.shape[0])]
