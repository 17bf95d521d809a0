"""Plans of the sizes of a grid, so that what is a candidate for less SRAM is one for more.

What is planned for a size of the grid is the same within any machine that has it: its base plans, for all of that size, by the
searches of the levels below that keep tensors in SRAM, at every other size also by that of this level, and each of them with its
addresses and its constants ahead there and in twice as much. Candidates are all of these up to the machine's SRAM but for those
that are expected to take longer than the best by more than expectations are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain

from toolchain.machine import Space
from toolchain.schedule.options import LEVELS
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.planning import Planning
from toolchain.schedule.region import Planner
from toolchain.schedule.sizes import parted
from toolchain.schedule.staging import LayerPlan

_NEAR = 1.01  # times the fewest cycles, within which a plan may be the one that is simulated to take fewest
_NEAR_QUICK = 1.003  # the same of layers by themselves, of what is searched as at a level below
_CLOSE = 1.02  # the same of what is expected by few works
_FEW = 24  # layers of a region, up to which more is looked at: what is expected of one of them counts for more there
_FAR, _FAR_ALONE = 1.05, 1.15  # there, in the place of the first and third; of the others: in turns layers may take less
_MUCH_PER_OCTAVE = 4  # sizes that are searched as this level does
_ABOVE = (0, 8)  # steps of the grid from the size of a base plan to that in which its constants are fetched ahead


def plans_by_size(planning: Planning) -> list[RegionPlan]:
    """Of few expected cycles. Raises CompileError."""
    planner = Planner(planning)
    quick = [planner.searching(level.tilings, level.near) for level in LEVELS if level.residency and not level.simulated]
    much = set(parted(planner.size, planning.chip.sram.alignment_bytes, _MUCH_PER_OCTAVE))
    ways = [*((way, _NEAR_QUICK) for way in quick), (planner, _NEAR)]
    sizes = [(size, ways if size in much else ways[:-1]) for size in reversed(planner.grid())]
    found = list(_of_sizes([[(way.within(size), near) for way, near in ways] for size, ways in sizes])) if sizes else []
    if not found:
        return [plan for way in (planner, *quick) for plan in way.fast()]
    fewest = min(plan.cycles for _, plan in found)
    apart, few = _apart(planner), _few(planner)
    most = (_FAR if few else _CLOSE) * fewest
    near = {(_what(plan), _where(plan), apart and of.size): (of, plan) for of, plan in found if plan.cycles <= most}
    made = [of.made(plan) for of, plan in near.values()]
    fewest = min(plan.cycles for plan in made)
    return [plan for plan in made if plan.cycles <= (_FAR if few else _NEAR) * fewest]


def _of_sizes(sizes: Sequence[Sequence[tuple[Planner, float]]]) -> Iterator[tuple[Planner, RegionPlan]]:
    """sizes: by rising size, the ways in which base plans are searched for it, the same ones first, and up to how many times the
    fewest cycles of layers by themselves."""
    planners = [first for (first, _), *_ in sizes]
    ways = max(map(len, sizes))
    found: list[list[RegionPlan]] = [[] for _ in range(ways)]  # by way, its latest base plans
    least, fewest = [math.inf] * ways, math.inf  # by way, cycles of layers by themselves; cycles of all
    known: set[Hashable] = set()
    enough: dict[Hashable, int] = {}  # bytes that a base plan takes with its constants ahead, in the least room looked at
    few, apart = _few(planners[0]), _apart(planners[0])
    close = _FAR if few else _CLOSE
    for at in reversed(range(len(planners))):
        for number, (way, near) in enumerate(sizes[at]):
            # With as much as the plans for more use they are the same.
            if way.size < max(map(_peak, found[number]), default=math.inf):
                found[number] = way.bases((_FAR_ALONE if few else near) * least[number])
                least[number] = min([least[number], *(plan.alone_cycles for plan in found[number])])
        if not any(found) and not few:
            return
        bases = list(chain.from_iterable(found[: len(sizes[at])]))
        for base in bases:
            for above in (at + step for step in reversed(_ABOVE) if at + step < len(planners)):
                what = _what(base)
                if (above, what) in known or (not apart and enough.get(what, math.inf) <= planners[above].size):
                    continue
                known.add((above, what))
                plan = base if above == at else planners[above].adopted(base)
                if plan is None:
                    continue
                plan = planners[above].ahead(plan, close * fewest)
                fewest = min(fewest, plan.cycles)
                enough[what] = _peak(plan)
                yield planners[above], plan
                if plan.cycles > close * fewest:
                    break  # with less room it takes no less


def _few(planner: Planner) -> bool:
    return len(planner.layers) <= _FEW


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
