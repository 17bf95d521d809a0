"""Finer tiles where units of another kind wait for them."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from examples.schedules.networks import NETWORKS
from toolchain.api import Build, BuildOptions, build
from toolchain.schedule.region_planner import RegionPlanner
from toolchain.schedule.text import print_schedule


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    """Four heads: two products with a softmax between them."""
    onnx.save(NETWORKS["attention"](), tmp_path / "attention.onnx")
    return tmp_path / "attention.onnx"


def _built(path: Path) -> Build:
    return build(path, BuildOptions("transformer64"))


def test_products_begin_before_all_of_a_softmax_is_over(attention: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built_network = _built(attention)
    assert "IntegerSoftmax, 4 tiles" in print_schedule(built_network.schedule)
    monkeypatch.setattr(RegionPlanner, "retile", lambda _, plan: plan)
    alone = _built(attention)
    assert "IntegerSoftmax, 1 tile," in print_schedule(alone.schedule)
    assert built_network.figures["cycles"] < 0.95 * alone.figures["cycles"]


def test_what_is_expected_sees_the_heads_apart(attention: Path) -> None:
    """Of a schedule by hand, which is the same whatever is expected."""
    schedule = Path(__file__).parents[2] / "examples/schedules/attention.sched"
    built_network = build(attention, BuildOptions("transformer64", schedule=str(schedule)))
    (expected,) = re.findall(r"([\d,]+) cycles expected", print_schedule(built_network.schedule))
    assert int(expected.replace(",", "")) == pytest.approx(built_network.figures["cycles"], rel=0.005)
