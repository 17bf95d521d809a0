"""Choose constants that are loaded once and stay on chip, of those that several layers read.

An example are the weights of a recurrent layer's steps. `codegen.link` asks before it lowers the plan. Memory above
everything that the plan placed is given to such blocks, as far as there is room. Blocks that most layers read come
first. Lowering loads each when it is first needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

from toolchain.memory import Placement
from toolchain.ops.kit.tile import ConstantBlock, round_up
from toolchain.schedule.layer_constants import find_shared_constants
from toolchain.schedule.plan import PlannedRegion, TiledLayer

BlockUse = tuple[int, Hashable, int]  # by layer, the key of a block and a memory


@dataclass(frozen=True)
class HoistedConstants:
    """The chosen blocks and the placements that hold them.

    `places`: on-chip address of each (layer index, key of the block, memory). `placements`: the plan's placements by
    memory, their peaks raised by these blocks.
    """

    places: Mapping[BlockUse, int]
    placements: Mapping[int, Placement]


def hoist_constants(plan: PlannedRegion) -> HoistedConstants:
    """Choose addresses for constants that several layers read, within the sizes of the plan's memories.

    Layers of cascades and layers with prefetched constants take no part. Equal bytes are one block, whatever their
    keys. The plan is not changed; an empty choice is possible.
    """
    if not plan.layers:
        return HoistedConstants({}, plan.placements)
    spaces = plan.layers[0].layer.chip.spaces
    uses_by_block: dict[tuple[int, bytes], list[tuple[int, ConstantBlock]]] = {}
    for index, tiled in _list_repeatable_layers(plan):
        for block, space in _blocks(tiled):
            uses_by_block.setdefault((space, hashlib.sha256(block.data()).digest()), []).append((index, block))
    places: dict[BlockUse, int] = {}
    ends = {space: placement.peak_bytes for space, placement in plan.placements.items()}
    shared = {key: uses for key, uses in uses_by_block.items() if len({index for index, _ in uses}) > 1}
    for (space, _), uses in sorted(shared.items(), key=lambda item: (-len(item[1]), item[0])):
        memory = spaces[space].memory
        start = round_up(ends.get(space, 0), memory.alignment_bytes)
        end = start + uses[0][1].size_bytes
        if end <= memory.size:
            places |= {(index, block.key, space): start for index, block in uses}
            ends[space] = end
    placements = {s: replace(p, peak_bytes=max(p.peak_bytes, ends[s])) for s, p in plan.placements.items()}
    return HoistedConstants(places, placements)


def _list_repeatable_layers(plan: PlannedRegion) -> list[tuple[int, TiledLayer]]:
    """Return the tiled layers, with their indices, that share constants with another layer."""
    layers = ((run, plan.layers[run]) for run in plan.runs if isinstance(run, int))
    tiled = {i: layer for i, layer in layers if isinstance(layer, TiledLayer) and not layer.fetches}
    return [(i, tiled[i]) for i in sorted(find_shared_constants((i, layer.layer) for i, layer in tiled.items()))]


def _blocks(tiled: TiledLayer) -> Iterator[tuple[ConstantBlock, int]]:
    """Yield each constant block of a layer with each memory that its units read it from, once."""
    units = tiled.assigned or tiled.units
    seen_blocks: set[tuple[Hashable, int]] = set()
    for task in tiled.tasks():
        for block in task.blocks:
            for space in {unit.roles[block.role] for unit in units}:
                if (block.key, space) not in seen_blocks:
                    seen_blocks.add((block.key, space))
                    yield block, space
