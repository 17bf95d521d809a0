"""What plans are chosen for, budgets of SRAM, and the curve over its sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import helper

from bench.make_mobilenet_chain import bodies
from scripts.onnx_builder import build_model
from tests.support.check_bounds import dram_bytes, require_bounds
from toolchain.api import Build, BuildOptions, build
from toolchain.cli.option_values import plan_goal
from toolchain.errors import CompileError
from toolchain.isa import Machine, load_machine
from toolchain.machine import Space
from toolchain.report.curve_picture import curve_svg
from toolchain.report.report_text import totals_text
from toolchain.schedule import capacity_errors, region_planner
from toolchain.schedule.cost import CostModel
from toolchain.schedule.goals import OBJECTIVES, Goal
from toolchain.schedule.hoisted_constants import HoistedConstants
from toolchain.schedule.options import LEVELS, Options
from toolchain.schedule.plan import PlannedRegion, TiledLayer
from toolchain.schedule.plan_cost import assign_units
from toolchain.schedule.region_planner import RegionPlanner


def _machine(kib: float) -> Machine:
    base = load_machine("edge16")
    return Machine(base.chip.with_sram(int(kib * 1024)), base.isa)


def _wide() -> onnx.ModelProto:
    """Two branches of three layers; in the order of the file both have their widest tensors at once."""
    rng = np.random.default_rng(0)
    nodes, weights = list[onnx.NodeProto](), dict[str, np.ndarray]()

    def conv(x: str, y: str, inputs: int, outputs: int) -> None:
        weights[y + "_w"] = (rng.standard_normal((outputs, inputs, 1, 1)) / inputs).astype(np.float32)
        nodes.append(helper.make_node("Conv", [x, y + "_w"], [y], y))

    conv("x", "a", 4, 8)
    for branch in "bc":
        conv("a", branch + "0", 8, 48)
    for branch in "bc":
        conv(branch + "0", branch + "1", 48, 8)
    nodes.append(helper.make_node("Concat", ["b1", "c1"], ["both"], axis=1))
    conv("both", "y", 16, 4)
    return build_model(nodes, {"x": [1, 4, 16, 16]}, {"y": [1, 4, 16, 16]}, weights, opset=13)


def _built(model: onnx.ModelProto, folder: Path, machine: Machine, objective: str = "cycles", **options: Any) -> Build:
    """The build compares its program with the integer reference, bit for bit."""
    onnx.save(model, folder / "model.onnx")
    goal = Goal(objective, options.pop("budget", None))  # type: ignore[arg-type]
    built_network = build(folder / "model.onnx", BuildOptions(machine, goal=goal, **options))
    require_bounds(built_network.figures)
    return built_network


def test_goals_and_builds_have_one_default() -> None:
    assert Goal() == BuildOptions("edge16").goal == Goal("balanced")


def _worth(figures: Mapping[str, Any]) -> dict[str, float]:
    return {
        "balanced": figures["energy_pj"]["total"],
        "cycles": figures["cycles"],
        "memory": figures["sram_peak_bytes"],
        "traffic": dram_bytes(figures),
        "energy": figures["energy_pj"]["total"],
    }


@pytest.mark.parametrize(
    "kib", [pytest.param(512, marks=pytest.mark.exhaustive), 96, pytest.param(24, marks=pytest.mark.exhaustive)]
)
def test_each_objective_is_no_worse_in_it_than_cycles(kib: int, tmp_path: Path) -> None:
    worth_by_objective = {o: _worth(_built(bodies(1, size=16), tmp_path, _machine(kib), o).figures) for o in OBJECTIVES}
    for objective, worth in worth_by_objective.items():
        if objective != "memory" or kib == 512:
            assert worth[objective] <= worth_by_objective["cycles"][objective]
    if kib == 24:  # with more, fewest cycles move each byte once
        assert worth_by_objective["traffic"]["traffic"] < worth_by_objective["cycles"]["traffic"]


def test_a_balanced_plan_takes_less_energy_within_its_tolerance(tmp_path: Path) -> None:
    """The fastest plan for 192 KiB spills tensors that the SRAM could hold stripe by stripe, in few cycles more."""
    model, budget = tmp_path / "model.onnx", 192 * 1024
    onnx.save(bodies(), model)
    figures = {
        goal: build(model, BuildOptions("edge16", goal=goal)).figures
        for goal in (Goal("balanced", budget), Goal("balanced", budget, tolerance=0.0), Goal("cycles", budget))
    }
    balanced, none_more, strict = figures.values()
    assert strict["cycles"] < balanced["cycles"] <= 1.01 * strict["cycles"]
    assert balanced["energy_pj"]["total"] < 0.5 * strict["energy_pj"]["total"]
    assert balanced["cycles"] <= 199_000 and dram_bytes(balanced) <= 90_000
    moved, energy = dram_bytes(strict), strict["energy_pj"]["total"]
    assert balanced["fastest"] == {"cycles": strict["cycles"], "dram_bytes": moved, "energy_pj": energy}
    assert none_more["cycles"] == strict["cycles"] and none_more["fastest"] is None is strict["fastest"]
    assert f"(--optimize cycles) takes {strict['cycles']:,} cycles, {moved:,} DRAM bytes" in totals_text(balanced)
    assert "--optimize cycles" not in totals_text(strict)


@pytest.mark.parametrize("kib", [320, 512])
def test_where_nothing_is_spilled_constants_stay_and_each_byte_moves_once(kib: int, tmp_path: Path) -> None:
    """The first layer reads its input once, with a slot for each block of its constants."""
    figures = _built(bodies(), tmp_path, load_machine("edge16"), budget=kib * 1024).figures
    assert dram_bytes(figures) == figures["dram_bound_bytes"] and figures["cycles"] < 195_500


def test_a_machine_without_energy_balances_bytes(tmp_path: Path) -> None:
    base = load_machine("edge16")
    silent = Machine(base.chip.model_copy(update={"energy": None}), base.isa)
    onnx.save(bodies(), tmp_path / "model.onnx")
    balanced = build(tmp_path / "model.onnx", BuildOptions(silent, goal=Goal("balanced", 192 * 1024))).figures
    assert balanced["fastest"]["energy_pj"] is None
    assert dram_bytes(balanced) < 0.5 * balanced["fastest"]["dram_bytes"]


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5", 0.005), ("0%", 0.0)])
def test_a_tolerance_is_a_percentage(text: str, share: float) -> None:
    assert plan_goal("balanced", None, text) == Goal("balanced", tolerance=share)


@pytest.mark.parametrize(
    ("objective", "text", "fault"),
    [
        ("balanced", "much", "tolerance much: must be a percentage from 0% to 100%, such as 1%"),
        ("balanced", "-1%", "tolerance -1%: must be a percentage from 0% to 100%, such as 1%"),
        ("balanced", "nan", "tolerance nan: must be a percentage from 0% to 100%, such as 1%"),
        ("cycles", "1%", "tolerance 1%: goes with --optimize balanced, not with cycles; leave it out"),
    ],
)
def test_refused_tolerances(objective: str, text: str, fault: str) -> None:
    with pytest.raises(CompileError) as refusal:
        plan_goal(objective, None, text)
    assert str(refusal.value) == fault


def test_the_least_memory_is_that_of_whole_tensors_in_the_best_order(tmp_path: Path) -> None:
    """In the file's order two tensors of 12,288 bytes live at once, in the best one only one of them does."""
    least_memory, fast = (_built(_wide(), tmp_path, _machine(512), o).figures for o in ("memory", "cycles"))
    live = 2048 + 12_288 + 4096
    assert live <= least_memory["sram_peak_bytes"] <= 1.05 * (live + 1500) < 2 * 12_288 < fast["sram_peak_bytes"]
    assert least_memory["dram_write_bytes"] == fast["dram_write_bytes"] == 1024


@pytest.mark.parametrize(("level", "levels"), [(2, [2]), (3, [3, 2, 1])])
def test_plans_are_made_once_for_the_sram_there_is(level: int, levels: list[int], tmp_path: Path) -> None:
    """At the highest level those of the levels below it are candidates too."""
    planner_runs: list[tuple[int, Options]] = []
    make_plans = RegionPlanner._layer_by_layer

    def noted(planner: RegionPlanner) -> list[PlannedRegion]:
        planner_runs.append((planner.size, planner.options))
        return make_plans(planner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegionPlanner, "_layer_by_layer", noted)
        _built(_wide(), tmp_path, _machine(49), level=level)
    assert planner_runs == [(49 * 1024, LEVELS[number]) for number in levels]


def test_a_plan_takes_no_more_than_its_budget(tmp_path: Path) -> None:
    machine, size = _machine(512), 40_000
    figures = _built(bodies(size=16), tmp_path, machine, budget=size).figures
    assert figures["sram_peak_bytes"] <= size < _built(bodies(size=16), tmp_path, machine).figures["sram_peak_bytes"]
    assert figures["sram_size_bytes"] == machine.chip.sram.size


@pytest.mark.parametrize(
    ("goal", "level", "message"),
    [
        (Goal("cycles", 1 << 20), 2, "--sram-budget 1 MiB: edge16 has 512 KiB (memories.sram.size)"),
        (Goal("memory"), 0, "--optimize memory: at -O0 no tensor stays in SRAM; take -O1, -O2 or -O3"),
        (Goal("speed"), 2, "optimize speed: must be one of balanced, cycles, memory, traffic, energy"),  # type: ignore[arg-type]
    ],
)
def test_refused_goals(goal: Goal, level: int, message: str, tmp_path: Path) -> None:
    onnx.save(_wide(), tmp_path / "model.onnx")
    with pytest.raises(CompileError) as fault:
        build(tmp_path / "model.onnx", BuildOptions(load_machine("edge16"), level=level, goal=goal))
    assert str(fault.value) == message


def test_a_machine_that_does_not_say_what_a_byte_takes_has_no_plan_of_least_energy() -> None:
    silent = load_machine("edge16").chip.model_copy(update={"energy": None})
    with pytest.raises(CompileError, match="edge16 does not say what a product and a byte take"):
        Goal("energy").require(silent, 2)


def test_plans_of_little_traffic_are_no_longer_than_a_program_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 8 KiB the longest has 138 tiles."""
    most = list[int]()

    def count_tiles(plan: PlannedRegion, model: CostModel, hoisted: HoistedConstants) -> PlannedRegion:
        most.append(sum(p.tile_count for p in plan.layers if isinstance(p, TiledLayer)))
        return assign_units(plan, model, hoisted)

    monkeypatch.setattr(region_planner, "assign_units", count_tiles)
    free = _built(_wide(), tmp_path, _machine(8), "traffic")
    assert max(most) == 138
    monkeypatch.setattr(capacity_errors, "MOST_TILES", 100)
    most.clear()
    bound = _built(_wide(), tmp_path, _machine(8), "traffic")
    assert max(most) <= 100 and dram_bytes(bound.figures) >= dram_bytes(free.figures)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (60, 74),
        (140, 200),
        *(pytest.param(*sizes, marks=pytest.mark.exhaustive) for sizes in [(39.5, 48.75), (140, 173), (214, 264)]),
    ],
)
def test_more_sram_costs_few_cycles_if_any(tmp_path: Path, less: float, more: float) -> None:
    few, many = (_built(bodies(), tmp_path, _machine(kib)).figures for kib in (less, more))
    assert many["cycles"] <= 1.03 * few["cycles"]


def test_the_curve_has_the_smallest_size_that_does_and_the_machines_own(tmp_path: Path) -> None:
    machine = _machine(64)
    stages: list[tuple[str, int]] = []
    onnx.save(_wide(), tmp_path / "model.onnx")
    options = BuildOptions(machine, sram_curve=True)
    built_network = build(tmp_path / "model.onnx", options, progress=lambda stage, done, total: stages.append((stage, done)))
    curve = built_network.curve
    of_sizes = [(stage, done) for stage, done in stages if stage.startswith("SRAM of ")]
    assert of_sizes[0] == ("SRAM of 65,536 bytes", 0)
    assert [done for _, done in of_sizes[1:]] == list(range(len(of_sizes) - 1))
    assert all(re.search(r", size \d+ of \d+ at most, about \d+ s left$", stage) for stage, _ in of_sizes[1:])
    assert curve is not None
    sizes = [p.sram_bytes for p in curve.points]
    assert all(a < b for a, b in pairwise(sizes))
    assert sizes[0] < 32_768 < sizes[-1]
    assert (curve.own.cycles, curve.own.dram_bytes) == (built_network.figures["cycles"], dram_bytes(built_network.figures))
    assert all(p.dram_bytes >= p.least_bytes and p.peak_bytes <= p.sram_bytes for p in curve.points)
    assert curve.points[0].cycles > curve.own.cycles
    with pytest.raises(CompileError, match="smallest tile needs"):
        _built(_wide(), tmp_path, _machine((sizes[0] - machine.chip.sram.alignment_bytes) / 1024))
    assert machine.chip.spaces[Space.SRAM].memory.size == curve.own_bytes


def test_the_picture_needs_nothing_beside_it() -> None:
    text = curve_svg("a <b> & c", [1000, 4096, 65536], 4096, [30, 20, 10], [9, 8, 7], [5, 5, 5])
    tree = ElementTree.fromstring(text)
    kinds = [element.tag.rpartition("}")[2] for element in tree.iter()]
    assert kinds.count("polyline") == 3
    assert kinds.count("circle") == 9
    assert "href" not in text and "a &lt;b&gt; &amp; c" in text


def test_layers_run_in_an_order_of_fewer_live_bytes_where_that_spills_less(tmp_path: Path) -> None:
    """Four tensors of 65,536 bytes live at once in the order of the file, one branch by branch, and 72 KiB hold one."""
    rng = np.random.default_rng(0)
    firsts = [helper.make_node("Conv", ["x", f"w{i}"], [f"a{i}"], f"a{i}") for i in range(4)]
    seconds = [
        helper.make_node("Conv", [f"a{i}", f"v{i}"], [f"b{i}"], f"b{i}", pads=[1, 1, 1, 1], strides=[4, 4]) for i in range(4)
    ]
    concat = helper.make_node("Concat", [f"b{i}" for i in range(4)], ["y"], axis=1)
    weights = {f"w{i}": rng.standard_normal((64, 8, 1, 1)).astype(np.float32) for i in range(4)}
    weights |= {f"v{i}": rng.standard_normal((8, 64, 3, 3)).astype(np.float32) for i in range(4)}
    model = build_model([*firsts, *seconds, concat], {"x": [1, 8, 32, 32]}, {"y": [1, 32, 8, 8]}, weights, opset=13)
    for objective in ("cycles", "balanced"):
        figures = _built(model, tmp_path, _machine(72), objective).figures
        assert figures["dram_write_bytes"] == 2048  # the output alone
