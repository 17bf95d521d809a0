"""The goals of planning: what a plan is chosen for (`--optimize`), how much SRAM it may take, and its candidates.

`candidate_plans` is the entrance to the planner for one region. The caller (`toolchain/compiler.py`) links and times
the candidates and takes one. CYCLES is the goal of fewest cycles, BALANCED the default one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.hw.section import write_bytes
from toolchain.schedule.all_resident import plan_all_resident, reorder_layers
from toolchain.schedule.options import LEVELS, Options, RegionInput
from toolchain.schedule.plan import PlannedRegion
from toolchain.schedule.region_planner import RegionPlanner

Objective = Literal["balanced", "cycles", "memory", "traffic", "energy"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True)
class Goal:
    """The objective of planning, with its limits.

    `objective`: fewest cycles; balanced, the least energy within `tolerance` of that; least SRAM (memory); least DRAM
    traffic; least energy. `sram_bytes`: SRAM that a plan may take; None: all of the machine's. `shares_blocks`: equal
    blocks of layers shall be one program, so that nothing is prefetched across them. `tolerance`: share of the fewest
    cycles that a balanced plan may take beyond them.
    """

    objective: Objective = "balanced"
    sram_bytes: int | None = None
    shares_blocks: bool = False
    tolerance: float = 0.01

    @property
    def most(self) -> float:
        """The most cycles of a plan that is taken for its energy, as a multiple of the fewest."""
        return 1 + self.tolerance if self.objective == "balanced" else 1.0

    def require(self, chip: Chip, level: int) -> None:
        """Raise CompileError where the machine or the level has no plans for this goal.

        These are energy without the machine's `energy` section, memory at a level without residency, and more SRAM than
        there is.
        """
        if self.objective == "energy" and chip.energy is None:
            raise CompileError(f"--optimize energy: {chip.name} does not say what a product and a byte take (energy)")
        if self.objective == "memory" and not LEVELS[level].residency:
            raise CompileError(f"--optimize memory: at -O{level} no tensor stays in SRAM; take -O1, -O2 or -O3")
        if self.sram_bytes is not None and self.sram_bytes > chip.sram.size:
            budget, size = write_bytes(self.sram_bytes), write_bytes(chip.sram.size)
            raise CompileError(f"--sram-budget {budget}: {chip.name} has {size} (memories.sram.size)")

    def limit_chip(self, chip: Chip) -> Chip:
        """Return the machine with as much SRAM as plans may use."""
        return chip if self.sram_bytes is None else chip.with_sram(self.sram_bytes)

    def options(self, level: int) -> Options:
        """Return the switches of a level, without prefetching where equal blocks shall be one program."""
        options = LEVELS[level]
        hoist = options.hoist and self.objective != "memory"
        return replace(options, prefetch=options.prefetch and not self.shares_blocks, hoist=hoist)


CYCLES, BALANCED = Goal("cycles"), Goal()


def _best_of_each(plans: Sequence[PlannedRegion]) -> list[PlannedRegion]:
    """Return the plans of fewest cycles and of least spilled bytes.

    Where the first is `raced` (see `PlannedRegion`), the best of the others is added, whose expected cycles are more
    reliable.
    """
    best = min(plans, key=lambda plan: plan.cycles)
    others = [plan for plan in plans if not plan.raced] if best.raced else []
    least = min(plans, key=lambda plan: (plan.spilled_bytes, plan.cycles))
    candidates = [best, *sorted(others, key=lambda plan: plan.cycles)[:1], least]
    return list({id(plan): plan for plan in candidates}.values())


def candidate_plans(planning: RegionInput, goal: Goal) -> list[PlannedRegion]:
    """Plan a region and return the plans among which the goal decides, at least one.

    For balanced and cycles, a search that ran out of steps gives one plan. Raise CompileError where a layer cannot fit
    its memories, with the smallest SRAM that would do.
    """
    planner, objective = RegionPlanner(planning), goal.objective
    if objective in ("balanced", "cycles"):
        plans = planner.search_plans()
        if planning.steps.over:
            return [min(plans, key=lambda plan: plan.cycles)]
        spills = planning.options.cascades and min(plan.spilled_bytes for plan in plans) > 0
        reordered = reorder_layers(planning) if spills else None
        if reordered is not None:
            plans += RegionPlanner(reordered).search_plans()
        candidates = plans if planning.options.simulated else _best_of_each(plans)
        most = goal.most * min(plan.cycles for plan in plans)
        return [*candidates, *(planner.frugal(plans, candidates, most) if objective == "balanced" else ())]
    resident_plan = plan_all_resident(planning) if objective == "memory" else None
    if resident_plan is None:
        return [*planner.search_plans(), *planner.of_little_traffic()]
    return [resident_plan, *(plan for plan in planner.search_plans() if not plan.spilled)]
