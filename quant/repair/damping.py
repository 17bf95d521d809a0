"""How far a layer's Hessian is believed: by the error on samples that it is not made of.

A Hessian of few rows, or of many that are alike, knows directions in which weights seem to cost nothing: what is put there
costs on other samples. A multiple of the identity is added to it (ridge regression; Ledoit and Wolf, "A well-conditioned
estimator for large-dimensional covariance matrices", 2004), as much as serves samples best that were left out (Stone, "Cross-
validatory choice", 1974).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.repair.gptq_rounding import output_error, round_weights
from quant.repair.moments import Moments

Array = NDArray[Any]

LEAST = 0.01  # of the mean diagonal, as GPTQ has it
DAMPINGS = (LEAST, 0.1, 0.3, 1.0, 3.0, 10.0)
PULLS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)  # the same for weights that answer for their inputs
_OUTPUTS = 32  # of a group, that are tried


def add_damping(hessian: Array, share: float) -> Array:
    """float64[g, k, k]: with a share of its mean diagonal added to the diagonal; 1 where nothing was seen but zeros."""
    k = hessian.shape[1]
    mean = np.einsum("gii->g", hessian) / k
    return hessian + np.where(mean > 0, share * mean, 1.0)[:, None, None] * np.eye(k)


def best_damping(w: Array, scales: Array, seen: Moments, unseen: Moments, first: int, last: int) -> float:
    """One of DAMPINGS: the first, as long as the next does not round some of the outputs with less error on rows not seen.

    w, scales, first, last: of `round_weights`.
    """
    some = _some(w)
    w, scales, judging = w[:, some], np.broadcast_to(scales, w.shape)[:, some], unseen.about(seen).hessian

    def error(share: float) -> float:
        codes = round_weights(w, scales, add_damping(seen.hessian, share), first, last)
        return float(output_error(w - codes * scales, judging).sum())

    best, least = DAMPINGS[0], error(DAMPINGS[0])
    for share in DAMPINGS[1:]:
        found = error(share)
        if found >= least:
            break
        best, least = share, found
    return best


def fit_weight_change(seen: Moments, share: float) -> Array:
    """float64[g, o, k]: what weights must grow by to give, from the inputs as the machine has them, what their outputs lack, as
    nearly as may be: L X^T (X X^T + damping)^-1, least squares with a pull toward the weights as they are.

    seen: with what outputs lack; share: of `add_damping`.
    """
    assert seen.lacking is not None
    return np.linalg.solve(add_damping(seen.hessian, share), seen.lacking.cross.transpose(0, 2, 1)).transpose(0, 2, 1)


def best_pull(seen: Moments, unseen: Moments) -> float | None:
    """One of PULLS: each in turn, as long as some of the outputs lack less on rows not seen; None: by the strongest they already
    lack more."""
    assert seen.lacking is not None
    some, judging = _some(seen.lacking.cross), unseen.about(seen)
    part = replace(seen, lacking=replace(seen.lacking, cross=seen.lacking.cross[:, some]))
    wrong = judging.lacking
    assert wrong is not None
    cross, power = wrong.cross[:, some], float(wrong.power[:, some].sum())
    best, least = None, power
    for share in PULLS:
        found = fit_weight_change(part, share)
        left = power - 2 * float((found * cross).sum()) + float(output_error(found, judging.hessian).sum())
        if left >= least:
            break
        best, least = share, left
    return best


def _some(w: Array) -> slice:
    return slice(None, None, -(-w.shape[1] // _OUTPUTS))
