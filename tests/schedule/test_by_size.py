"""What is a candidate for less SRAM is one for more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scripts.bodies import bodies
from scripts.chains import chain
from toolchain.api import BuildOptions, build
from toolchain.isa import load_machine
from toolchain.ops.kit.tile import aligned
from toolchain.schedule import by_size
from toolchain.schedule.constants_there import ConstantsThere, There
from toolchain.schedule.goals import Objective, candidate_plans
from toolchain.schedule.options import LEVELS
from toolchain.schedule.parts import Constants
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.planning import Planning
from toolchain.schedule.region import Planner
from toolchain.schedule.sizes import parted


def _stack() -> onnx.ModelProto:
    """Convolutions of stride 2, each with four times the constants of the one before, so that the last wait for theirs."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    channels = [16, 32, 64, 128, 256]
    for at, (inputs, outputs) in enumerate(pairwise(channels)):
        w = rng.standard_normal((outputs, inputs, 3, 3)) / (3 * inputs**0.5)
        weights.append(numpy_helper.from_array(w.astype(np.float32), f"w{at}"))
        nodes.append(helper.make_node("Conv", [f"x{at}", f"w{at}"], [f"x{at + 1}"], f"conv{at}", pads=[1] * 4, strides=[2, 2]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, h, h]) for n, c, h in [("x0", 16, 64), ("x4", 256, 4)])
    graph = helper.make_graph(nodes, "stack", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _planning(model: onnx.ModelProto, folder: Path) -> Planning:
    """Of its one region."""
    found: list[Planning] = []

    def noted(planning: Planning, objective: Objective) -> list[RegionPlan]:
        found.append(planning)
        return candidate_plans(planning, objective)

    onnx.save(model, folder / "model.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolchain.compiling.candidate_plans", noted)
        build(folder / "model.onnx", BuildOptions(load_machine("edge16"), level=2))
    (planning,) = found
    return planning


def _candidates(planning: Planning, sram_bytes: int) -> Sequence[RegionPlan]:
    return candidate_plans(replace(planning, options=LEVELS[3], chip=planning.chip.with_sram(sram_bytes)), "cycles")


def _decided(plan: RegionPlan) -> object:
    """All that its program depends on."""
    tiled = [
        (p.plan.tiling, p.plan.slots, [(part.role, part.since, len(part.blocks)) for part in p.plan.ahead]) if p.plan else None
        for p in plan.layers
    ]
    return (
        plan.resident,
        tiled,
        [(c.layers, c.stripes.sweep, len(c.stripes.steps)) for c in plan.cascades],
        {s: p.addresses for s, p in plan.placements.items()},
    )


@pytest.mark.parametrize(
    ("model", "less", "more"),
    [(_stack, 350_000, 400_000), pytest.param(bodies, 65_536, 80_000, marks=pytest.mark.exhaustive)],
)
def test_what_is_a_candidate_for_less_sram_is_one_for_more(
    model: Callable[[], onnx.ModelProto], less: int, more: int, tmp_path: Path
) -> None:
    """But for what is expected to take over 1 % more than the best."""
    planning = _planning(model(), tmp_path)
    of_more = _candidates(planning, more)
    near = 1.01 * min(plan.cycles for plan in of_more)
    of_less = [
        plan for size in parted(more, 16, 8) if size >= less for plan in _candidates(planning, size) if plan.cycles <= near
    ]
    there = [_decided(plan) for plan in of_more]
    assert any(p.plan is not None and p.plan.ahead for plan in of_less for p in plan.layers) or model is bodies
    assert of_less and all(_decided(plan) in there for plan in of_less)
    within = {plan.layers[0].layer.chip.sram.size for plan in of_more}
    assert within.issubset(parted(more, 16, 8))


def test_with_enough_bytes_the_same_constants_come_ahead(tmp_path: Path) -> None:
    """To the same addresses; with less than that some of them do not."""
    planner = Planner(_planning(_stack(), tmp_path))
    base = planner.bases(math.inf)[0]
    found, enough = planner.ahead(base, math.inf, 0)
    assert found.fetched and enough < planner.size
    same, less = (planner.within(aligned(int(enough) + more, 16)) for more in (0, -1024))
    there = same.adopted(base)
    assert there is not None and _decided(same.ahead(there, math.inf, 0)[0]) == _decided(found)
    other = less.adopted(base)
    assert other is None or _decided(less.ahead(other, math.inf, 0)[0]) != _decided(found)


def test_no_plan_for_all_of_an_sram_between_two_sizes_is_a_candidate_for_cycles(tmp_path: Path) -> None:
    """As it would be none for more SRAM."""
    asked: list[Planning] = []

    def noted(planning: Planning, objective: Objective) -> list[RegionPlan]:
        asked.append(planning)
        return candidate_plans(planning, objective)

    onnx.save(_stack(), tmp_path / "model.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolchain.compiling.candidate_plans", noted)
        build(tmp_path / "model.onnx", BuildOptions(load_machine("edge16"), level=3))
    assert [planning.options.simulated for planning in asked] == [True]


@pytest.mark.parametrize("size", [8, 56])
def test_of_many_layers_less_sram_is_not_planned_for_where_more_spills_nothing(size: int, tmp_path: Path) -> None:
    """All sizes have room for the small maps, and constants that gain nothing ahead in all of the SRAM are not asked for in less;
    below 128 KiB some of the large ones are spilled."""
    planning = _planning(chain(6, 16, size, 3), tmp_path)
    asked: list[int] = []
    ahead: list[int] = []
    bases, fetched = Planner.bases, Planner.ahead

    def noted_bases(planner: Planner, most: float) -> list[RegionPlan]:
        asked.append(planner.size)
        return bases(planner, most)

    def noted_ahead(planner: Planner, plan: RegionPlan, known: float, searches: float) -> tuple[RegionPlan, float]:
        """As where some constants found no room, so that no size is known from which on the same come."""
        ahead.append(planner.size)
        return fetched(planner, plan, known, searches)[0], math.inf

    few = candidate_plans(planning, "cycles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_size, "_FEW", 4)
        patch.setattr(by_size, "_MANY", 5)
        patch.setattr(Planner, "bases", noted_bases)
        patch.setattr(Planner, "ahead", noted_ahead)
        many = candidate_plans(planning, "cycles")
    assert asked == [planning.chip.sram.size]
    assert set(ahead) == {planning.chip.sram.size}
    assert min(plan.cycles for plan in many) == min(plan.cycles for plan in few)


def _said(there: There | None) -> object:
    """All but how the bytes of blocks are made."""
    assert there is not None
    blocks = [(block.key, block.size_bytes, work) for block, work in there.constants.blocks.items()]
    return replace(there, constants=Constants({}, there.constants.space)), blocks


def test_what_layers_ask_for_with_their_constants_there_is_the_same_for_all_sizes(tmp_path: Path) -> None:
    """Remembered by tiling, rings and what lies in SRAM; beside it, found anew for each plan."""
    planner = Planner(_planning(chain(3, 32, 56, 3), tmp_path))
    remembered = ConstantsThere(planner.model, planner.views)
    plans = [plan for size in planner.planned_sizes() for plan in planner.within(size).bases(math.inf)]
    in_turns = [{i for cascade in plan.cascades for i in cascade.layers} for plan in plans]
    alone = [(plan, i) for plan, inside in zip(plans, in_turns) for i in range(len(plan.layers)) if i not in inside]
    found = [(remembered.layer(plan, i), plan, i) for plan, i in alone]
    assert len({id(there) for there, _, _ in found}) < len(found) / 2
    for there, plan, i in found:
        assert _said(there) == _said(ConstantsThere(planner.model, plan.views).layer(plan, i))


def test_plans_that_keep_other_rows_of_a_tensor_are_different_ones(tmp_path: Path) -> None:
    planner = Planner(_planning(bodies(1), tmp_path)).within(64 * 1024)
    plan = next(plan for plan in planner.bases(math.inf) if plan.cascades)
    first, *others = plan.cascades
    more = replace(first.stripes, rows={root: rows + 1 for root, rows in first.stripes.rows.items()})
    other = replace(plan, cascades=(replace(first, stripes=more), *others))
    assert by_size.decided(plan) == by_size.decided(replace(plan)) != by_size.decided(other)
