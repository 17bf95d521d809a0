"""Compute the cost of strided moves by DMA: cycles, bytes, and the whole bursts of a memory that they touch."""

from __future__ import annotations

from functools import lru_cache, reduce
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.hw.engines import Memory
from toolchain.hw.unit_map import Unit
from toolchain.machine.access import merge_runs
from toolchain.machine.columns import IntOrColumn, at_rate, ceil_div, distinct_rows, is_column, most, where
from toolchain.machine.traffic import Demand, Lost, Traffic


class TransferSide(NamedTuple):
    """The source or destination of a move: runs of `inner_bytes` from an address, with counts and byte strides around
    them.

    `space`: number of the memory. `counts`, `strides`: from the outermost dimension to the innermost. `piece_bytes`: runs
    move in pieces of so many bytes, the same piece of all runs of the innermost count before the next; 0: whole.
    """

    space: IntOrColumn
    address: IntOrColumn
    inner_bytes: IntOrColumn
    counts: tuple[IntOrColumn, ...]
    strides: tuple[IntOrColumn, ...]
    piece_bytes: IntOrColumn = 0

    def in_pieces(self, size_bytes: IntOrColumn) -> TransferSide:
        """Return this side moved in pieces of so many bytes."""
        return self._replace(piece_bytes=size_bytes)


def move_demand(unit: Unit, chip: Chip, read: TransferSide | None, write: TransferSide | None) -> Demand:
    """Return the demand of a move on a DMA channel. `read` or `write` may be None, not both.

    It takes ceil(bytes / channel rate) cycles; where `runs` is whole_beats, each run counts in whole beats. Each
    contiguous run, or piece of one, adds `run_cycles`, on the side with more of them. Each is charged as the whole
    bursts it touches. The move takes at least the latency of what it reads for each `in_flight_bytes`.
    """
    sides = [end for end in (read, write) if end is not None]
    total_bytes = sides[0].inner_bytes
    for n in sides[0].counts:
        total_bytes = total_bytes * n
    ends = [end.space for end in sides]
    touched = range(len(chip.spaces)) if any(is_column(space) for space in ends) else sorted({int(space) for space in ends})
    moved: list[Traffic] = []
    latency: IntOrColumn = unit.dma.request_cycles
    waited: IntOrColumn = 0  # for data that is read
    for space in touched:
        memory = chip.spaces[space].memory
        reads = 0 if read is None else where(read.space == space, 1, 0)
        writes = 0 if write is None else where(write.space == space, 1, 0)
        waited = waited + reads * memory.latency_cycles
        latency = latency + reads * memory.latency_cycles + writes * memory.write_latency_cycles
        charged_read = 0 if read is None else _count_burst_bytes(read, reads, memory)
        charged_write = 0 if write is None else _count_burst_bytes(write, writes, memory)
        moved.append(Traffic(space, reads * total_bytes, writes * total_bytes, charged_read, charged_write))
    size_bytes: IntOrColumn = total_bytes
    if unit.dma.runs == "whole_beats":
        for end in sides:
            size_bytes = most(size_bytes, _in_blocks(end, ceil(unit.dma.bytes_per_cycle)))
    useful = at_rate(total_bytes, unit.dma.bytes_per_cycle)
    cycles = at_rate(size_bytes, unit.dma.bytes_per_cycle)
    requests: IntOrColumn = 0
    if unit.dma.run_cycles:
        requests = unit.dma.run_cycles * reduce(most, (_runs(end) for end in sides))
    requests = requests + most(ceil_div(total_bytes * waited, unit.dma.in_flight_bytes) - cycles - requests, 0)
    lost = Lost(edge_cycles=cycles - useful, request_cycles=requests)
    return Demand(cycles + requests, latency, 0, tuple(moved), lost)


def _runs(end: TransferSide) -> IntOrColumn:
    """Return the number of contiguous runs, or of the pieces that they are moved in."""
    if not _in_pieces(end):
        return _contiguous(end.inner_bytes, end.counts, end.strides)
    pieces, rest = (_contiguous(part.inner_bytes, part.counts, part.strides) for part in _pieces(end))
    return pieces + rest


def _contiguous(inner: IntOrColumn, counts: tuple[IntOrColumn, ...], strides: tuple[IntOrColumn, ...]) -> IntOrColumn:
    """Return the number of contiguous runs of a strided block; dimensions that continue the run are part of it."""
    if not any(is_column(value) for value in (inner, *counts, *strides)):
        return _contiguous_of_one(inner, counts, strides)
    different, back = distinct_rows(inner, *counts, *strides)
    n = len(counts)
    return np.array([_contiguous_of_one(r[0], r[1 : 1 + n], r[1 + n :]) for r in different], np.int64)[back]


def _contiguous_of_one(inner: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of contiguous runs of one block."""
    run, outer = merge_runs(inner, counts, strides)
    return prod(n for n, _ in outer) if run else 0


def _count_burst_bytes(end: TransferSide, used: IntOrColumn, memory: Memory) -> IntOrColumn:
    """Return the bytes of whole bursts of the memory; 0 where `used` is 0, as the side lies elsewhere."""
    if not is_column(used) and not used:
        return 0
    return used * _in_blocks(end, memory.burst_bytes)


def _in_blocks(end: TransferSide, burst: int) -> IntOrColumn:
    """Return the bytes of whole blocks of `burst` bytes that the runs, or the pieces of them, touch."""
    if not _in_pieces(end):
        return burst_bytes(end.address, end.inner_bytes, end.counts, end.strides, burst)
    pieces, rest = (burst_bytes(part.address, part.inner_bytes, part.counts, part.strides, burst) for part in _pieces(end))
    return pieces + rest


def _in_pieces(end: TransferSide) -> bool:
    """Return whether the side moves its runs in pieces."""
    return is_column(end.piece_bytes) or bool(end.piece_bytes)


def _pieces(end: TransferSide) -> tuple[TransferSide, TransferSide]:
    """Return the whole pieces of all runs, and what is left of the runs after them."""
    piece = end.piece_bytes
    full_pieces, rest = end.inner_bytes // piece, end.inner_bytes % piece
    counts, strides = (*end.counts[:-1], full_pieces, end.counts[-1]), (*end.strides[:-1], piece, end.strides[-1])
    return (
        TransferSide(end.space, end.address, piece, counts, strides),
        TransferSide(end.space, end.address + full_pieces * piece, rest, end.counts, end.strides),
    )


def burst_bytes(
    address: IntOrColumn, inner: IntOrColumn, counts: tuple[IntOrColumn, ...], strides: tuple[IntOrColumn, ...], burst: int
) -> IntOrColumn:
    """Return the bytes of whole bursts that the contiguous runs of a strided block touch, each run by itself.

    Dimensions that continue the run are merged into it first, so a dense block is one run.
    """
    if not is_column(address):
        return _burst_bytes(address, inner, counts, strides, burst)
    different, back = distinct_rows(address % burst, inner, *counts, *strides)
    n = len(counts)
    byte_counts = [_burst_bytes(r[0], r[1], r[2 : 2 + n], r[2 + n :], burst) for r in different]
    return np.array(byte_counts, np.int64)[back]


def _burst_bytes(address: int, inner: int, counts: tuple[int, ...], strides: tuple[int, ...], burst: int) -> int:
    """Return the bytes of the whole bursts that one block touches."""
    run, outer = merge_runs(inner, counts, strides)
    if run == 0:
        return 0
    if burst == 1:
        return run * prod(n for n, _ in outer)
    return burst * _bursts(address % burst, run, tuple((n, stride % burst) for n, stride in outer), burst)


@lru_cache(maxsize=65536)
def _bursts(offset: int, run: int, outer: tuple[tuple[int, int], ...], burst: int) -> int:
    """Return the number of bursts that runs touch which start at offset + i strides; only offsets modulo `burst`
    matter.
    """
    starts = {offset: 1}
    for n, stride in outer:
        starts = _shift_starts(starts, n, stride, burst)
    return sum(times * ((start + run - 1) // burst + 1) for start, times in starts.items())


def _shift_starts(starts: dict[int, int], n: int, stride: int, burst: int) -> dict[int, int]:
    """Return how often each offset is (start + i stride) % burst, for i < n."""
    steps: dict[int, int] = {}
    at, i = 0, 0
    while i < n:
        steps[at] = 1
        at, i = (at + stride) % burst, i + 1
        if at == 0:
            break
    full_rounds, part = divmod(n, i) if i else (0, 0)
    moved: dict[int, int] = {}
    for position, step in enumerate(steps):
        times = full_rounds + (position < part)
        for start, weight in starts.items():
            key = (start + step) % burst
            moved[key] = moved.get(key, 0) + weight * times
    return moved
