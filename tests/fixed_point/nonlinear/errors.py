"""Three numbers for an integer kernel against float64: largest error, mean error and share of results off by a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Error:
    """A summary of errors in output steps.

    `largest`, `mean`: of |y - t|, t real but within the type.
    `bias`: of y - t.
    `share`: share of elements with rounded t != y.
    `steps`: largest |round(t) - y|.
    """

    largest: float
    mean: float
    bias: float
    share: float
    steps: int


def measure(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Error:
    """Return the error of integer results.

    `pairs`: integer results and the real values in output steps, zero point added; nan and inf are left out.
    """
    y = np.concatenate([p[0].ravel() for p in pairs])
    t = np.concatenate([np.asarray(p[1], np.float64).ravel() for p in pairs])
    limits = np.iinfo(y.dtype)
    finite = np.isfinite(t)
    y, t = y[finite].astype(np.float64), np.clip(t[finite], limits.min, limits.max)
    step = np.abs(np.rint(t) - y)
    error = y - t
    return Error(
        float(np.abs(error).max()), float(np.abs(error).mean()), float(error.mean()), float((step > 0).mean()), int(step.max())
    )


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
