"""Turn moves of strided boxes into DMA operations (`Copy`, `Fill`), by what one operation of the engine can do.

Contiguous runs are merged, matrices transposed where the engine can, loops beyond its dimensions and counts written
out. Lowering of loads, stores and data-movement operators uses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from toolchain.hw.chip import Chip
from toolchain.machine import Copy, Fill, Space
from toolchain.machine.operations.move import MOST_DIMENSIONS


@dataclass(frozen=True)
class Location:
    """An address in one of the memories."""

    space: Space
    address: int


@dataclass(frozen=True)
class Stride:
    """One loop of a copy: its count, and the bytes that each step goes on at the source and the target."""

    count: int
    source: int
    target: int


@dataclass(frozen=True)
class CopyEngine:
    """The forms of copy that a DMA channel has.

    `channel`: its number in operations. `dimensions`: loops around a contiguous run in one operation. `transposes`: it
    can transpose a matrix of elements. `element_type`: number of the type that it fills and transposes. `most`: limit
    of each loop's count and of a run's bytes; 0: none.
    """

    channel: int
    dimensions: int
    transposes: bool = False
    element_type: int = 0
    most: int = 0


def dram_alignment(chip: Chip) -> int:
    """Return the bytes of which every tensor and constant begins at a multiple in DRAM.

    It is the least common multiple of the DRAM's alignment, its bursts and 16: transfers are charged in whole bursts.
    """
    return math.lcm(chip.dram.alignment_bytes, chip.dram.burst_bytes, 16)


def copies(source: Location, target: Location, strides: Sequence[Stride], item_bytes: int, engine: CopyEngine) -> Iterator[Copy]:
    """Yield the copies that move a box from `source` to `target`.

    `strides`: loops over elements of `item_bytes`, outermost first.
    """
    for run in _unroll(strides, item_bytes, engine):
        outer, first, second, third = run.loops
        for source_offset, target_offset in run.offsets:
            yield Copy(
                channel=engine.channel,
                source_space=source.space,
                source_address=source.address + source_offset,
                destination_space=target.space,
                destination_address=target.address + target_offset,
                inner_bytes=run.inner_bytes,
                source_stride_outer=outer.source,
                source_stride0=first.source,
                source_stride1=second.source,
                source_stride2=third.source,
                transpose=int(run.transposes),
                element_type=engine.element_type if run.transposes else 0,
                **run.target_fields,
            )


def fills(
    target: Location, sizes: Sequence[int], strides: Sequence[int], value: int, item_bytes: int, engine: CopyEngine
) -> Iterator[Fill]:
    """Yield the fills that set a box to one code. `sizes` in elements, `strides` in bytes, outermost first."""
    for run in _unroll([Stride(n, s, s) for n, s in zip(sizes, strides)], item_bytes, engine):
        for _, target_offset in run.offsets:
            yield Fill(
                channel=engine.channel,
                destination_space=target.space,
                destination_address=target.address + target_offset,
                inner_elements=run.inner_bytes // item_bytes,
                value=value,
                element_type=engine.element_type,
                **run.target_fields,
            )


@dataclass(frozen=True)
class _Unrolled:
    """Operations that are equal but for their offsets.

    `inner_bytes`: of the contiguous run. `loops`: four around it, outermost first. `offsets`: bytes from source and
    target of each operation. `transposes`: the last loop and the run are a matrix that is transposed.
    """

    inner_bytes: int
    loops: tuple[Stride, ...]
    offsets: list[tuple[int, int]]
    transposes: bool

    @property
    def target_fields(self) -> dict[str, int]:
        """Counts and destination strides, as copies and fills name them."""
        outer, first, second, third = self.loops
        return {
            "count_outer": outer.count,
            "count0": first.count,
            "count1": second.count,
            "count2": third.count,
            "destination_stride_outer": outer.target,
            "destination_stride0": first.target,
            "destination_stride1": second.target,
            "destination_stride2": third.target,
        }


def _unroll(strides: Sequence[Stride], item_bytes: int, engine: CopyEngine) -> Iterator[_Unrolled]:
    """Yield groups of operations for a box: the innermost loops as far as the engine goes, the others as offsets.

    There are several groups where loops are longer than the engine's counts.
    """
    merged, inner_bytes = merge(strides, item_bytes)
    most = engine.most // item_bytes
    loops = [*merged, Stride(inner_bytes // item_bytes, item_bytes, item_bytes)]
    matrix = _matrix(merged, inner_bytes, item_bytes) if engine.transposes else None
    is_transposed = matrix is not None and not (most and max(s.count for s in matrix) > most)
    if matrix is not None and is_transposed:
        columns, rows = matrix
        rest = [s for s in merged if s is not columns and s is not rows]
        loops = [*rest, Stride(rows.count, rows.source, columns.target), Stride(columns.count, item_bytes, item_bytes)]
    for (source, target), (*around, run) in _within(loops, most):
        cut = max(0, len(around) - engine.dimensions)
        outer, inner = around[:cut], around[cut:]
        offsets = [
            (source + sum(i * s.source for i, s in zip(index, outer)), target + sum(i * s.target for i, s in zip(index, outer)))
            for index in product(*(range(s.count) for s in outer))
        ]
        loops_of_engine = (*[Stride(1, 0, 0)] * (MOST_DIMENSIONS - len(inner)), *inner)
        yield _Unrolled(run.count * item_bytes, loops_of_engine, offsets, is_transposed)


def _within(loops: Sequence[Stride], most: int) -> Iterator[tuple[tuple[int, int], Sequence[Stride]]]:
    """Yield parts of the loops with at most `most` steps each (0: any number), each with its offsets at source and
    target.
    """
    long = next((i for i, s in enumerate(loops) if most and s.count > most), None)
    if long is None:
        yield (0, 0), loops
        return
    s = loops[long]
    for first in range(0, s.count, most):
        part = Stride(min(most, s.count - first), s.source, s.target)
        for (source, target), part_loops in _within([*loops[:long], part, *loops[long + 1 :]], most):
            yield (source + first * s.source, target + first * s.target), part_loops


def _matrix(loops: Sequence[Stride], run_bytes: int, item_bytes: int) -> tuple[Stride, Stride] | None:
    """Return the loops (columns, rows) of a matrix to transpose; None where there is none.

    Columns are contiguous at the source, rows at the target.
    """
    columns = next((s for s in loops if s.source == item_bytes), None)
    rows = next((s for s in loops if s.target == item_bytes), None)
    return (columns, rows) if run_bytes == item_bytes and columns and rows and columns is not rows else None


def merge(strides: Sequence[Stride], item_bytes: int) -> tuple[list[Stride], int]:
    """Return (loops, bytes of the contiguous run): loops of count 1 dropped, neighbours that continue each other
    joined.
    """
    loops: list[Stride] = []
    for s in strides:
        if s.count == 1:
            continue
        last = loops[-1] if loops else None
        if last and last.source == s.count * s.source and last.target == s.count * s.target:
            loops[-1] = Stride(last.count * s.count, s.source, s.target)
        else:
            loops.append(s)
    if loops and loops[-1].source == item_bytes == loops[-1].target:
        return loops[:-1], loops[-1].count * item_bytes
    return loops, item_bytes
