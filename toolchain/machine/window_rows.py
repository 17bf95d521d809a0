"""Find the rows or columns of an input that the windows of an operation reach."""

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
    """Rows first + i step + j for i < count, j < length."""

    first: int
    count: int
    step: int
    length: int

    @property
    def rows(self) -> int:
        return self.count * self.length


@lru_cache(maxsize=65536)
def window_reach(output: int, kernel: int, stride: int, dilation: int, pad: int, size: int) -> tuple[RowRuns, ...]:
    """Return the input rows y stride + k dilation - pad for y < output and k < kernel, out of `size` rows.

    Each row occurs once. Rows that a stride or a dilation skips are left out; past either edge is padding.
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
    """Return how many rows `window_reach` gives. Columns are counted once for each different row, because programs
    have few.
    """
    if is_column(output):
        different, back = distinct_rows(output, kernel, stride, dilation, pad, size)
        return np.array([rows_reached(*row) for row in different], np.int64)[back]
    return sum(runs.rows for runs in window_reach(output, kernel, stride, dilation, pad, size))


def taps_met(
    output: IntOrColumn, kernel: IntOrColumn, stride: IntOrColumn, dilation: IntOrColumn, pad: IntOrColumn, size: IntOrColumn
) -> tuple[IntOrColumn, IntOrColumn]:
    """Count the pairs of an output y < output and a kernel element k < kernel that meet an input row, and sum their
    k.

    The row of a pair is y stride + k dilation - pad.
    """
    count = places = 0
    for k in range(int(np.max(kernel))):
        offset = pad - k * dilation
        met = least(output, (size - 1 + offset) // stride + 1) - most(0, ceil_div(offset, stride))
        met = where(k < kernel, most(0, met), 0)
        count, places = count + met, places + k * met
    return count, places


def grid(rows: RowRuns, row_stride: int, columns: RowRuns, column_stride: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the counts and the strides of these rows and columns.

    An axis has one dimension, or two where its runs are apart and longer than one.
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
