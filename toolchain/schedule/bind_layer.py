"""Check the loops, units and tile buffers that a user's schedule gives one layer, against its operator and the machine.

`schedule.bind_region` and `schedule.bind_plans` call it. Faults are collected in `Faults` and raised together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.hw.unit_map import Unit
from toolchain.machine import find_unsupported
from toolchain.ops.kit.loops import LoopOrder
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.tile import Box, Extent, TileTask, Tiling
from toolchain.schedule.accumulator_memory import AccumulatorAddresses
from toolchain.schedule.nodes import ALL, Alloc, LayerTree, OperandBuffer, RegionTree, Ring
from toolchain.schedule.text import quote_name, ring_name
from toolchain.schedule.tile_pipeline import passing
from toolchain.schedule.tilings import layer_units
from toolchain.schedule.unit_choice import emit_at_zero, lower_to_unit


class Faults:
    """A collection of the faults of one region's schedule. It is true where there are some."""

    def __init__(self, tree: RegionTree):
        self._tree = tree
        self._faults: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, line: int, fault: str) -> None:
        """Add a fault. `line`: line of the statement that it is about; 0: the schedule comes from no file."""
        self._faults.append((line, fault))

    def of(self, layer: Layer, line: int, fault: str) -> None:
        """Add a fault, with the layer's name in front."""
        self.add(line, f"layer {quote_name(layer.node.name)}: {fault}")

    def list_sentences(self) -> list[str]:
        """Return the faults as sentences with their places, in the order of lines."""
        return [f"{self._place(line)}: {fault}" for line, fault in sorted(self._faults, key=lambda f: f[0])]

    def end(self) -> None:
        """Raise CompileError with all faults, where there are some."""
        if self._faults:
            raise CompileError("\n".join(self.list_sentences()))

    def _place(self, line: int) -> str:
        return f"{self._tree.file}:{line}" if self._tree.file and line else f"region {self._tree.region} of the schedule"


@dataclass(frozen=True)
class LayerDirective:
    """A layer of a schedule with the tiling that its loops mean and the units that may run its tiles."""

    layer: Layer
    statement: LayerTree
    tiling: Tiling
    units: tuple[Unit, ...]


def bind_layer(layer: Layer, stmt: LayerTree, in_cascade: bool, faults: Faults) -> LayerDirective | None:
    """Return the tiling and units of one layer; None for a data-movement operator, or after a fault.

    `stmt`: the layer in the schedule. `in_cascade`: units are checked on one row only, since stripes limit the tiles.
    """
    call = stmt.call
    if not isinstance(layer.node.op, TiledOp):
        for part in (*stmt.rings, *stmt.fetches, *stmt.loops):
            faults.of(layer, part.line, f"is moved by DMA and has no {'rings' if isinstance(part, Alloc) else 'loops'}")
        if call.units or call.dataflow or call.mode:
            faults.of(layer, call.line, "is moved by DMA and runs on no unit; write 'call' alone")
        return None
    if call.inline:
        faults.of(layer, call.line, "call inline: it is computed, and inline is what would only be moved; leave the word out")
        return None
    order, units = _order(layer, stmt, faults), _units(layer, stmt, faults)
    if order is None or units is None:
        return None
    flow = _number("dataflow", call.dataflow, units, layer, call.line, faults)
    mode = _number("mode", call.mode, units, layer, call.line, faults)
    if flow is None or mode is None:
        return None
    directive = LayerDirective(layer, stmt, order.tiling(stmt.steps, flow, mode), units)
    nest = layer.tiled.nest(layer, directive.tiling, _one_row(layer) if in_cascade else None)
    capable = require_capable_units(directive, units, nest.distinct, faults)
    return replace(directive, units=capable) if capable else None


def _one_row(layer: Layer) -> Extent:
    return Extent((0, 1), (0, layer.output.shape[-1]))


def require_capable_units(
    directive: LayerDirective, units: Sequence[Unit], tiles: Callable[[], Iterable[TileTask]], faults: Faults
) -> tuple[Unit, ...]:
    """Return the units that can run the tiles: all that are named, or none after a fault; without names, those that
    can.

    `tiles`: returns the tile tasks to check.
    """
    reasons = {unit: explain_incapable_unit(directive.layer, unit, tiles()) for unit in units}
    capable = tuple(unit for unit, reason in reasons.items() if reason is None)
    if capable and not directive.statement.call.units:
        return capable
    for unit, reason in reasons.items():
        if reason is not None:
            other = "" if len(layer_units(directive.layer, directive.tiling)) == 1 else ", or another unit"
            faults.of(
                directive.layer,
                directive.statement.call.line,
                f"{unit.name} cannot run its tiles: {reason}; take smaller steps{other}",
            )
    return capable if len(capable) == len(units) else ()


def explain_incapable_unit(layer: Layer, unit: Unit, tiles: Iterable[TileTask]) -> str | None:
    """Return why the unit cannot run one of the tile tasks, or None."""
    for tile in tiles:
        for op in lower_to_unit(emit_at_zero(tile, layer), unit, layer.chip, AccumulatorAddresses(layer.chip)):
            reason = find_unsupported(op, layer.chip)
            if reason is not None:
                return reason
    return None


def _order(layer: Layer, stmt: LayerTree, faults: Faults) -> LoopOrder | None:
    """Return the first of the operator's loop orders that the loops fit; None after a fault."""
    orders, loops = layer.loop_orders, stmt.loops
    axes = {axis.name for order in orders for axis in order.axes if axis.size > 1}
    written = [loop.axis for loop in loops]
    for loop in loops:
        if loop.axis not in axes:
            near = suggestion(loop.axis, axes) or (f"; there are {', '.join(sorted(axes))}" if axes else "; it has none")
            faults.of(layer, loop.line, f"for {loop.axis}: it has no such loop{near}")
        elif written.count(loop.axis) > 1:
            faults.of(layer, loop.line, f"for {loop.axis}: stands there twice; one loop over an axis is all that tiles have")
    if len(set(written)) < len(written) or not axes.issuperset(written):
        return None
    standing = [order for order in orders if [a.name for a in order.axes if a.name in written] == written]
    if not standing:
        possible = dict.fromkeys(" > ".join(a.name for a in order.axes if a.name in written) for order in orders if axes)
        faults.of(layer, loops[0].line, f"its loops stand as {' > '.join(written)}; it has them as {', or as '.join(possible)}")
        return None
    broken = [_broken_steps(order, stmt.steps) for order in standing]
    for order, reasons in zip(standing, broken):
        if not reasons:
            return order
    axis, reason = broken[0][0]
    faults.of(layer, next((loop.line for loop in loops if loop.axis == axis), stmt.call.line), f"for {axis} {reason}")
    return None


def _broken_steps(order: LoopOrder, steps: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the axes whose step is not possible in this order, each with the reason."""
    reasons: list[tuple[str, str]] = []
    for axis in order.axes:
        step = min(steps.get(axis.name, axis.size), axis.size)
        if not axis.field and step > 1:
            reasons.append(
                (
                    axis.name,
                    f"by {step}: must be by 1, its {axis.size} are made one by one"
                    if axis.name in steps
                    else f"by 1: is missing, its {axis.size} are made one by one",
                )
            )
        elif step < axis.least:
            reasons.append((axis.name, f"by {step}: must be {axis.least} or more; {axis.why}"))
        elif step < axis.size and step % axis.multiple:
            reasons.append((axis.name, f"by {step}: must be a multiple of {axis.multiple}, or all {axis.size}; {axis.why}"))
    return reasons


def _units(layer: Layer, stmt: LayerTree, faults: Faults) -> tuple[Unit, ...] | None:
    """Return the named units, or all of the kind that runs the layer; None after a fault."""
    chip = layer.chip
    tiling = next(iter(layer.tiled.tilings(layer)))
    units = layer_units(layer, tiling)
    usable = {unit.name: unit for unit in units}
    every = {unit.name: unit for unit in chip.units}
    units_on: list[Unit] = []
    for name in stmt.call.units:
        fault = None
        if name not in every:
            fault = f"there is no such unit{suggestion(name, usable)}"
        elif name not in usable:
            unused = chip.unused.get(every[name].engine)
            fault = unused if unused is not None else f"does not run this layer; {', '.join(usable)} can"
        elif usable[name] in units_on:
            fault = "is named twice"
        if fault is None:
            units_on.append(usable[name])
        else:
            faults.of(layer, stmt.call.line, f"on {name}: {fault}")
    if len(units_on) < len(stmt.call.units):
        return None
    return tuple(units_on) or units


def _number(what: str, name: str, units: Sequence[Unit], layer: Layer, line: int, faults: Faults) -> int | None:
    """Return the number of a named dataflow or depthwise mode of the array, 0 without a name; None after a fault.

    `what`: "dataflow" or "mode".
    """
    if not name:
        return 0
    if units[0].kind != "mac_array":
        faults.of(layer, line, f"{what} {name}: {units[0].name} is no array and has none")
        return None
    array = units[0].array
    names = array.dataflows if what == "dataflow" else array.depthwise_modes
    if name not in names:
        faults.of(layer, line, f"{what} {name}: {units[0].name} has {', '.join(names)}")
        return None
    return names.index(name)


def bind_rings(
    directive: LayerDirective,
    defaults: Sequence[Ring],
    tiles: Iterator[TileTask],
    resident: Collection[str],
    faults: Faults,
    units: Sequence[Unit],
) -> tuple[Ring, ...] | None:
    """Return the layer's tile buffers with the slots that the schedule gives them, else as in `defaults`; None after a
    fault.

    `defaults`: all buffers that the layer has. `tiles`: all of its tile tasks, read only where each item gets its own
    slot. `resident`: tensors in SRAM.
    """
    rings = {(ring.buffer, ring.memory): ring for ring in defaults}
    written: dict[tuple[OperandBuffer, str], Ring] = {}
    refusals: list[str] = []
    for ring in directive.statement.rings:
        key = ring.buffer, ring.memory
        refusal = "stands there twice" if key in written else None if key in rings else _no_ring(directive, ring, rings, resident)
        if refusal is not None:
            faults.of(directive.layer, ring.line, f"ring {ring_name(ring.buffer)}: {refusal}")
            refusals.append(refusal)
        written[key] = ring
    if refusals:
        return None
    items = _items(directive.layer, units, tiles, resident) if any(ring.slots == ALL for ring in written.values()) else {}
    return tuple(_bind_ring(ring, written.get(key), items, len(units) > 1) for key, ring in rings.items())


def _bind_ring(
    default: Ring, written: Ring | None, items: Mapping[tuple[str, int], Mapping[Hashable, int]], shared: bool
) -> Ring:
    """Return the ring with the slots that are written, or `default` where nothing is.

    `items`: bytes of each item by buffer. `shared`: several units take items in no fixed order, so each slot holds the
    largest.
    """
    if written is None:
        return default
    largest = max(default.sizes)
    sizes = (
        (largest,) * int(written.slots)
        if written.slots != ALL
        else tuple(items.get((default.key, default.space), {0: largest}).values())
    )
    return replace(default, slots=written.slots, sizes=(max(sizes),) * len(sizes) if shared else sizes, line=written.line)


def _no_ring(
    directive: LayerDirective, ring: Ring, rings: Collection[tuple[OperandBuffer, str]], resident: Collection[str]
) -> str:
    """Return why a ring is none of the layer's. `rings`: the buffers and memories that it has."""
    layer, buffer, memories = directive.layer, ring.buffer, [space.name for space in directive.layer.chip.spaces]
    if ring.memory not in memories:
        return f"there is no memory {ring.memory}{suggestion(ring.memory, memories)}"
    elsewhere = [memory for other, memory in rings if other == buffer]
    if elsewhere:
        names = ", ".join(u.name for u in directive.units)
        return f"lies in {', '.join(elsewhere)}, where {names} reads it, and not in {ring.memory}"
    reads = next(layer.tiled.nest(layer, directive.tiling).iterate_tasks()).reads
    if buffer.role == "input" and buffer.number < len(reads) and reads[buffer.number].tensor in resident:
        return f"{quote_name(reads[buffer.number].tensor)} lies in sram and is read there; leave out the ring or that alloc"
    if buffer.role == "output" and layer.node.outputs[0] in resident:
        return f"{quote_name(layer.node.outputs[0])} lies in sram and is written there; leave out the ring or that alloc"
    names = ", ".join(dict.fromkeys(ring_name(other) for other, _ in rings))
    return f"nothing passes through it; the layer has {f'rings of {names}' if names else 'no rings'}"


def _items(
    layer: Layer, units: Sequence[Unit], tiles: Iterator[TileTask], resident: Collection[str]
) -> dict[tuple[str, int], dict[Hashable, int]]:
    """Return the items that pass through each ring in order, with their bytes."""
    items: dict[tuple[str, int], dict[Hashable, int]] = {}
    for tile in tiles:
        for unit in units:
            for ring, item, key, space in passing(tile, unit, resident):
                size = layer.box_bytes(item) if isinstance(item, Box) else item.size_bytes
                items.setdefault((ring, space), {}).setdefault(key, size)
            if tile.write is not None and tile.write.tensor not in resident:
                stores = items.setdefault(("w", unit.roles["output"]), {})
                stores.setdefault(tile.write, layer.box_bytes(tile.write))
    return items
