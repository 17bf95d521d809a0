"""The tree of a planned region: what `schedule.bind_region` makes the same plan of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from toolchain.errors import InternalError, format_count
from toolchain.hw.chip import Chip
from toolchain.ops.kit.loops import LoopOrder
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import TileTask, Tiling
from toolchain.schedule.nodes import (
    CHANNELS,
    COLUMNS,
    ROWS,
    Call,
    CascadeTree,
    Fetch,
    LayerTree,
    Loop,
    OperandBuffer,
    RegionTree,
    Ring,
    Tensor,
    TensorAlloc,
)
from toolchain.schedule.plan import Cascade, RegionPlan
from toolchain.schedule.stripes import group_calls
from toolchain.schedule.text import quote_name
from toolchain.schedule.tile_buffers import LayerPlan, PlannedLayer
from toolchain.schedule.views import is_inline

_ADDRESSES = 4  # of slots that are told of one ring
_TILES = 64  # works of a layer that are looked at for what passes through its rings


def plan_to_tree(plan: RegionPlan, chip: Chip) -> RegionTree:
    """The region's schedule. Its notes are the figures of the plan: cycles, bytes, addresses."""
    parts = tuple(_cascade(run, plan) if isinstance(run, Cascade) else _layer(run, plan) for run in plan.runs)
    return RegionTree(0, tuple(_tensors(plan)), parts, note=_region_note(plan, chip))


def _region_note(plan: RegionPlan, chip: Chip) -> str:
    """The region's expected cycles, and the peak of each memory."""
    peaks = (
        f"{chip.spaces[space].name} peak {placement.peak_bytes:,} of {chip.spaces[space].memory.size:,} bytes, bound "
        f"{placement.bound_bytes:,}{'' if placement.proved else ', not proved'}"
        for space, placement in sorted(plan.placements.items())
    )
    return "; ".join((f"{plan.cycles:,} cycles expected", *peaks))


def _tensors(plan: RegionPlan) -> Iterator[TensorAlloc]:
    """The allocations of tensors in the order in which layers touch them."""
    lives: dict[str, list[int]] = {}
    for step, planned in enumerate(plan.layers):
        for name in (*planned.layer.activations, *planned.layer.node.outputs):
            lives.setdefault(plan.views[name].root, []).append(step)
    spilled = {s.name: s for s in plan.spilled}
    for root, steps in lives.items():
        live = f"layers {steps[0]} to {steps[-1]}"
        if root in plan.resident:
            view, shape = plan.views[root], plan.layers[steps[0]].layer.types[root].shape
            stored = f"{view.rows} of {shape[1]} rows, " if view.rows else ""
            stored += f"{view.columns} of {shape[2]} columns, " if view.columns else ""
            note = f"{stored}{format_count(view.stored_bytes(shape), 'byte')} at {plan.root(root).address}, {live}"
            yield TensorAlloc(Tensor(root, view.rows), "sram", note=note)
        elif root in spilled:
            yield TensorAlloc(Tensor(root), "dram", note=f"{format_count(spilled[root].size_bytes, 'byte')}, {live}")


def _cascade(cascade: Cascade, plan: RegionPlan) -> CascadeTree:
    layers = cascade.layers
    last = plan.layers[layers.stop - 1].layer
    height = last.output.shape[1]
    step = group_calls(cascade.stripes)[layers.stop - 1][0].extent.rows[1]
    note = f"{_steps(step, height)} of {quote_name(last.node.name)}, layers {layers.start} to {layers.stop - 1} in turns"
    blocks = zip((COLUMNS, CHANNELS), (cascade.stripes.sweep.columns, cascade.stripes.sweep.channels), last.output.shape[2:])
    loops = [Loop(axis, block, _steps(block, size)) for axis, block, size in blocks if block]
    return CascadeTree((*loops, Loop(ROWS, step, note)), tuple(_layer(i, plan) for i in layers))


def _layer(step: int, plan: RegionPlan) -> LayerTree:
    planned = plan.layers[step]
    layer, name = planned.layer, planned.layer.node.name
    kind = f"{step}: {type(layer.node.op).__name__}"
    if planned.plan is None:
        inline = is_inline(layer.node, plan.views)
        return LayerTree(Call(name, inline=inline, note=f"{kind}, {'read where it lies' if inline else 'moved by DMA'}"))
    tiled = planned.plan
    order = order_of(layer, tiled.tiling)
    tiles = list(islice(layer.tiled.nest(layer, tiled.tiling).iterate_tasks(), _TILES))
    rings = tuple(_ring(ring, step, plan, tiles) for ring in tiled.rings)
    fetches = tuple(_fetch(fetch, step, plan) for fetch in tiled.fetches)
    steps = order.steps(tiled.tiling) or {}
    loops = [Loop(a.name, steps[a.name], _steps(steps[a.name], a.size)) for a in order.axes if steps[a.name] < a.size]
    cycles = f", {tiled.cycles:,} cycles alone" if tiled.cycles else ""
    call = _call(planned, tiled, f"{kind}, {format_count(tiled.works, 'tile')}{cycles}")
    return LayerTree(call, tuple(loops), rings, fetches)


def order_of(layer: Layer, tiling: Tiling) -> LoopOrder:
    """The first in which the tiling is. Raises InternalError: an operator that lacks the loops of its own tilings."""
    order = next((o for o in layer.tiled.loop_orders(layer) if o.steps(tiling) is not None), None)
    if order is None:
        raise InternalError(f"{layer.node.name}: no order of its loops has {tiling}")
    return order


def _steps(step: int, size: int) -> str:
    count, rest = -(-size // step), size % step
    return f"{format_count(count, 'step')}{f', the last of {rest}' if rest else ''}"


def _ring(ring: Ring, step: int, plan: RegionPlan, tiles: Sequence[TileTask]) -> Ring:
    """The ring with a note of its bytes and addresses."""
    at = ", ".join(str(plan.slot(step, ring.key, ring.space, i).address) for i in range(min(ring.copies, _ADDRESSES)))
    at += ", ..." if ring.copies > _ADDRESSES else ""
    sizes = f"{ring.copies} x {ring.sizes[0]:,}" if len(set(ring.sizes)) == 1 else f"{sum(ring.sizes):,}"
    return replace(ring, note=f"{_operand(ring.buffer, tiles)}: {sizes} bytes at {at}")


def _fetch(fetch: Fetch, step: int, plan: RegionPlan) -> Fetch:
    """The fetch with a note of its bytes and address."""
    return replace(fetch, note=f"constants: {format_count(fetch.size_bytes, 'byte')} at {plan.part(step, fetch).address}")


def _operand(buffer: OperandBuffer, tiles: Sequence[TileTask]) -> str:
    """The operand whose tiles pass through a ring, in words."""
    if buffer.role == "output":
        return "what is stored"
    for tile in tiles:
        if buffer.role == "input" and buffer.number < len(tile.reads):
            return quote_name(tile.reads[buffer.number].tensor)
        if buffer.role == "constant" and buffer.number < len(tile.blocks):
            return tile.blocks[buffer.number].role
    return "of later tiles"


def _call(planned: PlannedLayer, tiled: LayerPlan, note: str) -> Call:
    units, tiling = tiled.units, tiled.tiling
    names = tuple(unit.name for unit in units)
    if units[0].kind != "mac_array":
        return Call(planned.layer.node.name, names, note=note)
    array = units[0].array
    flow = array.dataflows[tiling.dataflow] if tiling.dataflow or len(array.dataflows) > 1 else ""
    mode = array.depthwise_modes[tiling.mode] if tiling.mode else ""
    return Call(planned.layer.node.name, names, flow, mode, note=note)
