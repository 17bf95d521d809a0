"""The plan of one region: what is resident, the tilings of its layers, and every address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.machine import Space
from toolchain.memory import Placement
from toolchain.ops.kit.tile import TileTask, round_up
from toolchain.schedule.copies import Location, dram_alignment
from toolchain.schedule.nodes import Fetch
from toolchain.schedule.stripes import BufferReset, BufferShift, Step, Stripes
from toolchain.schedule.tile_buffers import PlannedLayer
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


@dataclass(frozen=True)
class Cascade:
    """Neighbouring layers that are executed stripe by stripe. `visited`: the works of the stripes that stand for all, by layer,
    with what is
    repeated (`schedule.sampling`).
    """

    layers: range
    stripes: Stripes
    visited: VisitedStripes = field(repr=False)


@dataclass(frozen=True)
class RegionPlan:
    """The plan of one region: layers, residency, tilings and addresses.

    `resident`: roots in SRAM, whole or their latest rows. `spilled`: roots in DRAM. `placements`: by memory, the addresses of
    roots and slots. `raced`: an alternative to the plan of fewest expected cycles, kept because full timing may prefer it.
    """

    layers: tuple[PlannedLayer, ...]
    views: Mapping[str, View]
    resident: frozenset[str]
    spilled: tuple[Storage, ...]
    placements: Mapping[int, Placement]
    cycles: float
    cascades: tuple[Cascade, ...] = ()
    raced: bool = False

    @cached_property
    def residents(self) -> frozenset[str]:
        """The tensors that lie in resident roots."""
        return frozenset(name for name, view in self.views.items() if view.root in self.resident)

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
            for part in planned.plan.fetches if planned.plan is not None else ():
                fetches.setdefault(part.since, []).append((index, part))
        return fetches

    @cached_property
    def runs(self) -> tuple[int | Cascade, ...]:
        """The layers and cascades in the order in which they run."""
        first_layers, inside = {c.layers.start: c for c in self.cascades}, {i for c in self.cascades for i in c.layers}
        return tuple(first_layers.get(i, i) for i in range(len(self.layers)) if i in first_layers or i not in inside)

    def steps(self) -> Iterator[int | Step]:
        """The layers, and the steps of cascades, in the order in which they run."""
        for run in self.runs:
            yield from (run,) if isinstance(run, int) else chain.from_iterable(run.stripes.steps)

    def cuts(self, layer: int, chip: Chip) -> list[list[PartCut]]:
        """The pieces of prefetched constants behind the loads of each tile of a layer.

        Pieces are as even as possible and long enough to be worth their latency. The layer's own constants come first, when its
        tiles need them.
        """
        tiled, dram, pitch = self.layers[layer].plan, chip.dram, dram_alignment(chip)
        assert tiled is not None
        parts = self.fetched[layer]
        begins = list(accumulate((round_up(part.size_bytes, pitch) for _, part in parts), initial=0))
        total = sum(round_up(part.size_bytes, pitch) for _, part in parts)
        needed_bytes = {tile: end for index, part in parts if index == layer for tile, end in part.needed.items()}
        least = _LATENCIES * int(dram.latency_cycles * dram.read_bytes_per_cycle)
        pieces: list[list[PartCut]] = [[] for _ in range(tiled.works)]
        done = 0
        for tile in range(tiled.works):
            need = needed_bytes.get(tile, 0)
            even = total if tile == tiled.works - 1 else total * (tile + 1) // tiled.works
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
    return sum(layer.plan.cycles for layer in layers if layer.plan is not None)
