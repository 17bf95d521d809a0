"""The plan of one region: what is resident, the tilings of its layers, and every address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from toolchain.machine import Space
from toolchain.memory import Placement
from toolchain.schedule.copies import Location
from toolchain.schedule.places import View
from toolchain.schedule.staging import PlannedLayer


@dataclass(frozen=True)
class Storage:
    """Bytes of one root during steps [start, end)."""

    name: str
    size_bytes: int
    start: int
    end: int
    touches: int  # nodes that write or read it


@dataclass(frozen=True)
class RegionPlan:
    """`resident`: roots in SRAM; `spilled`: roots in DRAM; `placements`: by memory, the addresses of roots and slots."""

    layers: tuple[PlannedLayer, ...]
    views: Mapping[str, View]
    resident: frozenset[str]
    spilled: tuple[Storage, ...]
    placements: Mapping[int, Placement]
    cycles: float

    @cached_property
    def residents(self) -> frozenset[str]:
        """The tensors that lie in resident roots."""
        return frozenset(name for name, view in self.views.items() if view.root in self.resident)

    @property
    def alone_cycles(self) -> int:
        return alone_cycles(self.layers)

    def root(self, name: str) -> Location:
        """Where a resident root begins."""
        return Location(Space.SRAM, self.placements[Space.SRAM].addresses[name])

    def slot(self, layer: int, role: str, space: int, copy: int) -> Location:
        """Where a slot of a layer's ring begins."""
        return Location(Space(space), self.placements[space].addresses[slot_name(layer, role, copy)])


def slot_name(layer: int, role: str, copy: int) -> str:
    """Of the buffer that is placed for it."""
    return f"{layer}:{role}:{copy}"


def alone_cycles(layers: Iterable[PlannedLayer]) -> int:
    """Of the layers' tilings, one after another with nothing at once."""
    return sum(layer.plan.cycles for layer in layers if layer.plan is not None)
