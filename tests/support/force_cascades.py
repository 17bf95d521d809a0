"""Layers that take turns wherever they can, whatever that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from toolchain.schedule.layer_grouping import GroupingSearch, _Step
from toolchain.schedule.nodes import Tensor
from toolchain.schedule.plan import PlannedCascade, PlannedRegion, PlannedTensor
from toolchain.schedule.plan_cost import ALONE, CostWeights
from toolchain.schedule.region_planner import RegionPlanner
from toolchain.schedule.stripes import Sweep
from toolchain.schedule.tilings import RegionTilings

_WAYS = RegionPlanner._layer_by_layer


def first_way(planner: RegionPlanner) -> list[PlannedRegion]:
    """Replace `RegionPlanner._layer_by_layer`, so that no other plan competes with the one that few tile tasks make look
    fastest."""
    return _WAYS(planner)[:1]


@contextmanager
def force_cascade_plans(counts: Counter[str]) -> Iterator[None]:
    """Force cascades in builds from -O2 on in this block.

    `counts`: counts of cascades and their layers, which the builds increase.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegionPlanner, "group_cascades", lambda planner, plan: _force_cascades(planner, plan, counts))
        patch.setattr(RegionTilings, "cycles", _dear(RegionTilings.cycles))
        patch.setattr(RegionPlanner, "_layer_by_layer", first_way)  # none beside the one in turns
        yield


def _dear(cycles_alone):  # type: ignore[no-untyped-def]
    def scaled_cycles(layers, index, resident, room, by):  # type: ignore[no-untyped-def]
        cycles = cycles_alone(layers, index, resident, room, by)
        return None if cycles is None else cycles * 100

    return scaled_cycles


def _force_cascades(planner: RegionPlanner, plan: PlannedRegion, counts: Counter[str]) -> PlannedRegion:
    near, rounds = planner.options.near, planner.options.rounds
    for share in (1.0, 0.9, 0.8) if planner.options.residency else ():
        by = (ALONE, CostWeights(byte=10 / planner.chip.dram.read_bytes_per_cycle))[len(planner.layers) % 2]
        spilled = _all_spilled(planner, plan)
        with _in_columns() if len(planner.layers) % 3 else nullcontext():
            way = planner._make_grouping_search(int(planner.size * share), spilled, by)
            cut_plan = planner._place_groups(way, way.best(near, rounds))
        if len(planner.layers) % 3 and (cut_plan is None or not cut_plan.cascades):
            planner.cascade_costs.clear()
            way = planner._make_grouping_search(int(planner.size * share), spilled, by)
            cut_plan = planner._place_groups(way, way.best(near, rounds))
        if cut_plan is not None:
            counts["cascades"] += bool(cut_plan.cascades)
            inside = [layer for c in cut_plan.cascades for layer in c.layers]
            counts["layers in turns"] += len(inside)
            counts["layers in blocks of channels"] += sum(len(c.layers) for c in cut_plan.cascades if c.stripes.sweep.channels)
            counts["layers in blocks of columns"] += sum(len(c.layers) for c in cut_plan.cascades if c.stripes.sweep.columns)
            counts["layers whose inputs stay for all blocks"] += sum(_stays(c) for c in cut_plan.cascades)
            counts["in turns on several units"] += sum(len(layer.units) > 1 for layer in inside)
            return cut_plan
    return plan


@contextmanager
def _in_columns() -> Iterator[None]:
    """Exclude full rows where blocks of columns are possible."""
    highest = GroupingSearch._highest

    def find_highest(cuts: GroupingSearch, step: _Step, sweep: Sweep, most: int, stay: bool = False) -> list[PlannedCascade]:
        possible = cuts._cascades.columns(step.first, step.end, step.resident_touched)
        return highest(cuts, step, sweep, most, stay) if sweep.columns or not possible else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupingSearch, "_highest", find_highest)
        yield


def _stays(cascade: PlannedCascade) -> int:
    """Layers of blocks of channels with more slots for an input than rings have."""
    layers = cascade.layers if cascade.stripes.sweep.channels else ()
    return sum(any(ring.buffer.role == "input" and ring.copies > 2 for ring in layer.rings) for layer in layers)


def _all_spilled(planner: RegionPlanner, plan: PlannedRegion) -> PlannedRegion:
    """Return the plan with all tensors spilled, so that every layer may join a cascade."""
    tensors = (PlannedTensor(Tensor(name), "dram", storage=storage) for name, storage in planner.storages.items())
    return replace(plan, tensors=tuple(tensors))
