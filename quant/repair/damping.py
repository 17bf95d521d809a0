"""Chooses the damping of a layer's Hessian, and of corrections to its weights, by the error on samples held out from it.

A Hessian of few rows, or of many similar ones, has directions in which weights seem to cost nothing; changes there cost on other
samples. A multiple of the identity is added to it (ridge regression). Source: Ledoit and Wolf, "A well-conditioned estimator for
large-dimensional covariance matrices", 2004. The multiple is the one that serves held-out samples best (Stone, "Cross-validatory
choice", 1974). Shapes: g groups of a convolution, o outputs of a group, k weights of an output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.repair.gptq_rounding import output_error, round_weights
from quant.repair.moments import Moments

Array = NDArray[Any]

LEAST = 0.01  # of the mean diagonal, as GPTQ has it (docs/repair.md)
DAMPINGS = (LEAST, 0.1, 0.3, 1.0, 3.0, 10.0)
PULLS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)  # the same for weights that answer for their inputs
_OUTPUTS = 32  # of a group, that are tried


def add_damping(hessian: Array, share: float) -> Array:
    """Return float64[g, k, k]: the Hessian with `share` of its mean diagonal added to the diagonal.

    Where all inputs were zero, 1 is added.
    """
    k = hessian.shape[1]
    mean = np.einsum("gii->g", hessian) / k
    return hessian + np.where(mean > 0, share * mean, 1.0)[:, None, None] * np.eye(k)


def best_damping(w: Array, scales: Array, fit_moments: Moments, unseen: Moments, first: int, last: int) -> float:
    """Return one of DAMPINGS: the first one whose successor does not reduce the rounding error of some outputs on unseen rows.

    `w`, `scales`, `first`, `last`: as in `gptq_rounding.round_weights`.
    `fit_moments`, `unseen`: moments of the rows for the Hessian, and of held-out rows.
    """
    some = _some(w)
    w, scales, judging = w[:, some], np.broadcast_to(scales, w.shape)[:, some], unseen.about(fit_moments).hessian

    def error(share: float) -> float:
        codes = round_weights(w, scales, add_damping(fit_moments.hessian, share), first, last)
        return float(output_error(w - codes * scales, judging).sum())

    best, least = DAMPINGS[0], error(DAMPINGS[0])
    for share in DAMPINGS[1:]:
        share_error = error(share)
        if share_error >= least:
            break
        best, least = share, share_error
    return best


def fit_weight_change(fit_moments: Moments, share: float) -> Array:
    """Return float64[g, o, k]: the change of weights that best closes the outputs' gap, from the inputs as the machine has them.

    It is L X^T (X X^T + damping)^-1, least squares with a pull toward the weights as they are.
    `fit_moments`: moments with the outputs' gap.
    `share`: as in `add_damping`.
    """
    assert fit_moments.output_gap is not None
    return np.linalg.solve(add_damping(fit_moments.hessian, share), fit_moments.output_gap.cross.transpose(0, 2, 1)).transpose(
        0, 2, 1
    )


def best_pull(fit_moments: Moments, unseen: Moments) -> float | None:
    """Return one of PULLS, the damping for `fit_weight_change`; None where the strongest one already widens the gap.

    They are tried from the strongest on, as long as the gap of some of the outputs shrinks on unseen rows.
    `fit_moments`, `unseen`: as in `best_damping`; both have an `output_gap`.
    """
    assert fit_moments.output_gap is not None
    some, judging = _some(fit_moments.output_gap.cross), unseen.about(fit_moments)
    part = replace(fit_moments, output_gap=replace(fit_moments.output_gap, cross=fit_moments.output_gap.cross[:, some]))
    wrong = judging.output_gap
    assert wrong is not None
    cross, power = wrong.cross[:, some], float(wrong.power[:, some].sum())
    best, least = None, power
    for share in PULLS:
        change = fit_weight_change(part, share)
        remaining_power = power - 2 * float((change * cross).sum()) + float(output_error(change, judging.hessian).sum())
        if remaining_power >= least:
            break
        best, least = share, remaining_power
    return best


def _some(w: Array) -> slice:
    """Return a slice of at most 32 outputs of axis 1, evenly spaced."""
    return slice(None, None, -(-w.shape[1] // _OUTPUTS))
