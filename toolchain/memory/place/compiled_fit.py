"""Run first fit over thousands of plain items, compiled where numba is installed: the same plans as `greedy.first_fit`.

Type `Ints`: an int64 array of any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from toolchain.memory.place.allocations import Allocation
from toolchain.memory.place.greedy import first_fit
from toolchain.memory.place.numba_support import compiler

Ints = np.ndarray


# Steps that items live on average at most to be placed by steps.
_BRIEF = 8  # measured with 4,000 items: of 8 steps 37 ms so and 66 by columns, of 16 steps 78 and 68


class Fitter:
    """Items as columns, prepared once for many orders. Where one is not plain, `greedy.first_fit` does the work.

    `plain`: whether all items are plain.
    """

    def __init__(self, items: Sequence[Allocation], compiled: bool | None = None) -> None:
        """Prepare the items. `compiled`: False: numpy only; None or True: numba where it is installed."""
        self.items = items
        self.plain = all(item.plain for item in items)
        fast = _compile_fit() if compiled is not False else None
        lives_briefly = sum(item.end - item.start for item in items) <= _BRIEF * len(items)
        self._run: Callable[..., None] = fast or (_fit_by_steps if lives_briefly else _fit_by_columns)
        rows = [(item.start, item.end, item.size_bytes, item.alignment_bytes) for item in items]
        self._columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T.copy()

    def fit(self, order: Sequence[int] | Ints, fixed_bases: Mapping[int, int] | None = None) -> Ints:
        """Return int64[n]: the base of each item in bytes. Those in `fixed_bases` keep theirs, the rest follow in this order.

        Raise NoRoom where an item that is fixed or in a region finds its place taken, which plain items never do.
        """
        fixed = dict(fixed_bases or {})
        if not self.plain:
            return np.array(first_fit(self.items, list(order), fixed), dtype=np.int64)
        bases = np.zeros(len(self.items), dtype=np.int64)
        fixed_items = np.array(sorted(fixed, key=lambda n: (fixed[n], n)), dtype=np.int64)
        bases[fixed_items] = [fixed[int(n)] for n in fixed_items]
        free = np.asarray(order, dtype=np.int64)
        free = free[~np.isin(free, fixed_items)]
        self._run(*self._columns, np.concatenate([fixed_items, free]), len(fixed_items), bases)
        return bases


def _fit_by_addresses(start: Any, end: Any, size: Any, align: Any, order: Any, n_fixed: int, bases: Any) -> None:
    """Fill `bases`, int64[n], by first fit. What is placed is kept sorted by address; numba compiles this form.

    `order`: all items; the first `n_fixed` of them have their bases already.
    """
    n = len(order)
    starts = np.empty(n, np.int64)
    ends = np.empty(n, np.int64)
    lows = np.empty(n, np.int64)
    highs = np.empty(n, np.int64)
    for placed in range(n):
        i = order[placed]
        base = bases[i]
        if placed >= n_fixed:
            base = 0
            for q in range(placed):
                if starts[q] < end[i] and ends[q] > start[i]:
                    if lows[q] >= base + size[i]:
                        break
                    if highs[q] > base:
                        base = highs[q] + -highs[q] % align[i]
        at = placed
        while at > 0 and lows[at - 1] > base:
            starts[at] = starts[at - 1]
            ends[at] = ends[at - 1]
            lows[at] = lows[at - 1]
            highs[at] = highs[at - 1]
            at -= 1
        bases[i] = base
        starts[at] = start[i]
        ends[at] = end[i]
        lows[at] = base
        highs[at] = base + size[i]


def _fit_by_columns(start: Ints, end: Ints, size: Ints, align: Ints, order: Ints, n_fixed: int, bases: Ints) -> None:
    """Fill `bases` as `_fit_by_addresses` does, in numpy: a few operations on columns an item."""
    starts, ends = start[order], end[order]
    lows, highs = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    lows[:n_fixed] = bases[order[:n_fixed]]
    highs[:n_fixed] = lows[:n_fixed] + size[order[:n_fixed]]
    for placed in range(n_fixed, len(order)):
        i = order[placed]
        met = np.nonzero((starts[:placed] < end[i]) & (ends[:placed] > start[i]))[0]
        met = met[np.argsort(lows[met])]
        # tops[k]: above the k lowest of them, aligned; the first gap that holds the item begins at one of these
        tops = np.maximum.accumulate(np.concatenate([[0], highs[met]]))
        tops += -tops % align[i]
        gap = np.nonzero(lows[met] >= tops[:-1] + size[i])[0]
        base = tops[gap[0]] if len(gap) else tops[-1]
        bases[i] = lows[placed] = base
        highs[placed] = base + size[i]


def _fit_by_steps(start: Ints, end: Ints, size: Ints, align: Ints, order: Ints, n_fixed: int, bases: Ints) -> None:
    """Fill `bases` as `_fit_by_addresses` does. Each step keeps what is placed there, so items that live long take long."""
    live: dict[int, set[int]] = {}  # by step, what is placed
    starts, ends, sizes, alignments = start.tolist(), end.tolist(), size.tolist(), align.tolist()
    lows = bases.tolist()
    for placed, i in enumerate(order.tolist()):
        here = [live.setdefault(step, set()) for step in range(starts[i], ends[i])]
        if placed >= n_fixed:
            met, base = set[int]().union(*here), 0
            for q in sorted(met, key=lows.__getitem__):
                if lows[q] >= base + sizes[i]:
                    break
                if lows[q] + sizes[q] > base:
                    base = lows[q] + sizes[q]
                    base += -base % alignments[i]
            lows[i] = base
        for items in here:
            items.add(i)
    bases[:] = lows


@cache
def _compile_fit() -> Callable[..., None] | None:
    """Return the compiled form of `_fit_by_addresses`, None without numba."""
    compiled = compiler()
    return None if compiled is None else compiled(_fit_by_addresses)
