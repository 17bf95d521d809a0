"""What strided moves cost: bytes, and the whole bursts of a memory that they touch."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.machine.columns import Column, Whole, at_rate, is_column, where
from toolchain.machine.operation import Demand
from toolchain.machine.parameter import Space


class End(NamedTuple):
    """Where a move reads or writes: runs of bytes from an address of a memory, with strides."""

    space: Whole
    address: Whole
    strides: tuple[Whole, ...]


def move_demand(chip: Chip, inner_bytes: Whole, counts: tuple[Whole, ...], read: End | None, write: End) -> Demand:
    """ceil(bytes / channel rate) cycles; each contiguous run is charged as the whole bursts it touches."""
    dram, sram = chip.memories.dram, chip.memories.sram
    total_bytes = inner_bytes
    for n in counts:
        total_bytes = total_bytes * n
    charged_write, to_dram = _charged(write, inner_bytes, counts, chip), write.space == Space.DRAM
    if read is None:
        charged_read, from_dram, latency = 0, False, 0
    else:
        charged_read, from_dram = _charged(read, inner_bytes, counts, chip), read.space == Space.DRAM
        latency = where(from_dram, dram.latency_cycles, sram.latency_cycles)
    return Demand(
        at_rate(total_bytes, chip.engines.dma.bytes_per_cycle),
        where(from_dram, total_bytes, 0),
        where(to_dram, total_bytes, 0),
        where(from_dram, 0, charged_read),
        where(to_dram, 0, charged_write),
        latency + where(to_dram, dram.write_latency_cycles, sram.write_latency_cycles),
        0,
        where(from_dram, charged_read, 0),
        where(to_dram, charged_write, 0),
    )


def _charged(end: End, inner_bytes: Whole, counts: tuple[Whole, ...], chip: Chip) -> Whole:
    """Bytes of whole bursts of the memory."""
    dram_burst, sram_burst = chip.memories.dram.burst_bytes, chip.memories.sram.burst_bytes

    def charged(burst: int) -> Whole:
        return burst_bytes(end.address, inner_bytes, counts, end.strides, burst)

    if is_column(end.space):
        return where(end.space == Space.DRAM, charged(dram_burst), charged(sram_burst))
    return charged(dram_burst if end.space == Space.DRAM else sram_burst)


def burst_bytes(address: Whole, inner: Whole, counts: tuple[Whole, ...], strides: tuple[Whole, ...], burst: int) -> Whole:
    """Bytes of the whole bursts that the contiguous runs of a strided block touch, each run for itself.

    Dimensions that continue the run are merged into it first: a dense block is one run. Columns are counted once for each
    different row: programs have few.
    """
    if not is_column(address):
        return _burst_bytes(address, inner, counts, strides, burst)
    rows: Column = np.stack(np.broadcast_arrays(address % burst, inner, *counts, *strides), axis=1)
    different, back = np.unique(rows, axis=0, return_inverse=True)
    n = len(counts)
    found = [_burst_bytes(r[0], r[1], tuple(r[2 : 2 + n]), tuple(r[2 + n :]), burst) for r in different.tolist()]
    return np.array(found, np.int64)[back.ravel()]


def _burst_bytes(address: int, inner: int, counts: tuple[int, ...], strides: tuple[int, ...], burst: int) -> int:
    run = inner
    outer: list[tuple[int, int]] = []
    for n, stride in zip(reversed(counts), reversed(strides)):
        if n == 1:
            continue
        if stride == run and not outer:
            run *= n
        else:
            outer.append((n, stride % burst))
    if run == 0:
        return 0
    if burst == 1:
        for n, _ in outer:
            run *= n
        return run
    return burst * _bursts(address % burst, run, tuple(outer), burst)


@lru_cache(maxsize=65536)
def _bursts(offset: int, run: int, outer: tuple[tuple[int, int], ...], burst: int) -> int:
    """Blocks of `burst` bytes touched by runs that start at offset + i strides; only offsets modulo `burst` matter."""
    starts = {offset: 1}
    for n, stride in outer:
        starts = _shifted(starts, n, stride, burst)
    return sum(times * ((start + run - 1) // burst + 1) for start, times in starts.items())


def _shifted(starts: dict[int, int], n: int, stride: int, burst: int) -> dict[int, int]:
    """The multiset {(start + i stride) % burst}: the offsets repeat after at most `burst` steps."""
    steps: dict[int, int] = {}
    at, i = 0, 0
    while i < n:
        steps[at] = 1
        at, i = (at + stride) % burst, i + 1
        if at == 0:
            break
    whole, part = divmod(n, i) if i else (0, 0)
    moved: dict[int, int] = {}
    for position, step in enumerate(steps):
        times = whole + (position < part)
        for start, weight in starts.items():
            key = (start + step) % burst
            moved[key] = moved.get(key, 0) + weight * times
    return moved
