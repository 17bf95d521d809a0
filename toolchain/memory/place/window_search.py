"""Improve a plan by windows: items around one above the target are placed anew by the search, all others stay.

A plan is a base address for each item, an allocation whose bytes lie at one base for its whole life. A window is solved
where all its items end at or below the target. So no item newly reaches above it, and their number falls with every window.
`core_first` uses it for pieces of thousands of plain items. Addresses and sizes are bytes.

`WINDOW_ITEMS`: the sizes of windows tried around one item. `NODES_AN_ITEM`: search nodes for each item of a window.
`FIXED_A_FREE`: rectangles that stay, for each item placed anew; above this the longest-lived items stay as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.memory.place.allocations import Allocation
from toolchain.memory.place.problem import sections_of
from toolchain.memory.place.search import Decider

WINDOW_ITEMS = (60, 200, 600)
FIXED_A_FREE = 4
NODES_AN_ITEM = 6


@dataclass(frozen=True)
class Columns:
    """The items as int64[n] columns, prepared once: steps [start, end), sections [first, last), size in bytes.

    A section is a stretch of steps with one set of live items. `live_bytes`: int64[sections], bytes live in each section.
    """

    start: np.ndarray
    end: np.ndarray
    first: np.ndarray
    last: np.ndarray
    size: np.ndarray
    live_bytes: np.ndarray

    def fullest_section(self, n: int) -> int:
        """Return the section of item n's life with most live bytes."""
        return int(self.first[n]) + int(self.live_bytes[self.first[n] : self.last[n]].argmax())

    def live_in(self, low: int, high: int) -> np.ndarray:
        """bool[n]: the items live in one of the sections [low, high)."""
        return (self.first < high) & (self.last > low)


def make_columns(items: Sequence[Allocation]) -> Columns:
    """Return the columns of at least one item. Of an item in pieces they have the hull: its whole life and size."""
    first, last, sections = sections_of(items)
    start, end, size = np.array([(i.start, i.end, i.size_bytes) for i in items], dtype=np.int64).T
    changes = np.zeros(sections + 1, dtype=np.int64)
    np.add.at(changes, first, size)
    np.add.at(changes, last, -size)
    return Columns(start, end, np.array(first), np.array(last), size, np.cumsum(changes)[:sections])


def improve_by_windows(
    items: Sequence[Allocation], columns: Columns, bases: np.ndarray, target: int, effort_nodes: int, factor: int = 1
) -> tuple[np.ndarray, int]:
    """Return (bases, nodes used): the plan with items moved below the target, one window after another, until one cannot be.

    `bases`: int64[n], of a valid plan, not changed. The result is valid, too, and may still reach above the target.
    `target`: the highest end address of an item that is wished. `effort_nodes`: the most nodes of the decision search, in all.
    `factor`: multiplies the nodes of a window.
    """
    bases, used, moved = bases.copy(), 0, None
    while len(above := np.nonzero(bases + columns.size > target)[0]):
        top = int(above[np.argmax((bases + columns.size)[above])])
        for most in WINDOW_ITEMS:
            free = _window(columns, top, most)
            cap = min(effort_nodes - used, factor * NODES_AN_ITEM * (len(free) + 50))
            moved, nodes = _solve(items, columns, bases, free, target, cap) if cap > 0 else (None, 0)
            used += nodes
            if moved is not None:
                break
        if moved is None:
            break
        bases = moved
    return bases, used


def _window(columns: Columns, n: int, most: int) -> np.ndarray:
    """Return the items to be placed anew: item n, then the shortest-lived of those live around its fullest section.

    There are at most `most` of them.
    """
    section, width = columns.fullest_section(n), 1
    chosen = columns.live_in(section, section + 1)
    while width < len(columns.live_bytes):
        wider = columns.live_in(section - width, section + 1 + width)
        if wider.sum() > most:
            break
        chosen, width = wider, 2 * width
    free = np.nonzero(chosen)[0]
    life = (columns.last - columns.first)[free]
    life[free == n] = 0
    return free[np.argsort(life, kind="stable")[:most]]


def _solve(
    items: Sequence[Allocation], columns: Columns, bases: np.ndarray, free: np.ndarray, target: int, nodes: int
) -> tuple[np.ndarray | None, int]:
    """Return (new bases with the free items within the target, or None, nodes used)."""
    fixed = _make_fixed_allocations(columns, bases, free, target)
    while len(fixed) > FIXED_A_FREE * len(free) + 100 and len(free) > 8:
        free = free[: len(free) // 2]
        fixed = _make_fixed_allocations(columns, bases, free, target)
    places: list[int] = free.tolist()
    verdict = Decider([items[n] for n in places] + fixed).attempts(target, nodes)
    if verdict.bases is None:
        return None, max(verdict.nodes, len(free))
    moved = bases.copy()
    moved[free] = verdict.bases[: len(free)]
    return moved, verdict.nodes


def _make_fixed_allocations(columns: Columns, bases: np.ndarray, free: np.ndarray, target: int) -> list[Allocation]:
    """Return the rectangles below the target that other items occupy while a free item lives.

    Rectangles that touch are merged. Each is an allocation with a fixed base and no buffer.
    """
    begin, until = columns.start[free].min(), columns.end[free].max()
    others = (columns.start < until) & (columns.end > begin) & (bases < target)
    others[free] = False
    at = np.nonzero(others)[0]
    start, end = np.maximum(columns.start[at], begin), np.minimum(columns.end[at], until)
    low, high = bases[at], np.minimum(bases[at] + columns.size[at], target)
    merged: list[list[int]] = []
    for k in np.lexsort((low, end, start)):
        row = [int(start[k]), int(end[k]), int(low[k]), int(high[k])]
        if merged and merged[-1][:2] == row[:2] and merged[-1][3] == row[2]:
            merged[-1][3] = row[3]
        else:
            merged.append(row)
    return [Allocation(s, e, h - b, 1, (("", 0),), ((s, e, 0, h - b),), b, h, True) for s, e, b, h in merged]
