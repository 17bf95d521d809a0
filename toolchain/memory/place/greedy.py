"""Place allocations one by one without search, each at the lowest address that is free for its whole life.

`first_fit` takes any allocations in a given order; `placement` tries the orders of `orders` before it searches.
`skyline` is the fastest and takes plain ones only: each lies on top of all that was placed before at the same time.
Up to FEW parts are kept in lists, which are faster than columns there.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from toolchain.memory.place.allocations import Allocation
from toolchain.memory.place.problem import sections_of

FEW = 500


class NoRoom(Exception):
    """Placing in this order failed: an allocation does not fit its fixed address, its region, or below the limit.

    The message is the name of its first buffer.
    """


def orders(items: Sequence[Allocation]) -> Iterator[list[int]]:
    """Yield orders for `first_fit`, each the indices of all items, best first by experience.

    Allocations that are fixed or in a region lead. Then come the largest sizes, areas or lives, or the earliest starts.
    """
    keys: list[Callable[[Allocation], tuple[int, int, int]]] = [
        lambda i: (-i.size_bytes, i.start - i.end, i.start),
        lambda i: (-i.size_bytes * (i.end - i.start), -i.size_bytes, i.start),
        lambda i: (i.start - i.end, -i.size_bytes, i.start),
        lambda i: (i.start, -i.size_bytes, i.end),
        lambda i: (-i.end, -i.size_bytes, i.start),
    ]
    for key in keys:
        bound_first = [(not it.fixed, it.high is None, *key(it), n) for n, it in enumerate(items)]
        yield [t[-1] for t in sorted(bound_first)]


def first_fit(
    items: Sequence[Allocation], order: Sequence[int], fixed_bases: dict[int, int] | None = None, limit: float = math.inf
) -> list[int]:
    """Return the base of each allocation, in the order of `items`.

    `order`: indices of all items. Those in `fixed_bases` keep the bases given there and are placed first, unchecked.
    `limit`: the plan must end below it, so an end at the limit fails.
    Raise NoRoom where an allocation finds its place taken, ends above its region, or does not end below the limit.
    """
    fixed_bases = fixed_bases or {}
    bases = [0] * len(items)
    parts = sum(len(item.parts) for item in items)
    banked = any(item.bank_bytes for item in items)
    placed = _Few() if parts <= FEW and not banked else _Many(parts, banked)
    for n, base in fixed_bases.items():
        bases[n] = base
        placed.add(items, n, base)
    for n in order:
        if n in fixed_bases:
            continue
        item = items[n]
        base = placed.lowest(items, item)
        end = base + item.size_bytes
        if end >= limit or (item.high is not None and end > item.high):
            raise NoRoom(item.members[0][0])
        bases[n] = base
        placed.add(items, n, base)
    return bases


def peak_of(items: Sequence[Allocation], bases: Sequence[int]) -> int:
    """Return the highest address in use, one past the last byte; 0 without allocations."""
    return max((base + item.size_bytes for item, base in zip(items, bases)), default=0)


class _Few:
    """The parts placed so far, a list by rising address: (first byte, end byte, start, end). It knows no banks."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, int, int]] = []

    def add(self, items: Sequence[Allocation], n: int, base: int) -> None:
        for start, end, low, high in items[n].parts:
            insort(self.parts, (base + low, base + high, start, end))

    def lowest(self, items: Sequence[Allocation], item: Allocation) -> int:
        """Return the lowest base at which the allocation touches nothing that is placed."""
        if not item.plain:
            return _lowest(item, sorted(self._forbidden(item)))
        base, size, start, end, align = 0, item.size_bytes, item.start, item.end, item.alignment_bytes
        for low, high, begins, ends in self.parts:
            if begins < end and ends > start:
                if low >= base + size:
                    break
                if base < high:
                    base = high + -high % align
        return base

    def _forbidden(self, item: Allocation) -> Iterator[tuple[int, int]]:
        """Yield open intervals (low, high) that the base must not lie in."""
        for start, end, first, last in item.parts:
            for low, high, begins, ends in self.parts:
                if begins < end and ends > start:
                    yield low - last, high - first


class _Many:
    """The parts placed so far, as columns: start, end, first byte, end byte, allocation. It heeds banks where `banked`."""

    def __init__(self, room: int, banked: bool) -> None:
        self.banked = banked
        self.columns = np.zeros((5, room), dtype=np.int64)
        self.n = 0

    def add(self, items: Sequence[Allocation], n: int, base: int) -> None:
        for start, end, low, high in items[n].parts:
            self.columns[:, self.n] = (start, end, base + low, base + high, n)
            self.n += 1

    def lowest(self, items: Sequence[Allocation], item: Allocation) -> int:
        """Return the lowest base at which the allocation touches nothing that is placed."""
        return _lowest(item, sorted(self._forbidden(items, item)))

    def _forbidden(self, items: Sequence[Allocation], item: Allocation) -> list[tuple[int, int]]:
        """Return open intervals (low, high) that the base must not lie in."""
        out: list[tuple[int, int]] = []
        starts, ends, lows, highs, _ = self.columns[:, : self.n]
        for start, end, first, last in item.parts:
            at = np.nonzero((starts < end) & (ends > start))[0]
            if not self.banked:
                out += zip((lows[at] - last).tolist(), (highs[at] - first).tolist())
                continue
            columns: list[list[int]] = self.columns[2:, at].T.tolist()
            for low, high, owner in columns:
                bank = bank_between(item, items[owner])
                out.append((low - (low % bank if bank else 0) - last, high + (-high % bank if bank else 0) - first))
        return out


def _lowest(item: Allocation, forbidden: Iterable[tuple[int, int]]) -> int:
    """Return the lowest base outside all forbidden intervals that the allocation's own conditions allow.

    `forbidden`: open intervals (low, high), by rising low.
    """
    base = item.lowest_base(0)
    for low, high in forbidden:
        if low >= base:
            break
        if base < high:
            base = item.lowest_base(high)
    return base


def bank_between(a: Allocation, b: Allocation) -> int:
    """Return the size in bytes of the banks of which two allocations may share none; 0 where nothing keeps them apart."""
    if any(name in a.must_not_share for name, _ in b.members):
        return a.bank_bytes
    if any(name in b.must_not_share for name, _ in a.members):
        return b.bank_bytes
    return 0


def skyline(items: Sequence[Allocation], limit_bytes: int) -> list[int] | None:
    """Return the bases of a plan that ends at `limit_bytes` or below, or None where neither of two orders gives one.

    The orders are by falling life and by falling size. The allocations must be plain (`Allocation.plain`), which is not checked.
    """
    first, last, sections = sections_of(items)
    spans = [last[n] - first[n] for n in range(len(items))]
    sizes = [item.size_bytes for item in items]
    for key in ([(-a, -b) for a, b in zip(spans, sizes)], [(-b, -a) for a, b in zip(spans, sizes)]):
        bases = _stack(items, first, last, sections, sorted(range(len(items)), key=key.__getitem__), limit_bytes)
        if bases is not None:
            return bases
    return None


def _stack(
    items: Sequence[Allocation],
    first: Sequence[int],
    last: Sequence[int],
    sections: int,
    order: Sequence[int],
    limit_bytes: int,
) -> list[int] | None:
    """Return the bases when each allocation lies on all placed before it that share a section; None above the limit."""
    heights = [0] * sections
    bases = [0] * len(items)
    for n in order:
        item, f, e = items[n], first[n], last[n]
        base = max(heights[f:e])
        if item.alignment_bytes > 1:
            base += -base % item.alignment_bytes
        top = base + item.size_bytes
        if top > limit_bytes:
            return None
        bases[n] = base
        heights[f:e] = [top] * (e - f)
    return bases
