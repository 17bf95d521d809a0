"""Finer tiles where units of another kind wait for them.

Tilings are chosen layer by layer, and alone few large tiles are fastest. But a softmax in one tile between two matrix products
begins when all of the one is over, and the other begins when the softmax is; cut by heads, all three work at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.tile_buffers import LayerPlan, PlannedLayer

_GAIN = 0.001  # of the plan's cycles: less is not worth more operations, nor looking for it

Finer = Callable[[int, RegionPlan], Sequence[LayerPlan]]  # tilings of a layer with more tiles than the plan's
Place = Callable[[Sequence[PlannedLayer], RegionPlan], RegionPlan | None]  # layers that are planned otherwise than the plan's


def refine_tiles(plan: RegionPlan, finer: Finer, place: Place) -> RegionPlan:
    """The plan, or one of fewer cycles with finer tiles. Layers with one tiling, as those of equal blocks have, are changed
    together, and take them one after the other, each beside what the earlier ones took."""
    for group in _groups(plan):
        if _most(plan, group) < _GAIN * plan.cycles:
            continue
        for tiles in finer(group[0], plan):
            planned = [replace(p, plan=tiles) if i in group else p for i, p in enumerate(plan.layers)]
            found = place(planned, plan)
            if found is not None and found.cycles < (1 - _GAIN) * plan.cycles:
                plan = found
    return plan


def _groups(plan: RegionPlan) -> list[Sequence[int]]:
    """Layers by themselves, those of one tiling together."""
    in_turns = {i for cascade in plan.cascades for i in cascade.layers}
    groups: dict[int, list[int]] = {}
    for i, planned in enumerate(plan.layers):
        if planned.plan is not None and i not in in_turns:
            groups.setdefault(id(planned.plan), []).append(i)
    return list(groups.values())


def _most(plan: RegionPlan, group: Sequence[int]) -> int:
    """Cycles that these layers could work beside neighbours on units of another kind."""
    plans = [p.plan for p in plan.layers]
    pairs = ((plans[i], plans[j]) for i in group for j in (i - 1, i + 1) if 0 <= j < len(plans))
    return sum(min(a.cycles, b.cycles) for a, b in pairs if a and b and a.units[0].kind != b.units[0].kind)
