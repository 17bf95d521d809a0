"""The plan of one region: what is resident, the tilings of its layers, and every address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from toolchain.machine import Space
from toolchain.memory import Placement
from toolchain.ops.kit.tile import Work
from toolchain.schedule.copies import Location
from toolchain.schedule.places import View
from toolchain.schedule.staging import PlannedLayer
from toolchain.schedule.stripes import Call, Shift, Stripes

VisitedStripes = Sequence[Sequence[tuple[int, Sequence[Work]] | Shift] | int]


@dataclass(frozen=True)
class Storage:
    """Bytes of one root during steps [start, end)."""

    name: str
    size_bytes: int
    start: int
    end: int
    touches: int  # nodes that write or read it


@dataclass(frozen=True)
class Cascade:
    """Layers of a region that run in turns. visited: the works of the stripes that stand for all, by layer, with what is repeated
    (`schedule.visits`)."""

    layers: range
    stripes: Stripes
    visited: VisitedStripes = field(repr=False)


@dataclass(frozen=True)
class RegionPlan:
    """`resident`: roots in SRAM, whole or their latest rows; `spilled`: roots in DRAM; `placements`: by memory, the addresses of
    roots and slots."""

    layers: tuple[PlannedLayer, ...]
    views: Mapping[str, View]
    resident: frozenset[str]
    spilled: tuple[Storage, ...]
    placements: Mapping[int, Placement]
    cycles: float
    cascades: tuple[Cascade, ...] = ()

    @cached_property
    def residents(self) -> frozenset[str]:
        """The tensors that lie in resident roots."""
        return frozenset(name for name, view in self.views.items() if view.root in self.resident)

    @property
    def alone_cycles(self) -> int:
        return alone_cycles(self.layers)

    @cached_property
    def runs(self) -> tuple[int | Cascade, ...]:
        """What follows one another: layers, and those that run in turns."""
        begun, inside = {c.layers.start: c for c in self.cascades}, {i for c in self.cascades for i in c.layers}
        return tuple(begun.get(i, i) for i in range(len(self.layers)) if i in begun or i not in inside)

    def steps(self) -> Iterator[int | Call | Shift]:
        """What runs in order: layers, and calls of those that run in turns."""
        for run in self.runs:
            yield from (run,) if isinstance(run, int) else chain.from_iterable(run.stripes.steps)

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
