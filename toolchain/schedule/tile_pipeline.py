"""Issue the operations of a plan's tiles to the queues of the timing model, in the order in which code generation
writes them.

It is a part of the cost model, used by `schedule.plan_timer`. It says what each tile loads, what waits for it, and when
rows of rolling buffers are shifted. An `AccessRange` is the place of a slot, with the numbers of the operations that
touched it.

`SlotAreas` has the place of each slot, by key (r0, b0, w, ...) and memory of the ring. `HoistedRanges` are those of one
layer, by key and memory of the block. A `Piece` has the places of constants and their bytes, for each copy.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import repeat
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

SlotAreas = Mapping[tuple[str, int], Sequence[AccessRange]]


class HoistedRange(NamedTuple):
    """The place of a hoisted block of constants.

    `is_loaded`: an earlier layer loads it; else the first tile that uses it does.
    """

    area: AccessRange
    is_loaded: bool


HoistedRanges = Mapping[tuple[Hashable, int], HoistedRange]


class LayerPipeline(NamedTuple):
    """A layer with its units, the state of its tile buffers, and the places of prefetched constants by key of the
    block.

    `rings`: (what its slots hold, the place of each slot) by key and memory of the buffer.
    """

    layer: Layer
    units: Sequence[Unit]
    rings: Mapping[tuple[str, int], tuple[MultiBuffer, Sequence[AccessRange]]]
    prefetched: Mapping[Hashable, AccessRange]
    hoisted: HoistedRanges

    @classmethod
    def of(
        cls,
        layer: Layer,
        slots: Sequence[Ring],
        units: Sequence[Unit],
        areas: SlotAreas | None,
        prefetched: Mapping[Hashable, AccessRange] | None = None,
        hoisted: HoistedRanges | None = None,
    ) -> LayerPipeline:
        """Return the pipeline with empty tile buffers. `areas`: places of the slots; None: at no address, so that
        nothing conflicts.
        """
        areas = areas or {(s.key, s.space): [AccessRange(s.space, 0, 0, []) for _ in range(s.copies)] for s in slots}
        rings = {key: (ring, areas[key]) for key, ring in empty_buffers(slots).items()}
        return cls(layer, units, rings, prefetched or {}, hoisted or {})


Piece = Sequence[tuple[Sequence[AccessRange], int]]


class PrefetchQueue(NamedTuple):
    """The constants of later layers that a layer prefetches.

    `areas`: all of their places. `pieces`: by tile of this layer, the copies after its loads.
    """

    areas: Sequence[AccessRange]
    pieces: Sequence[Piece]

    def iterate_pieces(self, visited: Sequence[Sequence[TileTask] | int]) -> Iterator[Piece]:
        """Yield what is fetched after the loads of each tile that is timed.

        These are the pieces themselves where only tiles before the first mark fetch; else each tile fetches the mean of all.
        `visited`: the groups of tiles that are timed; integers mark repeats (`schedule.sampling`).
        """
        first = 0  # tiles before the first mark
        for tiles in visited:
            if isinstance(tiles, int):
                break
            first += len(tiles)
        if not any(self.pieces[first:]):
            return iter(self.pieces)
        mean = sum(size for piece in self.pieces for _, size in piece) // len(self.pieces)
        return repeat([(self.areas, mean)])


class PendingTile(NamedTuple):
    """A tile whose loads are issued, but neither its computes nor its store.

    `run`: its cost on `unit`. `slots`: those that it reads. `in_place`: boxes that it reads where their tensors lie.
    `out`: the slot that it writes; None: it writes its tensor in place, or nothing.
    """

    tile: TileTask
    unit: Unit
    run: TileCost
    slots: list[AccessRange]
    in_place: list[Box]
    out: AccessRange | None


def passing(tile: TileTask, unit: Unit, resident: Collection[str]) -> Sequence[tuple[str, Box | ConstantBlock, Hashable, int]]:
    """Return the inputs and constants of a tile on a unit: (key of the buffer, item, key of the item, memory) of each.

    Inputs that the unit reads where they lie are left out. Prefetched and hoisted constants are not: they pass through
    no tile buffer, and the caller finds their places.
    """
    roles = unit.roles
    boxes = [(f"r{i}", box, box, roles[box.role]) for i, box in enumerate(tile.reads) if needs_staging(box, unit, resident)]
    return boxes + [(f"b{i}", block, block.key, roles[block.role]) for i, block in enumerate(tile.blocks)]


class Loads:
    """The loads of a plan on the queues of one machine. `resident`: tensors that lie in SRAM."""

    def __init__(self, model: CostModel, queues: PlannedQueues, touched: DependenceTracker, resident: Collection[str]):
        self._model, self._queues, self._touched, self._resident = model, queues, touched, resident
        self._dealt = dict.fromkeys(model.chip.channels, 0)  # cycles of the loads that each was given

    def bring(self, item: Box | ConstantBlock, space: int) -> Brought:
        """Return the cost of loading an item into memory `space`, by each DMA channel that can."""
        if isinstance(item, ConstantBlock):
            return self._model.block(item.size_bytes, space)
        home = Space.SRAM if item.tensor in self._resident else Space.DRAM
        return self._model.load(item, self._touched.view(item), home, space)

    def load(self, slot: AccessRange, brought: Brought, box: Box | None) -> None:
        """Issue a load into a slot, on the channel that would end it first. `box`: of a tensor; None: constants.

        The load waits for the operations that made the box. It is not noted as a reader of the box's tensor.
        """
        channel, cost = self._channel(brought)
        after = slot.before()
        if box is not None:
            after += self._touched.makers(box, channel.queue)
        slot.write(self._queues.ask(channel.queue, cost, after))

    def fetch(self, piece: Piece) -> None:
        """Issue the copies of prefetched constants."""
        for areas, size_bytes in piece:
            channel, cost = self._channel(self._model.block(size_bytes, areas[0].space))
            number = self._queues.ask(channel.queue, cost, [n for area in areas for n in area.take_inherited()])
            for area in areas:
                area.write(number)

    def _channel(self, brought: Brought) -> tuple[Unit, QueueCost]:
        """Return the channel that ends the load first, given its loads so far, with the cost there."""
        if len(brought) == 1:
            return brought[0]
        channel, cost = min(brought, key=lambda by: self._dealt[by[0]] + by[1].alone_cycles)
        self._dealt[channel] += cost.alone_cycles
        return channel, cost


class RollingBufferUpdates:
    """Shifts and resets of rolling buffers on the queues of one machine.

    A shift moves the rows that are still needed to the beginning of their buffer. It is issued after the loads of the
    next tile, as a tile's computes are.
    """

    def __init__(self, model: CostModel, queues: PlannedQueues, touched: DependenceTracker):
        self._model, self._queues, self._touched = model, queues, touched
        self._store = model.chip.channels[-1].queue
        self._shift: tuple[BufferShift, Mapping[str, TensorType]] | None = None
        self._resets: list[BufferReset] = []

    def shift(self, shift: BufferShift, types: Mapping[str, TensorType]) -> None:
        """Note a shift, to be issued by `finish`, in the place of one noted before. `types`: the types of its tensors."""
        self._shift = shift, types

    def begin(self, reset: BufferReset, behind_tile: bool) -> None:
        """Note a reset of a buffer, and apply it at once where nothing is pending.

        `behind_tile`: a tile is still pending, so that the reset waits for it.
        """
        self._resets.append(reset)
        if not behind_tile and self._shift is None:
            self.apply_resets()

    @property
    def is_pending(self) -> bool:
        """True where a shift or a reset was noted and is not done."""
        return self._shift is not None or bool(self._resets)

    def apply_resets(self) -> None:
        """Apply the noted resets. Everything before them must be issued."""
        for reset in self._resets:
            self._touched.begin(reset.root, reset.first)
        self._resets = []

    def touches(self, box: Box | None) -> bool:
        """Return whether the box lies in the buffer whose shift is pending, whatever its rows. False for None."""
        return box is not None and self._shift is not None and self._touched.root(box.tensor) == self._shift[0].root

    def finish(self) -> None:
        """Issue the noted shift by the channel that stores, then apply the resets; without a shift do nothing."""
        if self._shift is None:
            return
        (shift, types), self._shift = self._shift, None
        for box in shift_boxes(shift, types):
            target = box._replace(start=(0, box.start[1] - shift.distance, *box.start[2:]))
            after = [*self._touched.makers(box, self._store), *self._touched.before(target, self._store)]
            number = self._queues.ask(self._store, self._model.shift(box, self._touched.view(box)), after)
            self._touched.use(box, number, self._store)
            self._touched.use(target, number, self._store)
            self._touched.note_move(box, number, self._store)
        self._touched.move_rows(shift.root, shift.first)
        self.apply_resets()
