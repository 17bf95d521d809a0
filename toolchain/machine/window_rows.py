"""Find the rows or columns of an input that the windows of a convolution or pool reach.

The arguments are those of one axis: `output` positions, `kernel` size, `stride`, `dilation`, `pad` before the input,
input `size`. All functions work for rows and for columns of a feature map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, lcm

import numpy as np

from toolchain.machine.columns import IntOrColumn, ceil_div, distinct_rows, is_column, least, most, where


@dataclass(frozen=True, slots=True)
class RowRuns:
    """The rows first + i step + j for i < count and j < length."""

    first: int
    count: int
    step: int
    length: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.count * self.length


@lru_cache(maxsize=65536)
def window_reach(output: int, kernel: int, stride: int, dilation: int, pad: int, size: int) -> tuple[RowRuns, ...]:
    """Return the input rows y stride + k dilation - pad that exist, for y < output and k < kernel, in runs.

    Each row occurs once. Rows that stride or dilation skip are left out.
    """
    reached: list[range] = []
    for rows in _progressions(range(0, output * stride, stride), range(0, kernel * dilation, dilation)):
        skipped = max(0, ceil_div(pad - rows.start, rows.step))  # in the padding
        rows_in_size = range(rows.start - pad + skipped * rows.step, min(rows.stop - pad, size), rows.step)
        if rows_in_size:
            reached.append(rows_in_size)
    return tuple(_join_neighbours(sorted(reached, key=lambda rows: rows.start)))


def extent_reached(
    output: IntOrColumn, kernel: IntOrColumn, stride: IntOrColumn, dilation: IntOrColumn, pad: IntOrColumn, size: IntOrColumn
) -> IntOrColumn:
    """Return the index after the last row that windows reach, at most `size`; 0 where they reach none."""
    return most(0, least(size, (output - 1) * stride + (kernel - 1) * dilation + 1 - pad))


def rows_reached(
    output: IntOrColumn, kernel: IntOrColumn, stride: IntOrColumn, dilation: IntOrColumn, pad: IntOrColumn, size: IntOrColumn
) -> IntOrColumn:
    """Return how many rows `window_reach` gives, for one operation or for columns of many."""
    if is_column(output):
        different, back = distinct_rows(output, kernel, stride, dilation, pad, size)
        return np.array([rows_reached(*row) for row in different], np.int64)[back]
    return sum(runs.rows for runs in window_reach(output, kernel, stride, dilation, pad, size))


def taps_met(
    output: IntOrColumn, kernel: IntOrColumn, stride: IntOrColumn, dilation: IntOrColumn, pad: IntOrColumn, size: IntOrColumn
) -> tuple[IntOrColumn, IntOrColumn]:
    """Return two numbers over pairs of an output y < output and kernel element k < kernel that meet an input row.

    They are the number of such pairs, and the sum of their k. The row of a pair is y stride + k dilation - pad.
    """
    count = places = 0
    for k in range(int(np.max(kernel))):
        offset = pad - k * dilation
        met = least(output, (size - 1 + offset) // stride + 1) - most(0, ceil_div(offset, stride))
        met = where(k < kernel, most(0, met), 0)
        count, places = count + met, places + k * met
    return count, places


def grid(rows: RowRuns, row_stride: int, columns: RowRuns, column_stride: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the counts and strides in bytes of these rows and columns. `row_stride`, `column_stride`: bytes between
    neighbours.

    An axis has one dimension, or two where it has several runs of several rows.
    """
    dimensions: list[tuple[int, int]] = []
    for runs, stride in ((rows, row_stride), (columns, column_stride)):
        if runs.count > 1:
            dimensions.append((runs.count, runs.step * stride))
        if runs.length > 1 or runs.count == 1:
            dimensions.append((runs.length, stride))
    counts, strides = zip(*dimensions)
    return counts, strides


def _progressions(one: range, other: range) -> Iterator[range]:
    """Yield progressions that together hold each sum of a number of `one` and a number of `other` once.

    `one`, `other`: from 0 to before a multiple of their step. Progressions are few, or of starts side by side.
    """
    common = gcd(one.step, other.step)
    for axis, along in ((one, other), (other, one)):
        if axis.step == common and axis.stop >= along.step:  # sums leave out no multiple of the common step
            yield range(0, axis[-1] + along[-1] + 1, common)
            return
    period = lcm(one.step, other.step)  # a number of `one` so much more and of `other` so much less give the same sum
    repeats = one.stop > period and other.stop > period
    starts_by_axis = [axis[: period // axis.step] if repeats else axis for axis in (one, other)]
    ways = [(starts_by_axis[0], one, other), (starts_by_axis[1], other, one)]
    starts, axis, along = min(ways, key=lambda way: (way[1].step != 1, len(way[0])))
    for start in starts:
        last = start + (axis[-1] - start) // period * period if repeats else start
        yield range(start, last + along[-1] + 1, along.step)


def _join_neighbours(progressions: Iterable[range]) -> Iterator[RowRuns]:
    """Yield progressions as runs, those of one length that start side by side as one. `progressions`: in order of starts."""
    joined: RowRuns | None = None
    for rows in progressions:
        if joined and (joined.first + joined.length, joined.count) == (rows.start, len(rows)):
            joined = replace(joined, length=joined.length + 1)
            continue
        if joined:
            yield joined
        joined = RowRuns(rows.start, 1, 1, len(rows)) if rows.step == 1 else RowRuns(rows.start, len(rows), rows.step, 1)
    if joined:
        yield joined
