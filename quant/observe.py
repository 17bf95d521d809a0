"""Observers: from the arrays that calibration shows of a tensor to the range of real values that its codes shall cover.

`quant.calibrate` feeds them, and `quant.parameters` turns a `Range` into a scale and a zero point. Here are the data types of
ranges, and the observers `MinMax` and `Percentile`. `Histogram` is the bounded-memory histogram of percentiles and of
`quant.parameters.least_error_range`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import CompileError

Array = NDArray[Any]
COMMON_PERCENT = 99.99
_TAIL = 8  # samples whose ends tell how far others reach beyond (docs/quantization.md: Hill's estimate)
RARE, _RARE_SHARE = _TAIL, 4  # samples whose values no range is to clip where none of the others has such


@dataclass(frozen=True)
class Tails:
    """An estimate of how far values that were not seen may lie beyond the ends of a measured range.

    `values`: number of values in all samples together.
    `below`, `above`: mean distance of values beyond the low and the high end, in the tensor's unit; 0 where there are none.
    """

    values: int
    below: float
    above: float


@dataclass(frozen=True)
class Masking:
    """A record of a tensor that may hold scores plus an additive mask of a Softmax.

    `ends`: its smallest and its largest value, masked ones too.
    `floor`: value below which a position counts for nothing with the Softmax that reads the tensor; None where none reads it.
    """

    ends: Range
    floor: float | None


@dataclass(frozen=True)
class Range:
    """A range of real values, low <= value <= high; CompileError where an end is not finite. Equality compares the ends alone.

    `tails`: of a measured range, how far unseen values may lie beyond; None where the range was set or follows from the operator.
    `step`: number of which all values are integer multiples; None where none is known.
    `masking`: of a tensor that may be masked, until `quant.masks.bound_masks` has moved the ends; else None.
    """

    low: float
    high: float
    tails: Tails | None = field(default=None, compare=False, repr=False)
    step: float | None = field(default=None, compare=False, repr=False)
    masking: Masking | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise CompileError(f"range [{self.low!r}, {self.high!r}]: low and high must be finite, and low no larger than high")

    @classmethod
    def of(cls, x: Array) -> Range:
        """Return the range from the smallest to the largest value of a constant; [0, 0] for an empty one."""
        return cls(float(x.min()), float(x.max())) if x.size else cls(0.0, 0.0)

    def union(self, other: Range) -> Range:
        """Return the union of both ranges, each end with the tail of the range that it comes from; `step` and `masking` are
        dropped."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        tailed = [(r, r.tails) for r in (self, other) if r.tails is not None]
        if not tailed:
            return Range(low, high)
        below = max((t.below for r, t in tailed if r.low == low), default=0.0)
        above = max((t.above for r, t in tailed if r.high == high), default=0.0)
        return Range(low, high, Tails(min(t.values for _, t in tailed), below, above))

    def within(self, low: float, high: float) -> Range:
        """Return the part of the range between the bounds; a range outside them becomes the nearest bound.

        An end that is cut gets a tail of 0, since nothing lies beyond. `step` and `masking` are dropped.
        """
        clipped = Range(min(max(self.low, low), high), max(min(self.high, high), low))
        if self.tails is None:
            return clipped
        below, above = (self.tails.below if self.low > low else 0.0), (self.tails.above if self.high < high else 0.0)
        return replace(clipped, tails=Tails(self.tails.values, below, above))

    def with_zero(self) -> Range:
        """Return the smallest range that holds this one and 0, for padding and zero points; tails, step and masking are
        dropped."""
        return Range(min(self.low, 0.0), max(self.high, 0.0))

    @property
    def span(self) -> float:
        """The width, high - low."""
        return self.high - self.low


class Observer(Protocol):
    """Interface of observers. `update` takes float arrays of any shape, all finite; `range` may be called any time after."""

    def update(self, x: Array) -> None:
        """Take the values of one sample."""
        ...

    def range(self) -> Range:
        """Return the range of all values so far."""
        ...


class MinMax:
    """An observer: the smallest and the largest value seen, [0, 0] before any, with tails estimated from the ends of samples.

    Each `update` that is not empty counts as one sample. The nine outermost ends on either side are kept.
    """

    def __init__(self) -> None:
        self._values = self._samples = 0
        self._lows, self._highs = list[float](), list[float]()  # of samples, outermost first

    def update(self, x: Array) -> None:
        """Take the values of one sample; an empty array counts as none."""
        if x.size:
            self._values += x.size
            self._samples += 1
            self._lows = sorted((*self._lows, float(x.min())))[: _TAIL + 1]
            self._highs = sorted((*self._highs, float(x.max())), reverse=True)[: _TAIL + 1]

    def with_rare_ends(self, r: Range) -> Range:
        """Return `r` with the extreme and its tail in the place of an end beyond which only few samples reach.

        Few are at most RARE samples, and at most a quarter of all. What clips these alone may serve all others, and be wrong for
        every sample of their kind. An end that more samples pass keeps its place, with a tail of 0.
        """
        rare = min(RARE, self._samples // _RARE_SHARE)
        measured = self.range()
        if not rare or measured.tails is None:
            return r
        below, above = measured.tails.below, measured.tails.above
        low, high = r.low, r.high
        if sum(end < r.low for end in self._lows) <= rare:
            low = measured.low
        else:
            below = 0.0
        if sum(end > r.high for end in self._highs) <= rare:
            high = measured.high
        else:
            above = 0.0
        return Range(low, high, Tails(measured.tails.values, below, above))

    def range(self) -> Range:
        """Return the range with its tails; [0, 0] without tails before any value."""
        if not self._values:
            return Range(0.0, 0.0)
        return Range(self._lows[0], self._highs[0], Tails(self._values, _mean_excess(self._lows), _mean_excess(self._highs)))


def _mean_excess(ends: Sequence[float]) -> float:
    """Return the mean distance of the outermost samples beyond the innermost one: Hill's estimate, of values and not logarithms.

    With exponential tails this is the mean excess over any threshold. It has three significant digits.
    `ends`: of samples, outermost first.
    """
    *outer, threshold = ends
    excess = abs(sum(outer) / len(outer) - threshold) if outer else 0.0
    return float(f"{excess:.3g}")  # a third of it is chance


class Histogram:
    """A histogram of float32 values in bins of 1/128 octave, both signs, over the 24 octaves below the largest magnitude.

    A bin is the upper half of a float32's bits, so nothing is rescaled and an outlier costs no resolution. The counts do not
    depend on the order or the grouping of the updates. Smaller magnitudes count in the lowest bin. It always takes 49 KB.
    `update` takes finite values of any shape.
    """

    BINS = 24 * 128

    def __init__(self) -> None:
        self._top = -1  # upper half of the bits of the largest magnitude seen
        self._counts = np.zeros((2, self.BINS), np.int64)  # positive, negative; last bin = _top
        self._extremes = MinMax()

    CHUNK = 1 << 20  # elements counted at once, to bound the memory that counting takes

    def update(self, x: Array) -> None:
        """Take finite values of any shape, as those of one sample."""
        self._extremes.update(x)
        flat = np.ascontiguousarray(x, np.float32).view(np.uint32).ravel()
        for start in range(0, flat.size, self.CHUNK):
            self._count(flat[start : start + self.CHUNK] >> 16)

    def _count(self, bits: Array) -> None:
        """Add the values with these upper halves, uint32[n], to the counts."""
        counts = np.bincount(bits, minlength=1 << 16).reshape(2, 1 << 15)
        self._grow(int(np.flatnonzero(counts.any(0))[-1]))
        bottom = self._top - self.BINS + 1
        first = max(bottom, 0)
        self._counts[:, first - bottom :] += counts[:, first : self._top + 1]
        self._counts[:, 0 if bottom >= 0 else -bottom] += counts[:, :first].sum(1)

    def _grow(self, top: int) -> None:
        """Move the counts so that `top` is the uppermost bin, if it is above; bins that fall out at the bottom join the
        lowest."""
        if top <= self._top:
            return
        shift = min(top - self._top, self.BINS) if self._top >= 0 else 0
        if shift:
            grown = np.zeros_like(self._counts)
            grown[:, : self.BINS - shift] = self._counts[:, shift:]
            grown[:, 0] += self._counts[:, :shift].sum(1)
            self._counts = grown
        self._top = top

    @property
    def extremes(self) -> Range:
        """The range from the smallest to the largest value, with its tails."""
        return self._extremes.range()

    def with_rare_ends(self, r: Range) -> Range:
        """Return `r` widened where few samples reach beyond it, as `MinMax.with_rare_ends` does."""
        return self._extremes.with_rare_ends(r)

    def bins(self) -> tuple[Array, Array, Array]:
        """Return lower edges, upper edges (float64[n]) and counts (int64[n]) of the occupied bins, ascending, within the
        extremes."""
        positive, negative = self._counts
        codes = np.arange(self._top - self.BINS + 1, self._top + 2).clip(0)
        edges = _upper_half_to_float(codes)
        edges[0] = 0.0  # the lowest bin holds everything smaller
        low = np.concatenate([-edges[:0:-1], edges[:-1]])
        high = np.concatenate([-edges[-2::-1], edges[1:]])
        counts = np.concatenate([negative[::-1], positive])
        used = counts > 0
        extremes = self.extremes
        low, high = (np.clip(edge[used], extremes.low, extremes.high) for edge in (low, high))
        return low, high, counts[used]


def _upper_half_to_float(codes: Array) -> Array:
    """Return as float64[n] the values of upper halves of float32 bits, int[n]; the one after the largest finite is 2**128."""
    values = (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.where(np.isfinite(values), values, 2.0**128)


class Percentile:
    """An observer: `percentile_range` of all that is seen. CompileError unless 50 < percent <= 100."""

    def __init__(self, percent: float = COMMON_PERCENT) -> None:
        if not 50 < percent <= 100:
            raise CompileError(f"percentile {percent:g}: must be above 50 and at most 100, such as 99.99")
        self._percent = percent
        self._histogram = Histogram()

    def update(self, x: Array) -> None:
        self._histogram.update(x)

    def range(self) -> Range:
        return percentile_range(self._histogram, self._percent)


def percentile_range(histogram: Histogram, percent: float = COMMON_PERCENT) -> Range:
    """Return the values below and above which (100 - percent) % of all values lie, interpolated within a bin of 1/128 octave.

    Where that is less than one value, each end lies beyond the extreme by what its tail predicts, at most by the span. Otherwise
    no end crosses 0: without negative values the low end is the smallest value, without positive ones the high end is the
    largest. A histogram without values gives [0, 0].
    """
    extremes = histogram.extremes
    low, high, counts = histogram.bins()
    if not counts.size:
        return extremes
    tail = (1 - percent / 100) * counts.sum()
    tails = extremes.tails
    if 0 < tail < 1 and tails is not None:
        below, above = (min(-mean * math.log(tail), extremes.span) for mean in (tails.below, tails.above))
        return Range(extremes.low - below, extremes.high + above)
    above = _quantile(high[::-1], low[::-1], counts[::-1], tail)
    below = _quantile(low, high, counts, tail)
    lowest = min(below, 0.0) if extremes.low < 0 else extremes.low
    highest = max(above, 0.0) if extremes.high > 0 else extremes.high
    return Range(min(lowest, highest), max(lowest, highest))


def _quantile(outer: Array, inner: Array, counts: Array, tail: float) -> float:
    """Return the value up to which `tail` counts lie, counted from the outer edge of the first bin and interpolated in a bin."""
    passed = np.cumsum(counts)
    i = min(int(np.searchsorted(passed, tail, side="right")), len(counts) - 1)
    share = (tail - (passed[i] - counts[i])) / counts[i]
    return float(outer[i] + (inner[i] - outer[i]) * min(max(share, 0.0), 1.0))
