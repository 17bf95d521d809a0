"""How far computed values are from their reference: per tensor and per part, so that a bad part cannot hide in a good whole."""

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
    """sqnr_db: +inf where nothing differs; largest_error in the reference's unit; `poor`: a reader should be warned."""

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


def sqnr_db(reference: Array, got: Array) -> float:
    """10 log10(sum(reference**2) / sum((got - reference)**2)): inf where equal, -inf where only the reference is all zero."""
    reference, got = _pair(reference, got)
    noise = float(((got - reference) ** 2).sum())
    signal = float((reference**2).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def cosine(reference: Array, got: Array) -> float:
    """1 where both are all zero, 0 where one is."""
    reference, got = _pair(reference, got)
    a, b = float(np.sqrt((reference**2).sum())), float(np.sqrt((got**2).sum()))
    if a == 0 or b == 0:
        return 1.0 if a == b else 0.0
    return float(np.clip((reference / a * (got / b)).sum(), -1.0, 1.0))


def fidelity(name: str, reference: Array, got: Array) -> Fidelity:
    reference, got = _pair(reference, got)
    difference = got - reference
    largest = float(np.abs(difference).max(initial=0.0))
    bias = float(difference.mean()) if difference.size else 0.0
    return Fidelity(name, sqnr_db(reference, got), cosine(reference, got), largest, bias)


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


def _pair(reference: Array, got: Array) -> tuple[Array, Array]:
    """Both as float64. Raises ValueError where the shapes differ."""
    if np.shape(reference) != np.shape(got):
        raise ValueError(f"reference {list(np.shape(reference))} and result {list(np.shape(got))} differ in shape")
    return np.asarray(reference, np.float64), np.asarray(got, np.float64)
