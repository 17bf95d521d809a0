"""A plan is the schedule of a region (`schedule.nodes`) with what a machine adds to it.

Layers get tilings, units and cycles, cascades their stripes, tensors their bytes, and the region every address.
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
    """Bytes [start, stop) of a part, by its place among those that a layer fetches."""

    part: int
    start: int
    stop: int


VisitedStripes = Sequence[Sequence[tuple[int, Sequence[TileTask]] | BufferShift | BufferReset] | int]


@dataclass(frozen=True)
class Storage:
    """Bytes of one root during steps [start, end)."""

    name: str
    size_bytes: int
    start: int
    end: int
    touches: int  # nodes that write or read it


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedTensor(TensorAlloc):
    """A tensor of a plan, which holds its bytes from the first layer that touches it to the last."""

    storage: Storage


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedLayer(LayerTree):
    """A layer of a plan. One that is not a `TiledLayer` is moved: data is copied between the homes of its tensors."""

    layer: Layer


@dataclass(frozen=True, kw_only=True, eq=False)
class TiledLayer(PlannedLayer):
    """A layer that is computed tile by tile, with the number of its tiles and their expected cycles.

    `units`: that may run its tiles. `staging_bytes`: that its rings take of each memory. `moved_bytes`: between DRAM and the
    chip; 0 where tilings are not compared by it. `assigned`: units that run its tiles one by one; none where the machine leaves
    no choice. Constants that are fetched pass through no ring, all or the first of them.
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
        """The layer by a tiling. `tiles`: their number. `times`: its cycles, and those of its busiest queue."""
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
        """The same of another layer that equals this one."""
        return self if layer is self.layer else replace(self, layer=layer, call=replace(self.call, layer=layer.node.name))

    def tasks(self, extent: Extent | None = None) -> Iterator[TileTask]:
        """The tiles in order, all or those of a part of the output."""
        return self.layer.tiled.nest(self.layer, self.tiling, extent).iterate_tasks()


def _loops(layer: Layer, tiling: Tiling) -> tuple[Loop, ...]:
    """The loops of a tiling, in the first order in which it is. Raises InternalError: an operator that lacks the loops of its
    own tilings."""
    for order in layer.loop_orders:
        steps = order.steps(tiling)
        if steps is not None:
            return tuple(Loop(a.name, steps[a.name], size=a.size) for a in order.axes if steps[a.name] < a.size)
    raise InternalError(f"{layer.node.name}: no order of its loops has {tiling}")


def _call(layer: Layer, tiling: Tiling, units: Sequence[Unit]) -> Call:
    names = tuple(unit.name for unit in units)
    if units[0].kind != "mac_array":
        return Call(layer.node.name, names)
    array = units[0].array
    flow = array.dataflows[tiling.dataflow] if tiling.dataflow or len(array.dataflows) > 1 else ""
    return Call(layer.node.name, names, flow, array.depthwise_modes[tiling.mode] if tiling.mode else "")


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedCascade(CascadeTree):
    """Layers, from index `first` on, that are executed stripe by stripe; the last one has the cycles of all.

    `visited`: the works of the stripes that stand for all, by layer, with what is repeated (`schedule.sampling`). `views`: of
    tensors of which the latest rows are kept. `inside`: tensors that lie in SRAM. `moved_bytes`: between DRAM and the chip.
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
        return range(self.first, self.first + len(self.layers))


Part = PlannedLayer | PlannedCascade


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRegion(RegionTree):
    """The plan of one region: its schedule, with cycles and addresses.

    `views`: where tensors lie in their roots. `placements`: by memory, the addresses of roots and slots. `raced`: an alternative
    to the plan of fewest expected cycles, kept because full timing may prefer it.
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
        """The roots in DRAM, each live for all steps of the cascades in which its first and last step are."""
        together = steps_together(self.cascades)
        storages = (alloc.storage for alloc in self.tensors if alloc.memory == "dram")
        lives = ((storage, extend_life(storage.start, storage.end, together)) for storage in storages)
        return tuple(replace(storage, start=start, end=end) for storage, (start, end) in lives)

    @property
    def spilled_bytes(self) -> int:
        """The bytes of the roots in DRAM, each counted once."""
        return sum(storage.size_bytes for storage in self.spilled)

    @property
    def peak_bytes(self) -> int:
        """The peak of the SRAM."""
        return self.placements[Space.SRAM].peak_bytes

    @property
    def alone_cycles(self) -> int:
        return alone_cycles(self.layers)

    @cached_property
    def fetched(self) -> Mapping[int, Sequence[tuple[int, Fetch]]]:
        """Constants, and whose they are, by the layer behind whose loads they are fetched, in order."""
        fetches: dict[int, list[tuple[int, Fetch]]] = {}
        for index, planned in enumerate(self.layers):
            for part in planned.fetches:
                fetches.setdefault(part.since, []).append((index, part))
        return fetches

    @cached_property
    def runs(self) -> tuple[int | PlannedCascade, ...]:
        """The layers, by index, and cascades in the order in which they run."""
        firsts = accumulate((len(layers_of(part)) for part in self.parts), initial=0)
        return tuple(part if isinstance(part, PlannedCascade) else first for part, first in zip(self.parts, firsts))

    def steps(self) -> Iterator[int | Step]:
        """The layers, and the steps of cascades, in the order in which they run."""
        for run in self.runs:
            yield from (run,) if isinstance(run, int) else chain.from_iterable(run.stripes.steps)

    def cuts(self, layer: int, chip: Chip) -> list[list[PartCut]]:
        """The pieces of prefetched constants behind the loads of each tile of a layer.

        Pieces are as even as possible and long enough to be worth their latency. The layer's own constants come first, when its
        tiles need them.
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
        """The address of a resident root."""
        return Location(Space.SRAM, self.placements[Space.SRAM].addresses[name])

    def part(self, layer: int, part: Fetch) -> Location:
        """The address of a prefetch's slot."""
        return self.slot(layer, part.key, part.space, 0)

    def slot(self, layer: int, role: str, space: int, copy: int) -> Location:
        """The address of a slot of a layer's ring."""
        return Location(Space(space), self.placements[space].addresses[slot_name(layer, role, copy)])


def slot_name(layer: int, role: str, copy: int) -> str:
    """The name of the buffer that is placed for a slot."""
    return f"{layer}:{role}:{copy}"


def alone_cycles(layers: Iterable[PlannedLayer]) -> int:
    """The sum of the layers' cycles, each timed alone."""
    return sum(layer.cycles for layer in layers if isinstance(layer, TiledLayer))


def flatten_parts(parts: Iterable[Part]) -> tuple[PlannedLayer, ...]:
    """The layers in order, those of cascades too."""
    return tuple(layer for part in parts for layer in (part.layers if isinstance(part, PlannedCascade) else (part,)))


def cascades_of(parts: Iterable[Part]) -> tuple[PlannedCascade, ...]:
    """The cascades among these parts."""
    return tuple(part for part in parts if isinstance(part, PlannedCascade))


def replace_layers(parts: Iterable[Part], layers: Sequence[PlannedLayer]) -> tuple[Part, ...]:
    """The parts with other layers. `layers`: all of the region."""
    rest = iter(layers)
    return tuple(
        replace(part, layers=tuple(islice(rest, len(part.layers)))) if isinstance(part, PlannedCascade) else next(rest)
        for part in parts
    )


def steps_together(cascades: Iterable[PlannedCascade]) -> dict[int, range]:
    """The layers that take turns with each layer of a cascade."""
    return {index: cascade.indices for cascade in cascades for index in cascade.indices}


def extend_life(start: int, end: int, together: Mapping[int, range]) -> tuple[int, int]:
    """Steps [start, end), with all steps that run in turns with the first and the last."""
    return together.get(start, range(start, end)).start, together.get(end - 1, range(start, end)).stop
