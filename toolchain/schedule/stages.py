"""A layer on its unit with its rings, and what a work of it passes through them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from toolchain.hw.units import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Block, Box, Work
from toolchain.schedule.areas import Area
from toolchain.schedule.cost import Run
from toolchain.schedule.staging import Ring, Slot, rings, staged

SlotAreas = Mapping[tuple[str, int], Sequence[Area]]  # by role and memory: of each slot of the ring


class Stage(NamedTuple):
    """A layer, the units that its works may go to, and its rings with where their slots lie."""

    layer: Layer
    units: Sequence[Unit]
    rings: Mapping[tuple[str, int], tuple[Ring, Sequence[Area]]]

    @classmethod
    def of(cls, layer: Layer, slots: Sequence[Slot], units: Sequence[Unit], areas: SlotAreas | None) -> Stage:
        """areas: of the slots; None: at no address."""
        areas = areas or {(s.role, s.space): [Area(s.space, 0, 0, []) for _ in range(s.copies)] for s in slots}
        return cls(layer, units, {key: (ring, areas[key]) for key, ring in rings(slots).items()})


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
