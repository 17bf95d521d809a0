"""Which DMA channels programs use."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from toolchain.hw.unit_map import SRAM, Unit


def used_channels(movers: Sequence[Unit], filled: Collection[int], most: int) -> tuple[Unit, ...]:
    """movers: DMA channels that reach the dram. filled: codes of the memories that programs fill. As many as `most`, the fastest
    ones, and one at least for each memory. The fastest is the first, the last one stores, and reaches the sram."""
    known = sorted(movers, key=lambda u: -u.dma.bytes_per_cycle)
    needed: list[Unit] = []
    for space in sorted(filled):
        if not any(space in u.reach for u in needed):
            needed += [u for u in known if space in u.reach][:1]
    more = [u for u in known if u not in needed][: max(0, most - len(needed))]
    used = [u for u in known if u in needed or u in more]
    store = [u for u in used if SRAM in u.reach][-1:]
    return (*(u for u in used if u not in store), *store)
