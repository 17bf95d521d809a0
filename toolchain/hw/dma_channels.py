"""Choose the DMA channels that programs use."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from toolchain.hw.unit_map import SRAM, Unit


def choose_channels(channels: Sequence[Unit], filled: Collection[int], most: int) -> tuple[Unit, ...]:
    """Return the fastest `most` channels, and at least one for each memory that programs fill.

    The fastest is the first; the last one stores, and reaches the sram.
    `channels`: DMA channels that reach the dram.
    `filled`: codes of the memories that programs fill.
    """
    fastest_first = sorted(channels, key=lambda u: -u.dma.bytes_per_cycle)
    required_units: list[Unit] = []
    for space in sorted(filled):
        if not any(space in u.reach for u in required_units):
            required_units += [u for u in fastest_first if space in u.reach][:1]
    more = [u for u in fastest_first if u not in required_units][: max(0, most - len(required_units))]
    used = [u for u in fastest_first if u in required_units or u in more]
    store = [u for u in used if SRAM in u.reach][-1:]
    return (*(u for u in used if u not in store), *store)
