"""Regions that equal each other but for names and constants are planned once, with the programs of a search for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from bench.make_mobilenet_chain import bodies
from scripts.onnx_builder import build_model
from tests.support.example_networks import fill_network
from tests.support.machine_variants import with_sram
from tests.support.record_plans import record_regions
from toolchain.api import Build, BuildOptions, build
from toolchain.schedule.equal_regions import EqualRegions
from toolchain.schedule.goals import Goal
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import PlannedRegion
from toolchain.schedule.text import print_schedule

CHANNELS = 32


def _blocks(filters: Sequence[int], equal_weights: bool = False) -> onnx.ModelProto:
    """Blocks of a convolution, a square of it, a pointwise convolution and a Transpose, with host nodes between them.

    The last block's region gives its tensor in the model's layout, and so differs from the others.

    `filters`: of the first convolution, by block. `equal_weights`: two convolutions with equal weights and scales end a block.
    """
    rng = np.random.default_rng(0)
    nodes, weights = list[onnx.NodeProto](), dict[str, np.ndarray]()

    def conv(x: str, y: str, inputs: int, outputs: int, kernel: int, of: str = "") -> None:
        if not of:
            shape = outputs, inputs, kernel, kernel
            weights[y + "_w"] = (rng.standard_normal(shape) / inputs / kernel).astype(np.float32)
        pads = [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", [x, (of or y) + "_w"], [y], y, kernel_shape=[kernel, kernel], pads=pads))

    nodes.append(helper.make_node("Sin", ["x"], ["s"], "s"))
    x = "s"
    for number, wide in enumerate(filters):
        # names sort otherwise in each block
        a, b, c, d, h = (f"{letter}{number}" for letter in ("abcdh", "dcbah")[number % 2])
        conv(x, a, CHANNELS, wide, 3)
        nodes.append(helper.make_node("Mul", [a, a], [b], b))
        conv(b, c, wide, CHANNELS, 1)
        if equal_weights:
            nodes.append(helper.make_node("Transpose", [c], [c + "t"], c + "t", perm=[0, 1, 3, 2]))
            conv(c, d + "1", CHANNELS, CHANNELS // 2, 1)
            conv(c + "t", d + "2", CHANNELS, CHANNELS // 2, 1, of=d + "1")
            nodes.append(helper.make_node("Concat", [d + "1", d + "2"], [d], d, axis=1))
        else:
            nodes.append(helper.make_node("Transpose", [c], [d], d, perm=[0, 1, 3, 2]))
        nodes.append(helper.make_node("Sin", [d], [h], h))
        x = h
    return build_model(nodes, {"x": [1, CHANNELS, 16, 16]}, {x: [1, CHANNELS, 16, 16]}, weights, opset=17)


def _build(
    model: onnx.ModelProto, machine: str, goal: Goal, level: int = 2, host_nodes: tuple[str, ...] = ("Sin",)
) -> tuple[Build, int]:
    """Return the build and the number of regions that were searched."""
    with record_regions() as searched:
        return build(model, BuildOptions(machine, goal=goal, level=level, host_nodes=host_nodes)), len(searched)


@pytest.mark.parametrize(
    ("machine", "objective", "level", "kinds", "regions"),
    [
        ("edge16", "balanced", 2, 2, 3),
        ("edge16", "memory", 2, 2, 3),
        ("edge16", "traffic", 1, 2, 3),
        ("ethos_u55_256", "cycles", 2, 2, 3),
        ("transformer64", "balanced", 2, 2, 3),
        ("nvdla_small", "balanced", 2, 3, 6),
    ],
)
def test_equal_regions_are_planned_once(
    machine: str, objective: str, level: int, kinds: int, regions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, goal = _blocks((64, 64, 64)), Goal(objective)  # type: ignore[arg-type]
    once, searched = _build(model, machine, goal, level)
    assert searched == kinds
    monkeypatch.setattr(EqualRegions, "find", lambda *_: [])
    each, searched = _build(model, machine, goal, level)
    assert searched == regions
    assert once.data == each.data
    assert print_schedule(once.schedule) == print_schedule(each.schedule)
    assert once.figures["expected_cycles"] == each.figures["expected_cycles"]
    assert once.figures["fastest"] == each.figures["fastest"]


def test_a_prefetch_brings_the_constants_of_its_own_region(monkeypatch: pytest.MonkeyPatch) -> None:
    network = fill_network("bert_tiny_relu_l2h128_s128")
    once, searched = _build(network, "edge16", Goal(), host_nodes=("Softmax",))
    text = print_schedule(once.schedule)
    assert searched == 4 and text.count("\nregion ") == 6 and text.count(" behind ") == 2
    monkeypatch.setattr(EqualRegions, "find", lambda *_: [])
    each, searched = _build(network, "edge16", Goal(), host_nodes=("Softmax",))
    assert searched == 7 and once.data == each.data and text == print_schedule(each.schedule)


@pytest.mark.parametrize(("kib", "is_other_chip", "searches"), [(512, False, 1), (512, True, 2), (16, False, 2)])
def test_plans_serve_one_chip_and_have_no_cascades(kib: int, is_other_chip: bool, searches: int) -> None:
    """Check with 16 KiB a network that has a cascade, and otherwise none."""
    with record_regions() as recorded:
        build(bodies(1, 14, 8, 48), BuildOptions(with_sram("edge16", kib)))
    (planning, plans), *_ = recorded
    assert any(plan.cascades for plan in plans) == (kib == 16)
    regions, searched = EqualRegions(), list[RegionInput]()

    def search(of: RegionInput, goal: Goal) -> Sequence[PlannedRegion]:
        searched.append(of)
        return plans

    smaller = replace(planning, chip=planning.chip.with_sram(planning.chip.sram.size // 2))
    for of in (planning, smaller if is_other_chip else planning):
        regions.plan(of, Goal(), search)
    assert len(searched) == searches


def test_regions_of_other_channels_are_planned_each() -> None:
    assert _build(_blocks((64, 48, 64, 64)), "edge16", Goal())[1] == 3


def test_regions_whose_layers_share_constants_are_planned_each() -> None:
    """Equal bytes of several layers may be loaded once, and which bytes are equal differs from region to region."""
    assert _build(_blocks((64, 64, 64), equal_weights=True), "edge16", Goal())[1] == 3


@pytest.mark.parametrize("equal_tables_in", [0, 1])
def test_regions_in_which_tables_are_equal_are_planned_for_themselves(
    equal_tables_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a plan whose equal tables are loaded once is not taken where they differ, nor the other way round."""
    rng = np.random.default_rng(0)
    nodes, weights = [helper.make_node("Sin", ["x"], ["s"], "s")], dict[str, np.ndarray]()
    x = "s"
    for block in range(3):
        first = (rng.standard_normal((16, 16, 1, 1)) / 16).astype(np.float32)
        second = (2 * rng.standard_normal((16, 16, 1, 1)) / 16).astype(np.float32)
        weights |= {f"w0_{block}": first, f"w1_{block}": first[::-1].copy() if block == equal_tables_in else second}
        for branch in range(2):
            conv, largest, sigmoid = (f"{name}{branch}_{block}" for name in ("c", "p", "g"))
            nodes.append(helper.make_node("Conv", [x, f"w{branch}_{block}"], [conv], conv))
            nodes.append(helper.make_node("MaxPool", [conv], [largest], largest, kernel_shape=[3, 3], pads=[1] * 4))
            nodes.append(helper.make_node("Sigmoid", [largest], [sigmoid], sigmoid))
        product, x = f"m_{block}", f"h_{block}"
        nodes.append(helper.make_node("Transpose", [f"g0_{block}"], [f"t_{block}"], f"t_{block}", perm=[0, 1, 3, 2]))
        nodes.append(helper.make_node("Mul", [f"t_{block}", f"g1_{block}"], [product], product))
        nodes.append(helper.make_node("Sin", [product], [x], x))
    model = build_model(nodes, {"x": [1, 16, 8, 8]}, {x: [1, 16, 8, 8]}, weights, opset=17)
    once, _ = _build(model, "transformer64", Goal("cycles"))
    monkeypatch.setattr(EqualRegions, "find", lambda *_: [])
    each, _ = _build(model, "transformer64", Goal("cycles"))
    assert once.data == each.data
    assert once.figures["expected_cycles"] == each.figures["expected_cycles"]
