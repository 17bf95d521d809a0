"""The plan of one region: by layers themselves and in turns, for how much of the SRAM, with what is fetched ahead."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Self

from toolchain.errors import CompileError
from toolchain.schedule.ahead import Ahead
from toolchain.schedule.alike import alike
from toolchain.schedule.cascade import Cascades
from toolchain.schedule.constants_there import ConstantsThere
from toolchain.schedule.cut_bounds import Bounds
from toolchain.schedule.cuts import Cut, Cuts, Turns
from toolchain.schedule.layer_by_layer import RESERVES, LayerByLayer
from toolchain.schedule.measure import ALONE, AMID, LEAST_MOVED, Measure
from toolchain.schedule.placement import place_works
from toolchain.schedule.plan import Cascade, RegionPlan
from toolchain.schedule.planning import Planning
from toolchain.schedule.refusal import too_many
from toolchain.schedule.retiled import retiled
from toolchain.schedule.sizes import parted
from toolchain.schedule.staging import LayerPlan, PlannedLayer

_CLOSE = 1.02  # times the fewest cycles by few works, beyond which all works make no plan the fastest
_FEW = 12  # layers of a region, up to which all may take turns, and not only those that run while something is spilled
_USABLE = (1.0, 0.93, 0.86)  # shares of the SRAM for which cascades are chosen: not all that fits by its bytes can be placed
_TRAFFIC = (0.3, 1.0, 10.0)  # what cycles of moved bytes count where plans of less traffic are asked for


class Planner(LayerByLayer):
    """Of one region, with layers in turns as well."""

    def __init__(self, planning: Planning):
        super().__init__(planning)
        self.turns: dict[Measure, Turns] = {}
        self._cascades: dict[int, Cascades] = {}  # by the bytes of SRAM that their constants come in blocks for
        self._there = ConstantsThere(self.model, self.views)

    def within(self, size_bytes: int) -> Self:
        """For the machine with less SRAM; what neither finds depends on what the other did, only how soon."""
        other = copy(self)
        other.chip = self.chip.with_sram(size_bytes)
        other.sizes = {space: other.chip.spaces[space].memory.size for space in other.chip.staging}
        other.turns, other.placed = {}, {}
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
        """For all of the SRAM, without constants ahead, and with finer tiles where there are such. None where layers by
        themselves take more than `most` cycles. Raises CompileError."""
        found: list[RegionPlan] = []
        for number, plan in enumerate(self._best(most)):
            finer = self.retiled(plan)
            found.append(replace(plan, raced=number > 0))
            found += [] if finer is plan else [replace(finer, raced=True)]
        return [plan for plan in found if self.too_many(plan) is None]

    def whole(self) -> list[RegionPlan]:
        """For all of the SRAM, whether or not it is a size of the grid. Raises CompileError."""
        bases = self.bases(math.inf) or [self._in_all()]
        found = [replace(self.ahead(plan, math.inf, math.inf)[0], raced=plan.raced) for plan in bases]
        most = _CLOSE * min(plan.cycles for plan in found)
        return [self.made(plan) for plan in found if plan.cycles <= most]

    def of_little_traffic(self) -> list[RegionPlan]:
        """Plans of the ways in which bytes count."""
        if not self.options.residency:
            return []
        tried = (self._try(self._least, share, by) for share in RESERVES for by in (ALONE, AMID, LEAST_MOVED))
        layerwise = [plan for plan in tried if plan is not None]
        cut = self._little_traffic(layerwise)
        return [place_works(p, self.model) for p in (*layerwise, *cut) if self.too_many(p) is None]

    def _little_traffic(self, layerwise: Sequence[RegionPlan]) -> list[RegionPlan]:
        """With layers in turns, where bytes count."""
        before, rate = self._spilling(layerwise), self.chip.dram.read_bytes_per_cycle
        if before is not None:
            for share in _USABLE:
                ways = (self._cuts(int(self.size * share), before, Measure(byte=t / rate)) for t in _TRAFFIC)
                cut = [self._cut(way, way.best(self.options.near, self.options.rounds)) for way in ways]
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

    def planned_sizes(self) -> list[int]:
        """Of the SRAM, rising, in which each layer fits; none where plans are for all of it alone."""
        if not self.options.per_octave:
            return []
        sizes = parted(self.size, self.chip.sram.alignment_bytes, self.options.per_octave)
        return [size for size in sizes if max(self._least, default=0) <= size]

    def _in_all(self) -> RegionPlan:
        """With nothing resident and tiles as large as they can be."""
        plan = self._try([self.size] * len(self._least), 1.0, ALONE)
        if plan is None:
            raise self.unplaced()
        self.require_few(plan)
        return self.cascaded(plan, math.inf) or plan

    def require_few(self, plan: RegionPlan) -> None:
        """Raises CompileError where its program would be too long to be built and checked."""
        refusal = self.too_many(plan)
        if refusal is not None:
            raise CompileError(refusal)

    def too_many(self, plan: RegionPlan) -> str | None:
        """Why its program would be too long; or None."""
        return too_many([p.layer for p in plan.layers], [p.plan.works if p.plan else 0 for p in plan.layers], self.chip)

    def ahead(self, plan: RegionPlan, known: float, searches: float) -> tuple[RegionPlan, float]:
        """With constants fetched ahead where that takes fewer cycles; and how many bytes of SRAM are enough for the same. known:
        cycles of another plan. searches: for places, at most, until one finds none."""
        if not self.options.ahead:
            return plan, plan.peak_bytes

        def place(planned: Sequence[PlannedLayer], searched: bool) -> RegionPlan | None:
            nonlocal searches
            searched = searched and searches > 0
            found = self.place(planned, plan.resident, plan.views, plan.cascades, searched)
            searches = 0 if searched and found is None else searches - searched
            return found

        taken = self.allocation(plan.layers, plan.resident, plan.views, plan.cascades).taken_bytes
        way = Ahead(plan, self.shared, taken, self.sizes, self.costs, self._there, place)
        found = way.best(known)
        return found, max(plan.peak_bytes, found.peak_bytes, way.enough_bytes)

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

    def cascaded(self, plan: RegionPlan, most: float) -> RegionPlan | None:
        """With layers in turns where that takes fewer cycles; nothing to gain where all tensors stay in SRAM already. None where
        layers by themselves take more than `most`."""
        if not self.options.residency or not plan.spilled:
            return plan if plan.alone_cycles <= most else None
        near, rounds, soon = self.options.near, self.options.rounds, self.options.soon
        for share in _USABLE:
            fewest, amid = (self._cuts(int(self.size * share), plan, by) for by in (ALONE, AMID))
            cuts = fewest.best(near, rounds, most, soon)
            if cuts is None:
                break
            found = [self._cut(fewest, cuts), self._cut(amid, amid.best(near, rounds))]
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
        """Shared by the sizes of an octave."""
        size = 1 << self.size.bit_length() - 1 if self.options.per_octave else self.size
        if size not in self._cascades:
            known = next(iter(self._cascades.values()), None)
            self._cascades[size] = self._first_cascades(size) if known is None else known.within(size)
        return self._cascades[size]

    def _first_cascades(self, size: int) -> Cascades:
        graph = self.layers, self.views, self.storages, self.port_roots, self.in_place
        return Cascades(*graph, self.model, self.layerwise.depth, self.layerwise.candidates(), size)

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

    def _best(self, most: float) -> list[RegionPlan]:
        """The best plan, and behind it those layer by layer that may be faster by all works. None where nothing can be placed or
        layers by themselves take more than `most` cycles."""
        found = self._layer_by_layer()
        best = self.cascaded(found[0], most) if found else None
        return [] if best is None else [best, *(plan for plan in found[1:] if plan.cycles <= _CLOSE * best.cycles)]
