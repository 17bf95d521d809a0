"""Constants that several layers of a program read, as the steps of a recurrent layer do: brought once, where there is room.

What rings leave free of a memory, above all that is placed there, goes to the blocks that would be brought again and again, those
first that save most bytes for their size. Each is brought when it is first needed and stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from toolchain.memory import Placement
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Block, aligned
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.staging import PlannedLayer

Needed = tuple[int, Hashable, int]  # by layer, the key of a block and a memory


@dataclass(frozen=True)
class Kept:
    """places: of blocks, their addresses; placements: the plan's, with these."""

    places: Mapping[Needed, int]
    placements: Mapping[int, Placement]


def kept_constants(plan: RegionPlan) -> Kept:
    """Of layers that run by themselves; what is fetched ahead stays as it is. Within the memories that the plan was made for."""
    if not plan.layers:
        return Kept({}, plan.placements)
    spaces = plan.layers[0].layer.chip.spaces
    found: dict[tuple[int, bytes], list[tuple[int, Block]]] = {}
    for index in _alike(plan):
        for block, space in _blocks(plan.layers[index]):
            found.setdefault((space, hashlib.sha256(block.data()).digest()), []).append((index, block))
    places: dict[Needed, int] = {}
    ends = {space: placement.peak_bytes for space, placement in plan.placements.items()}
    shared = {key: uses for key, uses in found.items() if len({index for index, _ in uses}) > 1}
    for (space, _), uses in sorted(shared.items(), key=lambda item: (-len(item[1]), item[0])):
        memory = spaces[space].memory
        start = aligned(ends.get(space, 0), memory.alignment_bytes)
        end = start + uses[0][1].size_bytes
        if end <= memory.size:
            places |= {(index, block.key, space): start for index, block in uses}
            ends[space] = end
    placements = {s: replace(p, peak_bytes=max(p.peak_bytes, ends[s])) for s, p in plan.placements.items()}
    return Kept(places, placements)


def _alike(plan: RegionPlan) -> list[int]:
    """Layers whose constants others have as well."""
    inside = {i for c in plan.cascades for i in c.layers}
    groups: dict[bytes, list[int]] = {}
    for index, planned in enumerate(plan.layers):
        if planned.plan is not None and not planned.plan.ahead and index not in inside:
            groups.setdefault(_fingerprint(planned.layer), []).append(index)
    return sorted(index for group in groups.values() if len(group) > 1 for index in group)


def _fingerprint(layer: Layer) -> bytes:
    """Equal where the operator and its constants are."""
    digest = hashlib.sha256()
    constants = [layer.constants[n] for n in layer.node.inputs if n in layer.constants]
    for part in _parts((layer.node.op, constants)):
        digest.update(part)
    return digest.digest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _parts(one)
    else:
        yield repr(value).encode() + b";"


def _blocks(planned: PlannedLayer) -> Iterator[tuple[Block, int]]:
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
