"""The plans that builds make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from toolchain.schedule.goals import Goal, candidate_plans
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import PlannedRegion


@contextmanager
def record_regions() -> Iterator[list[tuple[RegionInput, list[PlannedRegion]]]]:
    """Record each region that the compiler searches plans for and these plans, in order, while this block runs."""
    searched: list[tuple[RegionInput, list[PlannedRegion]]] = []

    def record(planning: RegionInput, goal: Goal) -> list[PlannedRegion]:
        searched.append((planning, candidate_plans(planning, goal)))
        return searched[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolchain.compiler.candidate_plans", record)
        yield searched


@contextmanager
def record_region_plans() -> Iterator[list[PlannedRegion]]:
    """Record the plans of regions from which the compiler chooses, in order; the list is filled when this block ends."""
    plans: list[PlannedRegion] = []
    with record_regions() as searched:
        yield plans
    plans += (plan for _, plans_of_region in searched for plan in plans_of_region)
