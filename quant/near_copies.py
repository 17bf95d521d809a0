"""Samples that are near-copies of each other, as neighbouring frames are: judging on one flatters where another was seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quant.sample_traits import SampleTraits

# Of 156 photographs of things no two are nearer than 0.28 of how far pairs are apart; frames of a moving picture are 0.09, and
# crops of four fifths of a photograph 0.15 to 0.65, from the nearest.
_NEAR = 0.2  # measured: between the two
_SAME_PICTURE = 0.1  # of what varies within a picture: frames of a camera that stands still
_LEAST_CELLS = 16  # numbers that a look is made of: any two of few are near each other among many samples
_MOST_SAMPLES = 2048  # whose looks are compared; of more only copies to the last bit are told


def group_near_copies(traits: Sequence[SampleTraits]) -> list[int]:
    """Of each sample the index of the first of its group. A group's samples are near-copies of one another in a chain."""
    first: dict[bytes, int] = {}
    groups = [first.setdefault(t.digest, i) for i, t in enumerate(traits)]
    if len(traits) > _MOST_SAMPLES:
        return groups
    for i, j in np.argwhere(np.triu(_are_near(traits), 1)).tolist():
        low, high = sorted((groups[i], groups[j]))
        groups = [low if group == high else group for group in groups]
    return groups


def _are_near(traits: Sequence[SampleTraits]) -> NDArray[np.bool_]:
    """bool[n, n]: alike in every input whose look says something."""
    near, has_looks = np.ones((len(traits), len(traits)), np.bool_), False
    for looks in zip(*(t.looks for t in traits)):
        means, spreads = (np.stack([getattr(look, part) for look in looks]) for part in ("means", "spreads"))
        table = np.concatenate([means, spreads], 1)
        varied = table - table.mean(0)
        if means.shape[1] < _LEAST_CELLS or not varied.any():
            continue
        has_looks, squared_distances = True, _squares_apart(varied)
        within = np.square(spreads).sum(1) if looks[0].is_picture else np.zeros(len(traits))
        near &= (squared_distances <= _NEAR**2 * _sums(np.square(varied).sum(1))) | (
            squared_distances <= _SAME_PICTURE**2 * _sums(within) / 2
        )
    return near if has_looks else np.zeros_like(near)


def _squares_apart(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n, n]: squared distances of rows."""
    return np.maximum(_sums(np.square(rows).sum(1)) - 2 * rows @ rows.T, 0)


def _sums(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x[:, None] + x[None]
