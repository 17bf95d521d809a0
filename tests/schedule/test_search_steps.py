"""Searches for plans end by a clock or a count of steps, with the same plan at the same count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from tests.support.example_networks import fill_network
from tests.support.record_plans import record_regions
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.foundation.cancellation import make_deadline
from toolchain.isa import load_machine
from toolchain.schedule.goals import Goal, candidate_plans
from toolchain.schedule.notes import annotate_plan
from toolchain.schedule.options import RegionInput, SearchSteps
from toolchain.schedule.text import print_schedule

SMALL = replace(load_machine("edge16"), chip=load_machine("edge16").chip.with_sram(16 * 1024))  # cascades are planned


@pytest.fixture(scope="module")
def planning() -> RegionInput:
    """The region of a network that has cascades in this SRAM."""
    with record_regions() as searched:
        build(fill_network("dscnn_kws"), BuildOptions(SMALL))
    return searched[0][0]


def plans_of(planning: RegionInput, steps: SearchSteps) -> str:
    plans = candidate_plans(replace(planning, steps=steps), Goal("balanced"))
    return print_schedule([annotate_plan(plan, planning.chip) for plan in plans])


def jump_after(reads: int) -> Callable[[], float]:
    """Return a clock that stands still, and shows an hour more after so many reads."""
    numbers = count(1)
    return lambda: 3600.0 if next(numbers) > reads else 0.0


@pytest.mark.parametrize("reads", [1, 30, 100, 400])
def test_a_search_that_a_clock_ends_is_repeated_by_its_steps(planning: RegionInput, reads: int) -> None:
    by_clock = SearchSteps(is_late=make_deadline(1.0, jump_after(reads)))
    plans = plans_of(planning, by_clock)
    by_count = SearchSteps(by_clock.count)
    assert plans_of(planning, by_count) == plans
    assert by_clock.count == by_count.count == reads - 1 and by_clock.over and by_count.over


def test_a_search_that_comes_to_its_end_is_repeated_by_its_steps(planning: RegionInput) -> None:
    in_full = SearchSteps()
    plans = plans_of(planning, in_full)
    by_count = SearchSteps(in_full.count)
    assert plans_of(planning, by_count) == plans and not by_count.over
    assert plans_of(planning, SearchSteps(in_full.count // 3)) != plans


@pytest.mark.parametrize("objective", ["cycles", "memory", "traffic", "energy"])
def test_each_goal_has_a_plan_after_no_step(planning: RegionInput, objective: str) -> None:
    steps, in_full = SearchSteps(0), SearchSteps()
    goal = Goal(objective)  # type: ignore[arg-type]
    assert candidate_plans(replace(planning, steps=steps), goal)
    candidate_plans(replace(planning, steps=in_full), goal)
    assert steps.over and steps.count == 0 < in_full.count


def test_a_build_without_a_limit_reads_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = list[SearchSteps]()
    initialize = SearchSteps.__init__

    def record(self: SearchSteps, *arguments: object) -> None:
        counters.append(self)
        initialize(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SearchSteps, "__init__", record)
    build(fill_network("dscnn_kws"), BuildOptions("edge16"))
    assert counters and all(steps._is_late is None for steps in counters)


def test_a_build_says_its_steps_and_repeats_its_bytes() -> None:
    network = fill_network("dscnn_kws")
    limited = build(network, BuildOptions(SMALL, time_limit_s=0.02))
    steps = limited.figures["search_steps"]
    again = build(network, BuildOptions(SMALL, search_steps=steps))
    assert again.data == limited.data and again.figures["search_steps"] == steps
    assert (
        f"search of plans: ended at --time-limit 0.02; --search-steps {steps} gives the same file on any machine" in limited.notes
    )
    in_full = build(network, BuildOptions(SMALL, search_steps=10**6))
    assert steps < in_full.figures["search_steps"]
    assert "search of plans: came to its end after" in in_full.notes[-1]


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"time_limit_s": 0.0}, "time-limit 0: must be more than 0 seconds"),
        ({"time_limit_s": float("nan")}, "time-limit nan: must be more than 0 seconds"),
        ({"search_steps": -1}, "search-steps -1: must be 0 or more"),
        ({"time_limit_s": 2.0, "search_steps": 1}, "time-limit 2: --search-steps ends the searches too; give one of them"),
        (
            {"search_steps": 1, "sram_curve": True},
            "search-steps 1: the plans of --sram-curve are searched in full; give one of them",
        ),
        (
            {"time_limit_s": 1.5, "schedule": "a.sched"},
            "time-limit 1.5: --schedule a.sched leaves nothing to search; give one of them",
        ),
    ],
)
def test_refused_limits(limits: dict[str, object], sentence: str) -> None:
    with pytest.raises(CompileError) as fault:
        BuildOptions("edge16", **limits)  # type: ignore[arg-type]
    assert str(fault.value) == sentence
