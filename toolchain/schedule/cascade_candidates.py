"""A cascade before it has its slots: stripes, tilings, constants of each layer; and what it is once it has them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from toolchain.hw.unit_map import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import TileTask, Tiling
from toolchain.schedule.plan import Cascade, VisitedStripes
from toolchain.schedule.stripes import WHOLE, Stripes, Sweep
from toolchain.schedule.tile_buffers import LayerPlan, PlannedLayer, Sizes, Slot
from toolchain.schedule.views import View


class PlannedCascade(NamedTuple):
    """plan: of all its layers, alone. views: of tensors of which the latest rows are kept. inside: tensors that lie in SRAM.
    moved_bytes: between DRAM and the chip."""

    cascade: Cascade
    layers: tuple[PlannedLayer, ...]
    views: Mapping[str, View]
    plan: LayerPlan
    inside: Collection[str]
    moved_bytes: int


class TileChoice(NamedTuple):
    """How a layer's works are made, and by which units."""

    tiling: Tiling
    units: tuple[Unit, ...]


class CandidateKey(NamedTuple):
    """What a draft depends on: see `cascade.CascadePlanner.plan`. ahead: roots that have room for one more stripe."""

    first: int
    end: int
    height: int
    resident: frozenset[str]
    ahead: frozenset[str]
    sweep: Sweep


class CandidateSeed(NamedTuple):
    """What a draft begins with. least_bytes: of SRAM that it takes at least, by one call of each layer. least_with_read: where
    what is read from DRAM is brought once for all blocks of channels; None where nothing is read or there are no blocks."""

    kept: Mapping[str, str]
    chosen: Mapping[int, TileChoice]
    least_bytes: int
    least_with_read: int | None


class BufferCounts(NamedTuple):
    """Slots of rings of what is read and of what is stored. apart: as many for each of the units. stay: what is read is brought
    once for all blocks of channels, each thing to a slot of its own."""

    reads: int
    stores: int
    apart: bool = False
    stay: bool = False


class ConstantBuffers:
    """The constants of a layer's works, by role, and what else passes through its rings."""

    def __init__(self, layer: Layer, units: Sequence[Unit]):
        self._layer, self.sizes, self._units = layer, Sizes(layer, units), units
        self.blocks: dict[str, dict[int, dict[Hashable, int]]] = {}  # by role and first channel
        self.read: dict[str, dict[Hashable, int]] = {}  # by role: what each block of channels reads again

    def add(self, work: TileTask, inside: Collection[str], channel: int) -> None:
        """inside: tensors that lie in SRAM. channel: the first of the block of channels."""
        self.sizes.add(work, inside)
        for i, block in enumerate(work.blocks):
            self.blocks.setdefault(f"b{i}", {}).setdefault(channel, {}).setdefault(block.key, block.size_bytes)

    def add_read(self, work: TileTask, inside: Collection[str]) -> None:
        """Of the first block of channels."""
        for i, box in enumerate(work.reads):
            if box.tensor not in inside:
                self.read.setdefault(f"r{i}", {}).setdefault(box, self._layer.box_bytes(box))

    @property
    def total_bytes(self) -> int:
        """At once."""
        return sum(sum(self._kept(role)) for role in self.blocks)

    def _kept(self, role: str) -> tuple[int, ...]:
        """Slots in which what passes through a ring stays: each thing of a block of channels in one of its own."""
        return self._own_slots(list(self.blocks[role].values()))

    def _own_slots(self, blocks: Sequence[Mapping[Hashable, int]]) -> tuple[int, ...]:
        """Of equal sizes where it is not known which thing comes first to a ring: of several units each may take any."""
        if len(blocks) == 1 and len(self._units) == 1:
            return tuple(*(block.values() for block in blocks))
        return (max(size for block in blocks for size in block.values()),) * max(map(len, blocks))

    def slots(self, depth: BufferCounts, stay: bool) -> tuple[Slot, ...]:
        """stay: constants are brought once, each to a slot of its own."""
        reads, stores = (self.sizes.slots(d, self._units, depth.apart) for d in (depth.reads, depth.stores))
        slots = (store if store.role == "w" else read for read, store in zip(reads, stores))
        kept = {role: self._kept(role) for role in self.blocks} if stay else {}
        if depth.stay:
            kept |= {role: self._own_slots([things]) for role, things in self.read.items()}
        return tuple(replace(s, sizes=kept.get(s.role, s.sizes)) for s in slots)


@dataclass
class CascadeCandidate:
    """A cascade but for its slots. rings_bytes: of the rows that are kept. inside: tensors that lie in SRAM."""

    layers: range
    stripes: Stripes
    views: Mapping[str, View]
    rings_bytes: int
    chosen: Mapping[int, TileChoice]
    visited: VisitedStripes
    blocks: Mapping[int, ConstantBuffers]
    inside: Collection[str]
    planned: dict[tuple[BufferCounts, int], PlannedCascade] = field(default_factory=dict)

    @cached_property
    def order(self) -> list[int]:
        """Layers of most constants first."""
        return sorted(self.layers, key=lambda i: -self.blocks[i].total_bytes)

    @property
    def is_shared(self) -> bool:
        """Whether the works of a layer have a choice of units."""
        return any(len(chosen.units) > 1 for chosen in self.chosen.values())

    def depths(self, most: int, stay: bool) -> list[BufferCounts]:
        """Of rings that are tried, the most first; of blocks, which are there for want of room, some of which only one side is
        double. stay: those in which what is read stays."""
        shared = [BufferCounts(most, most, True)] if self.is_shared else []
        mixed = [BufferCounts(1, most), BufferCounts(most, 1)] if self.stripes.sweep != WHOLE and most > 1 else []
        every = [BufferCounts(depth, depth) for depth in range(most, 0, -1)]
        return [depth._replace(stay=stay) for depth in (*shared, *every[:1], *mixed, *every[1:])]

    def slots(self, depth: BufferCounts, streamed: int) -> dict[int, tuple[Slot, ...]]:
        """streamed: how many layers bring their constants again for each stripe, those of most first."""
        again = self.order[:streamed]
        return {i: self.blocks[i].slots(depth, i not in again) for i in self.layers}
