"""Load constants that several layers read, like the steps of a recurrent layer, only once where there is room.

Memory left free by rings, above everything placed there, goes to blocks that would be loaded repeatedly.
Blocks that save most bytes for their size come first. Each is loaded when it is first needed and stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from toolchain.memory import Placement
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import round_up
from toolchain.schedule.layer_constants import find_shared_constants
from toolchain.schedule.plan import PlannedRegion, TiledLayer


class HoistedBlock(NamedTuple):
    """The place of a hoisted block in its memory, and the index of the first layer that uses it."""

    address: int
    size_bytes: int
    first: int


HoistedBlocks = Mapping[tuple[Hashable, int], HoistedBlock]  # of one layer, by the key of a block and its memory


@dataclass(frozen=True)
class HoistedConstants:
    """A choice of hoisted constants.

    `by_layer`: by the index of a layer that uses some, their places by (key of the block, number of the memory).
    `ends`: by number of a memory, the byte behind the last that the plan and these blocks use.
    """

    by_layer: Mapping[int, HoistedBlocks] = field(default_factory=dict[int, HoistedBlocks])
    ends: Mapping[int, int] = field(default_factory=dict[int, int])

    def extend(self, placements: Mapping[int, Placement]) -> dict[int, Placement]:
        """Return the placements of a plan, by memory, with peaks that include these blocks."""
        return {s: replace(p, peak_bytes=max(p.peak_bytes, self.ends.get(s, 0))) for s, p in placements.items()}


NOT_HOISTED = HoistedConstants()


class _SharedBlock(NamedTuple):
    """A block of a layer in a memory in which a unit reads it; `content` is the digest of its bytes."""

    key: Hashable
    space: int
    size_bytes: int
    content: bytes


class ConstantHoister:
    """Hoists constants in plans of one region. Blocks are compared by content, once for each tiling of a layer."""

    def __init__(self, layers: Sequence[Layer]):
        self._layers = layers
        self._blocks: dict[Hashable, tuple[_SharedBlock, ...]] = {}

    @cached_property
    def shared(self) -> frozenset[int]:
        """Return the indices of layers whose constants others have as well."""
        return find_shared_constants(enumerate(self._layers))

    def hoist(self, plan: PlannedRegion) -> HoistedConstants:
        """Return places for constants of layers outside cascades, above all that the plan has placed.

        A block has a place where two layers use it and its memory has room. Layers with prefetches take no part.
        NOT_HOISTED comes back where no block has a place. The plan stays as it is.
        """
        if not self.shared:
            return NOT_HOISTED
        uses_by_block: dict[tuple[int, bytes], list[tuple[int, _SharedBlock]]] = {}
        for run in plan.runs:
            planned = plan.layers[run] if isinstance(run, int) and run in self.shared else None
            if isinstance(run, int) and isinstance(planned, TiledLayer) and not planned.fetches:
                for block in self._list_blocks(planned):
                    uses_by_block.setdefault((block.space, block.content), []).append((run, block))
        by_layer: dict[int, dict[tuple[Hashable, int], HoistedBlock]] = {}
        ends = {space: placement.peak_bytes for space, placement in plan.placements.items()}
        shared = {key: uses for key, uses in uses_by_block.items() if len({index for index, _ in uses}) > 1}
        for (space, _), uses in sorted(shared.items(), key=lambda item: (-len(item[1]), item[0])):
            memory = self._layers[0].chip.spaces[space].memory
            place = HoistedBlock(round_up(ends.get(space, 0), memory.alignment_bytes), uses[0][1].size_bytes, uses[0][0])
            if place.address + place.size_bytes <= memory.size:
                for index, block in uses:
                    by_layer.setdefault(index, {})[block.key, space] = place
                ends[space] = place.address + place.size_bytes
        return HoistedConstants(by_layer, ends) if by_layer else NOT_HOISTED

    def _list_blocks(self, tiled: TiledLayer) -> tuple[_SharedBlock, ...]:
        """Return each block of a layer once for each memory in which a unit has it."""
        units = tiled.assigned or tiled.units
        variant = tiled.name, tiled.tiling, frozenset(units)
        if variant not in self._blocks:
            blocks = {block.key: block for task in tiled.tasks() for block in task.blocks}
            self._blocks[variant] = tuple(
                _SharedBlock(key, space, block.size_bytes, hashlib.sha256(block.data()).digest())
                for key, block in blocks.items()
                for space in sorted({unit.roles[block.role] for unit in units})
            )
        return self._blocks[variant]
