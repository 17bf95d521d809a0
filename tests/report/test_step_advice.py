"""Operators that the chip computes in steps are tried on the host where an output is low or the steps take much of the time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.recurrent import recurrent
from toolchain.api import Build, BuildOptions, build
from toolchain.report.findings import Advice, RunCost, TriedAdvice, choose_trial
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]
TRIED = "of operators that the chip computes in steps, tried on 8 samples: "
PROMISE = r"\(([-0-9.]+) dB for ([-0-9.]+), ([0-9,]+) cycles for ([0-9,]+), about \S+ ms more of the host\)"
STEPS, UNITS, FEATURES, CLASSES = 8, 16, 12, 6


def write_recognizer(folder: Path) -> tuple[Path, BuildOptions]:
    """Write an LSTM of drawn weights and a readout of its states by least squares, which cancels much of them."""
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((CLASSES, FEATURES))
    classes = rng.integers(CLASSES, size=(220, STEPS // 4)).repeat(4, 1)
    x = (patterns[classes] + 0.5 * rng.standard_normal((220, STEPS, FEATURES))).astype(np.float32)[:, :, None]
    weights = {
        "W": 0.8 * rng.standard_normal((1, 4 * UNITS, FEATURES)) / np.sqrt(FEATURES),
        "R": 0.8 * rng.standard_normal((1, 4 * UNITS, UNITS)) / np.sqrt(UNITS),
    }
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    states = np.concatenate([_run_lstm(sample[:, 0], weights) for sample in x[20:]])
    rows = np.c_[states, np.ones(len(states))]
    solution = 10 * np.linalg.solve(rows.T @ rows + 0.1 * np.eye(UNITS + 1), rows.T @ np.eye(CLASSES)[classes[20:].ravel()])
    constants = {**weights, "axis": np.array([1]), "readout": solution[:-1].astype(np.float32)}
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R"], ["states"], "lstm", hidden_size=UNITS),
        helper.make_node("Squeeze", ["states", "axis"], ["rows"], "squeeze"),
        helper.make_node("MatMul", ["rows", "readout"], ["y"], "product"),
    ]
    return save(folder, nodes, constants, x[:20], (STEPS, 1, CLASSES))


def _run_lstm(x: Array, weights: dict[str, Array]) -> Array:
    """Return the states [steps, units] of x [steps, features]. Gates are in ONNX's order: input, output, forget, cell."""
    h, c, rows = np.zeros(UNITS), np.zeros(UNITS), list[Array]()
    for features in x:
        i, o, f, g = np.split(weights["W"][0] @ features + weights["R"][0] @ h, 4)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        rows.append(h)
    return np.stack(rows)


def save(
    folder: Path, nodes: Sequence[onnx.NodeProto], constants: dict[str, Array], x: Array, output: Sequence[int]
) -> tuple[Path, BuildOptions]:
    onnx.save(build_model(nodes, {"x": x.shape[1:]}, {"y": output}, constants), folder / "m.onnx")
    np.savez(folder / "d.npz", x=x)
    return folder / "m.onnx", BuildOptions("edge16", str(folder / "d.npz"), repair="none", level=0)


def list_advised(built: Build) -> list[str]:
    return [note for note in (*built.notes, *built.warnings) if "--host-node" in note]


def measure_worst_class_db(model: Path, built: Build, x: Array) -> float:
    session, chip = onnxruntime.InferenceSession(model), Session(built.data)
    exact, integer = (np.concatenate([np.asarray(run.run(None, {"x": s})[0])[:, 0] for s in x]) for run in (session, chip))
    return float(np.min(10 * np.log10((exact**2).sum(0) / ((exact - integer) ** 2).sum(0))))


def test_a_recurrent_layer_that_loses_is_advised_for_the_host(tmp_path: Path) -> None:
    model, options = write_recognizer(tmp_path)
    built = build(model, options)
    (note,) = list_advised(built)
    promise = re.fullmatch(rf"output y: {TRIED}--host-node lstm {PROMISE}", note)
    assert promise is not None, note
    followed = build(model, replace(options, host_nodes=("lstm",)))
    after_db, before_db = float(promise.group(1)), float(promise.group(2))
    x = np.load(tmp_path / "d.npz")["x"][:2]
    assert after_db > before_db + 3 and measure_worst_class_db(model, followed, x) == pytest.approx(after_db, abs=2)
    assert promise.group(3) == f"{followed.figures['cycles']:,}"
    assert promise.group(4) == f"{built.figures['cycles']:,}"
    macs = STEPS * 4 * UNITS * (FEATURES + UNITS)
    seconds = 10e-6 + STEPS * UNITS / 1e9 + macs / 20e9  # one crossing, its bytes, products
    assert followed.figures["host"]["seconds"] == pytest.approx(seconds) and list_advised(followed) == []


@pytest.mark.parametrize("hardware", ["edge16", "transformer64"])
def test_a_sum_of_probabilities_is_advised_where_repair_is_left_out(hardware: str, tmp_path: Path) -> None:
    """Scores of bins, Softmax, sum of the probabilities times the logarithm of each bin's frequency."""
    bins, rows = 48, 6
    nodes = [
        helper.make_node("MatMul", ["x", "unit"], ["scores"], "scores"),
        helper.make_node("Softmax", ["scores"], ["p"], "softmax", axis=-1),
        helper.make_node("Mul", ["p", "logarithms"], ["weighted"], "weights"),
        helper.make_node("ReduceSum", ["weighted", "axis"], ["y"], "sum", keepdims=0),
    ]
    logarithms = np.linspace(3.0, 8.0, bins).astype(np.float32)
    constants = {"unit": np.eye(bins, dtype=np.float32), "logarithms": logarithms, "axis": np.array([-1])}
    rng = np.random.default_rng(0)
    center, width = rng.uniform(4, bins - 4, (16, 1, rows, 1)), rng.uniform(1, 3, (16, 1, rows, 1))
    x = (-((np.arange(bins) - center) ** 2) / (2 * width**2)).clip(-20, 0).astype(np.float32)
    model, options = save(tmp_path, nodes, constants, x, (1, rows))
    (note,) = list_advised(build(model, replace(options, hardware=hardware)))
    assert f"{TRIED}--host-node softmax and --host-node weights and --host-node sum (" in note


def test_a_norm_is_tried_with_the_scales_that_repair_gives_its_region(tmp_path: Path) -> None:
    """Channels of unlike size are normalized in groups. On the host alone that gains nothing, since one scale holds them all."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["wide"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["wide", "sizes"], ["sized"], "sizes"),
        helper.make_node("Reshape", ["sized", "groups"], ["grouped"], "group"),
        helper.make_node("InstanceNormalization", ["grouped", "one", "zero"], ["normal"], "norm"),
        helper.make_node("Reshape", ["normal", "channels"], ["together"], "ungroup"),
        helper.make_node("Conv", ["together", "v"], ["y"], "last", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    constants = {
        "w": rng.standard_normal((16, 4, 3, 3)).astype(np.float32) / 6,
        "sizes": np.geomspace(0.02, 30, 16).astype(np.float32).reshape(1, 16, 1, 1),
        "groups": np.array([1, 4, -1]),
        "one": np.ones(4, np.float32),
        "zero": np.zeros(4, np.float32),
        "channels": np.array([1, 16, 10, 10]),
        "v": rng.standard_normal((6, 16, 3, 3)).astype(np.float32) / 12,
    }
    x = rng.standard_normal((20, 1, 4, 10, 10)).astype(np.float32)
    model, options = save(tmp_path, nodes, constants, x, (1, 6, 10, 10))
    options = replace(options, hardware="transformer64", repair="fast")
    built = build(model, options)
    (warning,) = list_advised(built)
    promise = re.search(rf"--host-node \w+ {PROMISE}", warning)
    assert promise is not None and "none of which helps" not in warning, warning
    followed = build(model, replace(options, host_nodes=("norm",)))
    after_db = followed.figures["outputs"][0]["sqnr_db"]
    promised_db, before_db = float(promise.group(1)), float(promise.group(2))
    assert promised_db > before_db + 10 and promised_db - 1 < after_db < promised_db + 4  # rounding of weights comes on top


def test_nothing_is_advised_where_steps_lose_little_and_cost_little(tmp_path: Path) -> None:
    """A convolution and a Softmax of its ten classes. The host gives 51 dB for 38, and takes longer than the steps."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["scores"], "conv", kernel_shape=[8, 8]),
        helper.make_node("Softmax", ["scores"], ["y"], "softmax", axis=1),
    ]
    weights = rng.standard_normal((10, 4, 8, 8)).astype(np.float32) / 64
    x = rng.standard_normal((20, 1, 4, 8, 8)).astype(np.float32)
    model, options = save(tmp_path, nodes, {"w": weights}, x, (1, 10, 1, 1))
    built = build(model, options)
    assert any(row["node"] == "softmax" and row["engine"] != "host" for row in built.figures["nodes"])
    assert built.figures["outputs"][0]["sqnr_db"] > 30 and list_advised(built) == []


def test_nothing_is_advised_that_leaves_the_chip_without_work(tmp_path: Path) -> None:
    onnx.save(recurrent("LSTM", batch=1, length=3), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(0, 1, (16, 3, 1, 12)).astype(np.float32))
    built = build(tmp_path / "m.onnx", BuildOptions("edge16", str(tmp_path / "d.npz"), repair="none", level=0))
    assert any("below 30 dB" in note for note in built.notes) and not any("in steps" in note for note in built.notes)


def cost(cycles: int, host_seconds: float) -> RunCost:
    return RunCost(cycles, 500e6, host_seconds)


@pytest.mark.parametrize(
    ("after_db", "costs", "helps"),
    [
        (25.0, None, True),  # gains 5 dB
        (20.5, (cost(160_000, 0.0), cost(2_000, 100e-6)), True),  # 104 of 320 us
        (20.5, (cost(160_000, 0.0), cost(2_000, 400e-6)), False),  # the host takes longer than the chip did
        (20.5, (cost(160_000, 0.0), cost(130_000, 0.0)), False),
        (19.0, (cost(160_000, 0.0), cost(2_000, 100e-6)), False),  # loses 1 dB
        (20.5, None, False),
    ],
)
def test_steps_on_the_host_help_by_their_loss_or_by_their_time(
    after_db: float, costs: tuple[RunCost, RunCost] | None, helps: bool
) -> None:
    trial = TriedAdvice(Advice("--host-node a", ("a",), hosts_steps=True), 20.0, after_db, 2, costs)
    assert trial.helps == helps and (choose_trial([trial]) is trial) == helps
    other = replace(trial, advice=Advice("--host-node b", ("b",)))
    assert other.helps == (after_db >= 23.0)


def test_a_norm_of_many_nodes_is_advised_by_its_last(tmp_path: Path) -> None:
    """Pictures of unlike contrast, divided by their deviation, whose squares have one scale for all."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((20, 1, 3, 8, 8)) * rng.uniform(0.05, 1, (20, 1, 1, 1, 1))).astype(np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], "mean", axes=[1, 2, 3]),
        helper.make_node("Sub", ["x", "mean"], ["d"], "d"),
        helper.make_node("Mul", ["d", "d"], ["square"], "square"),
        helper.make_node("ReduceMean", ["square"], ["variance"], "variance", axes=[1, 2, 3]),
        helper.make_node("Sqrt", ["variance"], ["root"], "root"),
        helper.make_node("Add", ["root", "least"], ["deviation"], "deviation"),
        helper.make_node("Div", ["d", "deviation"], ["n"], "n"),
        helper.make_node("Conv", ["n", "w"], ["y"], "y"),
    ]
    constants = {"least": np.float32(1e-6), "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32)}
    model, options = save(tmp_path, nodes, constants, x, (1, 4, 6, 6))
    built = build(model, BuildOptions("transformer64", options.calibration, repair="none"))
    assert any(": --host-node n (" in note for note in list_advised(built)), built.notes
