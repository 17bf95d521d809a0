"""Lower a planned region to machine operations with addresses, in program order, without signals and waits.

Inputs are the plan (`schedule.plan`) and base addresses (`codegen.link`). The output goes to `codegen.synchronise`. For
each tile come its loads, then computes, then stores. Loads of the next tile move ahead of this tile's computes and
stores where no common byte forbids it. What lies in its buffer already is not loaded again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine import Access, Copy, MachineOp, MemoryIndex, Space, accesses, anywhere, overlap
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, BoxLocation, ConstantBlock, Extent, TileTask
from toolchain.schedule.accumulator_memory import AccumulatorAddresses
from toolchain.schedule.copies import CopyEngine, Location, Stride, copies
from toolchain.schedule.hoisted_constants import HoistedBlocks
from toolchain.schedule.lower_moves import lower_moves
from toolchain.schedule.nodes import Fetch
from toolchain.schedule.plan import PlannedRegion, TiledLayer
from toolchain.schedule.stripes import BufferReset, BufferShift, LayerCall, shift_boxes
from toolchain.schedule.tile_buffers import box_strides, empty_buffers, needs_staging
from toolchain.schedule.unit_choice import lower_to_unit
from toolchain.schedule.views import View

NOTHING: Mapping[int, HoistedBlocks] = MappingProxyType({})


@dataclass(frozen=True)
class BaseAddresses:
    """The base addresses that a plan is lowered with. A root is a tensor with storage of its own; views lie inside one.

    `roots`: location of each root. `block`: returns the DRAM address of one constant block. `part`: stores the
    constants of a prefetch one after the other, and returns the DRAM address of the first. It is called once for each
    prefetch.
    """

    roots: Mapping[str, Location]
    block: Callable[[ConstantBlock], int]
    part: Callable[[Fetch], int]


@dataclass(frozen=True)
class Group:
    """The operations of one tile task, or of all moves of a data-movement layer.

    `layer`: index in the plan. `row`: the computed row that moves marked `INDEXED` reach; None: there are none.
    """

    loads: tuple[MachineOp, ...]
    computes: tuple[MachineOp, ...]
    stores: tuple[MachineOp, ...]
    layer: int
    row: Row | None = None  # of those that name `INDEXED`


class Row(NamedTuple):
    """A row index that is read from memory when the program runs: where the number lies, and how far it moves an
    address.

    The number has `word_bytes` bytes at `address` of `space`, and is cut to 0 .. `limit`, both included. It adds number *
    `scale` bytes to the address of a copy, on the side that names a base register.
    """

    space: Space
    address: int
    word_bytes: int
    scale: int
    limit: int


@dataclass(frozen=True)
class PlacedOp:
    """An operation, the layer that it belongs to, and the bytes that it touches.

    `row`: the computed row of a copy that reaches one, else None. `accesses` then cover every row that the number may
    name.
    """

    op: MachineOp
    layer: int
    accesses: tuple[Access, ...]
    row: Row | None = None


def lower_region(
    plan: PlannedRegion, bases: BaseAddresses, chip: Chip, hoisted: Mapping[int, HoistedBlocks] = NOTHING
) -> list[PlacedOp]:
    """Return every operation of a region in program order, without synchronisation.

    `hoisted`: places of constants that are loaded once and stay, by the index of a layer (`schedule.hoisted_constants`).
    """
    groups: list[Group] = []
    channels, sums = _LoadChannels(chip), AccumulatorAddresses(chip)
    tops: dict[str, BufferOrigin] = {}
    hoisted_blocks = _HoistedBlocks(hoisted, set())
    lowerings = [_LayerLowering(plan, i, bases, chip, channels, sums, tops, hoisted_blocks) for i in range(len(plan.layers))]
    for step in plan.steps():
        if isinstance(step, BufferShift):
            groups.append(lowerings[step.layer].shift(step))
        elif isinstance(step, BufferReset):
            tops[step.root] = BufferOrigin(0, *step.first)
        elif isinstance(step, LayerCall):
            groups += lowerings[step.layer].tiles(step.extent)
        else:
            groups += lowerings[step].groups(_emit_prefetches(step, plan, lowerings, chip))
    return list(_overlap_loads(groups, chip))


def _emit_prefetches(
    step: int, plan: PlannedRegion, lowerings: Sequence[_LayerLowering], chip: Chip
) -> Iterator[Sequence[MachineOp]]:
    """Yield the prefetches that a layer issues for others after the loads of each of its tile tasks."""
    parts = plan.fetched.get(step, ())
    for cuts in plan.cuts(step, chip) if parts else ():
        owners = ((lowerings[parts[cut.part][0]], parts[cut.part][1], cut) for cut in cuts)
        yield [op for owner, part, cut in owners for op in owner.fetch(part, cut.start, cut.stop)]


class BufferOrigin(NamedTuple):
    """The position in its tensor of the first element that a rolling buffer holds now. Other roots begin at the origin."""

    row: int = 0
    column: int = 0
    channel: int = 0


class _LoadChannels:
    """A dealer of loads to DMA channels. It keeps the estimated cycles at which each channel is free.

    Each copy goes to the channel that would end it first, of those that load and reach both memories.
    """

    def __init__(self, chip: Chip):
        self._chip, self._latency_cycles = chip, chip.dram.latency_cycles
        self._busy_cycles = dict.fromkeys(chip.channels, 0.0)

    def deal(self, loads: Iterable[Copy]) -> Iterator[Copy]:
        """Yield each copy with its channel."""
        for load in loads:
            size_bytes = load.inner_bytes * math.prod(load.counts())
            ends = {
                channel: self._busy_cycles[channel] + self._latency_cycles + size_bytes / channel.dma.bytes_per_cycle
                for channel in self._chip.loaders(*load.spaces())
            }
            channel = min(ends, key=ends.__getitem__)
            self._busy_cycles[channel] = ends[channel]
            yield replace(load, channel=channel.number) if channel.number else load


@dataclass(frozen=True)
class _HoistedBlocks:
    """Constants that are loaded once and stay.

    `places`: where they lie, by the index of a layer. `resident_blocks`: (memory, address) of those that are loaded so far.
    """

    places: Mapping[int, HoistedBlocks]
    resident_blocks: set[tuple[int, int]]

    def take(self, layer: int, block: ConstantBlock, unit: Unit) -> tuple[Location, bool] | None:
        """Return where a hoisted block lies and whether it is loaded already, and mark it as loaded. None: it is not
        hoisted.
        """
        space = unit.roles[block.role]
        place = self.places.get(layer, {}).get((block.key, space))
        if place is None:
            return None
        address = place.address
        is_loaded = (space, address) in self.resident_blocks
        self.resident_blocks.add((space, address))
        return Location(Space(space), address), is_loaded


class _LayerLowering:
    """The lowering of one layer of the plan. Its slots of tile buffers remember what they hold from call to call."""

    def __init__(
        self,
        plan: PlannedRegion,
        index: int,
        bases: BaseAddresses,
        chip: Chip,
        channels: _LoadChannels,
        sums: AccumulatorAddresses,
        tops: dict[str, BufferOrigin],
        hoisted: _HoistedBlocks,
    ):
        """Prepare the lowering of the layer at `index`.

        `channels`, `sums`, `tops` and `hoisted` are shared by all layers of the region, and change. `tops`: for each
        rolling buffer, the position of the first element that it holds now.
        """
        self.tops, self.hoisted = tops, hoisted
        self.channels, self.sums = channels, sums
        self.plan, self.planned, self.index, self.bases, self.chip = plan, plan.layers[index], index, bases, chip
        store = chip.channels[-1]
        self.loads = CopyEngine(0, chip.dma_dimensions)  # dealt out to channels
        self.stores = CopyEngine(store.number, chip.dma_dimensions)
        self.rings = empty_buffers(self.planned.rings)
        self.prefetch_by_key = {key: part for part in self.planned.fetches for key in part.offsets}
        self.starts: dict[str, int] = {}  # in DRAM, of parts
        self.units = _iterate_units(self.planned) if isinstance(self.planned, TiledLayer) else iter(())

    @property
    def layer(self) -> Layer:
        return self.planned.layer

    def location(self, name: str, start: Sequence[int]) -> Location:
        """Return the memory and address of element `start` of a tensor, inside its root."""
        view = self.plan.views[name]
        base = self.bases.roots[view.root]
        if view.rows:
            image, row, column, channel = start
            top = self.tops.get(view.root, BufferOrigin())
            start = image, row - top.row, column - top.column, channel - top.channel
        return Location(base.space, base.address + view.at(start))

    def view(self, name: str) -> View:
        return self.plan.views[name]

    def groups(self, fetched: Iterator[Sequence[MachineOp]]) -> Iterator[Group]:
        """Yield the groups of the whole layer.

        `fetched`: copies that are issued after the loads of each tile task.
        """
        if not isinstance(self.planned, TiledLayer):
            yield self.moves()
            return
        for group in self._tiles(None):
            yield replace(group, loads=(*group.loads, *next(fetched, ())))

    def fetch(self, part: Fetch, start: int, stop: int) -> Iterator[Copy]:
        """Return the copies of bytes [start, stop) of a prefetch of this layer's constants, which lie in DRAM one after
        the other.
        """
        if part.key not in self.starts:
            self.starts[part.key] = self.bases.part(part)
        source, target = self.starts[part.key] + start, self.plan.part(self.index, part)
        ends = Location(Space.DRAM, source), replace(target, address=target.address + start)
        return self.channels.deal(copies(*ends, [Stride(stop - start, 1, 1)], 1, self.loads))

    def tiles(self, extent: Extent) -> list[Group]:
        """Return the groups of the tile tasks that compute a part of the output."""
        return list(self._tiles(extent))

    def _tiles(self, extent: Extent | None) -> Iterator[Group]:
        tiled = self.planned
        assert isinstance(tiled, TiledLayer)
        return (self._tile(task, next(self.units)) for task in tiled.tasks(extent))

    def _take(self, role: str, space: int, key: Hashable) -> tuple[Location, bool]:
        """Return the buffer slot for `key`, and whether it holds it already. The slot counts as holding it from now on."""
        index, is_resident = self.rings[role, space].take(key)
        return self.plan.slot(self.index, role, space, index), is_resident

    def _tile(self, task: TileTask, unit: Unit) -> Group:
        """Return the operations of one tile task on this unit."""
        loads: list[MachineOp] = []
        sites = [self._read(f"r{i}", box, unit, loads) for i, box in enumerate(task.reads)]
        addresses = [self._block(f"b{i}", block, unit, loads) for i, block in enumerate(task.blocks)]
        stores: list[MachineOp] = []
        out = self._write(task.write, unit, stores) if task.write is not None else None
        computes = lower_to_unit(task.emit(sites, addresses, out), unit, self.chip, self.sums)
        return Group(tuple(loads), computes, tuple(stores), self.index)

    def _read(self, role: str, box: Box, unit: Unit, loads: list[MachineOp]) -> BoxLocation:
        """Return where the unit reads a box: in place, or in a buffer slot; append the copies that load it to `loads`."""
        base, view = self.location(box.tensor, box.start), self.view(box.tensor)
        if not needs_staging(box, unit, self.plan.residents):
            return BoxLocation(base.address, view.strides)
        slot, is_resident = self._take(role, unit.roles[box.role], box)
        site = BoxLocation(slot.address, view.box_alone(box))
        if not is_resident:
            strides = box_strides(box, view.strides, site.strides)
            loads += self.channels.deal(copies(base, slot, strides, view.item_bytes, self.loads))
        return site

    def _block(self, role: str, block: ConstantBlock, unit: Unit, loads: list[MachineOp]) -> int:
        """Return the on-chip address of a constant block; append the copies that load it to `loads`."""
        part = self.prefetch_by_key.get(block.key)
        if part is not None:
            return self.plan.part(self.index, part).address + part.offsets[block.key]
        slot, is_resident = self.hoisted.take(self.index, block, unit) or self._take(role, unit.roles[block.role], block.key)
        if not is_resident:
            source = Location(Space.DRAM, self.bases.block(block))
            loads += self.channels.deal(copies(source, slot, [Stride(block.size_bytes, 1, 1)], 1, self.loads))
        return slot.address

    def _write(self, box: Box, unit: Unit, stores: list[MachineOp]) -> BoxLocation:
        """Return where the unit writes a box: in place, or in a buffer slot; append the copies that store it to
        `stores`.
        """
        base, view = self.location(box.tensor, box.start), self.view(box.tensor)
        if box.tensor in self.plan.residents:
            return BoxLocation(base.address, view.strides)
        slot, _ = self._take("w", unit.roles["output"], box)
        site = BoxLocation(slot.address, view.box_alone(box))
        strides = box_strides(box, site.strides, view.strides)
        stores += copies(slot, base, strides, view.item_bytes, self.stores)
        return site

    def shift(self, step: BufferShift) -> Group:
        """Return the copies that move the rows of a rolling buffer that are still needed to its beginning."""
        ops: list[MachineOp] = []
        top = self.tops.get(step.root, BufferOrigin())
        for box in shift_boxes(step, self.layer.types):
            view = self.view(box.tensor)
            strides = box_strides(box, view.strides, view.strides)
            source = self.location(box.tensor, box.start)
            target = self.location(box.tensor, (0, box.start[1] - step.first + top.row, *box.start[2:]))
            ops += copies(source, target, strides, view.item_bytes, self.stores)
        self.tops[step.root] = top._replace(row=step.first)
        return Group((), (), tuple(ops), self.index)

    def moves(self) -> Group:
        """Return the group of a data-movement layer: all of its operations are stores."""
        return Group((), (), tuple(lower_moves(self.layer, self.plan.views, self.location, self.chip)), self.index, self._row())

    def _row(self) -> Row | None:
        """Return the computed row that the layer's moves reach; None where there is none."""
        index = self.layer.move_op.row_index(self.layer)
        if index is None:
            return None
        number, reached = self.layer.node.inputs[index.number], self.view(index.tensor)
        at = self.location(number, (0,) * len(self.layer.types[number].shape))
        return Row(at.space, at.address, self.view(number).item_bytes, reached.strides.along[index.axis], index.limit)


def _iterate_units(tiled: TiledLayer) -> Iterator[Unit]:
    """Return the unit of each tile task of a layer in order. Raise InternalError where several may run them and none is
    assigned.
    """
    if tiled.assigned:
        return iter(tiled.assigned)
    unit, *others = tiled.units
    if others:
        raise InternalError(f"layer {tiled.name} has {len(tiled.units)} units for its tiles, and no tile has one of them")
    return repeat(unit)


def _overlap_loads(groups: Sequence[Group], chip: Chip) -> Iterator[PlacedOp]:
    """Yield all operations in program order.

    Loads of a group move ahead of the computes and stores of the group before, where no byte of theirs conflicts.
    """

    def placed(ops: Sequence[MachineOp], group: Group) -> list[PlacedOp]:
        return [place_op(op, group.layer, group.row, chip) for op in ops]

    waiting: list[PlacedOp] = placed(groups[0].loads, groups[0]) if groups else []
    for index, group in enumerate(groups):
        yield from waiting
        body = [*placed(group.computes, group), *placed(group.stores, group)]
        waiting = []
        if index + 1 < len(groups):
            following = groups[index + 1]
            touched = [a for p in body for a in p.accesses]
            for load in placed(following.loads, following):
                if any(conflict(a, b) for a in load.accesses for b in touched):
                    waiting.append(load)
                else:
                    yield load
        yield from body


def place_op(op: MachineOp, layer: int, row: Row | None, chip: Chip) -> PlacedOp:
    """Return the operation with the bytes that it touches.

    `row`: the computed row of the layer's moves. A copy that reaches it has the accesses of every row that the number may
    name. None, and for every other operation: those of the operation as it stands.
    """
    op_accesses = accesses(op, chip)
    if row is None or not isinstance(op, Copy) or not (op.destination_base or op.source_base):
        return PlacedOp(op, layer, op_accesses)
    index = MemoryIndex(0, row.scale, row.limit)
    return PlacedOp(
        op, layer, tuple(anywhere(a, (index,)) if a.write == bool(op.destination_base) else a for a in op_accesses), row
    )


def conflict(a: Access, b: Access) -> bool:
    """True when two accesses touch a common byte and one of them writes."""
    return a.space == b.space and (a.write or b.write) and overlap(a, b)
