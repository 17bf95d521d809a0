"""Finer tiles where units of another kind wait for them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from examples.schedules.networks import NETWORKS
from scripts.onnx_builder import GraphBuilder
from toolchain.api import Build, BuildOptions, build
from toolchain.schedule.goals import CYCLES
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


def test_what_is_expected_sees_the_heads_apart(attention: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a schedule by hand, which is the same whatever is expected; spaced out, 1.3 % more is expected than it takes."""
    monkeypatch.setattr(RegionPlanner, "_space_out", lambda _, plan: plan)
    schedule = Path(__file__).parents[2] / "examples/schedules/attention.sched"
    built_network = build(attention, BuildOptions("transformer64", schedule=str(schedule)))
    (expected,) = re.findall(r"([\d,]+) cycles expected", print_schedule(built_network.schedule))
    assert int(expected.replace(",", "")) == pytest.approx(built_network.figures["cycles"], rel=0.005)


def _convolutions_and_pool(folder: Path) -> Path:
    """Two convolutions of 56 x 56 and 28 x 28 with a pool between them, which takes a third as long as the first."""
    rng = np.random.default_rng(0)
    graph = GraphBuilder("pool")
    x = graph.node("Conv", "wide", ["x", graph.constant("w0", rng.normal(size=(16, 1, 5, 5)).astype(np.float32))], pads=[2] * 4)
    x = graph.node("MaxPool", "pool", [x], kernel_shape=[2, 2], strides=[2, 2])
    graph.node("Conv", "narrow", [x, graph.constant("w1", rng.normal(size=(32, 16, 3, 3)).astype(np.float32))], pads=[1] * 4)
    onnx.save(graph.build({"x": [1, 1, 56, 56]}, {"narrow": None}, opset=17), folder / "pool.onnx")
    return folder / "pool.onnx"


def test_a_pool_runs_beside_the_convolutions_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finer pool begins before the first convolution is over, whose slots it does not take the place of."""
    path, cycles = _convolutions_and_pool(tmp_path), list[int]()
    for method in ("", "_space_out", "retile"):
        if method:
            monkeypatch.setattr(RegionPlanner, method, lambda _, plan: plan)
        cycles.append(build(path, BuildOptions("edge16", goal=CYCLES)).figures["cycles"])
    together, in_place, alone = cycles
    assert together < 0.99 * in_place < 0.98 * alone
