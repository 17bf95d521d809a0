"""The plans that builds make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from toolchain.schedule.goals import Goal, candidate_plans
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import PlannedRegion


@contextmanager
def record_region_plans() -> Iterator[list[PlannedRegion]]:
    """Record the plans of regions from which the compiler chooses, in order, while this block runs."""
    plans: list[PlannedRegion] = []

    def noted(planning: RegionInput, goal: Goal) -> list[PlannedRegion]:
        plans_of_region = candidate_plans(planning, goal)
        plans.extend(plans_of_region)
        return plans_of_region

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolchain.compiler.candidate_plans", noted)
        yield plans
