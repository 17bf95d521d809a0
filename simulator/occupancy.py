"""Count the bytes of a memory that hold a value written in a run and still to be read, over its time. Traces show them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.simulation import Simulation
from toolchain.hw.chip import Chip
from toolchain.machine import Access, MachineOp, accesses_at


def occupancy(chip: Chip, ops: Sequence[MachineOp], run: Simulation, space: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (cycles, bytes), int64[n] each: from each cycle on, so many bytes hold a value still to be read.

    A byte is live from the start of the operation that writes it to the end of the last read before the next
    write. What the run does not write, such as inputs and constants laid there before it, does not count, nor does what
    it never reads. The cycles increase, and the last bytes are 0; both arrays are empty where nothing is live.
    `space`: code of the memory, for which 8 bytes are held for each of its bytes. `run`: of these operations, with times.
    """
    size, count = chip.spaces[space].memory.size, len(ops)
    # per byte, the operation that wrote it and the one that read it last, by their places in these orders
    start_order, ended = np.argsort(run.start, kind="stable"), np.argsort(run.end, kind="stable")
    place = np.empty(count, np.int64)
    place[ended] = np.arange(count)
    born, last_read = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    lives: dict[int, int] = {}
    for when, i in enumerate(start_order.tolist()):
        op_accesses = [a for a in accesses_at(ops, i, chip) if a.space == space and a.bytes]
        for access in op_accesses:
            reads = _of(last_read, access)
            if not access.write:
                np.maximum(reads, np.int32(place[i]), out=reads)
                continue
            _settle(_of(born, access), reads, count, lives)
            _of(born, access)[...] = when
            reads[...] = -1
    _settle(born, last_read, count, lives)
    return _sum_live_bytes(lives, run.start[start_order], run.end[ended], count)


def _of(values: np.ndarray, access: Access) -> np.ndarray:
    """Return a view of the int32 values that stand for the bytes of an access."""
    shape = (*access.counts, access.inner_bytes)
    return np.ndarray(shape, np.int32, values, access.address * 4, tuple(s * 4 for s in (*access.strides, 1)))


def _settle(born: np.ndarray, last_read: np.ndarray, count: int, lives: dict[int, int]) -> None:
    """Count the bytes of values that nothing will read again into `lives`; values that were never read do not count.

    Its keys are writer * count + last reader, by their places in the orders of starts and of ends.
    """
    keys = np.where((born >= 0) & (last_read >= 0), born * np.int64(count) + last_read, -1).ravel()
    # neighbours mostly share a life: count runs, not bytes
    starts = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1))
    lengths = np.diff(starts, append=keys.size)
    for key, length in zip(keys[starts].tolist(), lengths.tolist()):
        if key >= 0:
            lives[key] = lives.get(key, 0) + length


def _sum_live_bytes(lives: dict[int, int], start: np.ndarray, end: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (cycles, live bytes from each on) of lives. `start`, `end`: cycles, in the orders of the lives' keys."""
    keys = np.array(sorted(lives), np.int64)
    sizes = np.array([lives[int(k)] for k in keys], np.int64)
    times = np.concatenate((start[keys // max(count, 1)], end[keys % max(count, 1)]))
    cycles, at = np.unique(times, return_inverse=True)
    change = np.zeros(cycles.size, np.int64)
    np.add.at(change, at, np.concatenate((sizes, -sizes)))
    return cycles, np.cumsum(change)
