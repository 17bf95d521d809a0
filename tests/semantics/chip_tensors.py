"""Which tensors of the file the chip holds, told by their numbers and not by their names: reshaping, transposing, padding by
nothing, a part that is the whole, a mean of one, and what else a frontend makes of a view leave the numbers what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Codes = Mapping[str, tuple[float, int]]  # tensor -> scale, zero point
Runs = Sequence[Mapping[str, Array]]  # the tensors of each sample
SAME = 1e-5  # of the largest magnitude: two orders of computing one thing in float32


def held_codes(file: Runs, normal: Runs, codes: Codes) -> dict[str, tuple[float, int]]:
    """`codes`, of tensors of the normal form; and those of each tensor of the file that is not among them but has, in every
    sample, the numbers of one that is, in any order. They may all be larger by one factor, as a sum is than the mean that the
    chip holds instead: so is its scale then."""
    found = dict(codes)
    by_size: dict[int, list[tuple[Array, str]]] = {}
    for name in codes:
        numbers = _numbers(normal, name)
        by_size.setdefault(numbers.size, []).append((numbers, name))
    for name, value in file[0].items():
        if name in codes or value.dtype.kind != "f" or not value.size:
            continue
        numbers = _numbers(file, name)
        alike = [(f, n) for held, n in by_size.get(numbers.size, ()) if (f := _factor(held, numbers)) is not None]
        if alike:
            factor, same = min(alike, key=lambda found: found[0] != 1)  # the first of the numbers as they are, where there is one
            found[name] = (codes[same][0] * factor, codes[same][1])
    return found


def _factor(held: Array, numbers: Array) -> float | None:
    """What `held` is to be multiplied by for `numbers`; None where no positive factor does it, or all are zero."""
    least, most = np.abs(held).max(), np.abs(numbers).max()
    if not least or not most or np.abs(held * (most / least) - numbers).max() > SAME * most:
        return None
    return 1.0 if abs(most / least - 1) <= SAME else float(most / least)


def _numbers(runs: Runs, name: str) -> Array:
    """float64[samples, elements], rising in each sample."""
    return np.sort(np.stack([np.asarray(run[name], np.float64).reshape(-1) for run in runs]), 1)
