"""A layer's tiles pass through its rings: what each tile loads, what waits for it, and when rolling buffers are shifted."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import repeat, takewhile
from typing import NamedTuple

from toolchain.hw.unit_map import Unit
from toolchain.ir.graph import TensorType
from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, ConstantBlock, TileTask
from toolchain.schedule.cost import Brought, CostModel, TileCost
from toolchain.schedule.dependences import AccessRange, DependenceTracker
from toolchain.schedule.nodes import Ring
from toolchain.schedule.queues import PlannedQueues, QueueCost
from toolchain.schedule.stripes import BufferReset, BufferShift, shift_boxes
from toolchain.schedule.tile_buffers import MultiBuffer, empty_buffers, needs_staging

SlotAreas = Mapping[tuple[str, int], Sequence[AccessRange]]  # by role and memory: of each slot of the ring


class LayerPipeline(NamedTuple):
    """A layer, the units that its works may go to, its rings with where their slots lie, and where its constants do that are
    fetched ahead, by the keys of their blocks."""

    layer: Layer
    units: Sequence[Unit]
    rings: Mapping[tuple[str, int], tuple[MultiBuffer, Sequence[AccessRange]]]
    ahead: Mapping[Hashable, AccessRange]

    @classmethod
    def of(
        cls,
        layer: Layer,
        slots: Sequence[Ring],
        units: Sequence[Unit],
        areas: SlotAreas | None,
        ahead: Mapping[Hashable, AccessRange] | None = None,
    ) -> LayerPipeline:
        """areas: of the slots; None: at no address."""
        areas = areas or {(s.key, s.space): [AccessRange(s.space, 0, 0, []) for _ in range(s.copies)] for s in slots}
        return cls(layer, units, {key: (ring, areas[key]) for key, ring in empty_buffers(slots).items()}, ahead or {})


Piece = Sequence[tuple[Sequence[AccessRange], int]]  # where constants go, and how many bytes of them in one copy


class PrefetchQueue(NamedTuple):
    """Constants of other layers that one fetches for them: all places, and what comes behind the loads of each of its works."""

    areas: Sequence[AccessRange]
    pieces: Sequence[Piece]

    def seen(self, visited: Sequence[Sequence[TileTask] | int]) -> Iterator[Piece]:
        """Behind each of the works that stand for all: as it is where these are the first ones, else in the mean."""
        first = sum(1 if isinstance(v, int) else len(v) for v in takewhile(lambda v: not isinstance(v, int), visited))
        if not any(self.pieces[first:]):
            return iter(self.pieces)
        mean = sum(size for piece in self.pieces for _, size in piece) // len(self.pieces)
        return repeat([(self.areas, mean)])


class PendingTile(NamedTuple):
    """A work whose loads are asked for, but neither its computes nor its store. slots: that it reads. out: that it writes."""

    work: TileTask
    unit: Unit
    run: TileCost
    slots: list[AccessRange]
    in_place: list[Box]
    out: AccessRange | None


def passing(work: TileTask, unit: Unit, resident: Collection[str]) -> Sequence[tuple[str, Box | ConstantBlock, Hashable, int]]:
    """What passes through rings: the ring, the thing, by which key the ring knows it, the ring's memory."""
    roles = unit.roles
    boxes = [(f"r{i}", box, box, roles[box.role]) for i, box in enumerate(work.reads) if needs_staging(box, unit, resident)]
    return boxes + [(f"b{i}", block, block.key, roles[block.role]) for i, block in enumerate(work.blocks)]


class Loads:
    """On the queues of one machine. resident: tensors that lie in SRAM."""

    def __init__(self, model: CostModel, queues: PlannedQueues, touched: DependenceTracker, resident: Collection[str]):
        self._model, self._queues, self._touched, self._resident = model, queues, touched, resident
        self._dealt = dict.fromkeys(model.chip.channels, 0)  # cycles of the loads that each was given

    def bring(self, item: Box | ConstantBlock, space: int) -> Brought:
        """What that asks of each channel that can."""
        if isinstance(item, ConstantBlock):
            return self._model.block(item.size_bytes, space)
        home = Space.SRAM if item.tensor in self._resident else Space.DRAM
        return self._model.load(item, self._touched.view(item), home, space)

    def load(self, slot: AccessRange, brought: Brought, box: Box | None) -> None:
        """box: of a tensor; None: a block."""
        channel, cost = self._channel(brought)
        after = slot.before()
        if box is not None:
            after += self._touched.makers(box, channel.queue)
        slot.write(self._queues.ask(channel.queue, cost, after))

    def fetch(self, piece: Piece) -> None:
        """Constants of layers behind."""
        for areas, size_bytes in piece:
            channel, cost = self._channel(self._model.block(size_bytes, areas[0].space))
            number = self._queues.ask(channel.queue, cost, [n for area in areas for n in area.inherited()])
            for area in areas:
                area.write(number)

    def _channel(self, brought: Brought) -> tuple[Unit, QueueCost]:
        """That which ends it first, by what it was given so far."""
        if len(brought) == 1:
            return brought[0]
        channel, cost = min(brought, key=lambda by: self._dealt[by[0]] + by[1].alone_cycles)
        self._dealt[channel] += cost.alone_cycles
        return channel, cost


class RollingBufferUpdates:
    """On the queues of one machine. Like what is left of a tile, a shift waits for the loads of what follows it."""

    def __init__(self, model: CostModel, queues: PlannedQueues, touched: DependenceTracker):
        self._model, self._queues, self._touched = model, queues, touched
        self._store = model.chip.channels[-1].queue
        self._shift: tuple[BufferShift, Mapping[str, TensorType]] | None = None
        self._anew: list[BufferReset] = []

    def shift(self, shift: BufferShift, types: Mapping[str, TensorType]) -> None:
        """Behind everything asked for so far."""
        self._shift = shift, types

    def begin(self, anew: BufferReset, behind_tile: bool) -> None:
        """behind_tile: something is left of a tile, or else perhaps a shift."""
        self._anew.append(anew)
        if not behind_tile and self._shift is None:
            self.begun()

    def begun(self) -> None:
        """What came before is asked for."""
        for anew in self._anew:
            self._touched.begin(anew.root, anew.first)
        self._anew = []

    def touches(self, box: Box | None) -> bool:
        """Whether a load of the box reads what is still to be moved."""
        return box is not None and self._shift is not None and self._touched.root(box.tensor) == self._shift[0].root

    def finish(self) -> None:
        """Asks for what waits: rows to the beginning of their buffer, by the channel that stores."""
        if self._shift is None:
            return
        (shift, types), self._shift = self._shift, None
        for box in shift_boxes(shift, types):
            there = box._replace(start=(0, box.start[1] - shift.distance, *box.start[2:]))
            after = [*self._touched.makers(box, self._store), *self._touched.before(there, self._store)]
            number = self._queues.ask(self._store, self._model.shift(box, self._touched.view(box)), after)
            self._touched.use(box, number, self._store)
            self._touched.use(there, number, self._store)
            self._touched.moved(box, number, self._store)
        self._touched.move_rows(shift.root, shift.first)
        self.begun()
