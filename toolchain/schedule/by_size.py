"""Plans of the sizes of a grid, so that what is a candidate for less SRAM is one for more.

What is planned for a size of the grid is the same within any machine that has it: its base plans, for all of that size, and each
of them with its addresses and its constants ahead there and in twice as much. Candidates are all of these up to the machine's
SRAM but for those that are expected to take longer than the best by more than expectations are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

from toolchain.machine import Space
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.planning import Planning
from toolchain.schedule.region import Planner
from toolchain.schedule.staging import LayerPlan

_NEAR = 1.01  # times the fewest cycles, within which a plan may be the one that is simulated to take fewest
_CLOSE = 1.02  # the same of what is expected by few works
_FAR, _FEW = 1.05, 24  # the same of layers by themselves, in regions of so few layers, where they may gain more of each other
_ABOVE = (0, 8)  # steps of the grid from the size of a base plan to that in which its constants are fetched ahead


def plans_by_size(planning: Planning) -> list[RegionPlan]:
    """Of few expected cycles. Raises CompileError."""
    planner = Planner(planning)
    sizes = planner.grid()[::-1]
    found = list(_of_sizes([planner.within(size) for size in sizes])) if sizes else []
    if not found:
        return planner.fast()
    fewest = min(plan.cycles for _, plan in found)
    apart = _apart(planner)
    near = {(_what(plan), _where(plan), apart and of.size): (of, plan) for of, plan in found if plan.cycles <= _CLOSE * fewest}
    made = [of.made(plan) for of, plan in near.values()]
    fewest = min(plan.cycles for plan in made)
    return [plan for plan in made if plan.cycles <= _NEAR * fewest]


def _of_sizes(planners: Sequence[Planner]) -> Iterator[tuple[Planner, RegionPlan]]:
    """planners: by rising size."""
    least = fewest = used = math.inf
    known: set[Hashable] = set()
    enough: dict[Hashable, int] = {}  # bytes that a base plan takes with its constants ahead, in the least room looked at
    bases: list[RegionPlan] = []
    few, apart = len(planners[0].layers) <= _FEW, _apart(planners[0])
    for at in reversed(range(len(planners))):
        if planners[at].size < used:  # with as much as the plans for more use they are the same
            bases = planners[at].bases((_FAR if few else _NEAR) * least)
            used = max((_peak(plan) for plan in bases), default=math.inf)
        if not bases and not few:
            return
        least = min([least, *(plan.alone_cycles for plan in bases)])
        for base in bases:
            for above in (at + step for step in reversed(_ABOVE) if at + step < len(planners)):
                what = _what(base)
                if (above, what) in known or (not apart and enough.get(what, math.inf) <= planners[above].size):
                    continue
                known.add((above, what))
                plan = base if above == at else planners[above].adopted(base)
                if plan is None:
                    continue
                plan = planners[above].ahead(plan, _CLOSE * fewest)
                fewest = min(fewest, plan.cycles)
                enough[what] = _peak(plan)
                yield planners[above], plan
                if plan.cycles > _CLOSE * fewest:
                    break  # with less room it takes no less


def _apart(planner: Planner) -> bool:
    """Whether programs of a plan differ by the size: room that is left is for constants that several layers have."""
    return bool(planner.shared)


def _peak(plan: RegionPlan) -> int:
    return plan.placements[Space.SRAM].peak_bytes


def _what(plan: RegionPlan) -> Hashable:
    """All of a plan but its addresses."""
    tiled = tuple(
        (p.plan.tiling, p.plan.slots, p.plan.units, _ahead(p.plan)) if p.plan is not None else None for p in plan.layers
    )
    return plan.resident, tiled, tuple((c.layers, c.stripes.sweep, tuple(map(len, c.stripes.steps))) for c in plan.cascades)


def _ahead(plan: LayerPlan) -> Hashable:
    return tuple((part.role, part.space, part.since, len(part.blocks)) for part in plan.ahead)


def _where(plan: RegionPlan) -> Hashable:
    """Its addresses."""
    return tuple((space, *found.addresses.items()) for space, found in plan.placements.items())
