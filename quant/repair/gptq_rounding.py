"""Rounds weights to second order (GPTQ): each weight's code in turn, its error compensated by the weights that are still free.

`round_weights` is the entry; `toolchain.repair` calls it layer by layer with Hessians of `quant.repair.moments`. Others fit
scales to the codes. Shapes: g groups of a convolution, o outputs of a group, k weights of an output.

Factors of scales that are worth trying: SIZES, FINER_SIZES where weights take few codes, POWERS for powers of two. Outputs of at
most FEW inputs gain by them, up to 6 dB, since few weights cannot make up for each other. WAYS is a good number of partial
solutions, which gains 0.4 to 0.8 dB (docs/repair.md).

At most WIDEST inputs are rounded together, so that a Hessian takes 128 MiB. Work on a part is bounded by _MAX_WEIGHTS weights of
all ways, 32 MiB. It is also bounded by _MAX_PRODUCTS products of all ways with the weights to come, so that many inputs get
fewer ways. Errors reach later weights in blocks of _BLOCK. A scale of _NOTHING is a step of which no weight makes half, so that
the code has no effect.

Sources: Hassibi and Stork, "Optimal Brain Surgeon" (1993); Frantar and Alistarh, "Optimal Brain Compression" (2022, OBQ). Frantar
et al., "GPTQ" (2022) has one order for all rows, by falling diagonal of the Hessian ("act order"). The recursion here needs no
inverse. Write H = R R^T, R upper triangular.
`e H e^T`, the error, is the sum over j of (e_j R_jj + sum over i < j of e_i R_ij)^2.
Each term is made least by its own code: Babai's nearest plane, which is what GPTQ computes. Source: Chen et al., "The Geometry of
LLM Quantization", 2025. Several partial solutions may be kept at once, each code next to nearest in some of them, of which the
best continue. That is the K-best search of Guo and Nilsson, "Algorithm and Implementation of the K-Best Sphere Decoding" (2006).
Coordinate descent may follow: the same error, reduced by one code at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIZES = (0.8, 0.9, 1.1, 1.2)
FINER_SIZES = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3)
POWERS = (0.5, 2.0)
FEW = 64  # docs/repair.md
WIDEST = 4096
WAYS = 16  # docs/repair.md
_MAX_PRODUCTS = 1 << 26
_BLOCK = 16
_MAX_WEIGHTS = 1 << 22
_NOTHING = 1e150


def round_weights(w: Array, scales: Array, hessian: Array, first: int, last: int, *, ways: int = 1, sweeps: int = 0) -> Array:
    """Return codes in [first, last], as float64[g, o, k], whose error in the layer's output is small.

    The error is e H e^T for each row, e = w - codes scales. No row is worse by that measure than the nearest codes. Where k is
    above WIDEST, parts of so many inputs are rounded one by one, without the terms between them. A whole row may then be worse.
    `w`: float64[g, o, k], real.
    `scales`: float64, broadcasts against w; where 0 or less, the code has no effect and is the one nearest 0.
    `hessian`: float64[g, k, k], positive definite, from `damping.add_damping`.
    `ways`: number of partial solutions of a row that are kept at once; fewer where weights are many.
    `sweeps`: how often at most each code is then set to the best for all others, until none changes.
    """
    k, scales = w.shape[2], np.where(scales > 0, scales, _NOTHING)
    parts = range(0, k, WIDEST)
    if len(parts) == 1:
        return _round_part(w, scales, hessian, first, last, ways, sweeps)
    scales = np.broadcast_to(scales, w.shape)
    cuts = [slice(i, i + WIDEST) for i in parts]
    return np.concatenate(
        [_round_part(w[:, :, c], scales[:, :, c], hessian[:, c, c], first, last, ways, sweeps) for c in cuts], 2
    )


def _round_part(w: Array, scales: Array, hessian: Array, first: int, last: int, ways: int, sweeps: int) -> Array:
    """Return the codes of at most WIDEST inputs, those that are nearest where the search's are worse."""
    scales = np.broadcast_to(scales, w.shape)
    nearest = np.clip(np.rint(w / scales), first, last)
    codes = refine_codes(w, scales, hessian, _in_order(w, scales, hessian, first, last, ways), first, last, sweeps)
    worse = output_error(w - codes * scales, hessian) > output_error(w - nearest * scales, hessian)
    return np.where(worse[:, :, None], nearest, codes)


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
    """Return float64[g, o]: the best factors of the scales, by the error of the codes that `round_weights` finds at each size.

    `sizes`: float64[n, g, o], the candidates, the first of them 1 everywhere.
    `shared`: one candidate for all rows.
    `least`: float64[g, o, k], the real value of code 0, which grows as scales do; all else is as in `round_weights`.
    """
    errors: list[Array] = []
    for size in sizes[:, :, :, None]:
        target, each = w - least * size, scales * size
        codes = round_weights(target, each, hessian, first, last, sweeps=sweeps)
        errors.append(output_error(target - codes * each, hessian))
    error_sums = np.stack(errors)
    if shared:
        return sizes[int(error_sums.sum((1, 2)).argmin())]
    return np.take_along_axis(sizes, error_sums.argmin(0)[None], 0)[0]


def fit_group_scales(w: Array, quantized: Array, hessian: Array, size: int) -> Array:
    """Return float64[g, o, parts]: the best factors of the scales of each `size` neighbours, with their codes unchanged.

    It is least squares of `output_error`, in all parts of a row at once. A part whose codes have no effect has factor 1.
    `w`: float64[g, o, k], the real weights.
    `quantized`: float64[g, o, k], the real values of their codes.
    `hessian`: float64[g, k, k].
    """
    groups, outputs, k = w.shape
    count = -(-k // size)

    def by_part(x: Array) -> Array:
        return np.pad(x, ((0, 0), (0, 0), (0, count * size - k))).reshape(groups, outputs, count, size).sum(3)

    normal = np.empty((groups, outputs, count, count))
    for part, start in enumerate(range(0, k, size)):
        those = slice(start, start + size)
        normal[:, :, part] = by_part(np.matmul(quantized[:, :, those], hessian[:, those]) * quantized)
    at = np.arange(count, dtype=np.int64)
    silent = by_part(np.abs(quantized)) == 0
    normal[:, :, at, at] += silent
    return np.linalg.solve(normal, np.where(silent, 1.0, by_part(quantized * np.matmul(w, hessian)))[..., None])[..., 0]


def output_error(e: Array, hessian: Array) -> Array:
    """Return float64[g, o]: the squared error of each output, e H e^T, summed over the rows that the Hessian is made of.

    `e`: float64[g, o, k], errors of weights.
    """
    return np.einsum("gok,gok->go", np.matmul(e, hessian), e)


def _in_order(w: Array, scales: Array, hessian: Array, first: int, last: int, ways: int) -> Array:
    """Return codes, float64[g, o, k], chosen weight by weight in the order of falling diagonal of the Hessian."""
    order = np.argsort(-np.einsum("gii->gi", hessian), axis=1, kind="stable")
    last_first, each = order[:, ::-1], np.arange(len(order))[:, None, None]
    upper = np.linalg.cholesky(hessian[each, last_first[:, :, None], last_first[:, None, :]])[:, ::-1, ::-1]  # H = R R^T
    w, scales = (np.take_along_axis(v, order[:, None, :], 2) for v in (w, scales))
    groups, outputs, k = w.shape
    ways = max(1, min(ways, _MAX_PRODUCTS // (groups * outputs * k * k)))
    step = max(1, _MAX_WEIGHTS // (groups * k * ways))
    parts = [slice(i, i + step) for i in range(0, outputs, step)]
    codes = np.concatenate([_best_way(w[:, p], scales[:, p], upper, first, last, ways) for p in parts], 1)
    result = np.empty_like(codes)
    np.put_along_axis(result, order[:, None, :], codes, 2)
    return result


def _best_way(w: Array, scales: Array, upper: Array, first: int, last: int, ways: int) -> Array:
    """Return the codes of the best partial solution, float64[g, o, k], in the order of `w`.

    `upper`: float64[g, k, k], R of H = R R^T.
    """
    groups, outputs, k = w.shape
    cost, codes = np.zeros((groups, outputs, 1)), np.zeros((groups, outputs, 1, 0))
    carried = np.zeros((groups, outputs, 1, k))  # what the errors so far ask of the weights that are still free
    for start in range(0, k, _BLOCK):
        end = min(start + _BLOCK, k)
        block = _Block(cost, carried[..., : end - start])
        for at in range(start, end):
            block.choose(at - start, w[:, :, at], scales[:, :, at], upper[:, start:end, at], first, last, ways)
        cost, codes = block.cost, np.concatenate([block.going_on(codes), block.codes], 3)
        error_terms = np.matmul(block.errors.reshape(groups, -1, end - start), upper[:, start:end, end:])
        carried = block.going_on(carried[..., end - start :]) + error_terms.reshape(*cost.shape, k - end)
    return codes[:, :, 0]


class _Block:
    """A block of weights in their order, with the best partial solutions of their codes, the best first.

    `cost`: float64[g, o, n], of each partial solution, with all weights before.
    `codes`, `errors`: float64[g, o, n, width].
    """

    def __init__(self, cost: Array, carried: Array) -> None:
        """Start a block.

        `carried`: float64[g, o, n, width], by the current partial solutions.
        """
        self.cost, self._carried = cost, carried
        self.codes, self.errors = np.zeros_like(carried), np.zeros_like(carried)
        # The way before the block that each goes on from.
        self._began: Array = np.broadcast_to(np.arange(cost.shape[2], dtype=np.int64), cost.shape)

    def going_on(self, before: Array) -> Array:
        """Reorder values by the partial solutions that continue.

        `before`: [g, o, n, m], by the partial solutions before the block.
        """
        return before if before.shape[2] == 1 == self.cost.shape[2] else np.take_along_axis(before, self._began[..., None], 2)

    def choose(self, j: int, w: Array, scales: Array, upper: Array, first: int, last: int, ways: int) -> None:
        """Choose the code of weight `j` of the block in each partial solution: the nearest, and in some the next.

        `w`, `scales`: float64[g, o].
        `upper`: float64[g, width], its column of R.
        """
        w, scales, diagonal = w[..., None], scales[..., None], upper[:, j, None, None]
        error_terms = np.matmul(self.errors[..., :j].reshape(len(w), self.cost[0].size, j), upper[:, :j, None]).reshape(
            self.cost.shape
        )
        real_codes = (w + (np.take_along_axis(self._carried[..., j], self._began, 2) + error_terms) / diagonal) / scales
        codes = np.clip(np.rint(real_codes), first, last)
        if ways > 1:
            beyond = np.where(scales < _NOTHING, np.where(real_codes > codes, 1, -1), 0)
            following = np.clip(codes + beyond, first, last)
            both = np.stack([codes, following], 3)
            cost = self.cost[..., None] + ((real_codes[..., None] - both) * (scales * diagonal)[..., None]) ** 2
            cost[..., 1][following == codes] = np.inf
            cost, codes = cost.reshape(*w.shape[:2], -1), both.reshape(*w.shape[:2], -1)
            best_ways = np.argsort(cost, 2, kind="stable")[..., :ways]
            self.cost, codes, parents = (
                np.take_along_axis(cost, best_ways, 2),
                np.take_along_axis(codes, best_ways, 2),
                best_ways // 2,
            )
            self._began = np.take_along_axis(self._began, parents, 2)
            self.codes, self.errors = (np.take_along_axis(v, parents[..., None], 2) for v in (self.codes, self.errors))
        self.codes[..., j] = codes
        self.errors[..., j] = w - codes * scales


def refine_codes(w: Array, scales: Array, hessian: Array, codes: Array, first: int, last: int, sweeps: int) -> Array:
    """Return the codes, each in turn set to the best one for the others as they are; no row gets worse.

    This is coordinate descent, as in Behdin et al., "QuantEase" (2023). With `sweeps` 0 it is `codes` itself; else a new array.
    `w`, `codes`: float64[g, o, k]. `scales`, `hessian`: as in `round_weights`.
    """
    if not sweeps:
        return codes
    codes, scales = codes.copy(), np.broadcast_to(np.where(scales > 0, scales, _NOTHING), w.shape)
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
