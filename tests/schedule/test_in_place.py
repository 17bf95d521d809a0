"""Tensors in the place of others: where that is right, and what it saves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.machine_variants import with_sram
from tests.support.record_plans import record_region_plans
from toolchain.api import BuildOptions, build
from toolchain.machine import Space
from toolchain.schedule.allocation import Allocation
from toolchain.schedule.cascade import CascadePlanner
from toolchain.schedule.goals import CYCLES, Goal
from toolchain.schedule.in_place import InPlace
from toolchain.schedule.plan import PlannedRegion
from toolchain.schedule.region_planner import RegionPlanner
from toolchain.schedule.stripes import Stripes


class Network:
    """Convolutions of a square map, one behind the other."""

    def __init__(self, size: int, channels: int):
        self._rng, self._size, self._channels = np.random.default_rng(5), size, channels
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}

    def conv(self, source: str, output: str, shape: tuple[int, int, int], groups: int = 1, stride: int = 1) -> str:
        """shape: output channels, input channels of a group, kernel."""
        out, into, kernel = shape
        weights = (self._rng.normal(size=(out, into, kernel, kernel)) / np.sqrt(into * kernel * kernel)).astype(np.float32)
        self._weights[f"{output}.w"] = weights
        attributes = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": groups, "strides": [stride] * 2}
        self._nodes.append(helper.make_node("Conv", [source, f"{output}.w"], [output], f"{output}/conv", **attributes))
        return output

    def add(self, a: str, b: str, output: str) -> str:
        self._nodes.append(helper.make_node("Add", [a, b], [output], f"{output}/add"))
        return output

    def saved(self, folder: Path, out: str) -> Path:
        x = [1, self._channels, self._size, self._size]
        model = build_model(self._nodes, {"x": x}, {out: None}, self._weights)
        onnx.save(onnx.shape_inference.infer_shapes(model), folder / "model.onnx")
        return folder / "model.onnx"


def _inverted_residual(folder: Path) -> Path:
    net = Network(28, 24)
    before = net.conv("x", "before", (24, 24, 1))
    wide = net.conv(before, "wide", (96, 24, 1))
    deep = net.conv(wide, "deep", (96, 1, 3), groups=96)
    total = net.add(net.conv(deep, "narrow", (24, 96, 1)), before, "total")
    return net.saved(folder, net.conv(total, "out", (8, 24, 1), stride=2))


def _build(model: Path, machine: str, kib: int, goal: Goal) -> tuple[Mapping[str, Any], list[PlannedRegion]]:
    """The build compares its program with the integer reference, bit for bit."""
    with record_region_plans() as plans:
        figures = build(model, BuildOptions(with_sram(machine, kib), goal=goal)).figures
    return figures, plans


def _forbid_in_place(patch: pytest.MonkeyPatch) -> None:
    """Nothing is made in the place of anything else."""
    patch.setattr(InPlace, "rights", lambda *_: {})
    patch.setattr(InPlace, "within", lambda *_: [])


def _dram_bytes(figures: Mapping[str, Any]) -> int:
    return figures["dram_read_bytes"] + figures["dram_write_bytes"]


def test_a_sum_takes_the_place_of_its_addend_where_both_have_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.schedule.region_planner._FEW", 0)  # with all layers in turns both would have room
    model = _inverted_residual(tmp_path)
    figures, plans = _build(model, "edge16", 40, Goal("traffic"))
    addresses = [p.placements[Space.SRAM].addresses for p in plans]
    roots = [{n: at for n, at in a.items() if ":" not in n} for a in addresses]
    assert any(a.get("before") == a.get("total", -1) for a in roots)
    _forbid_in_place(monkeypatch)
    monkeypatch.setattr(CascadePlanner, "columns", lambda *_: ())  # which would spare it too
    assert _dram_bytes(figures) + 28 * 28 * 24 <= _dram_bytes(_build(model, "edge16", 40, Goal("traffic"))[0])


@pytest.mark.parametrize(
    ("machine", "kib"), [pytest.param("ws8_pow2", 20, marks=pytest.mark.exhaustive), ("ethos_u55_256", 40), ("wide32_w4a16", 56)]
)
def test_nothing_takes_the_place_of_rows_that_are_kept(
    machine: str, kib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is added may be the latest rows alone of what a layer in turns makes."""
    rows_in_place: list[tuple[str, int]] = []
    allocation = RegionPlanner.allocation

    def noted(self: RegionPlanner, *inputs: Any) -> Allocation:
        placement = allocation(self, *inputs)
        rows_in_place.extend((old, self._views_of(inputs[0])[old].rows) for old in placement.in_place.values())
        return placement

    monkeypatch.setattr(RegionPlanner, "allocation", noted)
    _build(_inverted_residual(tmp_path), machine, kib, CYCLES)
    assert all(rows == 0 for _, rows in rows_in_place)


KERNELS = {"read once": (1, 3, True), "as far ahead": (3, 3, True), "read again behind the sum": (3, 1, False)}


@pytest.mark.parametrize(("first", "second", "right"), KERNELS.values(), ids=list(KERNELS))
def test_rows_that_are_still_read_are_not_written_over(first: int, second: int, right: bool, tmp_path: Path) -> None:
    net = Network(16, 8)
    before = net.conv("x", "before", (8, 8, 1))
    inner = net.conv(net.conv(before, "wide", (32, 8, first)), "narrow", (8, 32, second))
    model = net.saved(tmp_path, net.conv(net.add(inner, before, "total"), "out", (8, 8, 1)))
    verdicts: list[bool] = []

    def noted(self: InPlace, stripes: Stripes, index: int, root: str) -> bool:
        verdicts.append(leaves_nothing(self, stripes, index, root))
        return verdicts[-1]

    leaves_nothing = InPlace.leaves_nothing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InPlace, "leaves_nothing", noted)
        _build(model, "edge16", 4, CYCLES)
    assert set(verdicts) == {right}
