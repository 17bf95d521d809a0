"""Prepare allocations as number columns for the decision search (`kernel`).

Addresses are counted in units of `unit_of` bytes, time in sections, and allocations are numbered by their rank.
A section is a stretch of steps with one live set that no other stretch's live set contains. `NO_LIMIT` is an address above
every other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from toolchain.memory.place.allocations import Allocation

Column = NDArray[np.int64]
Ints = TypeVar("Ints", list[int], Column)  # arrays for numba, lists for Python: the search runs on both

NO_LIMIT = 1 << 62
LARGEST_POOL = 64_000_000  # numbers; pages are only taken when used
BLOCK = 1024

Pairs = tuple[Column, Column]
_Places = tuple[NDArray[np.intp], NDArray[np.intp]]


class Problem(NamedTuple, Generic[Ints]):
    """An input of the search that the search does not change. Columns have one entry for each item, unless said otherwise.

    An item is an allocation, numbered by rank.

    `n`, `n_sections`: numbers of items and of sections.
    `first`, `last`: the item lives in sections [first, last).
    `size`, `align`, `bank`, `low`: in units, sizes rounded up; `low` is the lowest address, legal by itself; bank 0: none.
    `ov_ptr`, `ov_item`: items that overlap item i in time are ov_item[ov_ptr[i] : ov_ptr[i + 1]].
    `ov_bank`: beside each entry of `ov_item` the bank, in units, that the two must not share; 0: none.
    `same_ptr`, `same_item`: likewise the other items of the same life, of plain items only.
    `twin`: the last earlier item of the same life and size, or -1.
    """

    n: int
    n_sections: int
    first: Ints
    last: Ints
    size: Ints
    align: Ints
    bank: Ints
    low: Ints
    ov_ptr: Ints
    ov_item: Ints
    ov_bank: Ints
    same_ptr: Ints
    same_item: Ints
    twin: Ints


class SearchState(NamedTuple, Generic[Ints]):
    """The scratch of one search, which the kernel fills. The caller sets `top` and reads `address`.

    `address`: by item, the plan where one is found; -1: not placed.
    `top`: by item, the largest address that it may have.
    `raw`, `eff`: by item, the lowest address above what is placed; the same once what must lie below it is placed, too.
    `flag`, `value`: by item, the address at which it was left behind (-1: none), and the key by which candidates are ordered.
    `rem`, `floor`, `load`, `cross`, `weight`: by section: units still to be placed, lowest `eff`, sums, and failures so far.
    `pool`, `frames`, `trail`, `pending`: stacks of item lists, open nodes, changes to be undone, and pieces to be worked on.
    `counts`: fill levels of the stacks, as `kernel.POOL` and the names beside it say.
    """

    address: Ints
    top: Ints
    raw: Ints
    eff: Ints
    flag: Ints
    value: Ints
    rem: Ints
    floor: Ints
    load: Ints
    cross: Ints
    weight: Ints
    pool: Ints
    frames: Ints
    trail: Ints
    pending: Ints
    counts: Ints


def sections_of(items: Sequence[Allocation]) -> tuple[list[int], list[int], int]:
    """Return (first, last, sections): allocation k lives in sections [first[k], last[k]).

    A section begins where an allocation starts and ends at the next end of one.
    """
    starts = {item.start for item in items}
    ends = {item.end for item in items}
    times = sorted(starts | ends)
    before: dict[int, int] = {}
    sections = 0
    for n, time in enumerate(times):
        before[time] = sections
        if time in starts and n + 1 < len(times) and times[n + 1] in ends:
            sections += 1
    return [before[item.start] for item in items], [before[item.end] for item in items], sections


def unit_of(items: Sequence[Allocation]) -> int:
    """Return the bytes of a unit: every address in question is a multiple of it."""
    unit = gcd(*(item.alignment_bytes for item in items))
    if unit > 1:
        return gcd(unit, *(x for item in items for x in (item.low, item.bank_bytes)))
    unit, smaller = 0, gcd(*(x for item in items for x in (item.size_bytes, item.low, item.bank_bytes)))
    while unit != smaller:  # an item on top of others begins at a multiple of its alignment
        unit = smaller
        smaller = gcd(unit, *(item.alignment_bytes for item in items if unit % item.alignment_bytes))
    return unit


def build_problem(items: Sequence[Allocation], unit: int, banks: dict[tuple[int, int], int]) -> Problem[Column]:
    """Return the problem of allocations in rank order.

    `unit`: of `unit_of`, in bytes. `banks`: (i, j) -> bytes of the banks of which items i and j may share none.
    """
    first, last, sections = sections_of(items)
    f, e = np.array(first), np.array(last)
    size = np.array([-(-item.size_bytes // unit) for item in items], dtype=np.int64)
    align = np.array([item.alignment_bytes // gcd(unit, item.alignment_bytes) for item in items], dtype=np.int64)
    plain = np.array([not banks and item.plain and unit % item.alignment_bytes == 0 for item in items], dtype=bool)
    meets, same = _meetings(f, e, plain)
    ov_bank = np.zeros(len(meets[1]), dtype=np.int64)
    if banks:
        ov_bank[:] = [banks.get((int(i), int(j)), 0) // unit for i, j in zip(*meets)]
    return Problem(
        n=len(items),
        n_sections=sections,
        first=f.astype(np.int64),
        last=e.astype(np.int64),
        size=size,
        align=align,
        bank=np.array([item.bank_bytes // unit for item in items], dtype=np.int64),
        low=np.array([item.lowest_base(0) // unit for item in items], dtype=np.int64),
        ov_ptr=_pointers(meets[0], len(items)),
        ov_item=meets[1],
        ov_bank=ov_bank,
        same_ptr=_pointers(same[0], len(items)),
        same_item=same[1],
        twin=_twins(size, same),
    )


def _pointers(rows: np.ndarray, n: int) -> Column:
    """Return int64[n + 1]: where the entries of each row begin. `rows`: rising row of each entry."""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))]).astype(np.int64)


def _meetings(first: np.ndarray, last: np.ndarray, plain: np.ndarray) -> tuple[Pairs, Pairs]:
    """Return the pairs of items that overlap in time, and the pairs of plain items of the same life, both by rising rows.

    Blocks of rows are looked at in turn, to bound the memory.
    """
    meets: list[_Places] = []
    same: list[_Places] = []
    n = len(first)
    for low in range(0, n, BLOCK):
        rows = slice(low, min(low + BLOCK, n))
        block = (first[rows, None] < last[None, :]) & (first[None, :] < last[rows, None])
        block[np.arange(rows.stop - low), np.arange(low, rows.stop)] = False
        meets.append(_places_of(block))
        block &= (first[rows, None] == first[None, :]) & (last[rows, None] == last[None, :])
        block &= plain[rows, None] & plain[None, :]
        same.append(_places_of(block))
    return _concat_pairs(meets), _concat_pairs(same)


def _places_of(block: NDArray[np.bool_]) -> _Places:
    """Return (rows, columns) where a block is true."""
    rows, columns = np.nonzero(block)
    return rows, columns


def _concat_pairs(blocks: Sequence[_Places]) -> Pairs:
    """Return the pairs of all blocks, with rows counted from the first block on."""
    rows = [block[0] + k * BLOCK for k, block in enumerate(blocks)]
    return np.concatenate(rows).astype(np.int64), np.concatenate([block[1] for block in blocks]).astype(np.int64)


def _twins(size: np.ndarray, same: Pairs) -> Column:
    """Return `Problem.twin`. same: pairs of items of the same life."""
    twin = np.full(len(size), -1, dtype=np.int64)
    rows, cols = same
    equal = (cols < rows) & (size[rows] == size[cols])
    np.maximum.at(twin, rows[equal], cols[equal])
    return twin


def build_work(problem: Problem[Column]) -> SearchState[Column]:
    """Return zeroed scratch for one search. A pool that is too small makes the search give up, never err."""
    n, sections = problem.n, problem.n_sections

    def ints(length: int) -> Column:
        return np.zeros(length, dtype=np.int64)

    depth = 4 * n + 100
    pool = min(4 * n * n + 20 * n + 200, LARGEST_POOL)
    return SearchState(
        *(ints(n) for _ in range(6)),
        *(ints(sections) for _ in range(5)),
        pool=ints(pool),
        frames=ints(10 * depth),
        trail=ints(2 * (min(n * n, LARGEST_POOL) + 20 * n + 1000)),
        pending=ints(4 * (2 * depth)),
        counts=ints(4),
    )


def problem_as_lists(problem: Problem[Column]) -> Problem[list[int]]:
    """Return the same problem over Python lists, which are several times faster than arrays where nothing is compiled."""
    counts, columns = problem[:2], problem[2:]
    return Problem(*counts, *_to_lists(columns))


def state_as_lists(state: SearchState[Column]) -> SearchState[list[int]]:
    """Return the scratch over Python lists, as a copy: the search then fills the lists and not the arrays."""
    return SearchState(*_to_lists(state))


def _to_lists(columns: Iterable[Column]) -> Iterator[list[int]]:
    return (column.tolist() for column in columns)
