"""Layers that run in turns wherever they can, on random networks and machines: the bytes equal the integer reference's."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.random_cases import DrawnMachine, DrawnModel, machines, networks
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.runtime import Session, random_feeds, verify
from toolchain.schedule.layers import RegionLayers
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.region import _Planner

CASES = int(os.environ.get("RANDOM_CASES", "60"))


@pytest.mark.slow
def test_layers_in_turns_equal_the_reference(tmp_path_factory: pytest.TempPathFactory) -> None:
    counts: Counter[str] = Counter()
    check = _equal if "RANDOM_CASES" in os.environ else seed(0)(_equal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Planner, "_cascaded", lambda planner, plan: _forced(planner, plan, counts))
        patch.setattr(RegionLayers, "cycles", _dear(RegionLayers.cycles))
        check(tmp_path_factory.mktemp("cascades"), counts)
    print(dict(counts))
    assert counts["cascades"] > 0.1 * counts["programs"]


def _dear(cycles_alone):  # type: ignore[no-untyped-def]
    def found(layers, index, resident, room, by):  # type: ignore[no-untyped-def]
        cycles = cycles_alone(layers, index, resident, room, by)
        return None if cycles is None else cycles * 100

    return found


def _forced(planner: _Planner, plan: RegionPlan, counts: Counter[str]) -> RegionPlan:
    for share in (1.0, 0.9, 0.8) if planner.options.residency else ():
        found = planner._cut(int(planner.capacity * share), _all_spilled(planner, plan))
        if found is not None:
            counts["cascades"] += bool(found.cascades)
            counts["layers in turns"] += sum(len(c.layers) for c in found.cascades)
            return found
    return plan


def _all_spilled(planner: _Planner, plan: RegionPlan) -> RegionPlan:
    """So that every layer may take turns."""
    return replace(plan, spilled=tuple(planner.storages.values()), resident=frozenset())


@settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(model=networks(), machine=machines())
def _equal(folder: Path, counts: Counter[str], model: DrawnModel, machine: DrawnMachine) -> None:
    path = folder / "random.onnx"
    onnx.save(model.proto, path)
    try:
        built = build(path, BuildOptions(machine.machine, level=2))
    except CompileError as fault:
        assert "smallest tile needs" in str(fault), fault
        return
    counts["programs"] += 1
    feeds = random_feeds(built.container.inputs, seed=7)
    reference = Session(built.data, backend="reference")
    got, difference = verify(Session(built.data, timing=True), reference, feeds)
    assert difference is None, difference
    for name, value in reference.run_detailed(feeds).outputs.items():
        np.testing.assert_array_equal(got.outputs[name], value)
