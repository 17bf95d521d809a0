"""Compute by how many decibels one quantized network exceeds another on the same samples, and the error of that number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Runs = Sequence[Sequence[Array]]  # of each sample its outputs


@dataclass(frozen=True)
class SqnrDifference:
    """A difference of two networks' SQNR.

    `db`: positive where the first network is nearer to float.
    `error_db`: its standard error, which is unreliable with few samples.
    """

    db: float
    error_db: float

    def __str__(self) -> str:
        return f"{self.db:+.2f} ± {self.error_db:.2f}"


def above(real: Runs, first: Runs, second: Runs) -> SqnrDifference:
    """Return the ratio of both networks' noise energies over all samples.

    The standard error comes from leaving out each sample in turn.
    """
    mine, others = (np.array([_noise(r, g) for r, g in zip(real, got, strict=True)]) for got in (first, second))
    count, difference_db = len(mine), _ratio_db(mine.sum(), others.sum())
    if count < 2:
        return SqnrDifference(float(difference_db), float("inf"))
    without = _ratio_db(mine.sum() - mine, others.sum() - others)
    return SqnrDifference(float(difference_db), float(np.sqrt((count - 1) * np.mean((without - without.mean()) ** 2))))


def _noise(real: Sequence[Array], got: Sequence[Array]) -> float:
    """Return the energy of the error over all samples."""
    return sum(float(np.sum(np.square(np.asarray(r, np.float64) - g))) for r, g in zip(real, got, strict=True))


def _ratio_db(mine: Any, others: Any) -> Any:
    """Return the ratio in dB; 0 for equal noises, also where there are none."""
    tiny = np.finfo(np.float64).tiny
    return 10 * np.log10(np.maximum(others, tiny) / np.maximum(mine, tiny))
