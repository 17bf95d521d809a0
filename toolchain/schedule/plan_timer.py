"""Time the tiles of a plan: their loads, computes and stores are queued on a model of the machine, in program order.

This is the core of the cost model; `schedule.plan_walk` walks whole plans with it. Operations wait for each other where
they touch the same bytes: slots of tile buffers, places of tensors, and earlier owners of those addresses. Of equal
neighbouring steps only the first few are timed (`schedule.sampling`); each other one takes as long as the last of them.
One tiling is timed alone in the same way. A root is a tensor with storage of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import islice

from toolchain.hw.unit_map import Unit
from toolchain.machine.timing_model import SharedTasks
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, TileTask, Tiling
from toolchain.schedule.cost import Brought, CostModel, TileCost
from toolchain.schedule.dependences import AccessRange, AccessRanges, DependenceTracker
from toolchain.schedule.nodes import Ring
from toolchain.schedule.plan import TiledLayer, VisitedStripes
from toolchain.schedule.queues import FutureKey, Now, PlannedQueues, QueueCost
from toolchain.schedule.sampling import BEGIN
from toolchain.schedule.stripes import BufferReset, BufferShift
from toolchain.schedule.tile_buffers import needs_staging
from toolchain.schedule.tile_pipeline import (
    HoistedRanges,
    LayerPipeline,
    Loads,
    PendingTile,
    Piece,
    PrefetchQueue,
    RollingBufferUpdates,
    SlotAreas,
    passing,
)
from toolchain.schedule.unit_choice import chain_of, earliest
from toolchain.schedule.views import View


class PlanTimer:
    """The timing of tiles and moves, one after the other, on the queues of one machine.

    Methods append work; `finish` issues all of it and returns its cycles. `units`: the unit of each tile that was timed,
    without repeats, of the layer timed last; in a cascade, of the layer called last.
    """

    def __init__(self, model: CostModel, views: Mapping[str, View], resident: Collection[str], prefetches: bool = False):
        """Begin with nothing queued.

        `resident`: tensors in SRAM. `prefetches`: all tiles are timed, some with prefetches for later layers. Memories
        may serve ready tiles first where this is set, with several DMA channels, or with a choice of units.
        """
        self._model, self._chip, self._views, self._resident = model, model.chip, views, resident
        self._store = model.chip.channels[-1].queue
        self._queues = PlannedQueues(model.chip, looks_ahead=len(model.chip.channels) > 1 or model.choice or prefetches)
        self._tile: PendingTile | None = None
        self._moved: Layer | None = None  # by moves that wait for the loads of the next tile, as a pending tile does
        self._group = 0  # tiles begun
        self._emits: dict[Unit, list[tuple[int, ...]]] = {}  # by array: those of its latest two chains
        self._fetched: Iterator[Piece] = iter(())  # for other layers, with each work
        self._touched = DependenceTracker(views)
        self._loads = Loads(model, self._queues, self._touched, resident)
        self._rolling = RollingBufferUpdates(model, self._queues, self._touched)
        self.units: list[Unit] = []

    @property
    def roots(self) -> dict[str, AccessRange]:
        """The places of resident roots by name; a caller adds each before the first layer that touches it."""
        return self._touched.roots

    @property
    def state(self) -> list[object]:
        """The objects whose attributes change as tiles are timed, but for access ranges."""
        return [self, *self._queues.state, *self._touched.state, self._loads, self._rolling]

    @property
    def fetched(self) -> float:
        """The cycle at which the front end has read and dispatched the last operation that was run."""
        return self._queues.fetched

    @property
    def is_in_program_order(self) -> bool:
        """True where memories serve in program order and the front end's cycles add up exactly.

        A walk that begins later then differs in its cycles alone.
        """
        return self._queues.is_in_program_order

    def key(self, areas: AccessRanges, roots: Collection[str], queues: Collection[int]) -> object:
        """Return a key of all that later layers depend on. Where two walks have equal keys, all that follows takes the
        same cycles.

        Tiles and their costs are told apart by identity: compare keys only while the tiles of both walks are alive. A
        pending shift or reset of a rolling buffer makes a key that equals no other.

        `areas`: all access ranges. `roots`: those that the later layers touch. `queues`: those that they run on.
        """
        key = FutureKey(self._queues, queues)
        if self._rolling.is_pending:
            key.note(object())  # rolling buffers are not compared
        if self._moved is not None:
            key.note(self._moved.node.name)
        tile = self._tile
        if tile is not None:
            key.note((id(tile.tile), tile.unit.queue, id(tile.run), tuple(tile.in_place)))
            for slot in tile.slots:
                key.note((slot.space, slot.start))
                key.add("loaded", slot.written)
        if tile is not None and tile.out is not None:
            key.note((tile.out.space, tile.out.start))
            tile.out.add_to(key, self._group, is_open=True)
        for unit, chains in self._emits.items():
            for place, numbers in enumerate(chains):
                key.add((unit.name, place), numbers)
        areas.add_to(key, self._group)
        self._touched.add_to(key, roots, self._group)
        return key.key()

    def finish(self) -> int:
        """Issue all pending work and return the cycle at which everything ends.

        Work is pending until the loads of the next tile are issued. Loads of tiles that are timed after this call come
        behind it in program order, so that the total may differ.
        """
        self._issue_pending()
        return self._queues.cycles

    @property
    def busy_cycles(self) -> float:
        """The cycles of the busiest queue (unit or DMA channel), without waits; call `finish` before."""
        return self._queues.busy_cycles

    @property
    def moved_cycles(self) -> float:
        """The cycles of the busiest DMA channel, without waits; call `finish` before."""
        return max(self._queues.own_cycles(channel.queue) for channel in self._chip.channels)

    def layer(
        self,
        layer: Layer,
        tiling: Tiling,
        rings: tuple[Ring, ...],
        units: tuple[Unit, ...],
        visited: Sequence[Sequence[TileTask] | int],
        period: int,
        preloaded: Mapping[Hashable, AccessRange] | None = None,
    ) -> TiledLayer:
        """Return the layer with this tiling, timed alone with its slots at no address, and finish. Use a fresh timer.

        `visited`, `period`: its sampled tiles, as in `time_tiles`. `preloaded`: constants that are not loaded, by key
        of the block.
        """
        count = self.time_tiles(layer, rings, units, visited, period, None, preloaded)
        return TiledLayer.of(layer, tiling, rings, units, count, (self.finish(), self.busy_cycles))

    def time_tiles(
        self,
        layer: Layer,
        slots: Sequence[Ring],
        units: Sequence[Unit],
        visited: Sequence[Sequence[TileTask] | int],
        period: int = 1,
        areas: SlotAreas | None = None,
        prefetched: Mapping[Hashable, AccessRange] | None = None,
        fetched: PrefetchQueue | None = None,
        hoisted: HoistedRanges | None = None,
    ) -> int:
        """Time the tiles of a layer and return their number, repeats included.

        Tiles that add to the same sums run on one unit, that on which they end first. `visited`: sampled tiles with
        marks of repeats (`schedule.sampling`), of this `period`. `areas`: places of the slots; None: at no address.
        `prefetched`: places of prefetched constants by key of the block. `fetched`: constants that this layer fetches
        for others. `hoisted`: places of constants that are loaded once for several layers.
        """
        self._enter(LayerPipeline.of(layer, slots, units, areas, prefetched, hoisted))
        self._touched.every = not any(isinstance(tiles, int) for tiles in visited)
        self._fetched = fetched.iterate_pieces(visited) if fetched is not None else iter(())
        self.units = []
        marks: list[tuple[Now, float]] = []
        count, unit, in_chain = 0.0, units[0], False
        for at, works in enumerate(visited):
            if not isinstance(works, int):
                for i, tile in enumerate(works):
                    if not in_chain and len(units) > 1:
                        unit = self._choose(units, visited[at:], i)
                    self._time_tile(tile, unit)
                    in_chain = tile.write is None
                count += len(works)
            elif works == BEGIN:
                marks.append((self._queues.mark(), count))
            else:
                mark, counted = marks.pop()
                self._queues.repeat(
                    mark, works / period, self._find_shared_tasks(mark, units, count - counted), backlog=fetched is not None
                )
                count += works / period * (count - counted)
        return round(count)

    def _find_shared_tasks(self, mark: Now, units: Sequence[Unit], count: float) -> SharedTasks | None:
        """Return the tasks since the mark that several units share; None where there is no choice."""
        queues = [unit.queue for unit in units]
        worked = self._queues.sum_busy_cycles(mark, queues)
        if len(units) == 1 or not worked or self._tile is None:
            return None
        return SharedTasks(queues, count, worked, self._tile.unit.queue)

    def cascade(self, stages: Mapping[int, LayerPipeline], visited: VisitedStripes) -> Mapping[int, list[Unit]]:
        """Time a cascade and return the unit of each timed tile, by index of the layer.

        `stages`: its layers by index. `visited`: the timed steps of its stripes, with marks of repeats.
        """
        marks: list[Now] = []
        units_of: dict[int, list[Unit]] = {index: [] for index in stages}
        self._touched.every = False
        for calls in visited:
            if not isinstance(calls, int):
                for call in calls:
                    if isinstance(call, BufferShift):
                        self._issue_pending()
                        self._rolling.shift(call, self._layer.types)
                    elif isinstance(call, BufferReset):
                        self._rolling.begin(call, self._tile is not None)
                    else:
                        index, tiles = call
                        self.units = units_of[index]
                        self._call(stages[index], tiles)
            elif calls == BEGIN:
                marks.append(self._queues.mark())
            else:
                self._queues.repeat(marks.pop(), calls)
        return units_of

    def _call(self, stage: LayerPipeline, tiles: Sequence[TileTask]) -> None:
        """Time the tiles of one call of a layer."""
        self._enter(stage)
        unit, in_chain = stage.units[0], False
        for i, tile in enumerate(tiles):
            if not in_chain and len(stage.units) > 1:
                unit = self._choose(stage.units, [tiles], i)
            self._time_tile(tile, unit)
            in_chain = tile.write is None

    def _enter(self, stage: LayerPipeline) -> None:
        """Make this the layer whose tiles follow."""
        self._layer, self._rings, self._prefetched, self._hoisted = stage.layer, stage.rings, stage.prefetched, stage.hoisted

    def moves(self, layer: Layer) -> None:
        """Time the fills and copies of a data-movement layer, on the channel that stores."""
        self._issue_pending()
        if not self._model.moves(layer, self._views, self._resident).operations:
            return
        self._moved, self._group = layer, self._group + 1
        for name in (*layer.activations, *layer.node.outputs):
            area = self.roots.get(self._touched.root(name))
            if area is not None:
                area.group = self._group

    def _move(self, layer: Layer) -> None:
        """Ask for the fills and copies of a mover."""
        ops, out = self._model.moves(layer, self._views, self._resident), layer.node.outputs[0]
        after = [n for name in layer.activations for n in self._touched.makers(Box(name, (), ()), self._store)]
        number = self._queues.ask(self._store, ops, [*after, *self._touched.before(Box(out, (), ()), self._store)])
        for name in layer.activations:
            self._touched.use(Box(name, (), ()), number, self._store)
        self._touched.make(Box(out, (), ()), number, self._store)

    def _time_tile(self, tile: TileTask, unit: Unit) -> None:
        """Queue the loads of a tile before the computation of the tile before it, unless they touch the same bytes."""
        before, self._group = self._group, self._group + 1
        slots: list[AccessRange] = []
        loads: list[tuple[AccessRange, Brought, Box | None]] = []
        for role, item, key, space in passing(tile, unit, self._resident):
            slot, is_loaded = self._slot(role, space, key)
            slots.append(slot)
            if not is_loaded:
                loads.append((slot, self._loads.bring(item, space), item if isinstance(item, Box) else None))
        late: list[tuple[AccessRange, Brought, Box | None]] = []
        for load in loads:
            if self._waits(load[0], load[2], before):
                late.append(load)
            else:
                self._loads.load(*load)
        piece = next(self._fetched, ())
        is_pending = self._tile is not None or self._moved is not None
        waits = is_pending and any(area.is_touched_in(before) for areas, _ in piece for area in areas)
        if not waits:
            self._loads.fetch(piece)
        self._issue_pending()
        for load in late:
            self._loads.load(*load)
        if waits:
            self._loads.fetch(piece)
        out = None
        if tile.write is not None and tile.write.tensor not in self._resident:
            out, _ = self._slot("w", unit.roles["output"], tile.write)
            out.group = self._group
        for slot in slots:
            slot.group = self._group
        in_place = [box for box in tile.reads if not needs_staging(box, unit, self._resident)]
        self.units.append(unit)
        self._tile = PendingTile(tile, unit, self._model.runs(self._layer, tile)[unit], slots, in_place, out)

    def _slot(self, role: str, space: int, key: Hashable) -> tuple[AccessRange, bool]:
        """Return the place that an item goes to, and whether it is loaded already."""
        constants = self._find_constants(key, space) if self._prefetched or self._hoisted else None
        if constants is not None:
            return constants
        ring, areas = self._rings[role, space]
        index, is_loaded = ring.take(key)
        return areas[index], is_loaded

    def _find_constants(self, key: Hashable, space: int) -> tuple[AccessRange, bool] | None:
        """Return the place of constants that pass through no ring, and whether they are loaded already; None for other items."""
        if key in self._prefetched:
            return self._prefetched[key], True
        hoisted = self._hoisted.get((key, space))
        return None if hoisted is None else (hoisted.area, hoisted.is_loaded or bool(hoisted.area.written))

    def _waits(self, slot: AccessRange, box: Box | None, group: int) -> bool:
        """Return whether a load to the slot touches bytes that the pending tile, of this group, still needs."""
        if self._moved is not None:
            return slot.is_touched_in(group) or self._touched.reads(box, _whole_output(self._moved))
        if self._tile is None:
            return self._rolling.touches(box)
        return slot.is_touched_in(group) or self._touched.reads(box, self._tile.tile.write)

    def _issue_pending(self) -> None:
        """Issue pending work: the shift of a rolling buffer, and the computes and store of the tile whose loads are
        issued.
        """
        self._rolling.finish()
        if self._moved is not None:
            layer, self._moved = self._moved, None
            self._move(layer)
        if self._tile is None:
            return
        tile, unit, run, slots, in_place, out = self._tile
        self._tile, queue, write = None, unit.queue, tile.write
        after = [number for slot in slots for number in slot.written]
        for box in in_place:
            after += self._touched.makers(box, queue)
        freed = self._list_freed(unit, run, write, out)
        if run.emit is None:
            number = self._queues.ask(queue, run.unit_cost, after + freed)
        else:
            queue, number = self._emit(unit, run, run.emit, after, freed, write is not None)
        for slot in slots:
            slot.use(number, unit.queue)
        for box in in_place:
            self._touched.use(box, number, queue)
        if out is not None and write is not None:
            out.write(number)
            stored = self._model.store(write, self._touched.view(write))
            queue, number = self._store, self._queues.ask(self._store, stored, [number])
            out.use(number, queue)
        if write is not None:
            self._touched.make(write, number, queue)
        self._rolling.apply_resets()

    def _list_freed(self, unit: Unit, run: TileCost, write: Box | None, out: AccessRange | None) -> list[int]:
        """Return the operations that must be over before the tile's output is written."""
        if out is not None:
            return out.before()
        emitter = self._chip.emitter(unit) if run.emit is not None else None
        return self._touched.before(write, (emitter or unit).queue) if write is not None else []

    def _emit(
        self, unit: Unit, run: TileCost, emit: QueueCost, after: list[int], freed: list[int], last: bool
    ) -> tuple[int, int]:
        """Issue computes whose sums lie in a memory, and return the queue and number of the operation that ends them.

        `last`: these computes end their sums, so that an emit takes them out.
        """
        emitter, before = self._chip.emitter(unit), self._emits.setdefault(unit, [(), ()])
        assert emitter is not None
        number = self._queues.ask(unit.queue, run.unit_cost, [*after, *before[-run.sums_at_once]])
        if not last:
            return unit.queue, number
        number = self._queues.ask(emitter.queue, emit, [number, *freed, *after])
        self._emits[unit] = [before[1], (number,)]
        return emitter.queue, number

    def _choose(self, units: Sequence[Unit], visited: Sequence[Sequence[TileTask] | int], first: int) -> Unit:
        """Return the unit on which the chain of tiles that begins with tile `first` of visited[0] ends first."""
        following = (tile for tiles in visited if not isinstance(tiles, int) for tile in tiles)
        chain = chain_of(islice(following, first, None))
        runs = self._model.runs(self._layer, chain[0])
        ends, tile = dict[Unit, tuple[int, int]](), self._tile
        over = self._over(tile) if tile is not None else 0
        for unit in units:
            free = over if tile is not None and tile.unit is unit else self._queues.free(unit.queue)
            begin = max(free, self._ready(chain[0], unit, over))
            ends[unit] = begin + len(chain) * runs[unit].unit_cost.alone_cycles, free
        return earliest(ends)

    def _over(self, tile: PendingTile) -> int:
        """Return the cycle at which its unit would end the pending tile."""
        loaded = self._queues.end(number for slot in tile.slots for number in slot.written)
        return max(self._queues.free(tile.unit.queue), loaded) + tile.run.unit_cost.alone_cycles

    def _ready(self, tile: TileTask, unit: Unit, over: int) -> int:
        """Return the cycle at which the inputs of a tile would be loaded. `over`: when the tile before ends."""
        ready = 0
        for box in tile.reads:
            ready = max(ready, self._queues.end(self._touched.makers(box, -1)))
            if self._tile is not None and self._touched.reads(box, self._tile.tile.write):
                ready = max(ready, over)
        passed = passing(tile, unit, self._resident)
        missing: list[tuple[Unit, QueueCost]] = []
        for role, item, key, space in passed:
            area, is_loaded = self._find_constants(key, space) or (None, self._rings[role, space][0].holds(key))
            if area is not None:
                ready = max(ready, self._queues.end(area.written))
            if not is_loaded:
                missing.append(self._loads.bring(item, space)[0])
        if not missing:
            return ready
        return max(ready, *(self._queues.free(channel.queue) for channel, _ in missing)) + sum(c.alone_cycles for _, c in missing)


def _whole_output(layer: Layer) -> Box:
    name = layer.node.outputs[0]
    shape = layer.types[name].shape
    return Box(name, (0,) * len(shape), shape)
