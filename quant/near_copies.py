"""Groups calibration samples that are near-copies of each other, such as neighbouring frames of a video.

Whoever holds samples out to judge by keeps a group together, since judging on a near-copy of a seen sample flatters.
"""

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
    """Return for each sample the index of the first sample of its group; a sample that is like no other has its own index.

    Two samples are near-copies where their looks are near in each input. Near is within 0.2 of the distance of unrelated
    samples. Pictures are also near within 0.1 of what varies inside them. Inputs whose looks never vary, or have fewer
    than 16 cells, do not count.
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


def _are_near(traits: Sequence[SampleTraits]) -> NDArray[np.bool_]:
    """Return bool[n, n]: whether two samples are alike in every input whose look varies and has at least 16 cells.

    All is False where no input has such a look.
    """
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
    """Return float64[n, n]: squared Euclidean distances between the rows of float64[n, m]."""
    return np.maximum(_sums(np.square(rows).sum(1)) - 2 * rows @ rows.T, 0)


def _sums(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[n, n]: the sum of each pair of entries of float64[n]."""
    return x[:, None] + x[None]
