"""Describes a calibration sample in a few numbers: its magnitude, what it looks like, and a hash of its content.

Samples are dealt into held-out sets by these traits. `quant.near_copies` finds near-copies by their looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from quant.fit_sample import Sample

CELLS = 64  # parts of an input that its look is made of, at most
_PICTURE = 4  # dimensions


@dataclass(frozen=True, eq=False)
class Look:
    """A coarse image of one input, whose elements in row-major order are cut into m cells of about equal length.

    CELLS is the largest m; an input of fewer elements has a cell for each.

    `means`, `spreads`: mean and standard deviation of each cell, float64[m].
    `is_picture`: the input has four dimensions or more, so that neighbouring values are alike.
    """

    means: NDArray[np.float64]
    spreads: NDArray[np.float64]
    is_picture: bool


@dataclass(frozen=True, eq=False)
class SampleTraits:
    """Traits of a sample; `peaks`, `sizes` and `looks` have one entry for each input, by sorted input name.

    `peaks`: largest magnitude.
    `sizes`: root mean square; 0 for an input without elements, as its peak is.
    `digest`: a hash of the bytes of all inputs.
    """

    peaks: tuple[float, ...]
    sizes: tuple[float, ...]
    looks: tuple[Look, ...]
    digest: bytes


def describe_sample(sample: Sample) -> SampleTraits:
    """Return the traits of a sample. NaN and infinity count as 0, but for the digest."""
    digest, peaks, sizes, looks = blake2b(digest_size=16), list[float](), list[float](), list[Look]()
    for name in sorted(sample):
        digest.update(sample[name].tobytes())
        x = np.nan_to_num(sample[name].astype(np.float64).ravel(), posinf=0.0, neginf=0.0)
        peaks.append(float(np.abs(x).max(initial=0)))
        sizes.append(float(np.sqrt(np.mean(x * x))) if x.size else 0.0)
        looks.append(_look(x, sample[name].ndim >= _PICTURE))
    return SampleTraits(tuple(peaks), tuple(sizes), tuple(looks), digest.digest())


def _look(x: NDArray[np.float64], is_picture: bool) -> Look:
    """Return the look of one input, whose elements are `x`, in row-major order."""
    ends = np.linspace(0, x.size, min(CELLS, x.size) + 1).astype(int)
    counts = np.diff(ends)
    means, squares = (np.add.reduceat(v, ends[:-1]) / counts if x.size else np.zeros(0) for v in (x, x * x))
    return Look(means, np.sqrt(np.maximum(squares - means**2, 0)), is_picture)


def order_by_magnitude(traits: Sequence[SampleTraits]) -> list[int]:
    """Return the indices of the samples, the largest first. The order of the samples does not matter.

    The key is the sum over the inputs of the largest magnitude, each relative to the largest of all samples. Ties are broken so
    by root mean squares, then by digest.
    """
    peaks, sizes = _relative([t.peaks for t in traits]), _relative([t.sizes for t in traits])
    return sorted(range(len(traits)), key=lambda i: (-peaks[i], -sizes[i], traits[i].digest))


def _relative(figures: Sequence[tuple[float, ...]]) -> list[float]:
    """Return for each sample the sum of its figures, each divided by the largest of all samples.

    `figures`: of each sample, by input, none negative.
    """
    table = np.array(figures, np.float64).reshape(len(figures), -1)
    largest = table.max(0, initial=0)
    return (table / np.where(largest > 0, largest, 1)).sum(1).tolist()
