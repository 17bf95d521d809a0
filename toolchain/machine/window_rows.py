"""Find the rows or columns of an input that the windows of a convolution or pool reach.

The arguments are those of one axis: `output` positions, `kernel` size, `stride`, `dilation`, `pad` before the input,
input `size`. All functions work for rows and for columns of a feature map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from toolchain.machine.columns import IntOrColumn, ceil_div, distinct_rows, is_column, least, most, where

_COUNTED = 1 << 16  # window positions of one axis: what any sane program stays below is looked at one by one


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

    Each row occurs once. Rows that stride or dilation skip are left out, unless output * kernel is above 65,536: then
    all up to the last one are returned.
    """
    if kernel == 1:
        first = -(-pad // stride)
        count = min(output, (size - 1 + pad) // stride + 1) - first
        if count <= 0:
            return ()
        return (RowRuns(first * stride - pad, count, stride, 1) if stride > 1 else RowRuns(first - pad, 1, 1, count),)
    if (dilation == 1 and kernel >= stride) or output * kernel > _COUNTED:
        extent = extent_reached(output, kernel, stride, dilation, pad, size)
        return (RowRuns(0, 1, 1, extent),) if extent > 0 else ()
    rows = {y * stride + k * dilation - pad for y in range(output) for k in range(kernel)}
    return tuple(_group_equal_runs(_contiguous(sorted(row for row in rows if 0 <= row < size))))


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


def _contiguous(rows: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, length) of each run of neighbouring rows. `rows`: sorted."""
    ends = [row for row, after in pairwise(rows) if after != row + 1] + rows[-1:]
    starts = rows[:1] + [after for row, after in pairwise(rows) if after != row + 1]
    yield from ((start, end - start + 1) for start, end in zip(starts, ends))


def _group_equal_runs(runs: Iterable[tuple[int, int]]) -> Iterator[RowRuns]:
    """Yield neighbouring runs of one length at one step as one group each."""
    group: RowRuns | None = None
    for first, length in runs:
        step = first - (group.first + (group.count - 1) * group.step) if group else 0
        if group is None or group.length != length or (group.count > 1 and group.step != step):
            if group:
                yield group
            group = RowRuns(first, 1, 1, length)
        else:
            group = RowRuns(group.first, group.count + 1, step, length)
    if group:
        yield group
