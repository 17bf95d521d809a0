"""Gathers energies of signal and error for each index of each axis of a tensor, and finds parts of unlike or poor SQNR.

A tensor whose channels differ much in size may hide a lost channel behind a good total. Reports name such parts, as `y[:, 0:2]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fidelity import decibels

Array = NDArray[Any]
# Of normal values of one size, the least of n indices has a power of less than the square of these shares of the largest's in one
# of 300 draws at most: of 8 values of each of 1,000 indices, of 4 values of each of 64.
SAME_SIZE, SAME_SIZE_OF_FEW = 10.0, 32.0  # times the rms of another: indices within it are of one size
MANY_VALUES, FEW_VALUES, SHORT_AXIS = 8, 4, 64  # of an index; of a longer axis fewer than many values say nothing
LONGEST_AXIS, _CHUNK, _SHOWN = 4096, 1 << 16, 4  # indices of an axis, elements in float64 at once, runs in a label


@dataclass(frozen=True)
class TensorSlice:
    """A part of a tensor: some indices of one axis, with the SQNR of their values.

    `rank`: number of dimensions of the tensor.
    `rms`: root mean square of the reference's values.
    `size_ratio`: rms of the part that it is compared with, the largest, over its own.
    `peak`: largest value of the reference (signed).
    `sqnr_db`: SQNR over all samples.
    `varying_db`: the same where the mean of each index is no signal; None where the means are not known, or nothing varies.
    `worst_db`, `worst`: least SQNR of a single index, and that index; set by `list_weak_slices` alone.
    `values`: number of values of each index; set by `list_weak_slices` alone.
    `is_all`: it has all indices of the axis; set by `list_weak_slices` alone.
    """

    axis: int
    rank: int
    indices: tuple[int, ...]
    rms: float
    size_ratio: float
    peak: float
    sqnr_db: float
    varying_db: float | None
    worst_db: float = math.inf
    worst: int = 0
    values: int = 0
    is_all: bool = False

    def label(self, name: str) -> str:
        """Return the part as Python writes it: `y[:, 0:2]`, `y[:, :, [3, 5]]`; of many runs the first four."""
        runs = [_format_run(first, last) for first, last in _list_runs(self.indices)]
        more = [f"... {len(self.indices)} in all"] if len(runs) > _SHOWN else []
        where = runs[0] if len(runs) == 1 else f"[{', '.join((*runs[:_SHOWN], *more))}]"
        return f"{name}[{', '.join((':',) * self.axis + (where,) + (':',) * (self.rank - self.axis - 1))}]"


def _list_runs(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each run of consecutive indices."""
    runs: list[tuple[int, int]] = []
    for i in indices:
        runs = [*runs[:-1], (runs[-1][0], i)] if runs and runs[-1][1] == i - 1 else [*runs, (i, i)]
    return runs


def _format_run(first: int, last: int) -> str:
    """Return a run as Python slices it: `3`, or `3:5` with the end excluded."""
    return f"{first}" if first == last else f"{first}:{last + 1}"


@dataclass
class _AxisSums:
    """Sums by index of one axis, float64[n] each: energy of the reference, of the error, sum and largest of the reference."""

    signal: Array
    noise: Array
    total: Array
    peak: Array

    @classmethod
    def zeros(cls, size: int) -> _AxisSums:
        """Return sums of no values over `size` indices."""
        return cls(np.zeros(size), np.zeros(size), np.zeros(size), np.full(size, -math.inf))

    def add(self, other: _AxisSums) -> None:
        """Add the sums of other values in place."""
        self.signal += other.signal
        self.noise += other.noise
        self.total += other.total
        self.peak = np.maximum(self.peak, other.peak)


class PartSums:
    """Sums over samples by index of each axis of one tensor, from which SQNR of parts follows.

    The first axis, the batch, has none, unless it is the only one. Axes of one index or of more than 4,096 have none either.
    """

    def __init__(self) -> None:
        self._axes: dict[int, _AxisSums] = {}
        self._count, self._rank = 0, 0
        self.updates = 0

    def update(self, reference: Array, got: Array) -> None:
        """Add a sample: arrays of one shape, which is the same for all samples but for the batch.

        A value that is not finite in both has no error; in one of both it is an infinite error.
        """
        shape = np.shape(reference)
        self.updates += 1
        self._count += np.size(reference)
        self._rank = len(shape)
        if np.size(reference) == 0 or not shape:
            return
        for axis, sums in _sum_by_axis(np.asarray(reference), np.asarray(got)).items():
            if axis in self._axes:
                self._axes[axis].add(sums)
            else:
                self._axes[axis] = sums

    def add(self, other: PartSums) -> None:
        """Add the sums of other samples."""
        self.updates += other.updates
        self._count += other._count
        self._rank = other._rank
        for axis, sums in other._axes.items():
            mine = self._axes.setdefault(axis, _AxisSums.zeros(len(sums.signal)))
            mine.add(sums)

    @property
    def peak(self) -> float:
        """The largest value of the reference, signed; -inf without one."""
        return max((float(s.peak.max()) for s in self._axes.values()), default=-math.inf)

    def sqnr_db(self, part: TensorSlice) -> float:
        """Return the SQNR in dB of a part that came from this tensor's axes."""
        chosen, sums = list(part.indices), self._axes[part.axis]
        return decibels(float(sums.signal[chosen].sum()), float(sums.noise[chosen].sum()))

    def slices(self, means: PartSums | None = None) -> list[TensorSlice]:
        """Return the parts of unlike size along the axis on which sizes differ most, the largest first.

        Indices are of one size where their rms is within SAME_SIZE times, or SAME_SIZE_OF_FEW times where they have few values.
        The list is empty where no axis has unlike sizes; axes whose indices have too few values for a judgement are left out.
        Indices that are zero throughout are in no part.
        `means`: sums of the same tensor whose means count as no signal in `varying_db`; None: that is None.
        """
        splits = list[tuple[float, int, list[list[int]]]]()
        for axis, sums in self._axes.items():
            each, few = self._count / len(sums.signal), len(sums.signal) <= SHORT_AXIS
            groups = _group_by_size(sums.signal, SAME_SIZE if each >= MANY_VALUES else SAME_SIZE_OF_FEW)
            if len(groups) > 1 and each >= (FEW_VALUES if few else MANY_VALUES):
                splits.append((sums.signal[groups[0]].mean() / sums.signal[groups[-1]].mean(), -axis, groups))
        if not splits:
            return []
        _, axis, groups = max(splits, key=lambda split: split[:2])
        return [self._slice(-axis, group, groups[0], means) for group in groups]

    def list_weak_slices(self, level_db: float, means: PartSums | None = None) -> list[TensorSlice]:
        """Return for each axis with indices below `level_db` a part of just these, the axis with the worst index first.

        `means`: as in `slices`; the level of an index is then of what varies about its mean. Axes whose indices have too few
        values for a judgement are left out.
        """
        weak_slices = list[TensorSlice]()
        for axis, sums in self._axes.items():
            if self._count / len(sums.signal) < (FEW_VALUES if len(sums.signal) <= SHORT_AXIS else MANY_VALUES):
                continue
            levels = self._measure_indices(axis, means)
            weak = [int(i) for i in np.flatnonzero(levels < level_db)]
            if weak:
                worst = min(weak, key=lambda i: levels[i])
                part = self._slice(axis, weak, [int(sums.signal.argmax())], means)
                each, is_all = self._count // len(levels), len(weak) == len(levels)
                weak_slices.append(replace(part, worst_db=float(levels[worst]), worst=worst, values=each, is_all=is_all))
        return sorted(weak_slices, key=lambda part: part.worst_db)

    def list_noise_ratios(self) -> Array:
        """Return noise over signal, float64[n], of each index of axes of up to 64 indices.

        Where there are no such axes, it is that of the whole tensor alone. Indices without signal are left out.
        """
        sums = [s for s in self._axes.values() if len(s.signal) <= SHORT_AXIS]
        pairs = [(s.signal, s.noise) for s in sums]
        pairs += [] if sums else [(s.signal.sum(keepdims=True), s.noise.sum(keepdims=True)) for s in [*self._axes.values()][:1]]
        ratios = [np.minimum(noise[signal > 0] / signal[signal > 0], 1.0) for signal, noise in pairs]
        return np.concatenate([np.zeros(0), *ratios])

    def _measure_indices(self, axis: int, means: PartSums | None) -> Array:
        """Return the SQNR in dB of each index of an axis, float64[n]; inf for an index without noise or without signal."""
        sums = self._axes[axis]
        signal = sums.signal
        if means is not None:
            energy = self._list_varying(axis, means, slice(None))
            signal = np.where(energy > sums.signal / 2.0**32, np.minimum(energy, sums.signal), sums.signal)
        judged = (signal > 0) & (sums.noise > 0)
        ratio = np.where(judged, signal, 1.0) / np.where(judged, sums.noise, 1.0)
        return np.where(judged, 10 * np.log10(np.maximum(ratio, 1e-30)), np.inf)

    def _slice(self, axis: int, indices: list[int], largest: list[int], means: PartSums | None) -> TensorSlice:
        """Return the part of these indices, compared in size with the indices `largest`."""
        sums, each = self._axes[axis], self._count / len(self._axes[axis].signal)
        rms, most = (math.sqrt(sums.signal[i].mean() / each) for i in (indices, largest))
        noise = float(sums.noise[indices].sum())
        varying = None if means is None else self._varying(axis, means, indices)
        return TensorSlice(
            axis,
            self._rank,
            tuple(indices),
            rms,
            most / rms,
            float(sums.peak[indices].max()),
            decibels(float(sums.signal[indices].sum()), noise),
            None if varying is None else decibels(varying, noise),
        )

    def varying_db(self, means: PartSums) -> float | None:
        """Return the SQNR in dB where the mean of each channel in `means` is no signal; None where nothing varies.

        Channels are the second or the last axis, whichever has the larger means.
        """
        axes = sorted({1, self._rank - 1} & self._axes.keys() & means._axes.keys())
        energies = {axis: self._varying(axis, means, list(range(len(self._axes[axis].signal)))) for axis in axes}
        varying = [(energy, axis) for axis, energy in energies.items() if energy is not None]
        if not varying or len(varying) < len(energies):
            return None
        energy, axis = min(varying)
        return decibels(energy, float(self._axes[axis].noise.sum()))

    def _varying(self, axis: int, means: PartSums, indices: list[int]) -> float | None:
        """Return the energy about the means of `means`; None where 16 bits for all values of these indices would not hold it."""
        power = self._axes[axis].signal[indices].sum()
        varying = float(np.maximum(self._list_varying(axis, means, indices), 0).sum())
        return varying if varying > power / 2.0**32 else None

    def _list_varying(self, axis: int, means: PartSums, indices: list[int] | slice) -> Array:
        """Return the energy of each index about its mean in `means`, below 0 by rounding."""
        sums, others = self._axes[axis], means._axes[axis]
        each, of_means = self._count / len(sums.signal), means._count / len(sums.signal)
        mean = others.total[indices] / of_means
        return sums.signal[indices] - 2 * mean * sums.total[indices] + each * mean**2


def _sum_by_axis(reference: Array, got: Array) -> dict[int, _AxisSums]:
    """Return the sums of one sample by axis, for all axes but the batch that have 2 to 4,096 indices."""
    shape = reference.shape
    x, y = reference.reshape(-1, shape[-1]), got.reshape(-1, shape[-1])
    rows = [np.empty(len(x)) for _ in range(4)]
    of_last = _AxisSums.zeros(shape[-1])
    step = max(1, _CHUNK // shape[-1])
    for start in range(0, len(x), step):
        end = start + step
        values, error = _finite_errors(x[start:end].astype(np.float64), y[start:end].astype(np.float64))
        squares, noise = values * values, error * error
        for target, terms in zip(rows, (squares, noise, values)):
            target[start:end] = terms.sum(1)
        rows[3][start:end] = values.max(1)
        of_last.add(_AxisSums(squares.sum(0), noise.sum(0), values.sum(0), values.max(0)))
    sums = {len(shape) - 1: of_last}
    for axis in range(1, len(shape) - 1):
        others = tuple(i for i in range(len(shape) - 1) if i != axis)
        in_shape = [r.reshape(shape[:-1]) for r in rows]
        signal, noise, total = (r.sum(others) for r in in_shape[:3])
        sums[axis] = _AxisSums(signal, noise, total, in_shape[3].max(others))
    return {axis: s for axis, s in sums.items() if 1 < shape[axis] <= LONGEST_AXIS}


def _finite_errors(x: Array, y: Array) -> tuple[Array, Array]:
    """Return values and errors; a value that is not finite in both has an error of 0, in one of both an infinite one."""
    finite = np.isfinite(x) & np.isfinite(y)
    if finite.all():
        return x, y - x
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(finite, x, 0.0), np.where(
        finite, np.where(finite, y, 0.0) - np.where(finite, x, 0.0), np.where(equal, 0, np.inf)
    )


def _group_by_size(signal: Array, same_size: float) -> list[list[int]]:
    """Group indices whose rms is within `same_size` times of the group's largest, the largest group first; zeros have no size."""
    order = sorted(np.flatnonzero(signal > 0), key=lambda i: -signal[i])
    groups: list[list[int]] = []
    for i in order:
        if groups and signal[i] * same_size**2 >= signal[groups[-1][0]]:
            groups[-1].append(int(i))
        else:
            groups.append([int(i)])
    return [sorted(group) for group in groups]
