"""What works ask of time: their loads, computes and stores, by their shapes."""

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


class TileCost(NamedTuple):
    """A work on one unit: what it asks there; on the unit that takes its sums out of their memory, if one does; and of how many
    works sums lie in that memory at once."""

    wanted: QueueCost
    emit: QueueCost | None = None
    held: int = 1


_AT_FIRST = range(1)  # of a burst
_PLACES = 8  # inside a burst that are looked at

Runs = Mapping[Unit, TileCost]  # on each unit that can run a work
Brought = tuple[tuple[Unit, QueueCost], ...]  # by each DMA channel that can


class CostModel:
    """What works ask on one chip, by their shapes; remembers what it has seen."""

    def __init__(self, chip: Chip):
        self.chip = chip
        self._copies: dict[Hashable, Brought] = {}
        self._loads: dict[Hashable, Brought] = {}  # the same by where a box may lie in its tensor's place
        self._runs: dict[Hashable, Runs] = {}
        self._moves: dict[Hashable, QueueCost] = {}
        self._kinds: dict[str, int] = {}  # by layer
        self._alike: dict[Hashable, int] = {}

    @cached_property
    def choice(self) -> bool:
        """Whether programs name another unit than the first of its kind."""
        return any(unit.number for kind in ("mac_array", "vector") for unit in self.chip.workers(kind))

    def load(self, box: Box, view: View, home: int, space: int) -> Brought:
        """To bring a box from the memory `home` into the memory `space`."""
        known = (box.size, view.strides, view.item_bytes, view.offset_bytes, home, space)
        found = self._loads.get(known)
        if found is None:
            found = self._loads[known] = self._load(box, view, home, space)
        return found

    def _load(self, box: Box, view: View, home: int, space: int) -> Brought:
        begins = self._begins(box, view) if home == Space.DRAM else _AT_FIRST
        key = (box.size, view.strides, view.item_bytes, home, space, begins)
        found = self._copies.get(key)
        if found is None:
            strides = box_strides(box, view.strides, view.box_alone(box))
            ends = [(Location(Space(home), begin), Location(Space(space), 0)) for begin in begins]
            found = self._copies[key] = self._copy(ends, strides, view.item_bytes, self.chip.loaders(home, space))
        return found

    def block(self, size_bytes: int, space: int) -> Brought:
        """To bring constants into the memory `space`."""
        key = (size_bytes, space)
        found = self._copies.get(key)
        if found is None:
            ends, channels = (Location(Space.DRAM, 0), Location(Space(space), 0)), self.chip.loaders(Space.DRAM, space)
            found = self._copies[key] = self._copy([ends], [Stride(size_bytes, 1, 1)], 1, channels)
        return found

    def store(self, box: Box, view: View) -> QueueCost:
        """To take a box away, by the channel that stores."""
        begins = self._begins(box, view)
        key = (box.size, view.strides, view.item_bytes, begins)
        found = self._copies.get(key)
        if found is None:
            strides = box_strides(box, view.box_alone(box), view.strides)
            ends = [(Location(Space.SRAM, 0), Location(Space.DRAM, begin)) for begin in begins]
            found = self._copies[key] = self._copy(ends, strides, view.item_bytes, self.chip.channels[-1:])
        return found[0][1]

    def shift(self, box: Box, view: View) -> QueueCost:
        """To move a box within the SRAM, by the channel that stores."""
        key = (box.size, view.strides, view.item_bytes, "shift")
        found = self._copies.get(key)
        if found is None:
            strides, ends = box_strides(box, view.strides, view.strides), (Location(Space.SRAM, 0), Location(Space.SRAM, 0))
            found = self._copies[key] = self._copy([ends], strides, view.item_bytes, self.chip.channels[-1:])
        return found[0][1]

    def _begins(self, box: Box, view: View) -> range:
        """How far inside a burst of the DRAM the first runs of such boxes begin; tensors begin at bursts. Blocks of channels are
        as many apart as they have, rows and columns may be any; of what is whole there is one."""
        burst, strides = self.chip.dram.burst_bytes, view.strides
        if strides.maps is not None or not box.size:
            return _AT_FIRST
        apart = burst
        steps = (*strides.along[:-1], box.size[-1] * strides[-1])
        for size, stride, step, outer in zip(box.size, strides.along, steps, (0, *strides.along)):
            if size * stride != outer:
                apart = gcd(apart, step)
        apart = max(apart, burst // _PLACES)
        return range(view.offset_bytes % apart, burst, apart)

    def _copy(
        self, ends: Sequence[tuple[Location, Location]], strides: list[Stride], item_bytes: int, channels: Sequence[Unit]
    ) -> Brought:
        """In the mean of these ends."""
        movers = {channel: CopyEngine(channel.number, self.chip.dma_dimensions) for channel in channels}
        asked = (
            (c, [sum_queue_cost(copies(*own, strides, item_bytes, mover), self.chip) for own in ends])
            for c, mover in movers.items()
        )
        return tuple((channel, mean(each)) for channel, each in asked)

    def moves(self, layer: Layer, views: Mapping[str, View], resident: Collection[str]) -> QueueCost:
        """All that a mover does, from and to the first bytes of its memories."""
        key = (layer.node.name, *(name in resident for name in (*layer.activations, *layer.node.outputs)))
        found = self._moves.get(key)
        if found is None:

            def locate(name: str, start: Sequence[int]) -> Location:
                return Location(Space.SRAM if name in resident else Space.DRAM, views[name].at(start))

            found = self._moves[key] = sum_queue_cost(lower_moves(layer, views, locate, self.chip), self.chip)
        return found

    def able(self, layer: Layer, visited: Iterable[Sequence[TileTask] | int]) -> tuple[Unit, ...]:
        """The units that can run every work of the layer, so that each of them can take any chain; none where its tiles are too
        large for the arrays that have their dataflow."""
        found: list[Unit] | None = None
        for work in (work for works in visited if not isinstance(works, int) for work in works):
            runs = self.runs(layer, work)
            found = list(runs) if found is None else [u for u in found if u in runs]
            if not found:
                break
        return tuple(found or ())

    def runs(self, layer: Layer, work: TileTask) -> Runs:
        """A work's instructions on each unit that can run it, with its operands in that unit's memories."""
        write = work.write.size if work.write else None
        reads = [(box.size, *map(bool, box.start)) for box in work.reads]
        key = (self._kind(layer), work.variant, write, *reads, *[block.size_bytes for block in work.blocks])
        found = self._runs.get(key)
        if found is None:
            made = find_capable_units(emit_at_zero(work, layer), self.chip)
            found = self._runs[key] = {unit: self._run(ops, unit) for unit, ops in made.items()}
        return found

    def _kind(self, layer: Layer) -> int:
        """The same number of layers whose works of one shape ask the same."""
        name = layer.node.name
        if name not in self._kinds:
            alike = tiling_key(layer), *(layer.laid(n) for n in (*layer.node.inputs, *layer.node.outputs) if n)
            self._kinds[name] = self._alike.setdefault(alike, len(self._alike))
        return self._kinds[name]

    def _run(self, ops: Sequence[MachineOp], unit: Unit) -> TileCost:
        own = sum_queue_cost((op for op in ops if unit.kind == op.ENGINE), self.chip)
        emitter, sums = self.chip.emitter(unit), ops[0].sums()
        if emitter is None or sums is None:
            return TileCost(own)
        emit = sum_queue_cost((op for op in ops if emitter.kind == op.ENGINE), self.chip)
        return TileCost(own, emit, count_accumulator_halves(sums, unit, self.chip))
