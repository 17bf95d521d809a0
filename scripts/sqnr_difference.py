"""By how many decibels one quantized network stands above another on the same samples, and how sure that is."""

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
    """db: positive where the first network is nearer to float; error_db: its standard error, of which few samples leave much."""

    db: float
    error_db: float

    def __str__(self) -> str:
        return f"{self.db:+.2f} ± {self.error_db:.2f}"


def above(real: Runs, first: Runs, second: Runs) -> SqnrDifference:
    """Of the ratio of both networks' noise energies over all samples; the standard error by leaving out each sample in turn."""
    mine, others = (np.array([_noise(r, g) for r, g in zip(real, got, strict=True)]) for got in (first, second))
    count, found = len(mine), _ratio_db(mine.sum(), others.sum())
    if count < 2:
        return SqnrDifference(float(found), float("inf"))
    without = _ratio_db(mine.sum() - mine, others.sum() - others)
    return SqnrDifference(float(found), float(np.sqrt((count - 1) * np.mean((without - without.mean()) ** 2))))


def _noise(real: Sequence[Array], got: Sequence[Array]) -> float:
    return sum(float(np.sum(np.square(np.asarray(r, np.float64) - g))) for r, g in zip(real, got, strict=True))


def _ratio_db(mine: Any, others: Any) -> Any:
    """Of equal noises, none at all among them, 0."""
    tiny = np.finfo(np.float64).tiny
    return 10 * np.log10(np.maximum(others, tiny) / np.maximum(mine, tiny))
