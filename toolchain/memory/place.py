"""Placement: normalise, greedy orders, then search; a plan with its certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from toolchain.memory.buffer import Buffer, DoesNotFit, Placement, check_buffers
from toolchain.memory.check import live_at_peak
from toolchain.memory.greedy import NoRoom, first_fit, orders, peak_of
from toolchain.memory.items import Item, make_items

DEFAULT_EFFORT_NODES = 200_000


def place(buffers: Iterable[Buffer], capacity_bytes: int | None = None, effort_nodes: int = DEFAULT_EFFORT_NODES) -> Placement:
    """Addresses for all buffers.

    capacity_bytes  given: the first plan found within it (packing). None: the smallest peak.
    effort_nodes    how long to search, in nodes; the answer depends on it and on nothing else.

    Raises InvalidBuffers, or DoesNotFit where no plan within the capacity was found.
    """
    by_name = check_buffers(buffers)
    items = make_items(by_name, take_rights=True)
    bound = lower_bound(make_items(by_name, take_rights=True, legal=False))
    best: list[int] | None = None
    for order in orders(items):
        try:
            bases = first_fit(items, order)
        except NoRoom:
            continue
        if best is None or peak_of(items, bases) < peak_of(items, best):
            best = bases
        if peak_of(items, best) <= (bound if capacity_bytes is None else capacity_bytes):
            break
    peak = peak_of(items, best) if best is not None else -1
    if best is None or (capacity_bytes is not None and peak > capacity_bytes):
        step, live, _ = live_at_peak(by_name.values())
        raise DoesNotFit(capacity_bytes or 0, bound, peak, step, live, proved=bound > (capacity_bytes or 0))
    return Placement(_addresses(by_name, items, best), peak, bound, peak == bound, 0)


def lower_bound(items: Sequence[Item]) -> int:
    """The largest sum of live bytes over all steps."""
    changes: dict[int, int] = {}
    for item in items:
        for start, end, low, high in item.parts:
            changes[start] = changes.get(start, 0) + high - low
            changes[end] = changes.get(end, 0) - high + low
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return max([most, *(item.low + item.size_bytes for item in items if item.low)])


def _addresses(by_name: Mapping[str, Buffer], items: Sequence[Item], bases: Sequence[int]) -> dict[str, int]:
    at = {name: base + offset for item, base in zip(items, bases) for name, offset in item.members}
    for name, b in by_name.items():  # those of no bytes
        if name not in at:
            at[name] = b.fixed_address or 0
    for name, b in by_name.items():
        if not b.size_bytes and b.view_of is not None:
            at[name] = at[b.view_of] + b.offset_bytes
    return {name: at[name] for name in by_name}
