"""Check that the outputs decide which observer a tensor takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from unequal_networks import network, nothing, plain, samples

from toolchain.compiler import select_model
from toolchain.passes.decompose import decompose_model
from toolchain.repair.calibrate_network import calibrate_network
from toolchain.repair.evaluate_outputs import OutputEvaluator
from toolchain.repair.network import Network
from toolchain.repair.observers import choose_observers, list_inner_tensors


def draw_spiked(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """One number in each sample is 300 times as large as the others; nothing of it reaches the output."""
    spiked_samples = samples((1, 4, 64, 64), count, seed)
    for sample in spiked_samples:
        sample["x"][0, 0, 0, 0] = 300.0
    return spiked_samples


def make_cropped_network(folder: Path) -> Network:
    """y is a convolution of x without its outer border, where the outlier is."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 4, 1, 1)), "v": rng.standard_normal((4, 4, 1, 1))}
    return network(
        """g (float[1,4,64,64] x) => (float[1,4,56,56] y) <int64[2] b = {4,4}, int64[2] e = {60,60}, int64[2] axes = {2,3}> {
            a = Conv(x, w)
            s = Slice(a, b, e, axes)
            y = Conv(s, v)
        }""",
        weights,
        folder,
    )


def test_an_outlier_that_no_output_sees_is_clipped(tmp_path: Path) -> None:
    net = make_cropped_network(tmp_path)
    data, judge = draw_spiked(16), OutputEvaluator(draw_spiked(8, seed=1))
    before = plain(net, data)
    assert before.ranges["x"].high == 300.0  # pyright: ignore[reportAttributeAccessIssue]
    after = choose_observers(net, before, data, nothing).quantization
    assert after.ranges["x"].high < 10  # pyright: ignore[reportAttributeAccessIssue]
    assert judge.verdict(net, after).decibels > judge.verdict(net, before).decibels + 10


def test_ranges_are_of_all_that_is_measured(tmp_path: Path) -> None:
    net, few_samples = make_cropped_network(tmp_path), draw_spiked(8)
    larger = [{"x": np.where(s["x"] == 300.0, s["x"], 2 * s["x"])} for s in draw_spiked(8, seed=1)]
    both = [*few_samples, *larger]
    few, all_of_them = (choose_observers(net, plain(net, both), few_samples, nothing, measured=m) for m in (None, both))
    for tensor in ("s", "y"):
        of_few, of_all = (o.quantization.ranges[tensor].high for o in (few, all_of_them))  # pyright: ignore[reportAttributeAccessIssue]
        assert of_all > 1.5 * of_few


def test_an_outlier_that_the_output_is_about_is_kept(tmp_path: Path) -> None:
    weights = {"w": np.eye(4).reshape(4, 4, 1, 1), "v": np.eye(4).reshape(4, 4, 1, 1)}
    text = """g (float[1,4,64,64] x) => (float[1,4,1,1] y) {
        a = Conv(x, w)
        m = GlobalMaxPool(a)
        y = Conv(m, v)
    }"""
    net = network(text, weights, tmp_path)
    data = draw_spiked(16)
    after = choose_observers(net, plain(net, data), data, nothing)
    assert after.quantization.ranges["x"].high == pytest.approx(300, rel=0.01)  # pyright: ignore[reportAttributeAccessIssue]


def draw_massive(count: int) -> list[dict[str, np.ndarray]]:
    """The first row of each sample holds a number 60 times as large as the others."""
    row_samples = samples((1, 32, 64), count)
    for sample in row_samples:
        sample["x"][0, 0, 5] = 60.0
    return row_samples


def test_tensors_between_steps_are_not_clipped(tmp_path: Path) -> None:
    """The squares of a norm reach 3,600 in one row of 32, and the other rows would gain where that row is clipped."""
    rng = np.random.default_rng(0)
    weights = {"g": np.ones(64), "b": np.zeros(64), "w": rng.standard_normal((64, 64)) / 8}
    nodes = "n = LayerNormalization(x, g, b) h = MatMul(n, w) s = Add(x, h) y = Relu(s)"
    net = network(f"g (float[1,32,64] x) => (float[1,32,64] y) {{ {nodes} }}", weights, tmp_path, "transformer64")
    model = decompose_model(net.model, net.chip)
    net, data = Network(model, select_model(model, net.machine), net.machine), draw_massive(16)
    before = calibrate_network(net, data, "minmax", "none", nothing).quantization
    after = choose_observers(net, before, data, nothing).quantization
    inner_tensors = [n for n in list_inner_tensors(model) if n in before.ranges]
    assert len(inner_tensors) >= 5
    assert [n for n in inner_tensors if after.ranges[n] != before.ranges[n]] == []
    assert after.ranges != before.ranges
