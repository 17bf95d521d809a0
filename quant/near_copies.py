"""Finds calibration samples that are alike: near-copies such as neighbouring frames, and crops of the same photographs.

Whoever holds samples out to judge by keeps a group of near-copies together, since judging on a near-copy of a seen sample
flatters. Crops of a photograph are farther apart. That they are alike shows in the order of the data: one after the other, or
one of each photograph in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quant.sample_traits import Look, SampleTraits

# Of 156 photographs of things no two are nearer than 0.28 of how far pairs are apart; frames of a moving picture are 0.09, and
# crops of four fifths of a photograph 0.15 to 0.65, from the nearest.
_NEAR = 0.2  # measured: between the two
_SAME_PICTURE = 0.1  # of what varies within a picture: frames of a camera that stands still
_LEAST_CELLS = 16  # numbers that a look is made of: any two of few are near each other among many samples
_MOST_SAMPLES = 2048  # whose looks are compared; of more only copies to the last bit are told
# Of how far any two samples are apart, at the best lag in the order: crops of photographs have 0.40 and 0.43, frames of a
# moving picture 0.17 and 0.40. Digits of a class in turn have 0.61, seven sets of independent samples 0.64 to 0.94.
_SIMILAR = 0.5  # measured: between crops and digits
_MOST_ORDERED = 512  # measured: 0.8 CPU s where samples are alike, 7 with 2,048
_SHUFFLES = 99  # measured: at most one of 100 sets of independent samples is nearer than in each of them; 3 of 400 were


def group_near_copies(traits: Sequence[SampleTraits]) -> list[int]:
    """Return for each sample the index of the first sample of its group; a sample that is like no other has its own index.

    Two samples are near-copies where their looks are near in each input. Near is within 0.2 of the distance of unrelated
    samples, also where all are brought to one size. Pictures are also near within 0.1 of what varies inside them. Inputs whose
    looks never vary, or have fewer than 16 cells, do not count.
    Samples are grouped through chains of near-copies. Equal samples always are; of more than 2,048 only these.
    """
    first: dict[bytes, int] = {}
    groups = [first.setdefault(t.digest, i) for i, t in enumerate(traits)]
    if len(traits) > _MOST_SAMPLES:
        return groups
    for i, j in np.argwhere(np.triu(_are_near(traits), 1)).tolist():
        low, high = sorted((groups[i], groups[j]))
        groups = [low if group == high else group for group in groups]
    return groups


def find_similar_lag(traits: Sequence[SampleTraits]) -> int | None:
    """Return the lag k at which samples are alike, namely each and the one k places later; None where they are not.

    They are alike where the median distance of their looks is less than half that of any two samples. It must also be less
    than in each of 99 random orders. So of 100 sets of independent samples one has a lag, at most. The result is the least
    such lag, up to half the number of samples. Of more than 512 samples the first 512 are looked at.

    `traits`: of each sample, in the order of the data.
    """
    squared = _relative_squares(traits[:_MOST_ORDERED])
    if squared is None:
        return None
    limit = _SIMILAR**2 * float(np.median(squared[np.triu_indices(len(squared), 1)]))
    levels = _levels_by_lag(squared)
    if levels.min() >= limit:
        return None
    rng, order = np.random.default_rng(0), np.arange(len(squared))
    for _ in range(_SHUFFLES):
        order = rng.permutation(order)
        limit = min(limit, float(_levels_by_lag(squared[np.ix_(order, order)]).min()))
    lags = np.flatnonzero(levels < limit) + 1
    return int(lags[0]) if lags.size else None


def _levels_by_lag(squared: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[n // 2]: the median of float64[n, n] over all pairs that are 1, 2 and more places apart."""
    return np.array([np.median(np.diagonal(squared, k)) for k in range(1, len(squared) // 2 + 1)])


def _relative_squares(traits: Sequence[SampleTraits]) -> NDArray[np.float64] | None:
    """Return float64[n, n]: squared distances between the looks of samples, each input's over their mean, added up.

    None where no input has a look that varies and has 16 cells.
    """
    tables = [table - table.mean(0) for table, _ in _list_varied(traits)]
    return sum((_squares_apart(t) / np.square(t).sum(1).mean() for t in tables), np.zeros(())) if tables else None


def _list_varied(traits: Sequence[SampleTraits]) -> list[tuple[NDArray[np.float64], Sequence[Look]]]:
    """Return (float64[n, 2 m], looks) of each input whose looks vary and have m >= 16 cells."""
    inputs = list[tuple[NDArray[np.float64], Sequence[Look]]]()
    for looks in zip(*(t.looks for t in traits)):
        table = np.concatenate([np.stack([getattr(look, part) for look in looks]) for part in ("means", "spreads")], 1)
        if table.shape[1] >= 2 * _LEAST_CELLS and (table - table.mean(0)).any():
            inputs.append((table, looks))
    return inputs


def _are_near(traits: Sequence[SampleTraits]) -> NDArray[np.bool_]:
    """Return bool[n, n]: whether two samples are alike in every input whose look varies and has at least 16 cells.

    All is False where no input has such a look.
    """
    near, inputs = np.ones((len(traits), len(traits)), np.bool_), _list_varied(traits)
    for table, looks in inputs:
        spreads = np.stack([look.spreads for look in looks])
        within = np.square(spreads).sum(1) if looks[0].is_picture else np.zeros(len(traits))
        at_one_size = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        is_same_picture = _squares_apart(table - table.mean(0)) <= _SAME_PICTURE**2 * _sums(within) / 2
        # Beside a few loud samples all quiet ones are near each other, whatever they hold.
        near &= is_same_picture | (_are_within(table) & _are_within(at_one_size))
    return near if inputs else np.zeros_like(near)


def _are_within(table: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return bool[n, n]: whether rows of float64[n, m] are within _NEAR of the distance of unrelated ones."""
    varied = table - table.mean(0)
    return _squares_apart(varied) <= _NEAR**2 * _sums(np.square(varied).sum(1))


def _squares_apart(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[n, n]: squared Euclidean distances between the rows of float64[n, m]."""
    return np.maximum(_sums(np.square(rows).sum(1)) - 2 * rows @ rows.T, 0)


def _sums(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[n, n]: the sum of each pair of entries of float64[n]."""
    return x[:, None] + x[None]
