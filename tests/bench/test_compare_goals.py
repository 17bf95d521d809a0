"""The cases that bench/compare_goals.py draws, and what it says of one."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from toolchain.ops.kit.tile import Tiling
from toolchain.schedule.goals import CYCLES, Goal, candidate_plans
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import PlannedRegion
from toolchain.schedule.tilings import LayerTilings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import compare_goals


@pytest.mark.parametrize("number", range(4))
def test_a_drawn_network_follows_from_its_seed(number: int) -> None:
    model = compare_goals.draw_network(random.Random(f"0/{number}"))
    onnx.checker.check_model(model, full_check=True)
    assert model == compare_goals.draw_network(random.Random(f"0/{number}")) != compare_goals.draw_network(random.Random("1"))


def test_a_case_says_by_how_much_the_best_other_plan_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles = {"cycles": 10_000, "memory": 12_000, "traffic": 9_000}

    def make_plans(planning: RegionInput, goal: Goal) -> list[PlannedRegion]:
        return [replace(plan, cycles=cycles[goal.objective]) for plan in candidate_plans(planning, CYCLES)]

    monkeypatch.setattr(compare_goals, "candidate_plans", make_plans)
    judged = compare_goals.judge_case(random.Random("0/0"), ["edge16"], 2)
    assert judged is not None and judged.gain == pytest.approx(0.1)
    assert judged.text.startswith("edge16, ") and judged.text.endswith(" nodes: cycles 10,000, traffic 9,000")


def test_layers_are_told_that_a_tiling_beside_theirs_makes_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of the first tilings that fit has more such layers than one of the search's."""
    best = LayerTilings.best
    searched = compare_goals.judge_case(random.Random("0/0"), ["edge16"], 2)
    monkeypatch.setattr(LayerTilings, "best", lambda self, room, most, *by: best(self, room, 1, *by))
    first = compare_goals.judge_case(random.Random("0/0"), ["edge16"], 2)
    assert searched is not None and first is not None and searched.layers == first.layers == 9
    assert len(searched.misses) < len(first.misses)


def test_neighbours_differ_in_one_loop_by_one_step() -> None:
    tilings = [Tiling(rows, 8, channels, 4) for rows in (1, 2, 4, 8) for channels in (16, 32)]
    neighbours = compare_goals.list_neighbours(Tiling(2, 8, 16, 4), tilings)
    assert neighbours == [Tiling(1, 8, 16, 4), Tiling(4, 8, 16, 4), Tiling(2, 8, 32, 4)]
