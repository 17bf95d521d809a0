"""The cases that bench/compare_goals.py draws, and what it says of one."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import onnx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import compare_goals


@pytest.mark.parametrize("number", range(4))
def test_a_drawn_network_follows_from_its_seed(number: int) -> None:
    model = compare_goals.draw_network(random.Random(f"0/{number}"))
    onnx.checker.check_model(model, full_check=True)
    assert model == compare_goals.draw_network(random.Random(f"0/{number}")) != compare_goals.draw_network(random.Random("1"))


def test_a_case_says_by_how_much_the_best_other_plan_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles = {"cycles": 1000, "balanced": 1004, "memory": 1200, "traffic": 900, "energy": 950}
    monkeypatch.setattr(compare_goals, "predict_cycles", lambda _model, _machine, _level, objective: cycles[objective])
    result = compare_goals.judge_case(random.Random("0/0"), ["edge16"], 2)
    assert result is not None and result[1] == pytest.approx(0.1)
    assert result[0].startswith("edge16, ") and result[0].endswith(" nodes: cycles 1,000, traffic 900")
