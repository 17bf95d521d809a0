"""Add notes to the schedule of a plan, for people: cycles, bytes, addresses, and how often loops run
(`--dump-schedule`).

Input is a plan (`schedule.plan`), output a tree for `schedule.text`; the plan is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from toolchain.errors import format_count
from toolchain.hw.chip import Chip
from toolchain.ops.kit.tile import TileTask
from toolchain.schedule.nodes import CascadeTree, Fetch, LayerTree, Loop, OperandBuffer, RegionTree, Ring, TensorAlloc
from toolchain.schedule.plan import PlannedCascade, PlannedRegion, TiledLayer
from toolchain.schedule.text import quote_name

_ADDRESSES = 4  # of slots that are told of one ring
_TILES = 64  # works of a layer that are looked at for what passes through its rings


def annotate_plan(plan: PlannedRegion, chip: Chip) -> RegionTree:
    """Return the schedule of a plan with notes on its nodes."""
    parts = tuple(_layer(run, plan) if isinstance(run, int) else _cascade(run, plan) for run in plan.runs)
    return RegionTree(plan.region, tuple(_tensors(plan)), parts, note=_region_note(plan, chip))


def _region_note(plan: PlannedRegion, chip: Chip) -> str:
    """Return the region's expected cycles, and the peak and lower bound of each memory."""
    peaks = (
        f"{chip.spaces[space].name} peak {placement.peak_bytes:,} of {chip.spaces[space].memory.size:,} bytes, bound "
        f"{placement.bound_bytes:,}{'' if placement.proved else ', not proved'}"
        for space, placement in sorted(plan.placements.items())
    )
    return "; ".join((f"{plan.cycles:,} cycles expected", *peaks))


def _tensors(plan: PlannedRegion) -> Iterator[TensorAlloc]:
    """Yield each tensor with its bytes, address and the layers in which it is live."""
    for alloc in plan.tensors:
        root, storage = alloc.buffer.name, alloc.storage
        note = format_count(storage.size_bytes, "byte")
        if alloc.memory == "sram":
            view, shape = plan.views[root], plan.layers[storage.start].layer.types[root].shape
            stored = f"{view.rows} of {shape[1]} rows, " if view.rows else ""
            stored += f"{view.columns} of {shape[2]} columns, " if view.columns else ""
            note = f"{stored}{format_count(view.count_stored_bytes(shape), 'byte')} at {plan.root(root).address}"
        yield TensorAlloc(alloc.buffer, alloc.memory, note=f"{note}, layers {storage.start} to {storage.end - 1}")


def _cascade(cascade: PlannedCascade, plan: PlannedRegion) -> CascadeTree:
    """Return the cascade with notes on its loops and layers."""
    *blocks, rows = _loops(cascade.loops)
    first, *_, last = cascade.indices
    note = f"{rows.note} of {quote_name(cascade.layers[-1].name)}, layers {first} to {last} in turns"
    return CascadeTree((*blocks, replace(rows, note=note)), tuple(_layer(i, plan) for i in cascade.indices))


def _layer(index: int, plan: PlannedRegion) -> LayerTree:
    """Return the layer with a note: index, operator, and tiles with cycles or how data moves."""
    planned = plan.layers[index]
    kind = f"{index}: {type(planned.layer.node.op).__name__}"
    if not isinstance(planned, TiledLayer):
        note = f"{kind}, {'read where it lies' if planned.call.inline else 'moved by DMA'}"
        return LayerTree(replace(planned.call, note=note))
    tiles = list(islice(planned.tasks(), _TILES))
    cycles = f", {planned.cycles:,} cycles alone" if planned.cycles else ""
    call = replace(planned.call, note=f"{kind}, {format_count(planned.tile_count, 'tile')}{cycles}")
    rings = tuple(_ring(ring, index, plan, tiles) for ring in planned.rings)
    return LayerTree(call, _loops(planned.loops), rings, tuple(_fetch(fetch, index, plan) for fetch in planned.fetches))


def _loops(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Return the loops, each with the number of its steps as note."""
    return tuple(replace(loop, note=_steps(loop.step, loop.size)) for loop in loops)


def _steps(step: int, size: int) -> str:
    count, rest = -(-size // step), size % step
    return f"{format_count(count, 'step')}{f', the last of {rest}' if rest else ''}"


def _ring(ring: Ring, index: int, plan: PlannedRegion, tiles: Sequence[TileTask]) -> Ring:
    """Return the tile buffer with a note of its bytes and addresses."""
    at = ", ".join(str(plan.slot(index, ring.key, ring.space, i).address) for i in range(min(ring.copies, _ADDRESSES)))
    at += ", ..." if ring.copies > _ADDRESSES else ""
    sizes = f"{ring.copies} x {ring.sizes[0]:,}" if len(set(ring.sizes)) == 1 else f"{sum(ring.sizes):,}"
    return replace(ring, note=f"{_operand(ring.buffer, tiles)}: {sizes} bytes at {at}")


def _fetch(fetch: Fetch, index: int, plan: PlannedRegion) -> Fetch:
    """Return the prefetch with a note of its bytes and address."""
    return replace(fetch, note=f"constants: {format_count(fetch.size_bytes, 'byte')} at {plan.part(index, fetch).address}")


def _operand(buffer: OperandBuffer, tiles: Sequence[TileTask]) -> str:
    """Return what passes through a tile buffer, in words."""
    if buffer.role == "output":
        return "what is stored"
    for tile in tiles:
        if buffer.role == "input" and buffer.number < len(tile.reads):
            return quote_name(tile.reads[buffer.number].tensor)
        if buffer.role == "constant" and buffer.number < len(tile.blocks):
            return tile.blocks[buffer.number].role
    return "of later tiles"
