"""A cascade before it has its slots: stripes, tilings, constants of each layer; and what it is once it has them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from toolchain.hw.units import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Tiling, Work
from toolchain.schedule.places import View
from toolchain.schedule.plan import Cascade, VisitedStripes
from toolchain.schedule.staging import LayerPlan, PlannedLayer, Sizes, Slot
from toolchain.schedule.stripes import Stripes


class PlannedCascade(NamedTuple):
    """plan: of all its layers, alone. views: of tensors of which the latest rows are kept."""

    cascade: Cascade
    layers: tuple[PlannedLayer, ...]
    views: Mapping[str, View]
    plan: LayerPlan


class Chosen(NamedTuple):
    """How a layer's works are made, and by which units."""

    tiling: Tiling
    units: tuple[Unit, ...]


class Blocks:
    """The constants of a layer's works, by role, and what else passes through its rings."""

    def __init__(self, layer: Layer, units: Sequence[Unit]):
        self.sizes, self._units = Sizes(layer, units), units
        self.blocks: dict[str, dict[Hashable, int]] = {}

    def add(self, work: Work, inside: Collection[str]) -> None:
        """inside: tensors that lie in SRAM."""
        self.sizes.add(work, inside)
        for i, block in enumerate(work.blocks):
            self.blocks.setdefault(f"b{i}", {}).setdefault(block.key, block.size_bytes)

    @property
    def total_bytes(self) -> int:
        return sum(sum(own.values()) for own in self.blocks.values())

    def slots(self, depth: int, stay: bool, apart: bool) -> tuple[Slot, ...]:
        """stay: constants are brought once, each to a slot of its own. apart: as many slots for each of the units."""
        slots = self.sizes.slots(depth, self._units, apart)
        return tuple(
            replace(s, sizes=tuple(self.blocks[s.role].values())) if stay and s.role in self.blocks else s for s in slots
        )


@dataclass
class Draft:
    """A cascade but for its slots. rings_bytes: of the rows that are kept. inside: tensors that lie in SRAM."""

    layers: range
    stripes: Stripes
    views: Mapping[str, View]
    rings_bytes: int
    chosen: Mapping[int, Chosen]
    visited: VisitedStripes
    blocks: Mapping[int, Blocks]
    inside: Collection[str]
    planned: dict[tuple[int, bool, int], PlannedCascade] = field(default_factory=dict)

    @cached_property
    def order(self) -> list[int]:
        """Layers of most constants first."""
        return sorted(self.layers, key=lambda i: -self.blocks[i].total_bytes)

    @property
    def is_shared(self) -> bool:
        """Whether the works of a layer have a choice of units."""
        return any(len(chosen.units) > 1 for chosen in self.chosen.values())

    def slots(self, depth: int, apart: bool, streamed: int) -> dict[int, tuple[Slot, ...]]:
        """apart: rings have as many for each unit. streamed: how many layers bring their constants again for each stripe, those
        of most first."""
        again = self.order[:streamed]
        return {i: self.blocks[i].slots(depth, i not in again, apart) for i in self.layers}
