"""Search the plans of a region: layer by layer first, then with cascades, finer tiles and prefetched constants.

`schedule.goals` calls `RegionPlanner`. A base plan holds every decision but the prefetch of constants, which is
searched afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property

from toolchain.errors import CompileError
from toolchain.schedule.capacity_errors import explain_too_many
from toolchain.schedule.cascade import CascadePlanner
from toolchain.schedule.layer_by_layer import RESERVES, LayerByLayer
from toolchain.schedule.layer_grouping import CascadeCosts, GroupingBounds, GroupingSearch, LayerGroup
from toolchain.schedule.options import RegionInput, SearchSteps
from toolchain.schedule.plan import Part, PlannedLayer, PlannedRegion, TiledLayer, replace_layers
from toolchain.schedule.plan_cost import ALONE, AMID, LEAST_MOVED, CostWeights, PlanCosts, assign_units
from toolchain.schedule.prefetch import PrefetchSearch, TimedLayers

_CLOSE = 1.02  # times the fewest cycles by few works, beyond which all works make no plan the fastest
_FEW = 12  # layers of a region, up to which all may take turns, and not only those that run while something is spilled
_USABLE = (1.0, 0.93, 0.86)  # shares of the SRAM for which cascades are chosen: not all that fits by its bytes can be placed
_TRAFFIC = (0.3, 1.0, 10.0)  # what cycles of moved bytes count where plans of less traffic are asked for
_GAIN = 0.001  # of the plan's cycles: less is not worth more operations, nor looking for it

Finer = Callable[[int, PlannedRegion], Sequence[TiledLayer]]  # tilings of a layer with more tiles than the plan's
Place = Callable[[Sequence[PlannedLayer], PlannedRegion], PlannedRegion | None]  # layers otherwise than the plan's


def refine_tiles(
    plan: PlannedRegion, signature: Callable[[int], Hashable], finer: Finer, place: Place, steps: SearchSteps
) -> PlannedRegion:
    """Return the plan, or one with finer tiles that takes at least a thousandth fewer cycles.

    Equal layers with one tiling are changed together. Each finer tiling is tried in the best plan so far. `signature`:
    returns a key of equal layers. `finer`: returns tilings of a layer with more tiles. `place`: returns the plan with
    other layers and new addresses, or None where they have no place.
    """
    for group in _groups(plan, signature):
        if _most(plan, group) < _GAIN * plan.cycles:
            continue
        for tiles in () if steps.over else finer(group[0], plan):
            planned = [tiles.as_layer(p.layer) if i in group else p for i, p in enumerate(plan.layers)]
            candidate = place(planned, plan)
            if candidate is not None and candidate.cycles < (1 - _GAIN) * plan.cycles:
                plan = candidate
    return plan


def _groups(plan: PlannedRegion, signature: Callable[[int], Hashable]) -> list[Sequence[int]]:
    """Return the indices of layers outside cascades, equal ones with one tiling together."""
    groups: dict[Hashable, list[int]] = {}
    for run in plan.runs:
        tiled = plan.layers[run] if isinstance(run, int) else None
        if isinstance(run, int) and isinstance(tiled, TiledLayer):
            groups.setdefault((tiled.tiling, tiled.rings, tiled.units, signature(run)), []).append(run)
    return list(groups.values())


def _most(plan: PlannedRegion, group: Sequence[int]) -> int:
    """Return the cycles that these layers could at most run beside neighbours on units of another kind."""
    tiled = [planned if isinstance(planned, TiledLayer) else None for planned in plan.layers]
    pairs = ((tiled[i], tiled[j]) for i in group for j in (i - 1, i + 1) if 0 <= j < len(tiled))
    return sum(min(a.cycles, b.cycles) for a, b in pairs if a and b and a.units[0].kind != b.units[0].kind)


class RegionPlanner(LayerByLayer):
    """The search for plans of one region, with cascades and prefetches.

    `grouped`: bytes of the SRAM and the plan layer by layer for which cascades were found that could be placed. None:
    there are none. Whether they are taken, `group_cascades` decides by their cycles.
    """

    def __init__(self, planning: RegionInput):
        super().__init__(planning)
        self.cascade_costs: dict[CostWeights, CascadeCosts] = {}
        self._prefetch_searches: dict[Hashable, PrefetchSearch] = {}
        self._preloaded: TimedLayers = {}
        self.grouped: tuple[int, PlannedRegion] | None = None

    def search_plans(self) -> list[PlannedRegion]:
        """Return finished plans that are expected to take few cycles, at least one. All of their tiles are timed.

        Raise CompileError where a layer cannot fit, nothing can be placed, or every plan has too many tiles.
        """
        plans, most = list[PlannedRegion](), math.inf
        for plan in self.base_plans() or [self._in_all()]:
            plans.append(replace(self.add_prefetch(plan, most), raced=plan.raced))
            most = min(most, _CLOSE * plans[-1].cycles)
        return [self.finish(plan) for plan in plans if plan.cycles <= most]

    def base_plans(self) -> list[PlannedRegion]:
        """Return the plans without prefetch that may be the fastest with it, the closest first, and that one with finer
        tiles.

        It is empty where nothing can be placed, or every plan has too many tiles. Raise CompileError where a layer cannot
        fit its memories.
        """
        plans, close = self._best(), list[PlannedRegion]()
        first_cycles = {plan: self._first_cycles(plan) for plan in plans}
        most = _CLOSE * min(first_cycles.values(), default=0.0)
        for plan in sorted(plans, key=first_cycles.__getitem__):
            if close and first_cycles[plan] > most:
                break
            finer = plan if close else self.retile(plan)
            close.append(replace(plan, raced=plan is not plans[0]))
            close += [] if finer is plan else [replace(finer, raced=True)]
        return [plan for plan in close if self.too_many(plan) is None]

    def _first_cycles(self, plan: PlannedRegion) -> float:
        """Return the expected cycles of a plan with its first prefetch."""
        return self._prefetch_search(plan).first.cycles if self.options.prefetch else plan.cycles

    def of_little_traffic(self) -> list[PlannedRegion]:
        """Return finished plans layer by layer, by several weights, and plans with cascades, compared by moved bytes.

        It is empty without residency, and where nothing can be placed.
        """
        if not self.options.residency:
            return []
        ways = ((share, by) for share in RESERVES for by in (ALONE, AMID, LEAST_MOVED))
        tried = (self._try(self._least, share, by) for share, by in ways if not self.steps.over)
        layerwise = [plan for plan in tried if plan is not None]
        cut = self._little_traffic(layerwise) if self.options.cascades else ()
        return [self.finish(p) for p in (*layerwise, *cut) if self.too_many(p) is None]

    def frugal(self, plans: Sequence[PlannedRegion], chosen: Sequence[PlannedRegion], most: float) -> list[PlannedRegion]:
        """Return at most one plan that takes at most `most` cycles and moves a twentieth less than those of `chosen`.

        It is one of `plans`, else it is made of planned cascades and moves a twentieth less than all of `plans`. There a
        moved byte costs the cycles that it takes.
        A twentieth is asked: MobileNetV3 small in 64 KiB took 16 % longer to build for 2.5 %.
        """
        moved = {plan: self.costs.count_moved_bytes(plan) for plan in plans}
        best = min((plan for plan in plans if plan.cycles <= most), key=moved.__getitem__, default=None)
        if best is not None and moved[best] < 0.95 * min(moved[plan] for plan in chosen):
            return [best]
        if self.grouped is None or self.steps.over:
            return []
        usable, before = self.grouped
        least, byte = 0.95 * min(moved.values()), 1 / self.chip.dram.read_bytes_per_cycle
        for by in (ALONE, AMID):
            way = self._make_grouping_search(usable, before, by, byte)
            plan = self._place_groups(way, way.best_of_planned())
            frugal = plan is not None and plan.cycles <= most and self.costs.count_moved_bytes(plan) < least
            if plan is not None and frugal and self.too_many(plan) is None:
                return [self.finish(self.add_prefetch(plan))]
        return []

    def _little_traffic(self, layerwise: Sequence[PlannedRegion]) -> list[PlannedRegion]:
        """Return plans with cascades, compared by DRAM traffic."""
        before, rate = self._spilling(layerwise), self.chip.dram.read_bytes_per_cycle
        if before is not None:
            for share in () if self.steps.over else _USABLE:
                ways = (self._make_grouping_search(int(self.size * share), before, CostWeights(byte=t / rate)) for t in _TRAFFIC)
                placed = [self._place_groups(way, way.best(self.options.near, self.options.rounds)) for way in ways]
                if any(placed):
                    return [p for p in placed if p is not None]
        return []

    def _spilling(self, plans: Sequence[PlannedRegion]) -> PlannedRegion | None:
        """Return the first plan that spills, with all that any of the plans spills; None where none does."""
        spilled = {storage.name for plan in plans for storage in plan.spilled}
        for plan in plans:
            if plan.spilled:
                tensors = (replace(t, memory="dram") if t.buffer.name in spilled else t for t in plan.tensors)
                return replace(plan, tensors=tuple(tensors))
        return None

    def _in_all(self) -> PlannedRegion:
        """Return the plan with nothing resident and tiles as large as possible. Raise CompileError where it has no
        place.
        """
        plan = self._try([self.size] * len(self._least), 1.0, ALONE)
        if plan is None:
            raise self.explain_no_placement()
        self.require_few(plan)
        return self.group_cascades(plan)

    def require_few(self, plan: PlannedRegion) -> None:
        """Raise CompileError where the plan has so many tiles that its program would be too long to build and check."""
        refusal = self.too_many(plan)
        if refusal is not None:
            raise CompileError(refusal)

    def too_many(self, plan: PlannedRegion) -> str | None:
        """Return a sentence on a plan with too many tiles, or None."""
        tile_counts = [planned.tile_count if isinstance(planned, TiledLayer) else 0 for planned in plan.layers]
        return explain_too_many([p.layer for p in plan.layers], tile_counts, self.chip)

    def add_prefetch(self, plan: PlannedRegion, worst: float = math.inf) -> PlannedRegion:
        """Return the plan with prefetched constants where that takes fewer cycles, else the plan.

        `worst`: cycles beyond which no search goes on.
        """
        return plan if not self.options.prefetch or self.steps.over else self._prefetch_search(plan).best(worst)

    def _prefetch_search(self, plan: PlannedRegion) -> PrefetchSearch:
        """Return the search of prefetches for a plan, one for all plans of equal parts."""
        key = plan.parts, plan.resident
        if key not in self._prefetch_searches:

            def place(planned: Sequence[PlannedLayer], searched: bool) -> PlannedRegion | None:
                return self.place(replace_layers(plan.parts, planned), plan.resident, searched)

            used_bytes = self.allocation(plan.parts, plan.resident).count_used_bytes
            search = PrefetchSearch(
                plan,
                self.hoister.shared,
                used_bytes,
                self.sizes,
                self.costs,
                place,
                self.steps,
                lambda index: self.layerwise.signature(index, plan.resident),
                self._preloaded,
            )
            self._prefetch_searches[key] = search
        return self._prefetch_searches[key]

    def retile(self, plan: PlannedRegion) -> PlannedRegion:
        """Return the plan with finer tiles for layers beside one on units of another kind, where that takes fewer
        cycles.
        """
        if not self.options.residency or self.steps.over:
            return plan
        live = self._live_bytes(plan.resident)

        def signature(index: int) -> Hashable:
            return self.layerwise.signature(index, plan.resident)

        def finer(index: int, plan: PlannedRegion) -> Sequence[TiledLayer]:
            before = plan.layers[index]
            assert isinstance(before, TiledLayer)
            return self.layerwise.finer(index, before, plan.resident, self.size - live[index])

        def place(planned: Sequence[PlannedLayer], plan: PlannedRegion) -> PlannedRegion | None:
            placed = self.place(replace_layers(plan.parts, planned), plan.resident, searched=False, near=plan)
            return self._time_overlaps(placed, plan) if placed is not None and is_exact else placed

        # Where layers wait for constants, finer tiles are judged by a few tiles: what they seem to gain, a prefetch does gain.
        is_exact = bool(self.overlapping) and not (self.options.prefetch and self._prefetch_search(plan).may_gain)
        if not is_exact:
            return refine_tiles(plan, signature, finer, place, self.steps)
        timed = self._time_overlaps(plan, plan)
        refined = refine_tiles(timed, signature, finer, place, self.steps)
        return plan if refined is timed else refined

    @cached_property
    def _overlap_costs(self) -> PlanCosts:
        """Return the costs of plans with all tiles of overlapping layers timed."""
        return PlanCosts(self.model, self.hoister, {self.layers[at + n].node.name for at in self.overlapping for n in (0, 1)})

    def _time_overlaps(self, plan: PlannedRegion, near: PlannedRegion) -> PlannedRegion:
        """Return the plan with cycles by all tiles of layers beside which others run. `near`: a plan that differs in
        few layers.
        """
        return replace(plan, cycles=self._overlap_costs.cycles(plan, near=near))

    def finish(self, plan: PlannedRegion) -> PlannedRegion:
        """Return the plan with its last addresses, the unit of each tile, and cycles by all of its tiles.

        A schedule that a user gives is finished in the same way.
        """
        spaced = self._space_out(plan)
        return assign_units(spaced, self.model, self.hoister.hoist(spaced))

    def _space_out(self, plan: PlannedRegion) -> PlannedRegion:
        """Return the plan with addresses by which overlapping layers wait less for slots, where it is faster; else the
        plan.
        """
        is_free = self.overlapping and self.options.residency and not any(planned.fetches for planned in plan.layers)
        if not is_free or self.model.choice or self.steps.over:
            return plan
        placed = self.place(plan.parts, plan.resident, searched=False, is_spaced=True)
        if placed is None:
            return plan
        spaced = replace(self._time_overlaps(placed, plan), raced=plan.raced)
        return spaced if spaced.cycles < self._time_overlaps(plan, plan).cycles else plan

    def group_cascades(self, plan: PlannedRegion) -> PlannedRegion:
        """Return the plan with cascades where that takes fewer cycles; the plan itself where it spills nothing.

        Smaller shares of the SRAM are tried only where no cascades of a larger one could be placed.
        `grouped` is set where cascades could be placed, be they faster or not.
        """
        if not self.options.cascades or not plan.spilled:
            return plan
        for share in _USABLE:
            if self.steps.over:
                break
            ways = (self._make_grouping_search(int(self.size * share), plan, by) for by in (ALONE, AMID))
            placed = [self._place_groups(way, way.best(self.options.near, self.options.rounds)) for way in ways]
            if any(placed):
                self.grouped = int(self.size * share), plan
                return min((plan, *(p for p in placed if p is not None)), key=lambda p: p.cycles)
        return plan

    def _make_grouping_search(
        self, usable: int, before: PlannedRegion, by: CostWeights, byte: float | None = None
    ) -> GroupingSearch:
        """Return the search of cascades. `before`: the best plan layer by layer. `byte`: cost of a moved byte."""
        costs = self.cascade_costs.setdefault(by, {})
        return GroupingSearch(self.cascades, self.bounds(before), usable, self.sizes, by, costs, self.steps, byte)

    def _place_groups(self, way: GroupingSearch, groups: Sequence[LayerGroup] | None) -> PlannedRegion | None:
        """Return the plan of these groups; None where there are none or something has no place."""
        if groups is None:
            return None
        parts, resident = list[Part](), set[str]()
        for group in groups:
            resident |= group.resident
            if group.cascade is None:
                tiled = self.layerwise.plan(group.first, group.resident, way.room(group.resident, group.first, group.end), way.by)
                parts.append(self.moved[group.first] if tiled is None else tiled.as_layer(self.layers[group.first]))
            else:
                parts.append(group.cascade)
                resident |= {v.root for v in group.cascade.views.values()}
        return self.place(parts, frozenset(resident))

    @cached_property
    def cascades(self) -> CascadePlanner:
        """The planner of the region's cascades."""
        graph = self.layers, self.views, self.storages, self.port_roots, self.in_place
        return CascadePlanner(*graph, self.model, self.layerwise.depth, self.layerwise.candidates(), self.size)

    def bounds(self, before: PlannedRegion) -> GroupingBounds:
        """Return the facts by which cascades are bounded. `before`: the best plan layer by layer."""
        few = len(self.layers) <= _FEW
        spilled = frozenset(range(len(self.layers)) if few else (i for s in before.spilled for i in range(s.start, s.end)))
        touched = {r for r, s in self.storages.items() if not spilled.isdisjoint(range(s.start, s.end))}
        return GroupingBounds(
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

    def _best(self) -> list[PlannedRegion]:
        """Return the best plan, then plans layer by layer that may be faster when all tiles are timed. Empty: nothing
        can be placed.
        """
        ways = self._layer_by_layer()
        if not ways:
            return []
        best = self.group_cascades(ways[0])
        return [best, *(plan for plan in ways[1:] if plan.cycles <= _CLOSE * best.cycles)]
