"""The fastest placement: items one by one on top of all that lies below them. Good enough where there is room."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.memory.place.allocations import Allocation
from toolchain.memory.place.problem import sections_of


def skyline(items: Sequence[Allocation], limit_bytes: int) -> list[int] | None:
    """A plan with peak <= limit_bytes, or None where none of a few orders gives one. Plain items only."""
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
