"""Constants that several layers of a program read, as the steps of a recurrent layer do: brought once, where there is room.

What rings leave free of a memory, above all that is placed there, goes to the blocks that would be brought again and again, those
first that save most bytes for their size. Each is brought when it is first needed and stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolchain.memory import Placement
from toolchain.ops.kit.tile import ConstantBlock, round_up
from toolchain.schedule.layer_constants import find_shared_constants
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.tile_buffers import PlannedLayer

Needed = tuple[int, Hashable, int]  # by layer, the key of a block and a memory


@dataclass(frozen=True)
class HoistedConstants:
    """places: of blocks, their addresses; placements: the plan's, with these."""

    places: Mapping[Needed, int]
    placements: Mapping[int, Placement]


def hoist_constants(plan: RegionPlan) -> HoistedConstants:
    """Of layers that run by themselves; what is fetched ahead stays as it is. Within the memories that the plan was made for."""
    if not plan.layers:
        return HoistedConstants({}, plan.placements)
    spaces = plan.layers[0].layer.chip.spaces
    found: dict[tuple[int, bytes], list[tuple[int, ConstantBlock]]] = {}
    for index in _alike(plan):
        for block, space in _blocks(plan.layers[index]):
            found.setdefault((space, hashlib.sha256(block.data()).digest()), []).append((index, block))
    places: dict[Needed, int] = {}
    ends = {space: placement.peak_bytes for space, placement in plan.placements.items()}
    shared = {key: uses for key, uses in found.items() if len({index for index, _ in uses}) > 1}
    for (space, _), uses in sorted(shared.items(), key=lambda item: (-len(item[1]), item[0])):
        memory = spaces[space].memory
        start = round_up(ends.get(space, 0), memory.alignment_bytes)
        end = start + uses[0][1].size_bytes
        if end <= memory.size:
            places |= {(index, block.key, space): start for index, block in uses}
            ends[space] = end
    placements = {s: replace(p, peak_bytes=max(p.peak_bytes, ends[s])) for s, p in plan.placements.items()}
    return HoistedConstants(places, placements)


def _alike(plan: RegionPlan) -> list[int]:
    """Layers whose constants others have as well."""
    inside = {i for c in plan.cascades for i in c.layers}
    layers = enumerate(plan.layers)
    return sorted(
        find_shared_constants((i, p.layer) for i, p in layers if p.plan is not None and not p.plan.fetches and i not in inside)
    )


def _blocks(planned: PlannedLayer) -> Iterator[tuple[ConstantBlock, int]]:
    """Each block of a layer once for each memory in which a unit has it."""
    assert planned.plan is not None
    units: Sequence[Any] = planned.units or planned.plan.units
    seen: set[tuple[Hashable, int]] = set()
    for work in planned.layer.tiled.nest(planned.layer, planned.plan.tiling).works():
        for block in work.blocks:
            for space in {unit.roles[block.role] for unit in units}:
                if (block.key, space) not in seen:
                    seen.add((block.key, space))
                    yield block, space
