"""The plans that builds make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from toolchain.schedule.goals import Objective, candidate_plans
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import RegionPlan


@contextmanager
def noted_plans() -> Iterator[list[RegionPlan]]:
    """Of regions, in order, as they come while it lasts: those of which the compiler takes one."""
    plans: list[RegionPlan] = []

    def noted(planning: RegionInput, objective: Objective) -> list[RegionPlan]:
        found = candidate_plans(planning, objective)
        plans.extend(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolchain.compiler.candidate_plans", noted)
        yield plans
