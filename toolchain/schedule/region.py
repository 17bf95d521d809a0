"""The plan of one region: by layers themselves and in turns, for how much of the SRAM, with what is fetched ahead."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Self

from toolchain.errors import CompileError
from toolchain.machine import Space
from toolchain.schedule.ahead import Ahead
from toolchain.schedule.alike import alike
from toolchain.schedule.cascade import Cascades, PartWorks
from toolchain.schedule.cut_bounds import Bounds
from toolchain.schedule.cuts import Cut, Cuts, Turns
from toolchain.schedule.layer_by_layer import RESERVES, LayerByLayer
from toolchain.schedule.measure import ALONE, AMID, LEAST_MOVED, Measure
from toolchain.schedule.placement import place_works
from toolchain.schedule.plan import Cascade, RegionPlan
from toolchain.schedule.planning import Planning
from toolchain.schedule.refusal import too_many
from toolchain.schedule.retiled import retiled
from toolchain.schedule.sizes import PARTS, grid, parted
from toolchain.schedule.staging import LayerPlan, PlannedLayer

_NEAR, _NEAR_SIMULATED = 1.003, 1.01  # times the cycles of layers alone of the best plan, for other sizes; where all are tried
_CLOSE = 1.02  # times the fewest cycles by few works, beyond which all works make no plan the fastest
_FEW = 12  # layers of a region, up to which all may take turns, and not only those that run while something is spilled
_MISSES = 4  # searches of places for constants ahead that find none, behind which none is begun
_LITTLE = 100  # layers that are planned, and cascades
_USABLE = (1.0, 0.93, 0.86)  # shares of the SRAM for which cascades are chosen: not all that fits by its bytes can be placed
_PER_OCTAVE = 4  # sizes of the SRAM for which plans are made where they are not simulated
_TRAFFIC = (0.3, 1.0, 10.0)  # what cycles of moved bytes count where plans of less traffic are asked for


class Planner(LayerByLayer):
    """Of one region, with layers in turns as well."""

    def __init__(self, planning: Planning):
        super().__init__(planning)
        self.turns: dict[Measure, Turns] = {}
        self.missed = 0  # searches for constants ahead that found no places
        self._cascades: dict[int, Cascades] = {}  # by the bytes of SRAM that their constants come in blocks for
        self._works: PartWorks = {}

    def within(self, size_bytes: int) -> Self:
        """For the machine with less SRAM; what neither finds depends on what the other did, only how soon."""
        other = copy(self)
        other.chip = self.chip.with_sram(size_bytes)
        other.sizes = {space: other.chip.spaces[space].memory.size for space in other.chip.staging}
        other.turns, other.placed, other.missed = {}, {}, 0
        return other

    def searching(self, tilings: int, near: float) -> Self:
        """With so many tilings of each layer, and layers in turns as near to what any such plan takes (`Options`)."""
        other = copy(self)
        other.options = replace(self.options, tilings=tilings, near=near)
        other.layerwise = self.layerwise.trying(tilings)
        return other

    def adopted(self, plan: RegionPlan) -> RegionPlan | None:
        """A plan for less SRAM, with its addresses in this one."""
        return self.place(plan.layers, plan.resident, plan.views, plan.cascades)

    def made(self, plan: RegionPlan) -> RegionPlan:
        """A plan with all its works, for this SRAM."""
        return self._inside(place_works(plan, self.model))

    def _inside(self, plan: RegionPlan) -> RegionPlan:
        """As one that says for which SRAM it is."""
        return replace(plan, layers=tuple(replace(p, layer=replace(p.layer, chip=self.chip)) for p in plan.layers))

    def bases(self, most: float) -> list[RegionPlan]:
        """For all of the SRAM, without constants ahead. None where layers by themselves take more than `most` cycles. Raises
        CompileError."""
        found: list[RegionPlan] = []
        for plan in self._best(self.size, most):
            finer = self.retiled(plan)
            found += [plan] if finer is plan else [plan, finer]
        return [plan for plan in found if self.too_many(plan) is None]

    def plans(self) -> list[RegionPlan]:
        """The plans of few cycles, and those of the ways in which bytes count more."""
        return [*(place_works(plan, self.model) for plan in self._found()), *self.of_little_traffic()]

    def of_little_traffic(self) -> list[RegionPlan]:
        """Plans of the ways in which bytes count."""
        if not self.options.residency:
            return []
        tried = (self._try(self._least, share, by, self.size) for share in RESERVES for by in (ALONE, AMID, LEAST_MOVED))
        layerwise = [plan for plan in tried if plan is not None]
        cut = self._little_traffic(layerwise)
        return [place_works(p, self.model) for p in (*layerwise, *cut) if self.too_many(p) is None]

    def _little_traffic(self, layerwise: Sequence[RegionPlan]) -> list[RegionPlan]:
        """With layers in turns, where bytes count."""
        before, rate = self._spilling(layerwise), self.chip.dram.read_bytes_per_cycle
        if before is not None:
            for share in _USABLE:
                ways = (self._cuts(int(self.size * share), before, Measure(byte=t / rate)) for t in _TRAFFIC)
                cut = [self._cut(way, way.best(self.options.near)) for way in ways]
                if any(cut):
                    return [p for p in cut if p is not None]
        return []

    def _spilling(self, plans: Sequence[RegionPlan]) -> RegionPlan | None:
        """The first that spills anything, with all that any of them spills."""
        spilled = {s.name: s for p in plans for s in p.spilled}
        for plan in plans:
            if plan.spilled:
                return replace(plan, spilled=tuple(spilled.values()), resident=plan.resident.difference(spilled))
        return None

    def plan(self) -> RegionPlan:
        """Of fewest cycles, as far as is known without its program."""
        return min(self.fast(), key=lambda plan: plan.cycles)

    def fast(self) -> list[RegionPlan]:
        """The plans of few cycles. Raises CompileError."""
        found = self._found()
        most = _CLOSE * min(plan.cycles for plan in found)
        return [place_works(plan, self.model) for plan in found if plan.cycles <= most]

    def _found(self) -> list[RegionPlan]:
        """Plans for all of the SRAM and for smaller sizes: what is chosen layer by layer for more room need not be better in the
        end; with as much as the plans for more use, it is the same. Where little was looked at, all other sizes are; else as long
        as layers by themselves could take as few cycles with them, and no less than half where plans are not simulated as well.
        Raises CompileError."""
        found, seen, least, used = list[RegionPlan](), list[RegionPlan](), math.inf, math.inf
        for size in (self.size, *self._smaller()):
            if size >= used:
                continue
            much = self._looked_at(len(seen)) > _LITTLE
            if much and not self.options.simulated and size < self.size // 2:
                break
            near = _NEAR if much and not self.options.simulated else _NEAR_SIMULATED
            plans = self._best(size, near * least)
            if not plans and much:
                break
            used = max((plan.placements[Space.SRAM].peak_bytes for plan in plans), default=math.inf)
            for number, plan in enumerate(plans):
                if not any(plan is known for known in seen):
                    self.require_few(plan)
                    found += self._finished(plan, number > 0, _fewest(found))
                    seen.append(plan)
                    least = min(least, plan.alone_cycles)
                if size < self.size:
                    # Its addresses in no more than that: which bytes are used again decides what waits.
                    inside = self.within(size)
                    placed = inside.adopted(plan)
                    if placed is not None and placed.cycles < plan.cycles:
                        found += map(inside._inside, inside._finished(placed, number > 0, _fewest(found)))
        return found or [self._in_all()]

    def _finished(self, plan: RegionPlan, raced: bool, known: float) -> Iterator[RegionPlan]:
        """With constants ahead, and with finer tiles where there are such. known: cycles of another plan."""
        first = replace(self.ahead(plan, known), raced=raced)
        yield first
        finer = self.retiled(plan)
        if finer is not plan:
            yield replace(self.ahead(finer, min(known, first.cycles)), raced=True)

    def _looked_at(self, plans: int) -> int:
        """Layers of so many plans, and cascades."""
        cascades = sum(len(by_room) for turns in self.turns.values() for by_room in turns.values())
        return plans * len(self.layers) + cascades

    def _smaller(self) -> list[int]:
        """Of the grid those below all of the SRAM."""
        return [size for size in self.grid() if size < self.size]

    def grid(self) -> list[int]:
        """Sizes, falling, in which each layer fits. Where the SRAM is used up to one of them alone, they are what memories come
        in."""
        if not self.options.residency:
            return []
        alignment = self.chip.sram.alignment_bytes
        sizes = parted(self.size, alignment, PARTS) if self.options.simulated else grid(self.size, alignment, _PER_OCTAVE)
        return [size for size in reversed(sizes) if max(self._least, default=0) <= size]

    def _in_all(self) -> RegionPlan:
        """With nothing resident and tiles as large as they can be."""
        plan = self._try([self.size] * len(self._least), 1.0, ALONE, self.size)
        if plan is None:
            raise self.unplaced()
        self.require_few(plan)
        return self.ahead(self.cascaded(plan, self.size, math.inf) or plan, math.inf)

    def require_few(self, plan: RegionPlan) -> None:
        """Raises CompileError where its program would be too long to be built and checked."""
        refusal = self.too_many(plan)
        if refusal is not None:
            raise CompileError(refusal)

    def too_many(self, plan: RegionPlan) -> str | None:
        """Why its program would be too long; or None."""
        return too_many([p.layer for p in plan.layers], [p.plan.works if p.plan else 0 for p in plan.layers], self.chip)

    def ahead(self, plan: RegionPlan, known: float) -> RegionPlan:
        """With constants fetched ahead where that takes fewer cycles. known: of another plan."""
        if not self.options.ahead:
            return plan
        most = self.missed + 1 if self.options.simulated else _MISSES  # there what is found must not depend on other plans

        def place(planned: Sequence[PlannedLayer], searched: bool) -> RegionPlan | None:
            if searched and self.missed == most:
                return None
            found = self.place(planned, plan.resident, plan.views, plan.cascades, searched)
            self.missed += searched and found is None
            return found

        taken = self.allocation(plan.layers, plan.resident, plan.views, plan.cascades).taken_bytes
        return Ahead(plan, self.shared, taken, self.sizes, self.model, place).best(known)

    def retiled(self, plan: RegionPlan) -> RegionPlan:
        """With finer tiles where units of another kind wait for them."""
        if not self.options.residency:
            return plan
        live = self._live_bytes(plan.resident)

        def finer(index: int, plan: RegionPlan) -> Sequence[LayerPlan]:
            before = plan.layers[index].plan
            return () if before is None else self.layerwise.finer(index, before, plan.resident, self.size - live[index])

        def place(planned: Sequence[PlannedLayer], plan: RegionPlan) -> RegionPlan | None:
            return self.place(planned, plan.resident, plan.views, plan.cascades, searched=False)

        return retiled(plan, finer, place)

    @cached_property
    def shared(self) -> Collection[int]:
        """Layers whose constants others have as well."""
        return alike(enumerate(self.layers))

    def cascaded(self, plan: RegionPlan, size: int, most: float) -> RegionPlan | None:
        """With layers in turns, in so many bytes of the SRAM, where that takes fewer cycles; nothing to gain where all tensors
        stay there already. None where layers by themselves take more than `most`."""
        if not self.options.residency or not plan.spilled:
            return plan if plan.alone_cycles <= most else None
        for share in _USABLE:
            fewest, amid = (self._cuts(int(size * share), plan, by) for by in (ALONE, AMID))
            cuts = fewest.best(self.options.near, most, self.options.rounds if size < self.size else None)
            if cuts is None:
                break
            found = [self._cut(fewest, cuts), self._cut(amid, amid.best(self.options.near))]
            if any(found):
                return min((plan, *(f for f in found if f is not None)), key=lambda p: p.cycles)
        return plan if plan.alone_cycles <= most else None

    def _cuts(self, usable: int, before: RegionPlan, by: Measure) -> Cuts:
        """before: layer by layer."""
        return Cuts(self.cascades, self.bounds(before), usable, self.sizes, by, self.turns.setdefault(by, {}))

    def _cut(self, way: Cuts, cuts: Sequence[Cut] | None) -> RegionPlan | None:
        """The plan cut so; None where nothing was found or something has no place."""
        if cuts is None:
            return None
        planned: list[PlannedLayer] = []
        views, resident, cascades = dict(self.views), set[str](), list[Cascade]()
        for cut in cuts:
            resident |= cut.resident
            if cut.cascade is None:
                plan = self.layerwise.plan(cut.first, cut.resident, way.room(cut.resident, cut.first, cut.end), way.by)
                planned.append(PlannedLayer(self.layers[cut.first], plan))
            else:
                planned += cut.cascade.layers
                views |= cut.cascade.views
                resident |= {v.root for v in cut.cascade.views.values()}
                cascades.append(cut.cascade.cascade)
        return self.place(planned, frozenset(resident), views, tuple(cascades))

    @property
    def cascades(self) -> Cascades:
        """Shared by the sizes of an octave at the level at which one size must not depend on another."""
        size = 1 << self.size.bit_length() - 1 if self.options.simulated else self.size
        if size not in self._cascades:
            depth, tilings, works = self.layerwise.depth, self.layerwise.candidates(), self._works
            graph = self.layers, self.views, self.storages, self.port_roots, self.in_place
            self._cascades[size] = Cascades(*graph, self.model, depth, tilings, size, works)
        return self._cascades[size]

    def bounds(self, before: RegionPlan) -> Bounds:
        few = len(self.layers) <= _FEW
        spilled = frozenset(range(len(self.layers)) if few else (i for s in before.spilled for i in range(s.start, s.end)))
        touched = {r for r, s in self.storages.items() if not spilled.isdisjoint(range(s.start, s.end))}
        return Bounds(
            self.storages,
            self.port_roots,
            [frozenset(self.views[n].root for n in (*la.activations, *la.node.outputs)) for la in self.layers],
            [la.output.shape[1] if len(la.output.shape) == 4 else 1 for la in self.layers],
            self.layerwise.cycles,
            self.chip.dram.read_bytes_per_cycle,
            self.chip.sram.alignment_bytes,
            spilled,
            before.resident - touched,
        )

    def _best(self, size: int, most: float) -> list[RegionPlan]:
        """In so many bytes of the SRAM; behind it those layer by layer that may be faster by all works. None where nothing can be
        placed or layers by themselves take more than `most` cycles."""
        found = self._layer_by_layer(size)
        best = self.cascaded(found[0], size, most) if found else None
        return [] if best is None else [best, *(plan for plan in found[1:] if plan.cycles <= _CLOSE * best.cycles)]


def _fewest(plans: Sequence[RegionPlan]) -> float:
    """Cycles of any of these."""
    return min((plan.cycles for plan in plans), default=math.inf)
