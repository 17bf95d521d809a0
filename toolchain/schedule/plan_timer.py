"""What tiles cost: their operations in the order of the program, through the recurrence of times.

Loads, computes and stores are asked for as `codegen.lower` orders them, and wait for each other where they touch the same
bytes: slots of a ring, places of tensors, and whatever had those addresses before. Of neighbouring steps of one kind only the
first few are looked at (`schedule.sampling`); what the last of those takes, each of the others does. In the same way one
tiling is costed alone and a whole plan from its first layer to its last.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import islice

from toolchain.hw.unit_map import Unit
from toolchain.machine.timing_model import SharedTasks
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, TileTask
from toolchain.schedule.cost import Brought, CostModel, TileCost
from toolchain.schedule.dependences import AccessRange, DependenceTracker
from toolchain.schedule.nodes import Ring
from toolchain.schedule.plan import VisitedStripes
from toolchain.schedule.queues import Now, PlannedQueues, QueueCost
from toolchain.schedule.sampling import BEGIN
from toolchain.schedule.stripes import BufferReset, BufferShift
from toolchain.schedule.tile_buffers import needs_staging
from toolchain.schedule.tile_pipeline import (
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
    """Tiles and moves one behind the other on the queues of one machine.

    units: that ran the works of the latest layer, one by one. roots: where resident roots lie, as far as it matters.
    """

    def __init__(self, model: CostModel, views: Mapping[str, View], resident: Collection[str], ahead: bool = False):
        """resident: tensors that lie in sram. ahead: all works are asked for, and with some the constants of later layers, which
        memories need not serve before works that are ready."""
        self._model, self._chip, self._views, self._resident = model, model.chip, views, resident
        self._store = model.chip.channels[-1].queue
        self._queues = PlannedQueues(model.chip, looks_ahead=len(model.chip.channels) > 1 or model.choice or ahead)
        self._tile: PendingTile | None = None
        self._group = 0  # tiles begun
        self._emits: dict[Unit, list[tuple[int, ...]]] = {}  # by array: those of its latest two chains
        self._fetched: Iterator[Piece] = iter(())  # for other layers, with each work
        self._touched = DependenceTracker(views)
        self._loads = Loads(model, self._queues, self._touched, resident)
        self._kept = RollingBufferUpdates(model, self._queues, self._touched)
        self.roots = self._touched.roots
        self.units: list[Unit] = []

    @property
    def cycles(self) -> int:
        """When all is over."""
        self._finish()
        return self._queues.cycles

    @property
    def busy_cycles(self) -> float:
        """Of the busiest queue alone."""
        self._finish()
        return self._queues.busy_cycles

    @property
    def moved_cycles(self) -> float:
        """Of the busiest channel alone."""
        self._finish()
        return max(self._queues.own_cycles(channel.queue) for channel in self._chip.channels)

    def works(
        self,
        layer: Layer,
        slots: Sequence[Ring],
        units: Sequence[Unit],
        visited: Sequence[Sequence[TileTask] | int],
        period: int = 1,
        areas: SlotAreas | None = None,
        ahead: Mapping[Hashable, AccessRange] | None = None,
        fetched: PrefetchQueue | None = None,
    ) -> int:
        """How many there are. Works that add to the same sums run on the unit, of those given, on which they end first.

        visited: works in the place of the points of `visits`, with its period. areas: of the slots; None: at no address. ahead:
        where constants lie that are fetched before, by their blocks' keys. fetched: constants of other layers.
        """
        self._enter(LayerPipeline.of(layer, slots, units, areas, ahead))
        self._touched.every = not any(isinstance(works, int) for works in visited)
        self._fetched = fetched.seen(visited) if fetched is not None else iter(())
        self.units = []
        marks: list[tuple[Now, float]] = []
        count, unit, begun = 0.0, units[0], False
        for at, works in enumerate(visited):
            if not isinstance(works, int):
                for i, work in enumerate(works):
                    if not begun and len(units) > 1:
                        unit = self._choose(units, visited[at:], i)
                    self._work(work, unit)
                    begun = work.write is None
                count += len(works)
            elif works == BEGIN:
                marks.append((self._queues.mark(), count))
            else:
                mark, counted = marks.pop()
                self._queues.repeat(mark, works / period, self._shared(mark, units, count - counted), backlog=fetched is not None)
                count += works / period * (count - counted)
        return round(count)

    def _shared(self, mark: Now, units: Sequence[Unit], works: float) -> SharedTasks | None:
        """That they have done so many works since the mark, where there is a choice of them."""
        queues = [unit.queue for unit in units]
        worked = self._queues.worked(mark, queues)
        if len(units) == 1 or not worked or self._tile is None:
            return None
        return SharedTasks(queues, works, worked, self._tile.unit.queue)

    def cascade(self, stages: Mapping[int, LayerPipeline], visited: VisitedStripes) -> Mapping[int, list[Unit]]:
        """Layers that run in turns, each by its index: the units that ran the works of each. visited: the works of stripes, with
        what is repeated as in `visits`."""
        marks: list[Now] = []
        found: dict[int, list[Unit]] = {index: [] for index in stages}
        self._touched.every = False
        for calls in visited:
            if not isinstance(calls, int):
                for call in calls:
                    if isinstance(call, BufferShift):
                        self._finish()
                        self._kept.shift(call, self._layer.types)
                    elif isinstance(call, BufferReset):
                        self._kept.begin(call, self._tile is not None)
                    else:
                        index, works = call
                        self.units = found[index]
                        self._call(stages[index], works)
            elif calls == BEGIN:
                marks.append(self._queues.mark())
            else:
                self._queues.repeat(marks.pop(), calls)
        return found

    def _call(self, stage: LayerPipeline, works: Sequence[TileTask]) -> None:
        """A part of a layer."""
        self._enter(stage)
        unit, begun = stage.units[0], False
        for i, work in enumerate(works):
            if not begun and len(stage.units) > 1:
                unit = self._choose(stage.units, [works], i)
            self._work(work, unit)
            begun = work.write is None

    def _enter(self, stage: LayerPipeline) -> None:
        """What follows are works of this layer."""
        self._layer, self._rings, self._ahead = stage.layer, stage.rings, stage.ahead

    def moves(self, layer: Layer) -> None:
        """A mover's fills and copies, by the channel that stores."""
        self._finish()
        ops = self._model.moves(layer, self._views, self._resident)
        if not ops.operations:
            return
        out = layer.node.outputs[0]
        after = [n for name in layer.activations for n in self._touched.makers(Box(name, (), ()), self._store)]
        number = self._queues.ask(self._store, ops, [*after, *self._touched.before(Box(out, (), ()), self._store)])
        for name in layer.activations:
            self._touched.use(Box(name, (), ()), number, self._store)
        self._touched.make(Box(out, (), ()), number, self._store)

    def _work(self, work: TileTask, unit: Unit) -> None:
        """Its loads go ahead of what is left of the tile before, but for those that touch the same bytes."""
        before, self._group = self._group, self._group + 1
        slots: list[AccessRange] = []
        loads: list[tuple[AccessRange, Brought, Box | None]] = []
        for role, item, key, space in passing(work, unit, self._resident):
            slot, held = self._slot(role, space, key)
            slots.append(slot)
            if not held:
                loads.append((slot, self._loads.bring(item, space), item if isinstance(item, Box) else None))
        late: list[tuple[AccessRange, Brought, Box | None]] = []
        for load in loads:
            if self._waits(load[0], load[2], before):
                late.append(load)
            else:
                self._loads.load(*load)
        piece = next(self._fetched, ())
        behind = self._tile is not None and any(area.touched_in(before) for areas, _ in piece for area in areas)
        if not behind:
            self._loads.fetch(piece)
        self._finish()
        for load in late:
            self._loads.load(*load)
        if behind:
            self._loads.fetch(piece)
        out = None
        if work.write is not None and work.write.tensor not in self._resident:
            out, _ = self._slot("w", unit.roles["output"], work.write)
            out.group = self._group
        for slot in slots:
            slot.group = self._group
        in_place = [box for box in work.reads if not needs_staging(box, unit, self._resident)]
        self.units.append(unit)
        self._tile = PendingTile(work, unit, self._model.runs(self._layer, work)[unit], slots, in_place, out)

    def _slot(self, role: str, space: int, key: Hashable) -> tuple[AccessRange, bool]:
        """Where a thing goes, and whether it is there already."""
        if key in self._ahead:
            return self._ahead[key], True
        ring, areas = self._rings[role, space]
        index, held = ring.take(key)
        return areas[index], held

    def _waits(self, slot: AccessRange, box: Box | None, group: int) -> bool:
        """Whether the load of a box to a slot touches bytes of what is left of the tile before, which is the group's."""
        if self._tile is None:
            return self._kept.touches(box)
        return slot.touched_in(group) or self._touched.reads(box, self._tile.work.write)

    def _finish(self) -> None:
        """Asks for the computes of the tile whose loads are there, and for its store; or for what is shifted."""
        self._kept.finish()
        if self._tile is None:
            return
        work, unit, run, slots, in_place, out = self._tile
        self._tile, queue, write = None, unit.queue, work.write
        after = [number for slot in slots for number in slot.written]
        for box in in_place:
            after += self._touched.makers(box, queue)
        freed = self._freed(unit, run, write, out)
        if run.emit is None:
            number = self._queues.ask(queue, run.wanted, after + freed)
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
        self._kept.begun()

    def _freed(self, unit: Unit, run: TileCost, write: Box | None, out: AccessRange | None) -> list[int]:
        """The operations that must be over before the work's output is written."""
        if out is not None:
            return out.before()
        emitter = self._chip.emitter(unit) if run.emit is not None else None
        return self._touched.before(write, (emitter or unit).queue) if write is not None else []

    def _emit(
        self, unit: Unit, run: TileCost, emit: QueueCost, after: list[int], freed: list[int], last: bool
    ) -> tuple[int, int]:
        """Computes whose sums lie in a memory: the queue and number of what ends them. last: that takes the sums out."""
        emitter, before = self._chip.emitter(unit), self._emits.setdefault(unit, [(), ()])
        assert emitter is not None
        number = self._queues.ask(unit.queue, run.wanted, [*after, *before[-run.held]])
        if not last:
            return unit.queue, number
        number = self._queues.ask(emitter.queue, emit, [number, *freed, *after])
        self._emits[unit] = [before[1], (number,)]
        return emitter.queue, number

    def _choose(self, units: Sequence[Unit], visited: Sequence[Sequence[TileTask] | int], first: int) -> Unit:
        """The unit on which the chain that begins with work `first` of visited[0] ends first."""
        following = (work for works in visited if not isinstance(works, int) for work in works)
        chain = chain_of(islice(following, first, None))
        runs = self._model.runs(self._layer, chain[0])
        ends, tile = {}, self._tile
        over = self._over(tile) if tile is not None else 0
        for unit in units:
            free = over if tile is not None and tile.unit is unit else self._queues.free(unit.queue)
            begin = max(free, self._ready(chain[0], unit, over))
            ends[unit] = begin + len(chain) * runs[unit].wanted.alone_cycles, free
        return earliest(ends)

    def _over(self, tile: PendingTile) -> int:
        """When the unit will be through with the tile."""
        loaded = self._queues.end(number for slot in tile.slots for number in slot.written)
        return max(self._queues.free(tile.unit.queue), loaded) + tile.run.wanted.alone_cycles

    def _ready(self, work: TileTask, unit: Unit, over: int) -> int:
        """When what the work needs would be there. over: when the tile before is."""
        ready = 0
        for box in work.reads:
            ready = max(ready, self._queues.end(self._touched.makers(box, -1)))
            if self._tile is not None and self._touched.reads(box, self._tile.work.write):
                ready = max(ready, over)
        passed = passing(work, unit, self._resident)
        ready = max(ready, self._queues.end(n for _, _, key, _ in passed if key in self._ahead for n in self._ahead[key].written))
        missing = [
            self._loads.bring(item, space)[0]
            for role, item, key, space in passed
            if key not in self._ahead and not self._rings[role, space][0].holds(key)
        ]
        if not missing:
            return ready
        return max(ready, *(self._queues.free(channel.queue) for channel, _ in missing)) + sum(c.alone_cycles for _, c in missing)
