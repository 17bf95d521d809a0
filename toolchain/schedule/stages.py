"""A layer on its unit with its rings, and what a work of it passes through them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import repeat, takewhile
from typing import NamedTuple

from toolchain.hw.units import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Block, Box, Work
from toolchain.schedule.areas import Area
from toolchain.schedule.cost import Run
from toolchain.schedule.staging import Ring, Slot, rings, staged

SlotAreas = Mapping[tuple[str, int], Sequence[Area]]  # by role and memory: of each slot of the ring


class Stage(NamedTuple):
    """A layer, the units that its works may go to, its rings with where their slots lie, and where its constants do that are
    fetched ahead, by the keys of their blocks."""

    layer: Layer
    units: Sequence[Unit]
    rings: Mapping[tuple[str, int], tuple[Ring, Sequence[Area]]]
    ahead: Mapping[Hashable, Area]

    @classmethod
    def of(
        cls,
        layer: Layer,
        slots: Sequence[Slot],
        units: Sequence[Unit],
        areas: SlotAreas | None,
        ahead: Mapping[Hashable, Area] | None = None,
    ) -> Stage:
        """areas: of the slots; None: at no address."""
        areas = areas or {(s.role, s.space): [Area(s.space, 0, 0, []) for _ in range(s.copies)] for s in slots}
        return cls(layer, units, {key: (ring, areas[key]) for key, ring in rings(slots).items()}, ahead or {})


Piece = Sequence[tuple[Sequence[Area], int]]  # where constants go, and how many bytes of them in one copy


class Fetched(NamedTuple):
    """Constants of other layers that one fetches for them: all places, and what comes behind the loads of each of its works."""

    areas: Sequence[Area]
    pieces: Sequence[Piece]

    def seen(self, visited: Sequence[Sequence[Work] | int]) -> Iterator[Piece]:
        """Behind each of the works that stand for all: as it is where these are the first ones, else in the mean."""
        first = sum(1 if isinstance(v, int) else len(v) for v in takewhile(lambda v: not isinstance(v, int), visited))
        if not any(self.pieces[first:]):
            return iter(self.pieces)
        mean = sum(size for piece in self.pieces for _, size in piece) // len(self.pieces)
        return repeat([(self.areas, mean)])


class Tile(NamedTuple):
    """A work whose loads are asked for, but neither its computes nor its store. slots: that it reads. out: that it writes."""

    work: Work
    unit: Unit
    run: Run
    slots: list[Area]
    in_place: list[Box]
    out: Area | None


def passing(work: Work, unit: Unit, resident: Collection[str]) -> Sequence[tuple[str, Box | Block, Hashable, int]]:
    """What passes through rings: the ring, the thing, by which key the ring knows it, the ring's memory."""
    roles = unit.roles
    boxes = [(f"r{i}", box, box, roles[box.role]) for i, box in enumerate(work.reads) if staged(box, unit, resident)]
    return boxes + [(f"b{i}", block, block.key, roles[block.role]) for i, block in enumerate(work.blocks)]
