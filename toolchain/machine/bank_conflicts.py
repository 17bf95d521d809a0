"""Count bank conflicts: words of banked memories that operands touch only in part, and words that wait for others of
their bank.

Words of `bank_bytes` lie in the banks in turn. A bank works through its own words of an operand without waiting for
other banks, so the operand takes as long as the busiest bank. With two or three times as many banks, none is busier.
UNLIMITED banks have no conflicts, only whole words. Products of whole numbers in columns hold up to _MOST.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil, gcd, prod
from typing import NamedTuple

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.hw.engines import Memory
from toolchain.hw.timing import UNLIMITED
from toolchain.machine.access import Access, merge_runs
from toolchain.machine.columns import Column, IntOrColumn, ceil_div, distinct_rows, is_column, most, where
from toolchain.machine.traffic import Traffic

_MOST = 2.0**62


class _Banks(NamedTuple):
    """A bank structure of a memory, as numbers that serve as a cache key for loads.

    `number`: of banks. `packed`: runs share words, which a register holds for the next run.
    """

    number: int
    word_bytes: int
    packed: bool


def add_bank_conflicts(
    traffic: Sequence[Traffic], moved: Iterable[tuple[Access, IntOrColumn]], chip: Chip
) -> tuple[Traffic, ...]:
    """Return the traffic with whole words for operands at banked memories, and the cycles of the busiest bank.

    `traffic`: of one operation, an entry for each memory. `moved`: each operand, and the bytes that are moved for it.
    """
    traffic_by_space, operands = {t.space: t for t in traffic}, list(moved)
    for space in chip.banked:
        if space not in traffic_by_space:
            continue
        memory, t = chip.spaces[space].memory, traffic_by_space[space]
        (read_bytes, read), (write_bytes, written) = (_at(memory, space, operands, write) for write in (False, True))
        traffic_by_space[space] = t._replace(
            read_burst_bytes=most(t.read_burst_bytes, read_bytes),
            write_burst_bytes=most(t.write_burst_bytes, write_bytes),
            read_bank_cycles=_busy(read, memory.bank_cycles),
            write_bank_cycles=_busy(written, memory.bank_cycles),
        )
    return tuple(traffic_by_space.values())


def _busy(words: IntOrColumn, cycles: float) -> IntOrColumn:
    """Return the cycles of a bank with so many words."""
    return np.ceil(words * cycles).astype(np.int64) if is_column(words) else ceil(words * cycles)


def _at(
    memory: Memory, space: int, operands: Iterable[tuple[Access, IntOrColumn]], write: bool
) -> tuple[IntOrColumn, IntOrColumn]:
    """Return (bytes of the words that operands touch, words of the busiest bank), added up over operands of one
    direction.
    """
    assert memory.bank_bytes is not None
    banks = _Banks(memory.banks, memory.bank_bytes, memory.words == "packed")
    touched: IntOrColumn = 0
    busiest: IntOrColumn = 0
    for access, size_bytes in operands:
        if access.write != write or not (is_column(access.space) or access.space == space):
            continue
        words_bytes, load = _loads(access, banks)
        once, here = most(access.bytes, 1), where(access.space == space, size_bytes, 0)
        touched = touched + _share(words_bytes, here, once)
        busiest = busiest + _share(load, here, once)
    return touched, busiest


def _share(total: IntOrColumn, part: IntOrColumn, full: IntOrColumn) -> IntOrColumn:
    """Return ceil(total * part / full), also for columns whose product has more than 64 bits."""
    if is_column(total) and float(np.max(total, initial=0)) * float(np.max(part, initial=0)) > _MOST:
        return ceil_div(total.astype(object) * part, full).astype(np.int64)
    return ceil_div(total * part, full)


def _loads(access: Access, banks: _Banks) -> tuple[IntOrColumn, IntOrColumn]:
    """Return the loads of one strided block: bytes of the words that it touches, words of the busiest bank.

    Columns are counted once for each different row, because programs have few.
    """
    row = banks.number * banks.word_bytes
    values = (access.address % row, access.inner_bytes, *access.counts, *access.strides)
    n = len(access.counts)
    if not any(is_column(value) for value in values):
        return _load_of_one(banks, values[0], values[1], values[2 : 2 + n], values[2 + n :])
    different, back = distinct_rows(*values)
    loads = np.array([_load_of_one(banks, r[0], r[1], r[2 : 2 + n], r[2 + n :]) for r in different], np.int64).reshape(-1, 2)
    return loads[back, 0], loads[back, 1]


def _load_of_one(banks: _Banks, offset: int, inner: int, counts: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return the loads of one block, as `_loads` does for columns."""
    run, outer = merge_runs(inner, counts, strides)
    runs = prod(n for n, _ in outer)
    if not run or not runs:
        return 0, 0
    if banks.number < UNLIMITED:
        row = banks.number * banks.word_bytes
        return _load(banks, offset % row, run, tuple((n, stride % row) for n, stride in outer))
    word = banks.word_bytes  # of one bank, for the bytes that are touched; none waits for another
    return _load(banks._replace(number=1), offset % word, run, tuple((n, stride % word) for n, stride in outer))[0], 0


@lru_cache(maxsize=65536)
def _load(banks: _Banks, offset: int, run: int, outer: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Return the loads of runs at offset + i strides, as `_loads` does; only places in a row of all banks matter."""
    number, word, packed = banks
    starts = np.zeros(number * word, np.int64)
    starts[offset] = 1
    for n, stride in outer:
        starts = _shift_starts(starts, n, stride)
    if packed:
        bytes_of_banks = _cover_runs(starts, run).reshape(number, word).sum(axis=1)
        return run * int(starts.sum()), -(-int(bytes_of_banks.max()) // word)
    starts = starts.reshape(number, word)
    words, within = divmod(run - 1, word)
    longer = starts[:, word - within :].sum(axis=1) if within else np.zeros(number, np.int64)  # that touch one word more
    loads = _cover_runs(starts.sum(axis=1), words + 1) + np.roll(longer, words + 1)
    return word * int(loads.sum()), int(loads.max())


def _shift_starts(starts: Column, n: int, stride: int) -> Column:
    """Return how often each place is (start + i stride) % places for i < n.

    Places repeat after as many steps as the stride needs.
    """
    places = len(starts)
    if not stride:
        return n * starts
    divisor = gcd(stride, places)
    order = (np.arange(divisor)[:, None] + stride * np.arange(places // divisor)) % places
    shifted_starts = np.empty_like(starts)
    shifted_starts[order] = _cover_runs(starts[order], n)
    return shifted_starts


def _cover_runs(starts: Column, length: int) -> Column:
    """Return int64[..., n]: how often each place is start + i, modulo n, for i < length."""
    places = starts.shape[-1]
    full_rounds, part = divmod(length, places)
    counts = np.repeat(full_rounds * starts.sum(axis=-1, keepdims=True), places, axis=-1)
    if part:
        sums = np.cumsum(np.concatenate((starts[..., places - part :], starts), axis=-1), axis=-1)
        counts += sums[..., part:] - sums[..., :places]
    return counts
