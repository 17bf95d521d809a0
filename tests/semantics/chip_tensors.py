"""Find which tensors of the file the chip holds, by their numbers and not by their names.

Numbers survive reshaping, transposing, padding by nothing, a slice of everything, a mean of one, and other views of a frontend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class HeldCodes(NamedTuple):
    """A scale, zero point and width of the codes in which the chip holds a tensor."""

    scale: float
    zero_point: int
    bits: int


Codes = Mapping[str, HeldCodes]  # by tensor
Runs = Sequence[Mapping[str, Array]]  # the tensors of each sample
SAME = 1e-5  # of the largest magnitude: two orders of computing one thing in float32


def match_held_codes(file: Runs, normal: Runs, codes: Codes) -> dict[str, HeldCodes]:
    """Return `codes`, of tensors of the canonical form, and codes of further tensors of the file.
    Such a tensor has, in every sample, the numbers of a known tensor in any order. All numbers may be larger by one factor,
    as a sum is than the mean that the chip holds instead; then its scale is too.
    """
    all_codes = dict(codes)
    by_size: dict[int, list[tuple[Array, str]]] = {}
    for name in codes:
        numbers = _numbers(normal, name)
        by_size.setdefault(numbers.size, []).append((numbers, name))
    for name, value in file[0].items():
        if name in codes or value.dtype.kind != "f" or not value.size:
            continue
        numbers = _numbers(file, name)
        matches = [
            (f, n) for known_numbers, n in by_size.get(numbers.size, ()) if (f := _factor(known_numbers, numbers)) is not None
        ]
        if matches:
            factor, same = min(
                matches, key=lambda all_codes: all_codes[0] != 1
            )  # the first of the numbers as they are, where there is one
            all_codes[name] = codes[same]._replace(scale=codes[same].scale * factor)
    return all_codes


def _factor(reference: Array, numbers: Array) -> float | None:
    """Return the factor from `reference` to `numbers`; None where no positive factor exists, or all are zero."""
    least, most = np.abs(reference).max(), np.abs(numbers).max()
    if not least or not most or np.abs(reference * (most / least) - numbers).max() > SAME * most:
        return None
    return 1.0 if abs(most / least - 1) <= SAME else float(most / least)


def _numbers(runs: Runs, name: str) -> Array:
    """float64[samples, elements], rising in each sample."""
    return np.sort(np.stack([np.asarray(run[name], np.float64).reshape(-1) for run in runs]), 1)
