"""Constants that are fetched while layers before theirs run: cycles, bytes, and that what is expected is what is simulated."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, seed, settings
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.compare_exact import require_exact
from tests.support.machine_variants import with_keys
from tests.support.random_cases import DRAWN, DrawnMachine, DrawnModel, machines, networks
from tests.support.record_plans import record_region_plans
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.isa import Machine, load_machine
from toolchain.judging.sram_sweep import with_sram_size
from toolchain.schedule import prefetch
from toolchain.schedule.plan import PlannedRegion
from toolchain.schedule.region_planner import RegionPlanner
from toolchain.schedule.text import print_schedule
from toolchain.schedule.tilings import LayerTilings

CLASSIFIER = Path(__file__).resolve().parents[2] / "examples/classifier/classifier.onnx"
CASES = int(os.environ.get("RANDOM_CASES", "10"))


def _early_work_and_late_weights() -> onnx.ModelProto:
    """Wide maps and few weights first, small maps and many weights behind."""
    rng = np.random.default_rng(0)
    nodes, weights = list[onnx.NodeProto](), dict[str, np.ndarray]()
    shapes = [(16, 8, 3, 1), (32, 16, 3, 1), (16, 32, 3, 2), (64, 16, 3, 2), (64, 64, 3, 1), (128, 64, 3, 1)]
    for i, (outputs, inputs, kernel, stride) in enumerate(shapes):
        values = rng.normal(0, (inputs * kernel * kernel) ** -0.5, (outputs, inputs, kernel, kernel)).astype(np.float32)
        weights[f"w{i}"] = values
        pads = [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"y{i}"], f"conv{i}", pads=pads, strides=[stride, stride]))
        nodes.append(helper.make_node("Relu", [f"y{i}"], [f"x{i + 1}"], f"relu{i}"))
    return build_model(nodes, {"x0": [1, 8, 64, 64]}, {f"x{len(shapes)}": [1, 128, 16, 16]}, weights)


def _slow_dram(name: str) -> Machine:
    """Weights come at two bytes a cycle."""
    base = load_machine(name)
    memories = base.chip.model_dump(mode="json")["memories"]
    memories["dram"] |= {"read_bytes_per_cycle": 2.0, "write_bytes_per_cycle": 2.0}
    return with_keys(base, memories=memories)


def _built(machine: Machine, folder: Path) -> tuple[Mapping[str, Any], PlannedRegion]:
    """The build compares its program with the integer reference, bit for bit."""
    onnx.save(_early_work_and_late_weights(), folder / "model.onnx")
    with record_region_plans() as plans:
        figures = build(folder / "model.onnx", BuildOptions(machine)).figures
    return figures, plans[-1]


@pytest.mark.parametrize("name", ["edge16", "ethos_u55_256"])
def test_late_weights_come_while_early_layers_run(name: str, tmp_path: Path) -> None:
    """The gain is over plans in which constants come again; with a slot for each they wait less to begin with."""
    machine = _slow_dram(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegionPlanner, "add_prefetch", lambda _, plan, most: plan)
        patch.setattr(LayerTilings, "_keep_constants", lambda _, plan, room, by: plan)
        before, _ = _built(machine, tmp_path)
    figures, plan = _built(machine, tmp_path)
    assert figures["cycles"] < 0.97 * before["cycles"]
    assert figures["dram_read_bytes"] < 1.02 * before["dram_read_bytes"]
    assert plan.cycles == pytest.approx(figures["cycles"], rel=0.03)
    fetched = {index for parts in plan.fetched.values() for index, _ in parts}
    assert fetched and all(since <= min(i for i, _ in parts) for since, parts in plan.fetched.items())


def _many_weights_behind_much_work() -> onnx.ModelProto:
    """Two convolutions of a map, and a product of its mean with more weights than a small memory holds."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (16, 8, 3, 3), "w1": (16, 16, 3, 3), "w2": (4096, 16, 1, 1)}
    weights = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "conv0", pads=[1] * 4),
        helper.make_node("Conv", ["a", "w1"], ["b"], "conv1", pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], "mean"),
        helper.make_node("Conv", ["c", "w2"], ["y"], "late"),
    ]
    return build_model(nodes, {"x": [1, 8, 64, 64]}, {"y": [1, 4096, 1, 1]}, weights)


def test_the_first_weights_come_early_where_all_have_no_room(tmp_path: Path) -> None:
    """The others pass through their ring; what is dumped and given back is the same file."""
    base = _slow_dram("transformer64")
    memories = base.chip.model_dump(mode="json")["memories"]
    memories["weights"]["size"] = 48 * 1024
    machine, path = with_keys(base, memories=memories), tmp_path / "model.onnx"
    onnx.save(_many_weights_behind_much_work(), path)
    with record_region_plans() as plans:
        built = build(path, BuildOptions(machine))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch.PrefetchSearch, "_cut_short", False)
        patch.setattr(RegionPlanner, "_space_out", lambda _, plan: plan)  # gains as much here
        assert built.figures["cycles"] < 0.95 * build(path, BuildOptions(machine)).figures["cycles"]
    (late,) = (p for p in plans[-1].layers if p.name == "late")
    assert any(slot.of_constants for slot in late.rings)
    assert {machine.chip.spaces[part.space].name for part in late.fetches} == {"weights"}
    assert plans[-1].cycles == pytest.approx(built.figures["cycles"], rel=0.03)
    (tmp_path / "net.sched").write_text(print_schedule(built.schedule))
    assert build(path, BuildOptions(machine, schedule=str(tmp_path / "net.sched"))).data == built.data


def test_nothing_is_fetched_ahead_where_nothing_waits(tmp_path: Path) -> None:
    base = load_machine("edge16")
    memories = base.chip.model_dump(mode="json")["memories"]
    memories["dram"] |= {"read_bytes_per_cycle": 4096.0, "write_bytes_per_cycle": 4096.0, "latency_cycles": 0}
    _, plan = _built(with_keys(base, memories=memories), tmp_path)
    assert not plan.fetched


def test_what_is_not_tried_would_gain_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    search, gained, amid = (
        prefetch.PrefetchSearch.best,
        list[bool](),
        list[bool](),
    )  # amid: untried, though alone the layers wait for enough

    def checked(self: prefetch.PrefetchSearch, worst: float) -> PlannedRegion:
        plan = search(self)
        least = 0.01 * self._plan.cycles
        gains = list(self._most_gains())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "may_gain", True)
            tried = search(self)
        if min(gains) < least:
            assert plan is self._plan and tried is self._plan
            amid.append(gains[0] >= least)
        gained.append(tried is not self._plan)
        assert self._plan.cycles - tried.cycles <= min(gains)
        return plan

    monkeypatch.setattr(prefetch.PrefetchSearch, "best", checked)
    for name, sram_bytes in [("edge16", 65_536), ("ethos_u55_256", 65_536), ("nvdla_small", 65_536), ("ws8_pow2", 32_768)]:
        build(CLASSIFIER, BuildOptions(with_sram_size(load_machine(name), sram_bytes), level=2))
    assert any(gained) and any(amid)


def test_a_search_ends_with_its_first_variant_where_that_is_far_from_the_best(tmp_path: Path) -> None:
    searches: dict[prefetch.PrefetchSearch, float] = {}
    best = prefetch.PrefetchSearch.best

    def record_best(self: prefetch.PrefetchSearch, worst: float) -> PlannedRegion:
        searches[self] = worst
        return best(self, worst)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch.PrefetchSearch, "best", record_best)
        _built(_slow_dram("edge16"), tmp_path)
    first, *later = searches
    assert searches[first] == math.inf and all(searches[search] < math.inf for search in later)
    variants, deal = list[float](), first._dealt

    def record_dealt(least: float, *of: Any) -> Any:
        variants.append(least)
        return deal(least, *of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first, "_dealt", record_dealt)
        assert best(first, 0.0).cycles < first._plan.cycles and len(variants) == 1
        assert best(first).cycles < first._plan.cycles and len(variants) > 2


@pytest.mark.parametrize(("least", "counts"), [(1.0, [1, 1, 1]), (0.5, [2, 1, 2])])
def test_a_block_begins_where_idle_cycles_hold_so_much_of_it(least: float, counts: list[int], tmp_path: Path) -> None:
    """Blocks take 0.6 cycles where layers have 0.95 idle ones; what exceeds them is missing in the next layer."""
    searches: list[prefetch.PrefetchSearch] = []
    best = prefetch.PrefetchSearch.best

    def record_best(self: prefetch.PrefetchSearch, worst: float) -> PlannedRegion:
        searches.append(self)
        return best(self, worst)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch.PrefetchSearch, "best", record_best)
        onnx.save(_many_weights_behind_much_work(), tmp_path / "model.onnx")
        build(tmp_path / "model.onnx", BuildOptions(_slow_dram("edge16")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches[0], "_idle_cycles", lambda *_: 1.0)
        patch.setattr(searches[0], "_block_cycles", lambda *_: 0.6)
        layers = searches[0]._dealt(least, 1.0, 4)
    fetched = Counter[int]()
    for planned in layers:
        fetched.update({part.since: len(part.blocks) for part in planned.fetches})
    assert [fetched[since] for since in sorted(fetched)][:3] == counts


def test_only_the_plan_that_comes_closest_gets_finer_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    refined: list[tuple[float, float]] = []
    retile = RegionPlanner.retile

    def record_retile(self: RegionPlanner, plan: PlannedRegion) -> PlannedRegion:
        ways = self._layer_by_layer()
        assert len(ways) > 1
        refined.append((self._first_cycles(plan), min(map(self._first_cycles, ways))))
        return retile(self, plan)

    monkeypatch.setattr(RegionPlanner, "retile", record_retile)
    build(CLASSIFIER, BuildOptions("edge16"))
    ((cycles, fewest),) = refined
    assert cycles == fewest


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, pytest.param(1_000_000, marks=pytest.mark.exhaustive)])
def test_random_networks_with_constants_fetched_ahead(most: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """most: constants that one layer fetches for others, so that these fetch what is left themselves."""
    counts: Counter[str] = Counter()
    check = _equal if "RANDOM_CASES" in os.environ else seed(0)(_equal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "_LEAST_GAIN", -1e9)
        patch.setattr(prefetch.PrefetchSearch, "_idle_cycles", lambda *_: most)
        patch.setattr(prefetch.PrefetchSearch, "_block_cycles", lambda *_: 0.7)
        check(tmp_path_factory.mktemp("ahead"), counts)
    print(dict(counts))
    assert counts["fetching"] > 0.15 * counts["programs"]
    assert counts["own"] or most > 1


@settings(DRAWN, max_examples=CASES)
@given(model=networks(), machine=machines())
def _equal(folder: Path, counts: Counter[str], model: DrawnModel, machine: DrawnMachine) -> None:
    path = folder / "random.onnx"
    onnx.save(model.proto, path)
    with record_region_plans() as plans:
        try:
            built = build(path, BuildOptions(machine.machine))
        except CompileError as fault:
            assert "smallest tile needs" in str(fault), fault
            return
    assert not built.figures["warnings"], built.figures["warnings"]
    counts["programs"] += 1
    counts["fetching"] += any(plan.fetched for plan in plans)
    counts["own"] += any(index == since for plan in plans for since, parts in plan.fetched.items() for index, _ in parts)
    require_exact(built)
