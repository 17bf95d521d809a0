"""A layer's constants as parts that other layers fetch for it (`staging.Part`)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice

from toolchain.hw.units import Unit
from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Block, Tiling, aligned
from toolchain.schedule.staging import Part


def constants_of(layer: Layer, tiling: Tiling, units: Sequence[Unit]) -> Mapping[Block, int] | None:
    """In the order of their first use, each with the work that uses it first. None where a unit has some elsewhere than in SRAM:
    they are not fetched ahead."""
    found: dict[Hashable, tuple[Block, int]] = {}
    for number, work in enumerate(layer.tiled.nest(layer, tiling).works()):
        for block in work.blocks:
            found.setdefault(block.key, (block, number))
    if any(unit.roles[block.role] != Space.SRAM for block, _ in found.values() for unit in units):
        return None
    return dict(found.values())


def parts_of(constants: Mapping[Block, int], cuts: Iterable[tuple[int, int]], pitch: int) -> tuple[Part, ...]:
    """cuts: how many of the constants, in order, and behind the loads of which layer they are fetched. pitch: bytes of which each
    begins at a multiple."""
    left = iter(constants.items())
    found: list[Part] = []
    for count, since in cuts:
        places: dict[Hashable, int] = {}
        needed: dict[int, int] = {}
        end = 0
        own = list(islice(left, count))
        for block, work in own:
            places[block.key] = aligned(end, pitch)
            needed[work] = end = places[block.key] + block.size_bytes
        found.append(Part(f"c{len(found)}", tuple(b for b, _ in own), places, needed, end, since))
    return tuple(found)
