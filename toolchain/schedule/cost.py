"""What the works of a tiling cost: a pipeline of loads, computes and stores.

Of neighbouring steps of one kind (`ops.nest`) only the first few are looked at; each of the others is taken to last as
long as the last of those.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.hw.units import Unit
from toolchain.machine import MachineOp, Space, demand
from toolchain.ops.kit.nest import Axis
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Block, Box, Work, dense_strides
from toolchain.schedule.copies import Location, Mover, Stride, copies
from toolchain.schedule.emits import SumPlaces, turns
from toolchain.schedule.places import View
from toolchain.schedule.staging import Ring, Slot, box_strides, rings, staged
from toolchain.schedule.units import Clocks, able_units, chain_of, emitted, on_unit

_SEEN, _SEEN_INNERMOST = 2, 3  # of equal steps: the pipeline is in its stride after two works

# A point of a nest; BEGIN before the last of the steps that are looked at, and behind them how many steps they stand for.
Visit = tuple[Any, ...] | int
BEGIN = -1


class Run(NamedTuple):
    """A work on one unit: its cycles there; on the unit that takes its sums out of their memory, if one does; and of how many
    works sums lie in that memory at once."""

    cycles: float
    emit_cycles: float = 0.0
    held: int = 1


Runs = Mapping[Unit, Run]  # on each unit that can run a work


def visits(axes: Sequence[Axis], period: int = 1, point: tuple[Any, ...] = ()) -> Iterator[Visit]:
    """The points that stand for all, in order, with what is to be repeated: the last `period` steps that are looked at,
    as many of which keep all units busy once."""
    if not axes:
        yield point
        return
    axis, deeper = axes[0], axes[1:]
    most = (_SEEN if any(len(a.steps) > 1 for a in deeper) else _SEEN_INNERMOST) + period - 1
    for start, count in axis.runs:
        seen = min(count, most)
        for i in range(start, start + seen):
            if count > seen and i == start + seen - period:
                yield BEGIN
            yield from visits(deeper, period, (*point, axis.steps[i]))
        if count > seen:
            yield count - seen


class CostModel:
    """Cycles of works on one chip, by their shapes; remembers what it has seen."""

    def __init__(self, chip: Chip):
        self._chip = chip
        self._loads: dict[Hashable, float] = {}
        self._runs: dict[Hashable, Runs] = {}

    @property
    def choice(self) -> bool:
        """Whether programs name another unit than the first of its kind."""
        return any(unit.number for kind in ("mac_array", "vector") for unit in self._chip.workers(kind))

    def load_cycles(self, box: Box, view: View, home: int, space: int) -> float:
        """Cycles to bring a box from the memory `home` into the memory `space`."""
        key = (box.size, view.strides, home, space)
        if key not in self._loads:
            strides = box_strides(box, view.strides, dense_strides(box.size, self._chip.activation_bytes))
            self._loads[key] = self._copy_cycles(home, space, strides, self._chip.activation_bytes)
        return self._loads[key]

    def store_cycles(self, box: Box, view: View) -> float:
        """Cycles to take a box away."""
        key = (box.size, view.strides, "store")
        if key not in self._loads:
            strides = box_strides(box, dense_strides(box.size, self._chip.activation_bytes), view.strides)
            self._loads[key] = self._copy_cycles(Space.SRAM, Space.DRAM, strides, self._chip.activation_bytes)
        return self._loads[key]

    def block_cycles(self, size_bytes: int, space: int) -> float:
        """Cycles to bring constants into the memory `space`."""
        key = ("block", size_bytes, space)
        if key not in self._loads:
            self._loads[key] = self._copy_cycles(Space.DRAM, space, [Stride(size_bytes, 1, 1)], 1)
        return self._loads[key]

    def _copy_cycles(self, source: int, target: int, strides: list[Stride], item_bytes: int) -> float:
        channel = self._chip.loaders(source, target)[0].number
        ends, mover = (Location(Space(source), 0), Location(Space(target), 0)), Mover(channel, self._chip.dma_dimensions)
        return sum(self.alone_cycles(op) for op in copies(*ends, strides, item_bytes, mover))

    def able(self, layer: Layer, visited: Iterable[Sequence[Work] | int], views: Mapping[str, View]) -> tuple[Unit, ...]:
        """The units that can run every work of the layer, so that each of them can take any chain."""
        found: list[Unit] | None = None
        for work in (work for works in visited if not isinstance(works, int) for work in works):
            runs = self.run_cycles(layer, work, views)
            found = list(runs) if found is None else [u for u in found if u in runs]
            if len(found) < 2:
                break
        if not found:
            raise InternalError(f"{layer.node.name}: no unit can run all of its tiles")
        return tuple(found)

    def run_cycles(self, layer: Layer, work: Work, views: Mapping[str, View]) -> Runs:
        """Cycles of a work's instructions on each unit that can run it, with its operands in SRAM."""
        write = work.write.size if work.write else None
        starts = tuple(tuple(s > 0 for s in r.start) for r in work.reads)
        blocks = tuple(b.size_bytes for b in work.blocks)
        key = (layer.node.name, tuple(r.size for r in work.reads), starts, blocks, write, work.variant)
        if key not in self._runs:
            ops = emitted(work, self._chip)
            self._runs[key] = {unit: self._run(ops, unit) for unit in able_units(ops, self._chip)}
        return self._runs[key]

    def _run(self, ops: Sequence[MachineOp], unit: Unit) -> Run:
        made = on_unit(ops, unit, self._chip, SumPlaces(self._chip))
        cycles = sum(self.alone_cycles(op) for op in made if unit.kind == op.ENGINE)
        emitter, sums = self._chip.emitter(unit), ops[0].sums()
        if emitter is None or sums is None:
            return Run(cycles)
        emit_cycles = sum(self.alone_cycles(op) for op in made if emitter.kind == op.ENGINE)
        return Run(cycles, emit_cycles, turns(sums, unit, self._chip))

    def emitters(self, units: Iterable[Unit]) -> dict[Unit, Unit]:
        """Of each array that does not take its sums out itself, the unit that does."""
        found = ((unit, self._chip.emitter(unit)) for unit in units)
        return {unit: emitter for unit, emitter in found if emitter is not None}

    def alone_cycles(self, op: MachineOp) -> float:
        """Of one operation on an idle machine."""
        d, longest = demand(op, self._chip), 0.0
        for t in d.traffic:
            memory = self._chip.spaces[t.space].memory
            longest = max(
                longest,
                t.read_burst_bytes / memory.read_bytes_per_cycle,
                t.write_burst_bytes / memory.write_bytes_per_cycle,
            )
        return max(d.compute_cycles, longest) + d.latency_cycles


class Pipeline:
    """Loads, computes and stores of successive works, overlapped as far as the rings allow; one DMA queue.

    A chain of works that add to the same sums runs on the unit, of those given, on which it ends first. clocks: when DMA and
    units are free. ready: when the layer's operands are there. `units`: that of each work.
    """

    def __init__(
        self,
        layer: Layer,
        slots: Sequence[Slot],
        units: Sequence[Unit],
        resident: Collection[str],
        views: Mapping[str, View],
        model: CostModel,
        clocks: Clocks | None = None,
        ready: float = 0.0,
    ):
        self._layer, self._resident, self._views, self._model = layer, resident, views, model
        self._rings = rings(slots)
        self._given = tuple(units)
        self._depth = max((s.copies for s in slots), default=1)
        self._clocks, self._ready = clocks or Clocks(), ready
        self._finished = [0.0] * self._depth  # when the latest works ended
        self._works = 0.0
        self._marks: list[tuple[float, dict[Unit, float], float]] = []
        self._emitted: dict[Unit, list[float]] = {}  # by array: when the sums of its latest two chains were out
        self.units: list[Unit] = []
        self.emitters: dict[Unit, Unit] = {}  # those that take sums out, by array

    def run(self, visited: Sequence[Sequence[Work] | int], period: int = 1) -> tuple[float, int]:
        """(cycles, works). visited: works in the place of the points of `visits`, with its period."""
        units, begun = self._given, False
        self.emitters = self._model.emitters(units)
        for at, works in enumerate(visited):
            if not isinstance(works, int):
                for i, work in enumerate(works):
                    unit = self.units[-1] if begun else self._choose(units, visited[at:], i)
                    self._load(work, unit)
                    self._compute(work, unit)
                    begun = work.write is None
            elif works == BEGIN:
                self._marks.append((self._clocks.dma, {u: self._clocks.at(u) for u in self._busy(units)}, self._works))
            else:
                self._repeat(works, period, units)
        return max(self._clocks.latest(self._busy(units)), self._clocks.dma), round(self._works)

    def _busy(self, units: Sequence[Unit]) -> tuple[Unit, ...]:
        """Those of the layer's works, and those that take sums out behind them."""
        return (*units, *dict.fromkeys(self.emitters.values()))

    def _choose(self, units: Sequence[Unit], visited: Sequence[Sequence[Work] | int], first: int) -> Unit:
        """The unit on which the chain that begins with work `first` of visited[0] ends first."""
        if len(units) == 1:
            return units[0]
        following = (work for works in visited if not isinstance(works, int) for work in works)
        chain = chain_of(islice(following, first, None))
        runs = self._model.run_cycles(self._layer, chain[0], self._views)
        ready = {u: max(self._ready, self._loaded(chain[0], u)) for u in units}
        return self._clocks.earliest({u: len(chain) * runs[u].cycles for u in units}, ready)

    def _repeat(self, steps: int, period: int, units: Sequence[Unit]) -> None:
        """What happened since the last mark, in `period` steps, goes on for so many more."""
        dma, free, works = self._marks.pop()
        times = steps if period == 1 else steps / period
        later = {u: times * (self._clocks.at(u) - at) for u, at in free.items()}
        self._clocks.dma += times * (self._clocks.dma - dma)
        for unit, cycles in later.items():
            self._clocks.free[unit.queue] = self._clocks.at(unit) + cycles
        most = max(later.values())
        self._finished = [at + most for at in self._finished]
        self._emitted = {unit: [at + most for at in ends] for unit, ends in self._emitted.items()}
        self._works += times * (self._works - works)

    def _load(self, work: Work, unit: Unit) -> None:
        load = 0.0
        for ring, key, item, space in self._passing(work, unit):
            if not ring.take(key)[1]:
                load += self._bring_cycles(item, space)
        self._clocks.dma = self._behind(load)

    def _loaded(self, work: Work, unit: Unit) -> float:
        """When the DMA would have brought what the work needs on this unit."""
        passing = self._passing(work, unit)
        return self._behind(sum(self._bring_cycles(item, space) for ring, key, item, space in passing if not ring.holds(key)))

    def _behind(self, load: float) -> float:
        return max(self._clocks.dma, self._finished[0]) + load if load else self._clocks.dma

    def _passing(self, work: Work, unit: Unit) -> Iterator[tuple[Ring, Hashable, Box | Block, int]]:
        """What passes through rings: the ring, by which key it knows the thing, the thing, the ring's memory."""
        for i, box in enumerate(work.reads):
            if staged(box, unit, self._resident):
                space = unit.roles[box.role]
                yield self._rings[f"r{i}", space], box, box, space
        for i, block in enumerate(work.blocks):
            space = unit.roles[block.role]
            yield self._rings[f"b{i}", space], block.key, block, space

    def _bring_cycles(self, item: Box | Block, space: int) -> float:
        if isinstance(item, Block):
            return self._model.block_cycles(item.size_bytes, space)
        home = Space.SRAM if item.tensor in self._resident else Space.DRAM
        return self._model.load_cycles(item, self._views[item.tensor], home, space)

    def _compute(self, work: Work, unit: Unit) -> None:
        run = self._model.run_cycles(self._layer, work, self._views)[unit]
        taken = self._emitted.setdefault(unit, [0.0, 0.0])
        end = self._clocks.run(unit, max(self._clocks.dma, self._ready, taken[-run.held]), run.cycles)
        if unit in self.emitters and work.write is not None:
            end = self._clocks.run(self.emitters[unit], end, run.emit_cycles)
            self._emitted[unit] = [*taken[1:], end]
        self.units.append(unit)
        self._finished = [*self._finished[1:], end]
        self._works += 1
        if work.write is not None and work.write.tensor not in self._resident:
            # The store leaves while the next work computes; its time is spent on the same queue.
            self._clocks.dma += self._model.store_cycles(work.write, self._views[work.write.tensor])
