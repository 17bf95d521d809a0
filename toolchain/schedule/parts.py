"""A layer's constants as parts that other layers fetch for it (`staging.Part`)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from toolchain.hw.units import Unit
from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Block, Tiling, aligned
from toolchain.schedule.staging import Part


class Constants(NamedTuple):
    """In the order of their first use, each with the work that uses it first; the memory in which units read them."""

    blocks: Mapping[Block, int]
    space: int


def constants_of(layer: Layer, tiling: Tiling, units: Sequence[Unit]) -> Constants | None:
    """None where units read some of them in one memory and some in another: they are not fetched ahead."""
    found: dict[Hashable, tuple[Block, int]] = {}
    for number, work in enumerate(layer.tiled.nest(layer, tiling).works()):
        for block in work.blocks:
            found.setdefault(block.key, (block, number))
    spaces = {unit.roles[block.role] for block, _ in found.values() for unit in units}
    return Constants(dict(found.values()), spaces.pop() if spaces else Space.SRAM) if len(spaces) < 2 else None


def parts_of(constants: Constants, cuts: Iterable[tuple[int, int]], pitch: int) -> tuple[Part, ...]:
    """cuts: how many of the constants, in order, and behind the loads of which layer they are fetched; all of them, or only the
    first. pitch: bytes of which each begins at a multiple."""
    left = iter(constants.blocks.items())
    found: list[Part] = []
    for count, since in cuts:
        places: dict[Hashable, int] = {}
        needed: dict[int, int] = {}
        end = 0
        own = list(islice(left, count))
        for block, work in own:
            places[block.key] = aligned(end, pitch)
            needed[work] = end = places[block.key] + block.size_bytes
        found.append(Part(f"c{len(found)}", tuple(b for b, _ in own), places, needed, end, since, constants.space))
    return tuple(found)
