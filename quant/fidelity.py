"""Measure how far computed values are from their reference, per tensor and per part, so that a good total cannot hide a bad
part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
POOR_SQNR_DB = 10.0
POOR_COSINE = 0.99


@dataclass(frozen=True)
class Fidelity:
    """A comparison of one tensor with its reference.

    `sqnr_db`: +inf where nothing differs.
    `largest_error`: in the reference's unit.
    `poor`: a reader should be warned.
    """

    name: str
    sqnr_db: float
    cosine: float
    largest_error: float
    bias: float

    @property
    def poor(self) -> bool:
        return self.sqnr_db < POOR_SQNR_DB or self.cosine < POOR_COSINE

    def as_json(self) -> dict[str, Any]:
        """JSON has no infinity: an exact part gives null."""
        return {
            "name": self.name,
            "sqnr_db": self.sqnr_db if math.isfinite(self.sqnr_db) else None,
            "cosine": self.cosine,
            "exact": self.sqnr_db == math.inf,
        }


class ErrorSums:
    """A collection of sums over all values of one tensor, so that no value must be stored.

    A value that is infinite or NaN in both counts as equal. A value that is so in only one of the two is an infinite error.
    """

    CHUNK = 1 << 18  # elements compared at once, to bound the memory that float64 takes

    def __init__(self) -> None:
        self._count, self._largest = 0, 0.0
        self._signal = self._got = self._product = self._noise = self._bias = 0.0

    def update(self, reference: Array, got: Array) -> None:
        """Raises ValueError where the shapes differ."""
        if np.shape(reference) != np.shape(got):
            raise ValueError(f"reference {list(np.shape(reference))} and result {list(np.shape(got))} differ in shape")
        flat, other = np.ravel(reference), np.ravel(got)
        for start in range(0, flat.size, self.CHUNK):
            self._add(flat[start : start + self.CHUNK].astype(np.float64), other[start : start + self.CHUNK].astype(np.float64))

    def _add(self, x: Array, y: Array) -> None:
        self._count += x.size
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.all():
            if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
                self._noise = self._largest = math.inf
            x, y = x[finite], y[finite]
        difference = y - x
        self._signal += float(x @ x)
        self._got += float(y @ y)
        self._product += float(x @ y)
        self._noise += float(difference @ difference)
        self._bias += float(difference.sum())
        self._largest = max(self._largest, float(np.abs(difference).max(initial=0.0)))

    def add(self, other: ErrorSums) -> None:
        """Add the sums of other values of the tensor."""
        self._count += other._count
        self._signal += other._signal
        self._got += other._got
        self._product += other._product
        self._noise += other._noise
        self._bias += other._bias
        self._largest = max(self._largest, other._largest)

    @property
    def signal(self) -> float:
        """Return the energy of the reference."""
        return self._signal

    @property
    def noise(self) -> float:
        """Return the energy of the error."""
        return self._noise

    @property
    def sqnr_db(self) -> float:
        """10 log10(sum(reference**2) / sum((got - reference)**2)): inf where equal, -inf where only the reference is all zero."""
        return decibels(self._signal, self._noise)

    @property
    def cosine(self) -> float:
        """1 where both are all zero, 0 where one is, or where one alone is infinite or NaN."""
        if self._signal == 0 or self._got == 0 or not math.isfinite(self._noise):
            return 1.0 if self._noise == 0 else 0.0
        return min(max(self._product / math.sqrt(self._signal) / math.sqrt(self._got), -1.0), 1.0)

    def fidelity(self, name: str) -> Fidelity:
        bias = self._bias / self._count if self._count else 0.0
        return Fidelity(name, self.sqnr_db, self.cosine, self._largest, bias)


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two energies in dB: inf where there is no noise, -inf where there is only noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf


def compare_arrays(reference: Array, got: Array) -> ErrorSums:
    sums = ErrorSums()
    sums.update(reference, got)
    return sums


def sqnr_db(reference: Array, got: Array) -> float:
    return compare_arrays(reference, got).sqnr_db


def cosine(reference: Array, got: Array) -> float:
    return compare_arrays(reference, got).cosine


def fidelity(name: str, reference: Array, got: Array) -> Fidelity:
    return compare_arrays(reference, got).fidelity(name)


def part_fidelities(reference: Array, got: Array, axis: int, sizes: Mapping[str, int]) -> list[Fidelity]:
    """One figure for each part of a concatenation: `sizes` are the parts' extents along `axis`, in order."""
    ends = np.cumsum(list(sizes.values()))
    if ends.size == 0 or ends[-1] != reference.shape[axis]:
        raise ValueError(f"parts of {list(sizes.values())} do not make the {reference.shape[axis]} of axis {axis}")
    references, gots = (np.split(x, ends[:-1], axis) for x in (reference, got))
    return [fidelity(name, r, g) for name, r, g in zip(sizes, references, gots, strict=True)]


def warnings(figures: Sequence[Fidelity]) -> list[str]:
    """A sentence for each poor part, worst first."""
    poor = sorted((f for f in figures if f.poor), key=lambda f: (f.sqnr_db, f.name))
    return [
        f"{f.name}: SQNR {f.sqnr_db:.1f} dB, cosine {f.cosine:.4f} (poor below {POOR_SQNR_DB:.0f} dB or {POOR_COSINE})"
        for f in poor
    ]
