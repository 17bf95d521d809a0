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
    """Layers of a region that run in turns. visited: the works of the stripes that stand for all, by layer, with what is repeated
    (`schedule.sampling`)."""

    layers: range
    stripes: Stripes
    visited: VisitedStripes = field(repr=False)


@dataclass(frozen=True)
class RegionPlan:
    """`resident`: roots in SRAM, whole or their latest rows; `spilled`: roots in DRAM; `placements`: by memory, the addresses of
    roots and slots. `raced`: its tiles are others than those expected to be fastest by few
    works, or finer, for units of another kind."""

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
        """Of the roots in DRAM, once."""
        return sum(storage.size_bytes for storage in self.spilled)

    @property
    def peak_bytes(self) -> int:
        """Of the SRAM."""
        return self.placements[Space.SRAM].peak_bytes

    @property
    def alone_cycles(self) -> int:
        return alone_cycles(self.layers)

    @cached_property
    def fetched(self) -> Mapping[int, Sequence[tuple[int, Fetch]]]:
        """Constants, and whose they are, by the layer behind whose loads they are fetched, in order."""
        found: dict[int, list[tuple[int, Fetch]]] = {}
        for index, planned in enumerate(self.layers):
            for part in planned.plan.fetches if planned.plan is not None else ():
                found.setdefault(part.since, []).append((index, part))
        return found

    @cached_property
    def runs(self) -> tuple[int | Cascade, ...]:
        """What follows one another: layers, and those that run in turns."""
        begun, inside = {c.layers.start: c for c in self.cascades}, {i for c in self.cascades for i in c.layers}
        return tuple(begun.get(i, i) for i in range(len(self.layers)) if i in begun or i not in inside)

    def steps(self) -> Iterator[int | Step]:
        """What runs in order: layers, and calls of those that run in turns."""
        for run in self.runs:
            yield from (run,) if isinstance(run, int) else chain.from_iterable(run.stripes.steps)

    def cuts(self, layer: int, chip: Chip) -> list[list[PartCut]]:
        """What of the constants that are fetched ahead comes behind the loads of each of the layer's works: as even as can be, of
        pieces that are worth their latency; its own, which come first, when they are needed."""
        tiled, dram, pitch = self.layers[layer].plan, chip.dram, dram_alignment(chip)
        assert tiled is not None
        parts = self.fetched[layer]
        begins = list(accumulate((round_up(part.size_bytes, pitch) for _, part in parts), initial=0))
        total = sum(round_up(part.size_bytes, pitch) for _, part in parts)
        needed = {work: end for index, part in parts if index == layer for work, end in part.needed.items()}
        least = _LATENCIES * int(dram.latency_cycles * dram.read_bytes_per_cycle)
        found: list[list[PartCut]] = [[] for _ in range(tiled.works)]
        done = 0
        for work in range(tiled.works):
            need = needed.get(work, 0)
            even = total if work == tiled.works - 1 else total * (work + 1) // tiled.works
            if need > done or even - done >= least or even == total:
                end = min(total, round_up(max(need, even), pitch))
                met = (
                    PartCut(at, max(done, begin) - begin, min(end, begin + part.size_bytes) - begin)
                    for at, ((_, part), begin) in enumerate(zip(parts, begins))
                )
                found[work], done = [cut for cut in met if cut.start < cut.stop], end
        return found

    def root(self, name: str) -> Location:
        """Where a resident root begins."""
        return Location(Space.SRAM, self.placements[Space.SRAM].addresses[name])

    def part(self, layer: int, part: Fetch) -> Location:
        """Where constants of a layer are fetched to."""
        return self.slot(layer, part.key, part.space, 0)

    def slot(self, layer: int, role: str, space: int, copy: int) -> Location:
        """Where a slot of a layer's ring begins."""
        return Location(Space(space), self.placements[space].addresses[slot_name(layer, role, copy)])


def slot_name(layer: int, role: str, copy: int) -> str:
    """Of the buffer that is placed for it."""
    return f"{layer}:{role}:{copy}"


def alone_cycles(layers: Iterable[PlannedLayer]) -> int:
    """Of the layers' tilings, one after another with nothing at once."""
    return sum(layer.plan.cycles for layer in layers if layer.plan is not None)
