"""A layer's constants as parts that other layers fetch for it (`staging.Part`)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from toolchain.hw.unit_map import Unit
from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import ConstantBlock, Tiling, round_up
from toolchain.schedule.tile_buffers import PrefetchPart


class LayerConstants(NamedTuple):
    """In the order of their first use, each with the work that uses it first; the memory in which units read them."""

    blocks: Mapping[ConstantBlock, int]
    space: int


def collect_constants(layer: Layer, tiling: Tiling, units: Sequence[Unit]) -> LayerConstants | None:
    """None where units read some of them in one memory and some in another: they are not fetched ahead."""
    found: dict[Hashable, tuple[ConstantBlock, int]] = {}
    for number, work in enumerate(layer.tiled.nest(layer, tiling).works()):
        for block in work.blocks:
            found.setdefault(block.key, (block, number))
    spaces = {unit.roles[block.role] for block, _ in found.values() for unit in units}
    return LayerConstants(dict(found.values()), spaces.pop() if spaces else Space.SRAM) if len(spaces) < 2 else None


def split_constants(constants: LayerConstants, cuts: Iterable[tuple[int, int]], pitch: int) -> tuple[PrefetchPart, ...]:
    """cuts: how many of the constants, in order, and behind the loads of which layer they are fetched; all of them, or only the
    first. pitch: bytes of which each begins at a multiple."""
    left = iter(constants.blocks.items())
    found: list[PrefetchPart] = []
    for count, since in cuts:
        places: dict[Hashable, int] = {}
        needed: dict[int, int] = {}
        end = 0
        own = list(islice(left, count))
        for block, work in own:
            places[block.key] = round_up(end, pitch)
            needed[work] = end = places[block.key] + block.size_bytes
        found.append(PrefetchPart(f"c{len(found)}", tuple(b for b, _ in own), places, needed, end, since, constants.space))
    return tuple(found)
