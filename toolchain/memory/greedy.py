"""Greedy placement: items one by one, each at the lowest address that is free for its whole life."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.memory.items import Item


class NoRoom(Exception):
    """A bound item (fixed, or in a region) found no room in this order."""


def orders(items: Sequence[Item]) -> list[list[int]]:
    """Orders worth trying, best first by experience: bound items lead; then by size, area, life, and start."""
    keys = [
        lambda i: (-i.size_bytes, i.start - i.end, i.start),
        lambda i: (-i.size_bytes * (i.end - i.start), -i.size_bytes, i.start),
        lambda i: (i.start - i.end, -i.size_bytes, i.start),
        lambda i: (i.start, -i.size_bytes, i.end),
        lambda i: (-i.end, -i.size_bytes, i.start),
    ]
    out = []
    for key in keys:
        bound_first = [(not it.fixed, it.high is None, *key(it), n) for n, it in enumerate(items)]
        out.append([t[-1] for t in sorted(bound_first)])
    return out


def first_fit(items: Sequence[Item], order: Sequence[int]) -> list[int]:
    """Base of each item. Raises NoRoom where a bound item finds its place taken."""
    bases = [0] * len(items)
    placed: list[tuple[int, int, int, int, int]] = []  # start, end, first byte, end byte, item
    for n in order:
        item = items[n]
        base = item.settle(0)
        for low, high in sorted(_forbidden(item, items, placed)):
            if low >= base:
                break
            if base < high:
                base = item.settle(high)
        if item.high is not None and base + item.size_bytes > item.high:
            raise NoRoom(item.members[0][0])
        bases[n] = base
        placed += [(start, end, base + low, base + high, n) for start, end, low, high in item.parts]
    return bases


def peak_of(items: Sequence[Item], bases: Sequence[int]) -> int:
    """The highest address in use."""
    return max((base + item.size_bytes for item, base in zip(items, bases)), default=0)


def _forbidden(item: Item, items: Sequence[Item], placed: Sequence[tuple[int, int, int, int, int]]) -> list[tuple[int, int]]:
    """Open intervals (low, high) that the base must not lie in."""
    if item.bank_bytes or any(items[p[4]].bank_bytes for p in placed):
        return _forbidden_banked(item, items, placed)
    out = []
    for start, end, first, last in item.parts:
        out += [(low - last, high - first) for at, until, low, high, _ in placed if at < end and start < until]
    return out


def _forbidden_banked(
    item: Item, items: Sequence[Item], placed: Sequence[tuple[int, int, int, int, int]]
) -> list[tuple[int, int]]:
    out = []
    for start, end, first, last in item.parts:
        for at, until, low, high, n in placed:
            if at < end and start < until:
                bank = bank_between(item, items[n])
                out.append((low - (low % bank if bank else 0) - last, high + (-high % bank if bank else 0) - first))
    return out


def bank_between(a: Item, b: Item) -> int:
    """The bank size that keeps two items apart, 0 where nothing does."""
    if any(name in a.apart for name, _ in b.members):
        return a.bank_bytes
    if any(name in b.apart for name, _ in a.members):
        return b.bank_bytes
    return 0
