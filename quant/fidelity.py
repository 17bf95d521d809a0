"""Measures how far computed values are from their reference: SQNR, cosine, largest error and bias of a tensor or its parts.

A figure for each part of a concatenation keeps a good total from hiding a bad part. Reports and tests use it. A reader is warned
of figures below POOR_SQNR_DB or POOR_COSINE.
"""

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

    `sqnr_db`: signal-to-quantization-noise ratio, +inf where nothing differs.
    `largest_error`: largest magnitude of an error, in the reference's unit.
    `bias`: mean error, computed less reference.
    """

    name: str
    sqnr_db: float
    cosine: float
    largest_error: float
    bias: float

    @property
    def poor(self) -> bool:
        """True where a reader should be warned: below 10 dB, or a cosine below 0.99."""
        return self.sqnr_db < POOR_SQNR_DB or self.cosine < POOR_COSINE

    def as_json(self) -> dict[str, Any]:
        """Return name, SQNR, cosine and whether it is exact. JSON has no infinity, so an SQNR of +-inf is None."""
        return {
            "name": self.name,
            "sqnr_db": self.sqnr_db if math.isfinite(self.sqnr_db) else None,
            "cosine": self.cosine,
            "exact": self.sqnr_db == math.inf,
        }


class ErrorSums:
    """Sums over all values of one tensor, from which its error figures follow, so that no value must be stored.

    A value that is infinite or NaN in both counts as equal. A value that is so in only one of the two is an infinite error.
    """

    CHUNK = 1 << 18  # elements compared at once, to bound the memory that float64 takes

    def __init__(self) -> None:
        self._count, self._largest = 0, 0.0
        self._signal = self._got = self._product = self._noise = self._bias = 0.0

    def update(self, reference: Array, got: Array) -> None:
        """Add arrays of one shape, any real type. Raise ValueError where the shapes differ."""
        if np.shape(reference) != np.shape(got):
            raise ValueError(f"reference {list(np.shape(reference))} and result {list(np.shape(got))} differ in shape")
        flat, other = np.ravel(reference), np.ravel(got)
        for start in range(0, flat.size, self.CHUNK):
            self._add(flat[start : start + self.CHUNK].astype(np.float64), other[start : start + self.CHUNK].astype(np.float64))

    def _add(self, x: Array, y: Array) -> None:
        """Add float64 values, flat."""
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
        """The ratio 10 log10(sum(reference**2) / sum((got - reference)**2)).

        It is inf where both are equal, and -inf where the reference alone is all zero or the error infinite.
        """
        return decibels(self._signal, self._noise)

    @property
    def cosine(self) -> float:
        """The cosine of the angle between both, in [-1, 1].

        It is 1 where both are all zero, 0 where one is, or where one alone is infinite or NaN.
        """
        if self._signal == 0 or self._got == 0 or not math.isfinite(self._noise):
            return 1.0 if self._noise == 0 else 0.0
        return min(max(self._product / math.sqrt(self._signal) / math.sqrt(self._got), -1.0), 1.0)

    def fidelity(self, name: str) -> Fidelity:
        """Return the figures of these sums under a name."""
        bias = self._bias / self._count if self._count else 0.0
        return Fidelity(name, self.sqnr_db, self.cosine, self._largest, bias)


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two energies in dB: inf without noise (without signal too), -inf where there is only noise or it is
    infinite."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf


def compare_arrays(reference: Array, got: Array) -> ErrorSums:
    """Return the error sums of two arrays of one shape; ValueError where the shapes differ."""
    sums = ErrorSums()
    sums.update(reference, got)
    return sums


def sqnr_db(reference: Array, got: Array) -> float:
    """Return the SQNR of two arrays of one shape in dB, as `ErrorSums.sqnr_db`."""
    return compare_arrays(reference, got).sqnr_db


def cosine(reference: Array, got: Array) -> float:
    """Return the cosine of two arrays of one shape, as `ErrorSums.cosine`."""
    return compare_arrays(reference, got).cosine


def fidelity(name: str, reference: Array, got: Array) -> Fidelity:
    """Return the figures of two arrays of one shape."""
    return compare_arrays(reference, got).fidelity(name)


def part_fidelities(reference: Array, got: Array, axis: int, sizes: Mapping[str, int]) -> list[Fidelity]:
    """Return one figure for each part of a concatenation, in order.

    `sizes`: by part, its extent along `axis`, in order. Raise ValueError where they do not add up to the axis.
    """
    ends = np.cumsum(list(sizes.values()))
    if ends.size == 0 or ends[-1] != reference.shape[axis]:
        raise ValueError(f"parts of {list(sizes.values())} do not make the {reference.shape[axis]} of axis {axis}")
    references, gots = (np.split(x, ends[:-1], axis) for x in (reference, got))
    return [fidelity(name, r, g) for name, r, g in zip(sizes, references, gots, strict=True)]


def warnings(figures: Sequence[Fidelity]) -> list[str]:
    """Return a sentence for each poor figure, the lowest SQNR first."""
    poor = sorted((f for f in figures if f.poor), key=lambda f: (f.sqnr_db, f.name))
    return [
        f"{f.name}: SQNR {f.sqnr_db:.1f} dB, cosine {f.cosine:.4f} (poor below {POOR_SQNR_DB:.0f} dB or {POOR_COSINE})"
        for f in poor
    ]
