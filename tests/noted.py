"""The plans that builds make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from toolchain.schedule.cost import CostModel
from toolchain.schedule.placement import place_works
from toolchain.schedule.plan import RegionPlan


@contextmanager
def noted_plans() -> Iterator[list[RegionPlan]]:
    """Of regions, in order, as they come while it lasts."""
    plans: list[RegionPlan] = []

    def noted(plan: RegionPlan, model: CostModel) -> RegionPlan:
        plans.append(place_works(plan, model))
        return plans[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolchain.schedule.region.place_works", noted)
        yield plans
