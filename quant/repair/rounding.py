"""Second-order rounding: each weight's code in turn, its error taken up by the weights that are still free.

Sources: Hassibi and Stork, "Optimal Brain Surgeon" (1993); Frantar and Alistarh, "Optimal Brain Compression" (2022, OBQ);
Frantar et al., "GPTQ" (2022): one order for all rows, by falling diagonal of the Hessian ("act order"). The recursion here needs
no inverse: with H = R R^T, R upper triangular, the error e H e^T is the sum over j of (e_j R_jj + sum over i < j of e_i R_ij)^2,
and each term is made least by its own code: Babai's nearest plane, which is what GPTQ computes (Chen et al., "The Geometry of LLM
Quantization", 2025). Coordinate descent may follow: the same error, made less by one code at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIZES = (0.8, 0.9, 1.1, 1.2)  # of scales, tried beside them as they are
POWERS = (0.5, 2.0)  # the same where they are powers of two
FEW = 64  # inputs of an output, whose weights cannot make up for each other much: there scales are worth a search
WIDEST = 4096  # inputs that are rounded together: a Hessian of 128 MiB
_BLOCK = 64
_NOTHING = 1e150  # a step that no weight makes half of


def round_weights(w: Array, scales: Array, hessian: Array, first: int, last: int, sweeps: int = 0) -> Array:
    """Codes in [first, last] whose error (w - codes scales) is small as the layer's output sees it: e H e^T for each row.

    sweeps: so many times at most each code is then set to the best beside all others, until none changes.
    w: float64[g, o, k]; scales: float64, broadcasts against w, where 0 the code says nothing and is 0; hessian: float64[g, k, k],
    `damped`.
    -> float64[g, o, k]. No row is worse than the nearest codes by that measure.
    """
    k, scales = w.shape[2], np.where(scales > 0, scales, _NOTHING)
    parts = range(0, k, WIDEST)
    if len(parts) == 1:
        return _rounded(w, scales, hessian, first, last, sweeps)
    scales = np.broadcast_to(scales, w.shape)
    cuts = [slice(i, i + WIDEST) for i in parts]
    return np.concatenate([_rounded(w[:, :, c], scales[:, :, c], hessian[:, c, c], first, last, sweeps) for c in cuts], 2)


def _rounded(w: Array, scales: Array, hessian: Array, first: int, last: int, sweeps: int) -> Array:
    scales = np.broadcast_to(scales, w.shape)
    nearest = np.clip(np.rint(w / scales), first, last)
    found = _descended(w, scales, hessian, _in_order(w, scales, hessian, first, last), first, last, sweeps)
    worse = output_error(w - found * scales, hessian) > output_error(w - nearest * scales, hessian)
    return np.where(worse[:, :, None], nearest, found)


def best_sizes(
    w: Array,
    scales: Array,
    least: Array,
    hessian: Array,
    first: int,
    last: int,
    *,
    sizes: Array,
    shared: bool,
    sweeps: int = 0,
) -> Array:
    """float64[g, o]: how many times as large scales had better be, by the error of the codes that `round_weights` finds at each
    of some sizes. sizes: float64[n, g, o], the first as they are; shared: one for all rows.

    least: float64[g, o, k], what code 0 stands for, which grows as scales do; all else as in `round_weights`.
    """
    errors = []
    for size in sizes[:, :, :, None]:
        wanted = w - least * size
        errors.append(
            output_error(wanted - round_weights(wanted, scales * size, hessian, first, last, sweeps) * scales * size, hessian)
        )
    found = np.stack(errors)
    if shared:
        return sizes[int(found.sum((1, 2)).argmin())]
    return np.take_along_axis(sizes, found.argmin(0)[None], 0)[0]


def output_error(e: Array, hessian: Array) -> Array:
    """e: float64[g, o, k], errors of weights -> float64[g, o]: the squared error of each output, summed over the rows seen."""
    return np.einsum("gok,gok->go", np.matmul(e, hessian), e)


def _in_order(w: Array, scales: Array, hessian: Array, first: int, last: int) -> Array:
    order = np.argsort(-np.einsum("gii->gi", hessian), axis=1, kind="stable")
    last_first, each = order[:, ::-1], np.arange(len(order))[:, None, None]
    upper = np.linalg.cholesky(hessian[each, last_first[:, :, None], last_first[:, None, :]])[:, ::-1, ::-1]  # H = R R^T
    w, scales = (np.take_along_axis(v, order[:, None, :], 2) for v in (w, scales))
    codes, errors, carried = np.empty_like(w), np.empty_like(w), np.zeros_like(w)
    k = w.shape[2]
    for start in range(0, k, _BLOCK):
        end = min(start + _BLOCK, k)
        for j in range(start, end):
            taken = carried[:, :, j] + np.matmul(errors[:, :, start:j], upper[:, start:j, j, None])[:, :, 0]
            wanted = (w[:, :, j] + taken / upper[:, j, j, None]) / scales[:, :, j]
            codes[:, :, j] = np.clip(np.rint(wanted), first, last)
            errors[:, :, j] = w[:, :, j] - codes[:, :, j] * scales[:, :, j]
        carried[:, :, end:] += np.matmul(errors[:, :, start:end], upper[:, start:end, end:])
    found = np.empty_like(codes)
    np.put_along_axis(found, order[:, None, :], codes, 2)
    return found


def _descended(w: Array, scales: Array, hessian: Array, codes: Array, first: int, last: int, sweeps: int) -> Array:
    """Each of the codes in turn set to the best beside the others as they are; no row gets worse. Coordinate descent, as in
    Behdin et al., "QuantEase" (2023)."""
    if not sweeps:
        return codes
    codes = codes.copy()
    pull = np.matmul(w - codes * scales, hessian)  # half the slope of the error
    steep = np.einsum("gii->gi", hessian)[:, None, :] * scales
    for _ in range(sweeps):
        before = codes.copy()
        for j in range(w.shape[2]):
            best = np.clip(np.rint(codes[:, :, j] + pull[:, :, j] / steep[:, :, j]), first, last)
            at = np.nonzero(best != codes[:, :, j])
            moved = (best - codes[:, :, j])[at] * scales[:, :, j][at]
            pull[at] -= moved[:, None] * hessian[at[0], j]
            codes[:, :, j] = best
        if np.array_equal(codes, before):
            break
    return codes
