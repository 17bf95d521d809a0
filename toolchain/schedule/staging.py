"""Staging: the SRAM slots through which a layer's tiles pass.

Each operand that lives in DRAM, each constant block and a DRAM output has a ring of one or two slots; a region that is
still in its ring is not loaded again. Codegen walks the same rings, so that what is costed is what is emitted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from toolchain.hw.units import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Region, Tiling, Work, aligned
from toolchain.schedule.copies import Stride


@dataclass(frozen=True)
class Slot:
    """`copies` buffers of this size; `role` is r0, r1, ... for reads, b0, ... for blocks, w for the output."""

    role: str
    size_bytes: int
    copies: int


@dataclass(frozen=True)
class LayerPlan:
    """A tiling with its slots, how many works it has, and what they are expected to cost."""

    tiling: Tiling
    slots: tuple[Slot, ...]
    staging_bytes: int
    works: int
    cycles: float


@dataclass(frozen=True)
class PlannedLayer:
    """A node and its tiling; None for movers, which copy between the homes of their tensors. units: that run its works one by
    one; none where the machine leaves no choice."""

    layer: Layer
    plan: LayerPlan | None
    units: tuple[Unit, ...] = ()


@dataclass
class Ring:
    """Least recently used slot of a ring, with what each holds."""

    copies: int
    held: list[Hashable] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    def take(self, key: Hashable) -> tuple[int, bool]:
        """(slot, whether it holds `key` already)."""
        if key in self.held:
            index = self.held.index(key)
            self.order.remove(index)
            self.order.append(index)
            return index, True
        if len(self.held) < self.copies:
            self.held.append(key)
            self.order.append(len(self.held) - 1)
            return len(self.held) - 1, False
        index = self.order.pop(0)
        self.held[index] = key
        self.order.append(index)
        return index, False


def staged_regions(work: Work, resident: Collection[str]) -> list[tuple[str, Region]]:
    """(role, region) of the reads that must be brought in."""
    return [(f"r{i}", r) for i, r in enumerate(work.reads) if r.tensor not in resident]


class Sizes:
    """The largest thing that passes through each role, and whether more than one does."""

    def __init__(self, item_bytes: int):
        self._item_bytes = item_bytes
        self._sizes: dict[str, int] = {}
        self._keys: dict[str, Hashable] = {}  # the first thing of each role
        self._many: set[str] = set()
        self.single_bytes = 0  # all roles with one slot each

    def add(self, work: Work, resident: Collection[str]) -> None:
        for role, region in staged_regions(work, resident):
            self._note(role, math.prod(region.size) * self._item_bytes, region)
        for i, block in enumerate(work.blocks):
            self._note(f"b{i}", block.size_bytes, block.key)
        if work.write is not None and work.write.tensor not in resident:
            self._note("w", math.prod(work.write.size) * self._item_bytes, work.write)

    def _note(self, role: str, size_bytes: int, key: Hashable) -> None:
        old = self._sizes.get(role, 0)
        if size_bytes > old:
            self._sizes[role] = size_bytes
            self.single_bytes += size_bytes - old
        if role not in self._many and self._keys.setdefault(role, key) != key:
            self._many.add(role)

    def slots(self, depth: int) -> tuple[Slot, ...]:
        """The rings: `depth` slots where more than one thing passes through."""
        return tuple(Slot(role, size, depth if role in self._many else 1) for role, size in sorted(self._sizes.items()))


def staging_bytes(slots: Sequence[Slot], alignment_bytes: int) -> int:
    return sum(s.copies * aligned(s.size_bytes, alignment_bytes) for s in slots)


def region_strides(region: Region, source: Sequence[int], target: Sequence[int]) -> list[Stride]:
    return [Stride(n, a, b) for n, a, b in zip(region.size, source, target)]
