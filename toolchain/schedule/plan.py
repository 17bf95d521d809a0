"""A plan: the schedule of a region (`schedule.nodes`) with everything that a machine adds to it.

Layers get tilings, units and cycles, cascades their stripes, tensors their bytes, and the region every on-chip address.
The planners (`schedule.region_planner`) make plans; `codegen.link` takes one and adds the addresses in DRAM. All values
are frozen. A root is a tensor with storage of its own; views are tensors inside a root. A step is the index of a layer
in the order in which layers run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import NamedTuple

from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine import Space
from toolchain.memory import Placement
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Extent, TileTask, Tiling, round_up
from toolchain.schedule.copies import Location, dram_alignment
from toolchain.schedule.nodes import (
    Call,
    CascadeTree,
    Fetch,
    LayerTree,
    Loop,
    RegionTree,
    Ring,
    TensorAlloc,
    layers_of,
)
from toolchain.schedule.stripes import BufferReset, BufferShift, Step, Stripes
from toolchain.schedule.tile_buffers import Room, staging_bytes
from toolchain.schedule.views import View

_LATENCIES = 4  # in what is brought in one go at least


class PartCut(NamedTuple):
    """Bytes [start, stop) of a prefetch. `part`: its index in `PlannedRegion.fetched` of the layer that issues it."""

    part: int
    start: int
    stop: int


VisitedStripes = Sequence[Sequence[tuple[int, Sequence[TileTask]] | BufferShift | BufferReset] | int]


@dataclass(frozen=True)
class Storage:
    """The bytes of one root and its live range, steps [start, end). `touches`: how many nodes write or read it."""

    name: str
    size_bytes: int
    start: int
    end: int
    touches: int  # nodes that write or read it


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedTensor(TensorAlloc):
    """A root of a plan, in SRAM or DRAM."""

    storage: Storage


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedLayer(LayerTree):
    """A layer of a plan. One that is no `TiledLayer` moves data between its tensors by DMA."""

    layer: Layer


@dataclass(frozen=True, kw_only=True, eq=False)
class TiledLayer(PlannedLayer):
    """A layer that is computed tile by tile.

    `units`: units that may run its tiles. `assigned`: the unit of each tile in order; (): the machine leaves no choice.
    `staging_bytes`: what its tile buffers take of each memory. `tile_count`: number of tile tasks. `cycles`: expected
    cycles of the layer alone. `busy_cycles`: cycles of its busiest queue (a unit or DMA channel), without waits.
    `moved_bytes`: bytes between DRAM and the chip; 0 where tilings are not compared by it. Prefetched constants, all or
    the first of them, pass through no tile buffer.
    """

    tiling: Tiling
    units: tuple[Unit, ...]
    staging_bytes: Room
    tile_count: int
    cycles: int
    busy_cycles: float
    moved_bytes: int = 0
    assigned: tuple[Unit, ...] = ()

    @classmethod
    def of(
        cls, layer: Layer, tiling: Tiling, rings: tuple[Ring, ...], units: tuple[Unit, ...], tiles: int, times: tuple[int, float]
    ) -> TiledLayer:
        """Return the layer by one tiling. `tiles`: number of its tile tasks. `times`: (cycles, busy_cycles)."""
        return cls(
            _call(layer, tiling, units),
            _loops(layer, tiling),
            rings,
            layer=layer,
            tiling=tiling,
            units=units,
            staging_bytes=staging_bytes(rings, layer.chip),
            tile_count=tiles,
            cycles=times[0],
            busy_cycles=times[1],
        )

    def as_layer(self, layer: Layer) -> TiledLayer:
        """Return the same plan for another layer that equals this one in everything but its name and constants."""
        return self if layer is self.layer else replace(self, layer=layer, call=replace(self.call, layer=layer.node.name))

    def tasks(self, extent: Extent | None = None) -> Iterator[TileTask]:
        """Return the tile tasks in order: all, or those that compute part `extent` of the output."""
        return self.layer.tiled.nest(self.layer, self.tiling, extent).iterate_tasks()


def _loops(layer: Layer, tiling: Tiling) -> tuple[Loop, ...]:
    """Return the loops of a tiling, in the first of the operator's loop orders that has this tiling.

    Raise InternalError where none has it: a fault of the operator.
    """
    for order in layer.loop_orders:
        steps = order.steps(tiling)
        if steps is not None:
            return tuple(Loop(a.name, steps[a.name], size=a.size) for a in order.axes if steps[a.name] < a.size)
    raise InternalError(f"{layer.node.name}: no order of its loops has {tiling}")


def _call(layer: Layer, tiling: Tiling, units: Sequence[Unit]) -> Call:
    """Return the call of a tiling: units, dataflow and depthwise mode by name."""
    names = tuple(unit.name for unit in units)
    if units[0].kind != "mac_array":
        return Call(layer.node.name, names)
    array = units[0].array
    flow = array.dataflows[tiling.dataflow] if tiling.dataflow or len(array.dataflows) > 1 else ""
    return Call(layer.node.name, names, flow, array.depthwise_modes[tiling.mode] if tiling.mode else "")


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedCascade(CascadeTree):
    """Layers that take turns, stripe by stripe, from index `first` of the region on. The last one has the cycles of
    all.

    `stripes`: the steps of each stripe, and the rows of rolling buffers. `visited`: the steps that the cost model
    times, with (index of the layer, its tile tasks) for each call; integers mark repeats (`schedule.sampling`).
    `views`: of tensors of which only the latest rows are kept. `inside`: tensors that lie in SRAM. `moved_bytes`: bytes
    between DRAM and the chip.
    """

    layers: tuple[TiledLayer, ...]
    first: int
    stripes: Stripes
    visited: VisitedStripes = field(repr=False)
    views: Mapping[str, View]
    inside: Collection[str]
    moved_bytes: int

    @property
    def indices(self) -> range:
        """The indices of its layers in the region."""
        return range(self.first, self.first + len(self.layers))


Part = PlannedLayer | PlannedCascade


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRegion(RegionTree):
    """The plan of one region: schedule, expected cycles and addresses.

    `views`: the root and strides of each activation. `placements`: by memory, the addresses of roots and slots.
    `raced`: it is not the plan of fewest expected cycles, but may prove faster when all of its tiles are timed.
    """

    tensors: tuple[PlannedTensor, ...]
    parts: tuple[Part, ...]
    views: Mapping[str, View]
    placements: Mapping[int, Placement]
    cycles: float = 0
    raced: bool = False

    @cached_property
    def layers(self) -> tuple[PlannedLayer, ...]:
        return flatten_parts(self.parts)

    @cached_property
    def cascades(self) -> tuple[PlannedCascade, ...]:
        return cascades_of(self.parts)

    @cached_property
    def resident(self) -> frozenset[str]:
        """The roots in SRAM, whole or their latest rows."""
        return frozenset(alloc.buffer.name for alloc in self.tensors if alloc.memory == "sram")

    @cached_property
    def residents(self) -> frozenset[str]:
        """The tensors that lie in resident roots."""
        return frozenset(name for name, view in self.views.items() if view.root in self.resident)

    @cached_property
    def spilled(self) -> tuple[Storage, ...]:
        """The roots in DRAM.

        The live range of each is extended to all steps of the cascades in which it begins and ends.
        """
        together = steps_together(self.cascades)
        storages = (alloc.storage for alloc in self.tensors if alloc.memory == "dram")
        lives = ((storage, extend_life(storage.start, storage.end, together)) for storage in storages)
        return tuple(replace(storage, start=start, end=end) for storage, (start, end) in lives)

    @property
    def spilled_bytes(self) -> int:
        """The sum of the bytes of the roots in DRAM."""
        return sum(storage.size_bytes for storage in self.spilled)

    @property
    def peak_bytes(self) -> int:
        """The SRAM that the plan uses: the end of the last byte."""
        return self.placements[Space.SRAM].peak_bytes

    @property
    def alone_cycles(self) -> int:
        """The sum of the layers' expected cycles, each layer or cascade timed alone."""
        return alone_cycles(self.layers)

    @cached_property
    def fetched(self) -> Mapping[int, Sequence[tuple[int, Fetch]]]:
        """The prefetches that each layer issues after its loads, by its index: (index of the layer that they are for,
        prefetch), in order.
        """
        fetches: dict[int, list[tuple[int, Fetch]]] = {}
        for index, planned in enumerate(self.layers):
            for part in planned.fetches:
                fetches.setdefault(part.since, []).append((index, part))
        return fetches

    @cached_property
    def runs(self) -> tuple[int | PlannedCascade, ...]:
        """The layers (by index) and cascades in the order in which they run one after the other."""
        firsts = accumulate((len(layers_of(part)) for part in self.parts), initial=0)
        return tuple(part if isinstance(part, PlannedCascade) else first for part, first in zip(self.parts, firsts))

    def steps(self) -> Iterator[int | Step]:
        """Yield what runs in order: indices of layers, and calls, shifts and resets of cascades."""
        for run in self.runs:
            yield from (run,) if isinstance(run, int) else chain.from_iterable(run.stripes.steps)

    def cuts(self, layer: int, chip: Chip) -> list[list[PartCut]]:
        """Return, for each tile of a layer that prefetches, the pieces that are loaded after its own loads.

        Pieces are as even as possible, and long enough to be worth their latency. Constants of the layer itself come by
        the time that its tiles need them. The layer must be tiled and have an entry in `fetched`.
        """
        tiled, dram, pitch = self.layers[layer], chip.dram, dram_alignment(chip)
        assert isinstance(tiled, TiledLayer)
        parts = self.fetched[layer]
        begins = list(accumulate((round_up(part.size_bytes, pitch) for _, part in parts), initial=0))
        total = sum(round_up(part.size_bytes, pitch) for _, part in parts)
        needed_bytes = {tile: end for index, part in parts if index == layer for tile, end in part.bytes_by_tile.items()}
        least = _LATENCIES * int(dram.latency_cycles * dram.read_bytes_per_cycle)
        pieces: list[list[PartCut]] = [[] for _ in range(tiled.tile_count)]
        done = 0
        for tile in range(tiled.tile_count):
            need = needed_bytes.get(tile, 0)
            even = total if tile == tiled.tile_count - 1 else total * (tile + 1) // tiled.tile_count
            if need > done or even - done >= least or even == total:
                end = min(total, round_up(max(need, even), pitch))
                met = (
                    PartCut(at, max(done, begin) - begin, min(end, begin + part.size_bytes) - begin)
                    for at, ((_, part), begin) in enumerate(zip(parts, begins))
                )
                pieces[tile], done = [cut for cut in met if cut.start < cut.stop], end
        return pieces

    def root(self, name: str) -> Location:
        """Return the address of a resident root."""
        return Location(Space.SRAM, self.placements[Space.SRAM].addresses[name])

    def part(self, layer: int, part: Fetch) -> Location:
        """Return the address of the slot of a layer's prefetch."""
        return self.slot(layer, part.key, part.space, 0)

    def slot(self, layer: int, role: str, space: int, copy: int) -> Location:
        """Return the address of slot `copy` of a layer's tile buffer. `role`: the buffer's key. `space`: number of its
        memory.
        """
        return Location(Space(space), self.placements[space].addresses[slot_name(layer, role, copy)])


def slot_name(layer: int, role: str, copy: int) -> str:
    """Return the name by which a slot is placed. `role`: key of the tile buffer."""
    return f"{layer}:{role}:{copy}"


def alone_cycles(layers: Iterable[PlannedLayer]) -> int:
    """Return the sum of the layers' expected cycles, each layer or cascade timed alone."""
    return sum(layer.cycles for layer in layers if isinstance(layer, TiledLayer))


def flatten_parts(parts: Iterable[Part]) -> tuple[PlannedLayer, ...]:
    """Return the layers in order, those of cascades too."""
    return tuple(layer for part in parts for layer in (part.layers if isinstance(part, PlannedCascade) else (part,)))


def cascades_of(parts: Iterable[Part]) -> tuple[PlannedCascade, ...]:
    """Return the cascades among the parts."""
    return tuple(part for part in parts if isinstance(part, PlannedCascade))


def replace_layers(parts: Iterable[Part], layers: Sequence[PlannedLayer]) -> tuple[Part, ...]:
    """Return the parts with `layers` in place of their own, in order; there must be as many."""
    rest = iter(layers)
    return tuple(
        replace(part, layers=tuple(islice(rest, len(part.layers)))) if isinstance(part, PlannedCascade) else next(rest)
        for part in parts
    )


def steps_together(cascades: Iterable[PlannedCascade]) -> dict[int, range]:
    """Return, for each layer of a cascade by index, the indices of all layers that take turns with it."""
    return {index: cascade.indices for cascade in cascades for index in cascade.indices}


def extend_life(start: int, end: int, together: Mapping[int, range]) -> tuple[int, int]:
    """Return the live range [start, end) extended to all layers that take turns with its first and its last one."""
    return together.get(start, range(start, end)).start, together.get(end - 1, range(start, end)).stop
