"""Cascades of layers that equal each other but for names are timed once, with the programs of a search for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.machine_variants import with_sram
from toolchain.api import Build, BuildOptions, build
from toolchain.schedule.cascade import CascadePlanner
from toolchain.schedule.equal_windows import EqualWindows, Window
from toolchain.schedule.text import print_schedule

CHANNELS, SIZE = 16, 16


class _Block(NamedTuple):
    """A widening, a depthwise and a narrowing convolution.

    `adds`: the block's input is added to its output. `factors`: which of the first two are multiplied for the last.
    `order`: of two convolutions whose outputs are concatenated for the last. `is_given`: the second is an output, too.
    """

    wide: int = 64
    kernel: int = 3
    dilation: int = 1
    adds: bool = False
    factors: str = ""
    order: str = ""
    is_given: bool = False


def _blocks(blocks: Sequence[_Block]) -> onnx.ModelProto:
    """Return these blocks one behind the other; names sort otherwise in every other block."""
    rng, nodes, weights = np.random.default_rng(0), list[onnx.NodeProto](), dict[str, np.ndarray]()

    def conv(x: str, y: str, inputs: int, outputs: int, kernel: int = 1, group: int = 1, dilation: int = 1) -> None:
        shape = outputs, inputs // group, kernel, kernel
        weights[y + "_w"] = (rng.standard_normal(shape) / (inputs // group) ** 0.5 / kernel).astype(np.float32)
        pads, dilations = [kernel // 2 * dilation] * 4, [dilation] * 2
        nodes.append(helper.make_node("Conv", [x, y + "_w"], [y], y, pads=pads, dilations=dilations, group=group))

    x, extra_outputs = "x", list[str]()
    for number, block in enumerate(blocks):
        a, b, c, d = (f"{letter}{number}" for letter in ("abcd", "dcba")[number % 2])
        conv(x, a, CHANNELS, block.wide)
        conv(a, b, block.wide, block.wide, block.kernel, block.wide, block.dilation)
        extra_outputs += [b] if block.is_given else []
        if block.factors:
            product = {"a": a, "b": b, "y": f"m{number}"}
            nodes.append(helper.make_node("Mul", [product[n] for n in block.factors], [product["y"]], product["y"]))
            b = product["y"]
        if block.order:
            parts, concat = {"0": f"p{number}", "1": f"q{number}"}, f"o{number}"
            for part in parts.values():
                conv(b, part, block.wide, block.wide // 2)
            nodes.append(helper.make_node("Concat", [parts[n] for n in block.order], [concat], concat, axis=1))
            b = concat
        conv(b, c, block.wide, CHANNELS)
        if block.adds:
            nodes.append(helper.make_node("Add", [x, c], [d], d))
        x = d if block.adds else c
    shape, wide = [1, CHANNELS, SIZE, SIZE], [1, blocks[0].wide, SIZE, SIZE]
    return build_model(nodes, {"x": shape}, {x: shape, **dict.fromkeys(extra_outputs, wide)}, weights, opset=17)


def _build(model: onnx.ModelProto, machine: str, kib: int) -> tuple[Build, int]:
    """Return the build and the number of cascades that were timed."""
    timed = list[object]()
    time_candidate = CascadePlanner.time_candidate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CascadePlanner, "time_candidate", lambda *a: timed.append(a) or time_candidate(*a))
        return build(model, BuildOptions(with_sram(machine, kib))), len(timed)


def _build_both(model: onnx.ModelProto, machine: str, kib: int) -> tuple[int, int]:
    """Return how many cascades were timed with equal windows planned once and without, once both programs are equal."""
    once, timed_once = _build(model, machine, kib)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EqualWindows, "find_first", lambda _, window: window)
        each, timed_each = _build(model, machine, kib)
    assert once.data == each.data
    assert print_schedule(once.schedule) == print_schedule(each.schedule)
    assert once.figures["expected_cycles"] == each.figures["expected_cycles"]
    assert "for rows by" in print_schedule(once.schedule)
    return timed_once, timed_each


@pytest.mark.parametrize(
    ("machine", "kib", "adds"),
    [("edge16", 12, False), ("edge16", 12, True), ("ethos_u55_256", 12, False), ("nvdla_small", 12, True)],
)
def test_equal_blocks_are_timed_once(machine: str, kib: int, adds: bool) -> None:
    timed_once, timed_each = _build_both(_blocks([_Block(adds=adds)] * 4), machine, kib)
    assert timed_once < 0.7 * timed_each


@pytest.mark.parametrize(
    ("plain", "other", "index"),
    [
        (_Block(), _Block(48), 1),
        (_Block(), _Block(kernel=5), 1),
        (_Block(), _Block(dilation=2), 1),
        (_Block(), _Block(adds=True), 2),
        (_Block(), _Block(is_given=True), 1),
        (_Block(factors="ab"), _Block(factors="ba"), 2),
        (_Block(order="01"), _Block(order="10"), 2),
    ],
)
def test_windows_with_another_layer_equal_none(plain: _Block, other: _Block, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check windows around the layer of that index in the second block, which is like none in the other blocks."""
    firsts, at = dict[Window, Window](), index + 3 + bool(plain.factors) + 3 * bool(plain.order)
    find_first = EqualWindows.find_first

    def record(windows: EqualWindows, window: Window) -> Window:
        firsts[window] = find_first(windows, window)
        return firsts[window]

    monkeypatch.setattr(EqualWindows, "find_first", record)
    _build(_blocks([plain, other, plain]), "edge16", 12)
    around = [(window, first) for window, first in firsts.items() if window.first < at < window.end - 1]
    assert around and all(window == first for window, first in around)
    assert any(window != first for window, first in firsts.items())
