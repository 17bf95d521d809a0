"""The cost of single tile tasks, loads, stores and moves on one chip, by their shapes: the smallest part of the cost
model.

Costs are `QueueCost`s, cycles on one queue. `schedule.plan_timer` puts them in sequence. Each shape is computed once. A
chain is the tile tasks that add to the same sums.

`Runs` is the cost of a tile on each unit that can run it, `Brought` that of a load by each DMA channel that can. Boxes that may
begin at several offsets of a burst cost the mean over _PLACES of them at most. Others begin at _AT_FIRST, its first byte.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from math import gcd
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine import MachineOp, Space
from toolchain.ops.kit.operator import Layer, tiling_key
from toolchain.ops.kit.tile import Box, TileTask
from toolchain.schedule.accumulator_memory import count_accumulator_halves
from toolchain.schedule.copies import CopyEngine, Location, Stride, copies
from toolchain.schedule.lower_moves import lower_moves
from toolchain.schedule.queues import QueueCost, mean, sum_queue_cost
from toolchain.schedule.tile_buffers import box_strides
from toolchain.schedule.unit_choice import emit_at_zero, find_capable_units
from toolchain.schedule.views import View

_PLACES = 8


class TileCost(NamedTuple):
    """The cost of a tile task on one unit.

    `unit_cost`: on the unit itself. `emit`: on the unit that takes its sums out of their memory; None: none does.
    `sums_at_once`: number of tiles whose sums lie in that memory at once.
    """

    unit_cost: QueueCost
    emit: QueueCost | None = None
    sums_at_once: int = 1


_AT_FIRST = range(1)

Runs = Mapping[Unit, TileCost]
Brought = tuple[tuple[Unit, QueueCost], ...]


class CostModel:
    """The cost of tile tasks and copies on one chip."""

    def __init__(self, chip: Chip):
        self.chip = chip
        self._copies: dict[Hashable, Brought] = {}
        self._loads: dict[Hashable, Brought] = {}  # the same by where a box may lie in its tensor's place
        self._runs: dict[Hashable, Runs] = {}
        self._moves: dict[Hashable, QueueCost] = {}
        self._kinds: dict[str, int] = {}  # by layer
        self._signatures: dict[Hashable, int] = {}

    @cached_property
    def choice(self) -> bool:
        """True where programs may name another unit than the first of its kind."""
        return any(unit.number for kind in ("mac_array", "vector") for unit in self.chip.workers(kind))

    def load(self, box: Box, view: View, home: int, space: int) -> Brought:
        """Return the cost of loading a box from the memory `home` into the memory `space`, by each DMA channel that
        can.
        """
        key = (box.size, view.strides, view.item_bytes, view.offset_bytes, home, space)
        cost = self._loads.get(key)
        if cost is None:
            cost = self._loads[key] = self._load(box, view, home, space)
        return cost

    def _load(self, box: Box, view: View, home: int, space: int) -> Brought:
        begins = self._begins(box, view) if home == Space.DRAM else _AT_FIRST
        key = (box.size, view.strides, view.item_bytes, home, space, begins)
        cost = self._copies.get(key)
        if cost is None:
            strides = box_strides(box, view.strides, view.box_alone(box))
            ends = [(Location(Space(home), begin), Location(Space(space), 0)) for begin in begins]
            cost = self._copies[key] = self._copy(ends, strides, view.item_bytes, self.chip.loaders(home, space))
        return cost

    def block(self, size_bytes: int, space: int) -> Brought:
        """Return the cost of loading constants from DRAM into the memory `space`, by each DMA channel that can."""
        key = (size_bytes, space)
        cost = self._copies.get(key)
        if cost is None:
            ends, channels = (Location(Space.DRAM, 0), Location(Space(space), 0)), self.chip.loaders(Space.DRAM, space)
            cost = self._copies[key] = self._copy([ends], [Stride(size_bytes, 1, 1)], 1, channels)
        return cost

    def store(self, box: Box, view: View) -> QueueCost:
        """Return the cost of storing a box to DRAM, on the channel that stores."""
        begins = self._begins(box, view)
        key = (box.size, view.strides, view.item_bytes, begins)
        cost = self._copies.get(key)
        if cost is None:
            strides = box_strides(box, view.box_alone(box), view.strides)
            ends = [(Location(Space.SRAM, 0), Location(Space.DRAM, begin)) for begin in begins]
            cost = self._copies[key] = self._copy(ends, strides, view.item_bytes, self.chip.channels[-1:])
        return cost[0][1]

    def shift(self, box: Box, view: View) -> QueueCost:
        """Return the cost of copying a box within the SRAM, on the channel that stores."""
        key = (box.size, view.strides, view.item_bytes, "shift")
        cost = self._copies.get(key)
        if cost is None:
            strides, ends = box_strides(box, view.strides, view.strides), (Location(Space.SRAM, 0), Location(Space.SRAM, 0))
            cost = self._copies[key] = self._copy([ends], strides, view.item_bytes, self.chip.channels[-1:])
        return cost[0][1]

    def _begins(self, box: Box, view: View) -> range:
        """Return the offsets in a DRAM burst at which such boxes may begin; costs are the mean over these.

        Tensors begin at bursts. Channel blocks lie at multiples of their size, rows and columns anywhere.
        """
        burst, strides = self.chip.dram.burst_bytes, view.strides
        if strides.maps is not None or not box.size:
            return _AT_FIRST
        step_bytes = burst
        steps = (*strides.along[:-1], box.size[-1] * strides[-1])
        for size, stride, step, outer in zip(box.size, strides.along, steps, (0, *strides.along)):
            if size * stride != outer:
                step_bytes = gcd(step_bytes, step)
        step_bytes = max(step_bytes, burst // _PLACES)
        return range(view.offset_bytes % step_bytes, burst, step_bytes)

    def _copy(
        self, ends: Sequence[tuple[Location, Location]], strides: list[Stride], item_bytes: int, channels: Sequence[Unit]
    ) -> Brought:
        """Return the mean cost over these ends, for each channel."""
        engines = {channel: CopyEngine(channel.number, self.chip.dma_dimensions) for channel in channels}
        costs_by_channel = (
            (c, [sum_queue_cost(copies(*ends_of_copy, strides, item_bytes, engine), self.chip) for ends_of_copy in ends])
            for c, engine in engines.items()
        )
        return tuple((channel, mean(each)) for channel, each in costs_by_channel)

    def moves(self, layer: Layer, views: Mapping[str, View], resident: Collection[str]) -> QueueCost:
        """Return the cost of all fills and copies of a data-movement layer, with every tensor at the first bytes of its
        memory. `resident`: the tensors that lie in SRAM; all others lie in DRAM.
        """
        key = (layer.node.name, *(name in resident for name in (*layer.activations, *layer.node.outputs)))
        cost = self._moves.get(key)
        if cost is None:

            def locate(name: str, start: Sequence[int]) -> Location:
                return Location(Space.SRAM if name in resident else Space.DRAM, views[name].at(start))

            cost = self._moves[key] = sum_queue_cost(lower_moves(layer, views, locate, self.chip), self.chip)
        return cost

    def list_capable_units(self, layer: Layer, visited: Iterable[Sequence[TileTask] | int]) -> tuple[Unit, ...]:
        """Return the units that can run every tile, so that each can take any chain; empty where there is none.

        `visited`: groups of tile tasks; integers, which mark repeats, are passed over.
        """
        capable: list[Unit] | None = None
        for tile in (tile for tiles in visited if not isinstance(tiles, int) for tile in tiles):
            runs = self.runs(layer, tile)
            capable = list(runs) if capable is None else [u for u in capable if u in runs]
            if not capable:
                break
        return tuple(capable or ())

    def runs(self, layer: Layer, tile: TileTask) -> Runs:
        """Return the cost of a tile on each unit that can run it, with operands in that unit's memories."""
        write = tile.write.size if tile.write else None
        reads = [(box.size, *map(bool, box.start)) for box in tile.reads]
        key = (self._kind(layer), tile.variant, write, *reads, *[block.size_bytes for block in tile.blocks])
        costs = self._runs.get(key)
        if costs is None:
            operations = find_capable_units(emit_at_zero(tile, layer), self.chip)
            costs = self._runs[key] = {unit: self._run(ops, unit) for unit, ops in operations.items()}
        return costs

    def _kind(self, layer: Layer) -> int:
        """Return a number that is equal for layers whose tiles of one shape have one cost."""
        name = layer.node.name
        if name not in self._kinds:
            signature = tiling_key(layer), *(layer.laid(n) for n in (*layer.node.inputs, *layer.node.outputs) if n)
            self._kinds[name] = self._signatures.setdefault(signature, len(self._signatures))
        return self._kinds[name]

    def _run(self, ops: Sequence[MachineOp], unit: Unit) -> TileCost:
        on_unit = sum_queue_cost((op for op in ops if unit.kind == op.ENGINE), self.chip)
        emitter, sums = self.chip.emitter(unit), ops[0].sums()
        if emitter is None or sums is None:
            return TileCost(on_unit)
        emit = sum_queue_cost((op for op in ops if emitter.kind == op.ENGINE), self.chip)
        return TileCost(on_unit, emit, count_accumulator_halves(sums, unit, self.chip))
