"""What the works of a tiling cost: a pipeline of loads, computes and stores.

Of neighbouring steps of one kind (`ops.nest`) only the first few are looked at; each of the others is taken to last as
long as the last of those.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp, Space, demand
from toolchain.ops.base import Layer, Region, Site, Work, dense_strides
from toolchain.ops.nest import Axis
from toolchain.schedule.copies import Spot, Stride, copies
from toolchain.schedule.places import View
from toolchain.schedule.staging import Ring, Slot, region_strides, staged_regions

_SEEN, _SEEN_INNERMOST = 2, 3  # of equal steps: the pipeline is in its stride after two works

# A point of a nest; BEGIN before the last of the steps that are looked at, and behind it how often it is repeated.
Visit = tuple[Any, ...] | int
BEGIN = -1


def visits(axes: Sequence[Axis], point: tuple[Any, ...] = ()) -> Iterator[Visit]:
    """The points that stand for all, in order, with what is to be repeated."""
    if not axes:
        yield point
        return
    axis, deeper = axes[0], axes[1:]
    most = _SEEN if any(len(a.steps) > 1 for a in deeper) else _SEEN_INNERMOST
    for start, count in axis.runs:
        seen = min(count, most)
        for i in range(start, start + seen):
            repeats = count - seen if i == start + seen - 1 else 0
            if repeats:
                yield BEGIN
            yield from visits(deeper, (*point, axis.steps[i]))
            if repeats:
                yield repeats


class CostModel:
    """Cycles of works on one chip, by their shapes; remembers what it has seen."""

    def __init__(self, chip: Chip):
        self._chip = chip
        self._loads: dict[Hashable, float] = {}
        self._runs: dict[Hashable, float] = {}

    def region_cycles(self, region: Region, view: View, write: bool) -> float:
        """Cycles to bring a region in, or take it away."""
        key = (region.size, view.strides, write)
        if key not in self._loads:
            dense = dense_strides(region.size, self._chip.activation_bytes)
            strides = region_strides(region, dense if write else view.strides, view.strides if write else dense)
            ends = (Spot(Space.SRAM, 0), Spot(Space.DRAM, 0)) if write else (Spot(Space.DRAM, 0), Spot(Space.SRAM, 0))
            self._loads[key] = self._copy_cycles(*ends, strides, self._chip.activation_bytes)
        return self._loads[key]

    def block_cycles(self, size_bytes: int) -> float:
        key = ("block", size_bytes)
        if key not in self._loads:
            ends = (Spot(Space.DRAM, 0), Spot(Space.SRAM, 0))
            self._loads[key] = self._copy_cycles(*ends, [Stride(size_bytes, 1, 1)], 1)
        return self._loads[key]

    def _copy_cycles(self, source: Spot, target: Spot, strides: list[Stride], item_bytes: int) -> float:
        dimensions = self._chip.dma.dimensions
        return sum(self._alone_cycles(op, Space.DRAM) for op in copies(source, target, strides, item_bytes, dimensions, 0))

    def run_cycles(self, layer: Layer, work: Work, views: Mapping[str, View]) -> float:
        """Cycles of a work's instructions, with its operands in SRAM."""
        write = work.write.size if work.write else None
        starts = tuple(tuple(s > 0 for s in r.start) for r in work.reads)
        key = (layer.node.name, tuple(r.size for r in work.reads), starts, tuple(b.size_bytes for b in work.blocks), write)
        if key not in self._runs:
            item = self._chip.activation_bytes
            sites = [Site(0, dense_strides(r.size, item)) for r in work.reads]
            out = Site(0, dense_strides(work.write.size, item)) if work.write else None
            self._runs[key] = sum(self._alone_cycles(op) for op in work.emit(sites, [0] * len(work.blocks), out))
        return self._runs[key]

    def _alone_cycles(self, op: MachineOp, only: int | None = None) -> float:
        """Of one operation on an idle machine; only: the one memory whose ports count."""
        d, longest = demand(op, self._chip), 0.0
        for t in d.traffic:
            if only in (None, t.space):
                memory = self._chip.spaces[t.space].memory
                longest = max(
                    longest,
                    t.read_burst_bytes / memory.read_bytes_per_cycle,
                    t.write_burst_bytes / memory.write_bytes_per_cycle,
                )
        return max(d.compute_cycles, longest) + d.latency_cycles


class Pipeline:
    """Loads, computes and stores of successive works, overlapped as far as the rings allow; one DMA queue."""

    def __init__(
        self, layer: Layer, slots: Sequence[Slot], resident: Collection[str], views: Mapping[str, View], model: CostModel
    ):
        self._layer, self._resident, self._views, self._model = layer, resident, views, model
        self._rings = {s.role: Ring(s.copies) for s in slots}
        self._depth = max((s.copies for s in slots), default=1)
        self._dma = self._engine = 0.0
        self._finished = [0.0] * self._depth  # when the latest works ended
        self._works = 0
        self._marks: list[tuple[float, float, int]] = []

    def run(self, visited: Iterable[Sequence[Work] | int]) -> tuple[float, int]:
        """(cycles, works). `visited`: works in the place of the points of `visits`."""
        for works in visited:
            if not isinstance(works, int):
                for work in works:
                    self._add(work)
            elif works == BEGIN:
                self._marks.append((self._dma, self._engine, self._works))
            else:
                self._repeat(works)
        return max(self._engine, self._dma), self._works

    def _repeat(self, times: int) -> None:
        """What happened since the last mark happens `times` more."""
        dma, engine, works = self._marks.pop()
        later = times * (self._engine - engine)
        self._dma += times * (self._dma - dma)
        self._engine += later
        self._finished = [at + later for at in self._finished]
        self._works += times * (self._works - works)

    def _add(self, work: Work) -> None:
        load = 0.0
        for role, region in staged_regions(work, self._resident):
            if not self._rings[role].take(region)[1]:
                load += self._model.region_cycles(region, self._views[region.tensor], False)
        for i, block in enumerate(work.blocks):
            if not self._rings[f"b{i}"].take(block.key)[1]:
                load += self._model.block_cycles(block.size_bytes)
        if load:
            self._dma = max(self._dma, self._finished[0]) + load
        self._engine = max(self._engine, self._dma) + self._model.run_cycles(self._layer, work, self._views)
        self._finished = [*self._finished[1:], self._engine]
        self._works += 1
        if work.write is not None and work.write.tensor not in self._resident:
            # The store leaves while the next work computes; its time is spent on the same queue.
            self._dma += self._model.region_cycles(work.write, self._views[work.write.tensor], True)
