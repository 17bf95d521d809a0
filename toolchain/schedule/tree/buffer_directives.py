"""The rings that a schedule gives a layer, held against what passes through them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from quant.suggestion import suggestion
from toolchain.hw.unit_map import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, TileTask
from toolchain.schedule.tile_buffers import Slot
from toolchain.schedule.tile_pipeline import passing
from toolchain.schedule.tree.layer_directives import LayerDirective
from toolchain.schedule.tree.nodes import ALL, Alloc, LayerTree, OperandBuffer
from toolchain.schedule.tree.plan_to_tree import ring_of
from toolchain.schedule.tree.schedule_faults import Faults
from toolchain.schedule.tree.text import quote_name, ring_name


def ring_slots(
    asked: LayerDirective,
    known: Sequence[Slot],
    works: Iterator[TileTask],
    resident: Collection[str],
    faults: Faults,
    units: Sequence[Unit],
) -> tuple[Slot, ...] | None:
    """known: the rings that it has, with slots for where nothing is said. works: all that run, asked for only where every thing
    has a slot of its own."""
    spaces = {space.name: code for code, space in enumerate(asked.layer.chip.spaces)}
    said: dict[tuple[OperandBuffer, int], Alloc] = {}
    found = {(ring_of(slot.role), slot.space): slot for slot in known}
    wrong = False
    for ring in list_buffers(asked.said):
        assert isinstance(ring.buffer, OperandBuffer)
        key = ring.buffer, spaces.get(ring.memory, -1)
        fault = None
        if ring.memory not in spaces:
            fault = f"there is no memory {ring.memory}{suggestion(ring.memory, spaces)}"
        elif key in said:
            fault = "stands there twice"
        elif key not in found:
            fault = _no_ring(asked, ring.buffer, ring.memory, found, resident)
        if fault is not None:
            faults.of(asked.layer, ring.line, f"ring {ring_name(ring.buffer)}: {fault}")
            wrong = True
        said[key] = ring
    if wrong:
        return None
    things = _things(asked.layer, units, works, resident) if any(ring.slots == ALL for ring in said.values()) else {}
    slots: list[Slot] = []
    for key, slot in found.items():
        ring = said.get(key)
        if ring is None:
            slots.append(slot)
        elif ring.slots == ALL:
            sizes = tuple(things.get((slot.role, slot.space), {0: max(slot.sizes)}).values())
            # Of several units each may take any of the things first.
            slots.append(replace(slot, sizes=sizes if len(units) == 1 else (max(sizes),) * len(sizes)))
        else:
            slots.append(replace(slot, sizes=(max(slot.sizes),) * int(ring.slots)))
    return tuple(slots)


def list_buffers(said: LayerTree) -> tuple[Alloc, ...]:
    """Of a layer's allocations those of rings."""
    return tuple(ring for ring in said.rings if isinstance(ring.buffer, OperandBuffer))


def _no_ring(
    asked: LayerDirective,
    ring: OperandBuffer,
    memory: str,
    found: Mapping[tuple[OperandBuffer, int], Slot],
    resident: Collection[str],
) -> str:
    """Why it is none of the layer's."""
    elsewhere = [asked.layer.chip.spaces[space].name for own, space in found if own == ring]
    if elsewhere:
        return f"lies in {', '.join(elsewhere)}, where {', '.join(u.name for u in asked.units)} reads it, and not in {memory}"
    reads = next(asked.layer.tiled.nest(asked.layer, asked.tiling).works()).reads
    if ring.role == "input" and ring.number < len(reads) and reads[ring.number].tensor in resident:
        return f"{quote_name(reads[ring.number].tensor)} lies in sram and is read there; leave out the ring or that alloc"
    if ring.role == "output" and asked.layer.node.outputs[0] in resident:
        return f"{quote_name(asked.layer.node.outputs[0])} lies in sram and is written there; leave out the ring or that alloc"
    names = ", ".join(dict.fromkeys(ring_name(own) for own, _ in found))
    return f"nothing passes through it; the layer has {f'rings of {names}' if names else 'no rings'}"


def _things(
    layer: Layer, units: Sequence[Unit], works: Iterator[TileTask], resident: Collection[str]
) -> dict[tuple[str, int], dict[Hashable, int]]:
    """What passes through each ring, in order, with its bytes: of units with rings of their own, all through each."""
    found: dict[tuple[str, int], dict[Hashable, int]] = {}
    for work in works:
        for unit in units:
            for role, item, key, space in passing(work, unit, resident):
                size = layer.box_bytes(item) if isinstance(item, Box) else item.size_bytes
                found.setdefault((role, space), {}).setdefault(key, size)
            if work.write is not None and work.write.tensor not in resident:
                ring = found.setdefault(("w", unit.roles["output"]), {})
                ring.setdefault(work.write, layer.box_bytes(work.write))
    return found
