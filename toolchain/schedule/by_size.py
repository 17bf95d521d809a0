"""Plans of the sizes of a grid, so that what is a candidate for less SRAM is one for more.

What is planned for a size of the grid is the same within any machine that has it: its base plans, for all of that size, and each
of them with its addresses and its constants ahead there and in up to twice as much. Where plans are simulated, base plans are
searched as the level below does as well, and as this level does at every other size. Candidates are all of these up to the
machine's SRAM but for those that are expected to take longer than the best by more than expectations are wrong. Of a region of
many layers plans for less SRAM are left out where those for more have room for all tensors, and constants ahead where they gain
nothing in more.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from toolchain.schedule.options import LEVELS
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.region import Planner
from toolchain.schedule.sizes import parted
from toolchain.schedule.staging import LayerPlan

_NEAR = 1.01  # times the fewest cycles, within which a plan may be the one that is simulated to take fewest
_NEAR_QUICK = 1.003  # the same of layers by themselves, of what is searched as at a level below
_CLOSE = 1.02  # the same of what is expected by few works
_CLOSE_NOT_AHEAD = 1.01  # the same where no constants come ahead: few works say half a per cent too much or too little then
_FEW = 24  # layers of a region, up to which more is looked at: what is expected of one of them counts for more there
_FAR, _FAR_ALONE = 1.05, 1.15  # there, in the place of the first and third; of the others: in turns layers may take less
_SEARCHES = 2  # for places of constants ahead, where plans are not simulated
_MUCH_PER_OCTAVE = 4  # sizes that are searched as the level does that simulates
_MANY = 100  # layers of a region, beyond which less is looked at: all that is tried of it takes minutes

_Ways = Sequence[tuple[Planner, float]]  # in which base plans are searched, and up to how many times the fewest cycles of layers


def plans_by_size(planner: Planner) -> list[RegionPlan]:
    """Of few expected cycles. Raises CompileError."""
    sizes = [(size, _ways(planner, size)) for size in planner.planned_sizes()]
    found = list(_of_sizes([[(way.within(size), near) for way, near in ways] for size, ways in sizes])) if sizes else []
    if not found:
        return [plan for way, _ in reversed(_ways(planner, None)) for plan in way.whole()]
    close, near = _margins(planner)
    fastest = min((plan for _, plan in found), key=lambda plan: plan.cycles)
    different: dict[Hashable, tuple[Planner, RegionPlan]] = {}
    for of, plan in found:
        ahead = planner.options.simulated or plan.fetched or fastest.fetched
        if plan.cycles <= (close if ahead else _CLOSE_NOT_AHEAD) * fastest.cycles:
            different.setdefault((decided(plan), _where(plan), _apart(planner) and of.size), (of, plan))
    made = [of.made(plan) for of, plan in different.values()]
    most = near * min(plan.cycles for plan in made)
    return [plan for plan in made if plan.cycles <= most]


def _ways(planner: Planner, size: int | None) -> _Ways:
    """Of a size, the ones that all sizes have first; None: all that there are."""
    if not planner.options.simulated:
        return [(planner, _FAR if _few(planner) else _NEAR)]
    near, near_quick = (_FAR_ALONE, _FAR_ALONE) if _few(planner) else (_NEAR, _NEAR_QUICK)
    quick = [
        (planner.searching(level.tilings, level.near), near_quick) for level in LEVELS if level.residency and not level.simulated
    ]
    alignment = planner.chip.sram.alignment_bytes
    much = size is None or size in parted(size, alignment, _MUCH_PER_OCTAVE)
    return [*quick, (planner, near)] if much else quick


def _margins(planner: Planner) -> tuple[float, float]:
    """Times the fewest cycles, by few works and by all, beyond which a plan is no candidate."""
    return (_FAR, _FAR) if _few(planner) and planner.options.simulated else (_CLOSE, _NEAR)


def _above(planner: Planner) -> Sequence[int]:
    """Steps of the grid from the size of a base plan to those in which its constants are fetched ahead, falling."""
    octave = planner.options.per_octave
    return (octave, 0) if planner.options.simulated else range(octave, -1, -2)


class _Bases:
    """Base plans that are searched in one way, of sizes that fall."""

    def __init__(self) -> None:
        self.found: list[RegionPlan] = []
        self._least = math.inf  # cycles of layers by themselves

    def search(self, way: Planner, near: float) -> None:
        """For the size of the way, within so many times the fewest cycles of layers by themselves."""
        same = bool(self.found) and all(plan.peak_bytes <= way.size for plan in self.found)  # what more SRAM has fits as well
        if _many(way) and self.found and not any(plan.spilled or plan.cascades for plan in self.found):
            if not same:
                self.found, self._least = [], -math.inf
        elif self._least > 0 and not (same and way.options.simulated):  # where plans are simulated, searches are long
            self.found = way.bases(near * self._least)
            self._least = min([self._least, *(plan.alone_cycles for plan in self.found)])


def _of_sizes(sizes: Sequence[_Ways]) -> Iterator[tuple[Planner, RegionPlan]]:
    """sizes: by rising size, the ways, of which the ones that all sizes have come first."""
    planners = [first for (first, _), *_ in sizes]
    by_way = [_Bases() for _ in range(max(map(len, sizes)))]
    fewest = math.inf  # cycles of all
    known: set[Hashable] = set()
    no_gain: set[Hashable] = set()  # base plans of many layers that gain nothing by constants ahead
    enough: dict[Hashable, float] = {}  # bytes from which on a base plan has the same constants ahead and addresses
    few, many, (close, _) = _few(planners[0]), _many(planners[0]), _margins(planners[0])
    for at in reversed(range(len(planners))):
        for own, (way, near) in zip(by_way, sizes[at]):
            own.search(way, near)
        if not any(own.found for own in by_way) and not few:
            return
        for base in chain.from_iterable(own.found for own in by_way[: len(sizes[at])]):
            what, lost = decided(base), False
            for above in (at + step for step in _above(planners[at]) if at + step < len(planners)):
                if lost and (above > at or planners[at].options.simulated):
                    continue
                if (above, what) in known or (not _apart(planners[at]) and enough.get(what, math.inf) <= planners[above].size):
                    continue
                known.add((above, what))
                if what in no_gain:
                    continue
                plan = base if above == at else planners[above].adopted(base)
                if plan is None:
                    continue
                plan, bytes_enough = planners[above].ahead(plan, close * fewest, _searches(planners[at], above == at))
                enough[what] = min(bytes_enough, enough.get(what, math.inf))
                if many and not plan.fetched:
                    no_gain.add(what)
                plan = replace(plan, raced=base.raced)
                fewest = min(fewest, plan.cycles)
                yield planners[above], plan
                lost = plan.cycles > close * fewest  # with less room it takes no less, unless places are searched for there alone


def _searches(planner: Planner, own: bool) -> float:
    """For places of a base plan's constants ahead, at most, in its own size or in more."""
    return math.inf if planner.options.simulated else _SEARCHES * own


def _few(planner: Planner) -> bool:
    return len(planner.layers) <= _FEW


def _many(planner: Planner) -> bool:
    return len(planner.layers) > _MANY


def _apart(planner: Planner) -> bool:
    """Whether programs of a plan differ by the size: room that is left is for constants that several layers have."""
    return planner.options.simulated and bool(planner.shared)


def decided(plan: RegionPlan) -> Hashable:
    """All of a plan but its addresses."""
    tiled = tuple(
        (p.plan.tiling, p.plan.slots, p.plan.units, _ahead(p.plan)) if p.plan is not None else None for p in plan.layers
    )
    turns = ((c.layers, c.stripes.sweep, tuple(map(len, c.stripes.steps)), *c.stripes.rows.items()) for c in plan.cascades)
    return plan.resident, tiled, tuple(turns)


def _ahead(plan: LayerPlan) -> Hashable:
    return tuple((part.role, part.space, part.since, len(part.blocks)) for part in plan.ahead)


def _where(plan: RegionPlan) -> Hashable:
    """Its addresses."""
    return tuple((space, *found.addresses.items()) for space, found in plan.placements.items())
