"""A layer on its unit with its rings, and what a work of it passes through them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import repeat, takewhile
from typing import NamedTuple

from toolchain.hw.unit_map import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, ConstantBlock, TileTask
from toolchain.schedule.access_ranges import AccessRange
from toolchain.schedule.cost import TileCost
from toolchain.schedule.tile_buffers import MultiBuffer, Slot, needs_staging, rings

SlotAreas = Mapping[tuple[str, int], Sequence[AccessRange]]  # by role and memory: of each slot of the ring


class LayerPipeline(NamedTuple):
    """A layer, the units that its works may go to, its rings with where their slots lie, and where its constants do that are
    fetched ahead, by the keys of their blocks."""

    layer: Layer
    units: Sequence[Unit]
    rings: Mapping[tuple[str, int], tuple[MultiBuffer, Sequence[AccessRange]]]
    ahead: Mapping[Hashable, AccessRange]

    @classmethod
    def of(
        cls,
        layer: Layer,
        slots: Sequence[Slot],
        units: Sequence[Unit],
        areas: SlotAreas | None,
        ahead: Mapping[Hashable, AccessRange] | None = None,
    ) -> LayerPipeline:
        """areas: of the slots; None: at no address."""
        areas = areas or {(s.role, s.space): [AccessRange(s.space, 0, 0, []) for _ in range(s.copies)] for s in slots}
        return cls(layer, units, {key: (ring, areas[key]) for key, ring in rings(slots).items()}, ahead or {})


Piece = Sequence[tuple[Sequence[AccessRange], int]]  # where constants go, and how many bytes of them in one copy


class PrefetchQueue(NamedTuple):
    """Constants of other layers that one fetches for them: all places, and what comes behind the loads of each of its works."""

    areas: Sequence[AccessRange]
    pieces: Sequence[Piece]

    def seen(self, visited: Sequence[Sequence[TileTask] | int]) -> Iterator[Piece]:
        """Behind each of the works that stand for all: as it is where these are the first ones, else in the mean."""
        first = sum(1 if isinstance(v, int) else len(v) for v in takewhile(lambda v: not isinstance(v, int), visited))
        if not any(self.pieces[first:]):
            return iter(self.pieces)
        mean = sum(size for piece in self.pieces for _, size in piece) // len(self.pieces)
        return repeat([(self.areas, mean)])


class PendingTile(NamedTuple):
    """A work whose loads are asked for, but neither its computes nor its store. slots: that it reads. out: that it writes."""

    work: TileTask
    unit: Unit
    run: TileCost
    slots: list[AccessRange]
    in_place: list[Box]
    out: AccessRange | None


def passing(work: TileTask, unit: Unit, resident: Collection[str]) -> Sequence[tuple[str, Box | ConstantBlock, Hashable, int]]:
    """What passes through rings: the ring, the thing, by which key the ring knows it, the ring's memory."""
    roles = unit.roles
    boxes = [(f"r{i}", box, box, roles[box.role]) for i, box in enumerate(work.reads) if needs_staging(box, unit, resident)]
    return boxes + [(f"b{i}", block, block.key, roles[block.role]) for i, block in enumerate(work.blocks)]
