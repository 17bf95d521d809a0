"""The tree of a planned region: what `schedule.bind_region` makes the same plan of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from toolchain.errors import InternalError, format_count
from toolchain.hw.chip import Chip
from toolchain.ops.kit.loops import LoopOrder
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import TileTask, Tiling
from toolchain.schedule.nodes import (
    ALL,
    CHANNELS,
    COLUMNS,
    ROLES,
    ROWS,
    Alloc,
    Call,
    LayerTree,
    Loop,
    OperandBuffer,
    Prefetch,
    Seq,
    Tensor,
    Tree,
    region_body,
)
from toolchain.schedule.plan import Cascade, RegionPlan
from toolchain.schedule.sampling import flatten_tiles
from toolchain.schedule.stripes import group_calls
from toolchain.schedule.text import quote_name
from toolchain.schedule.tile_buffers import LayerPlan, PlannedLayer, PrefetchPart, Slot
from toolchain.schedule.views import is_inline

_ADDRESSES = 4  # of slots that are told of one ring
_TOLD = 64  # works of a layer that are looked at for what passes through its rings


def plan_to_tree(plan: RegionPlan, chip: Chip) -> Tree:
    """A region's body. Its notes are the figures of the plan: cycles, bytes, addresses."""
    parts = [_turns(run, plan, chip) if isinstance(run, Cascade) else _layer(run, plan, chip).tree() for run in plan.runs]
    return region_body(tuple(_tensors(plan)), tuple(parts))


def region_note(plan: RegionPlan, chip: Chip) -> str:
    """Its cycles, and the peak of each memory."""
    peaks = (
        f"{chip.spaces[space].name} peak {found.peak_bytes:,} of {chip.spaces[space].memory.size:,} bytes, bound "
        f"{found.bound_bytes:,}{'' if found.proved else ', not proved'}"
        for space, found in sorted(plan.placements.items())
    )
    return "; ".join((f"{plan.cycles:,} cycles expected", *peaks))


def _tensors(plan: RegionPlan) -> Iterator[Alloc]:
    """In the order in which layers touch them."""
    lives: dict[str, list[int]] = {}
    for step, planned in enumerate(plan.layers):
        for name in (*planned.layer.activations, *planned.layer.node.outputs):
            lives.setdefault(plan.views[name].root, []).append(step)
    spilled = {s.name: s for s in plan.spilled}
    for root, steps in lives.items():
        live = f"layers {steps[0]} to {steps[-1]}"
        if root in plan.resident:
            view, shape = plan.views[root], plan.layers[steps[0]].layer.types[root].shape
            held = f"{view.rows} of {shape[1]} rows, " if view.rows else ""
            held += f"{view.columns} of {shape[2]} columns, " if view.columns else ""
            note = f"{held}{format_count(view.stored_bytes(shape), 'byte')} at {plan.root(root).address}, {live}"
            yield Alloc(Tensor(root, view.rows), "sram", Seq(()), note=note)
        elif root in spilled:
            yield Alloc(Tensor(root), "dram", Seq(()), note=f"{format_count(spilled[root].size_bytes, 'byte')}, {live}")


def _turns(cascade: Cascade, plan: RegionPlan, chip: Chip) -> Loop:
    layers = cascade.layers
    last = plan.layers[layers.stop - 1].layer
    height = last.output.shape[1]
    step = group_calls(cascade.stripes)[layers.stop - 1][0].extent.rows[1]
    inside: dict[int, dict[str, set[object]]] = {}
    for index, works in flatten_tiles(cascade.visited):
        for work in works:
            for number, block in enumerate(work.blocks):
                inside.setdefault(index, {}).setdefault(f"b{number}", set()).add(block.key)
    parts = [_layer(i, plan, chip, {r: len(k) for r, k in inside.get(i, {}).items()}).tree() for i in layers]
    note = f"{_steps(step, height)} of {quote_name(last.node.name)}, layers {layers.start} to {layers.stop - 1} in turns"
    rows, sweep = Loop(ROWS, step, Seq(tuple(parts)), note), cascade.stripes.sweep
    if sweep.columns:
        return Loop(COLUMNS, sweep.columns, rows, _steps(sweep.columns, last.output.shape[2]))
    return Loop(CHANNELS, sweep.channels, rows, _steps(sweep.channels, last.output.shape[3])) if sweep.channels else rows


def _layer(step: int, plan: RegionPlan, chip: Chip, things: Mapping[str, int] | None = None) -> LayerTree:
    """things: that pass through each ring of constants, of a layer in turns."""
    planned = plan.layers[step]
    layer, name = planned.layer, planned.layer.node.name
    kind = f"{step}: {type(layer.node.op).__name__}"
    if planned.plan is None:
        inline = is_inline(layer.node, plan.views)
        return LayerTree((), (), Call(name, inline=inline, note=f"{kind}, {'read where it lies' if inline else 'moved by DMA'}"))
    own = planned.plan
    order = order_of(layer, own.tiling)
    works = list(islice(layer.tiled.nest(layer, own.tiling).works(), _TOLD))
    rings = [_ring(slot, step, plan, chip, works, things or {}) for slot in own.slots]
    rings += [_ahead(part, step, plan) for part in own.ahead]
    steps = order.steps(own.tiling) or {}
    loops = [Loop(a.name, steps[a.name], Seq(()), _steps(steps[a.name], a.size)) for a in order.axes if steps[a.name] < a.size]
    cycles = f", {own.cycles:,} cycles alone" if own.cycles else ""
    return LayerTree(tuple(rings), tuple(loops), _call(planned, own, f"{kind}, {format_count(own.works, 'tile')}{cycles}"))


def order_of(layer: Layer, tiling: Tiling) -> LoopOrder:
    """The first in which the tiling is. Raises InternalError: an operator that lacks the loops of its own tilings."""
    found = next((o for o in layer.tiled.loop_orders(layer) if o.steps(tiling) is not None), None)
    if found is None:
        raise InternalError(f"{layer.node.name}: no order of its loops has {tiling}")
    return found


def _steps(step: int, size: int) -> str:
    count, left = -(-size // step), size % step
    return f"{format_count(count, 'step')}{f', the last of {left}' if left else ''}"


def _ring(slot: Slot, step: int, plan: RegionPlan, chip: Chip, works: Sequence[TileTask], things: Mapping[str, int]) -> Alloc:
    every = len(set(slot.sizes)) > 1 or 1 < slot.copies == things.get(slot.role)
    at = ", ".join(str(plan.slot(step, slot.role, slot.space, i).address) for i in range(min(slot.copies, _ADDRESSES)))
    at += ", ..." if slot.copies > _ADDRESSES else ""
    sizes = f"{slot.copies} x {slot.sizes[0]:,}" if len(set(slot.sizes)) == 1 else f"{sum(slot.sizes):,}"
    note = f"{_operand(slot.role, works)}: {sizes} bytes at {at}"
    return Alloc(ring_of(slot.role), chip.spaces[slot.space].name, Seq(()), ALL if every else slot.copies, note)


def _ahead(part: PrefetchPart, step: int, plan: RegionPlan) -> Alloc:
    note = f"constants: {format_count(part.size_bytes, 'byte')} at {plan.part(step, part).address}"
    return Alloc(Prefetch(len(part.blocks), plan.layers[part.since].layer.node.name), "", Seq(()), note=note)


def _operand(role: str, works: Sequence[TileTask]) -> str:
    """What passes through a ring, as a person is told."""
    if role == "w":
        return "what is stored"
    number = int(role[1:])
    for work in works:
        if role[0] == "r" and number < len(work.reads):
            return quote_name(work.reads[number].tensor)
        if role[0] == "b" and number < len(work.blocks):
            return work.blocks[number].role
    return "of later tiles"


def ring_of(role: str) -> OperandBuffer:
    """By how plans name it: r0, r1, ... for reads, b0, b1, ... for constants, w for the output."""
    return OperandBuffer(ROLES[role[0]], int(role[1:] or 0))


def _call(planned: PlannedLayer, own: LayerPlan, note: str) -> Call:
    units, tiling = own.units, own.tiling
    names = tuple(unit.name for unit in units)
    if units[0].kind != "mac_array":
        return Call(planned.layer.node.name, names, note=note)
    array = units[0].array
    flow = array.dataflows[tiling.dataflow] if tiling.dataflow or len(array.dataflows) > 1 else ""
    mode = array.depthwise_modes[tiling.mode] if tiling.mode else ""
    return Call(planned.layer.node.name, names, flow, mode, note=note)
