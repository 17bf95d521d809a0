"""Staging: the SRAM slots through which a layer's tiles pass, and what a tiling costs.

Each operand that lives in DRAM, each constant block and a DRAM output has a ring of one or two slots; a region that is
still in its ring is not loaded again. Codegen walks the same rings, so that what is costed is what is emitted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from toolchain.hw.chip import Chip
from toolchain.isa.operations import Space
from toolchain.isa.timing import demand
from toolchain.ops.base import Layer, Region, Site, Tiling, Work
from toolchain.schedule.copies import Spot, Stride, copies
from toolchain.schedule.places import View, dense_strides


@dataclass(frozen=True)
class Slot:
    """`copies` buffers of this size; `role` is r0, r1, ... for reads, b0, ... for blocks, w for the output."""

    role: str
    size_bytes: int
    copies: int


@dataclass(frozen=True)
class LayerPlan:
    """A tiling with its works, its slots and what they are expected to cost."""

    tiling: Tiling
    works: tuple[Work, ...]
    slots: tuple[Slot, ...]
    staging_bytes: int
    cycles: float


@dataclass
class Ring:
    """Least recently used slot of a ring, with what each holds."""

    copies: int
    held: list[Hashable] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    def take(self, key: Hashable) -> tuple[int, bool]:
        """(slot, whether it holds `key` already)."""
        if key in self.held:
            index = self.held.index(key)
            self.order.remove(index)
            self.order.append(index)
            return index, True
        if len(self.held) < self.copies:
            self.held.append(key)
            self.order.append(len(self.held) - 1)
            return len(self.held) - 1, False
        index = self.order.pop(0)
        self.held[index] = key
        self.order.append(index)
        return index, False


def staged_regions(work: Work, resident: Collection[str]) -> list[tuple[str, Region]]:
    """(role, region) of the reads that must be brought in."""
    return [(f"r{i}", r) for i, r in enumerate(work.reads) if r.tensor not in resident]


class Sizes:
    """The largest thing that passes through each role, and what passes."""

    def __init__(self, item_bytes: int):
        self._item_bytes = item_bytes
        self._sizes: dict[str, int] = {}
        self._keys: dict[str, set[Hashable]] = {}
        self.single_bytes = 0  # all roles with one slot each

    def add(self, index: int, work: Work, resident: Collection[str]) -> None:
        for role, region in staged_regions(work, resident):
            self._note(role, math.prod(region.size) * self._item_bytes, region)
        for i, block in enumerate(work.blocks):
            self._note(f"b{i}", block.size_bytes, block.key)
        if work.write is not None and work.write.tensor not in resident:
            self._note("w", math.prod(work.write.size) * self._item_bytes, index)

    def _note(self, role: str, size_bytes: int, key: Hashable) -> None:
        old = self._sizes.get(role, 0)
        if size_bytes > old:
            self._sizes[role] = size_bytes
            self.single_bytes += size_bytes - old
        self._keys.setdefault(role, set()).add(key)

    def slots(self, depth: int) -> tuple[Slot, ...]:
        """The rings: `depth` slots where more than one thing passes through."""
        return tuple(Slot(role, self._sizes[role], min(depth, len(self._keys[role]))) for role in sorted(self._sizes))


def staging_bytes(slots: Sequence[Slot], alignment_bytes: int) -> int:
    return sum(s.copies * (-(-s.size_bytes // alignment_bytes) * alignment_bytes) for s in slots)


def region_strides(region: Region, source: Sequence[int], target: Sequence[int]) -> list[Stride]:
    return [Stride(n, a, b) for n, a, b in zip(region.size, source, target)]


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
        dimensions, dram = self._chip.engines.dma.dimensions, self._chip.memories.dram
        total = 0.0
        for op in copies(source, target, strides, item_bytes, dimensions, 0):
            d = demand(op, self._chip)
            moved = max(
                d.dram_read_burst_bytes / dram.read_bytes_per_cycle, d.dram_write_burst_bytes / dram.write_bytes_per_cycle
            )
            total += max(d.compute_cycles, moved) + d.latency_cycles
        return total

    def run_cycles(self, layer: Layer, work: Work, views: dict[str, View]) -> float:
        """Cycles of a work's instructions, with its operands in SRAM."""
        write = work.write.size if work.write else None
        starts = tuple(tuple(s > 0 for s in r.start) for r in work.reads)
        key = (layer.node.name, tuple(r.size for r in work.reads), starts, tuple(b.size_bytes for b in work.blocks), write)
        if key not in self._runs:
            item = self._chip.activation_bytes
            sites = [Site(0, dense_strides(r.size, item)) for r in work.reads]
            out = Site(0, dense_strides(work.write.size, item)) if work.write else None
            self._runs[key] = sum(self._engine_cycles(op) for op in work.emit(sites, [0] * len(work.blocks), out))
        return self._runs[key]

    def _engine_cycles(self, op) -> float:
        d, sram = demand(op, self._chip), self._chip.memories.sram
        ports = max(d.sram_read_bytes / sram.read_bytes_per_cycle, d.sram_write_bytes / sram.write_bytes_per_cycle)
        return max(d.compute_cycles, ports) + d.latency_cycles


def pipeline_cycles(
    layer: Layer,
    works: Sequence[Work],
    slots: Sequence[Slot],
    resident: Collection[str],
    views: dict[str, View],
    model: CostModel,
) -> float:
    """Load, compute and store of successive works overlapped as far as the rings allow; one DMA queue."""
    rings = {s.role: Ring(s.copies) for s in slots}
    depth = max((s.copies for s in slots), default=1)
    dma = engine = 0.0
    finished: list[float] = []
    for work in works:
        load = 0.0
        for role, region in staged_regions(work, resident):
            if not rings[role].take(region)[1]:
                load += model.region_cycles(region, views[region.tensor], False)
        for i, block in enumerate(work.blocks):
            if not rings[f"b{i}"].take(block.key)[1]:
                load += model.block_cycles(block.size_bytes)
        freed = finished[-depth] if load and len(finished) >= depth else 0.0
        dma = max(dma, freed) + load if load else dma
        engine = max(engine, dma) + model.run_cycles(layer, work, views)
        finished.append(engine)
        if work.write is not None and work.write.tensor not in resident:
            # The store leaves while the next work computes; its time is spent on the same queue.
            dma += model.region_cycles(work.write, views[work.write.tensor], True)
    return max(engine, dma)


def evaluate(
    layer: Layer,
    tiling: Tiling,
    resident: Collection[str],
    views: dict[str, View],
    budget_bytes: int,
    model: CostModel,
    depth: int,
) -> LayerPlan | None:
    """The plan of one tiling with as many slots (at most `depth`) as fit the budget, or None when not even one does."""
    works: list[Work] = []
    sizes = Sizes(layer.chip.activation_bytes)
    for index, work in enumerate(layer.node.op.works(layer, tiling)):
        works.append(work)
        sizes.add(index, work, resident)
        if sizes.single_bytes > budget_bytes:
            return None
    for copies_each in range(depth, 0, -1):
        slots = sizes.slots(copies_each)
        size = staging_bytes(slots, layer.chip.memories.sram.alignment_bytes)
        if size <= budget_bytes:
            cycles = pipeline_cycles(layer, works, slots, resident, views, model)
            return LayerPlan(tiling, tuple(works), slots, size, cycles)
    return None


@dataclass(frozen=True)
class SmallestTile:
    """The slots with which a layer can run at all, and their bytes together."""

    slots: tuple[Slot, ...] = ()
    size_bytes: int = 0


def smallest_tile(layer: Layer, resident: Collection[str]) -> SmallestTile:
    """The least SRAM with which the layer can run at all: its smallest tiles, single slots."""
    chip = layer.chip
    least: SmallestTile | None = None
    for tiling in _last_of_each(layer.node.op.tilings(layer)):
        sizes = Sizes(chip.activation_bytes)
        for index, work in enumerate(islice(layer.node.op.works(layer, tiling), 64)):
            sizes.add(index, work, resident)
        slots = sizes.slots(1)
        size = staging_bytes(slots, chip.memories.sram.alignment_bytes)
        if least is None or size < least.size_bytes:
            least = SmallestTile(slots, size)
    return least or SmallestTile()


def _last_of_each(tilings: Iterable[Tiling]) -> list[Tiling]:
    """The smallest tile of each reduction and kernel cut: one of them stages least."""
    found: dict[tuple[int, int], Tiling] = {}
    for tiling in tilings:
        cut = (tiling.inner, tiling.taps)
        if cut not in found or tiling.volume < found[cut].volume:
            found[cut] = tiling
    return list(found.values())
