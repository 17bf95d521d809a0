"""Runs a model before and after the frontend in onnxruntime and compares."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from toolchain.frontend import NormalModel, load_model


def session(model: str | bytes, optimise: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def random_inputs(model: NormalModel, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for name in model.graph.inputs:
        t = model.types[name]
        values = rng.standard_normal(t.shape) if t.dtype.startswith("float") else rng.integers(0, 2, t.shape)
        feeds[name] = np.asarray(values).astype(t.dtype)
    return feeds


def largest_error(expected: Sequence[Any], actual: Sequence[Any], least: float = 1e-6) -> float:
    """Largest difference over all outputs, relative to the output's own largest value (at least `least`)."""
    worst = 0.0
    for a, b in zip(expected, actual, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, f"{a.dtype}{a.shape} became {b.dtype}{b.shape}"
        if a.size == 0:
            continue
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        finite = np.isfinite(x)
        np.testing.assert_array_equal(x[~finite], y[~finite])
        assert np.isfinite(y[finite]).all(), "a finite number became infinite or NaN"
        if finite.any():
            scale = max(least, np.abs(x[finite]).max())
            worst = max(worst, float(np.abs(x - y)[finite].max() / scale))
    return worst


def check_same(
    path: str | os.PathLike[str],
    shapes: Mapping[str, tuple[int, ...]] = {},
    feeds: Mapping[str, np.ndarray] | None = None,
    tolerance: float = 1e-4,
    allow_noise: bool = False,
) -> NormalModel:
    """Fail when an output of the normalised model differs from the original's by more than `tolerance`.
    With `allow_noise`, the limit is twice the original's difference between onnxruntime's optimisation levels, if that is more.
    """
    model = load_model(path, shapes)
    feeds = dict(feeds) if feeds is not None else random_inputs(model)
    expected = session(os.fspath(path)).run(None, feeds)
    outputs: list[Any] = list(session(model.proto.SerializeToString()).run(None, {n: feeds[n] for n in model.graph.inputs}))
    for name, value in zip(model.graph.outputs, outputs, strict=True):
        assert model.types[name].shape == value.shape, f"{name}: {model.types[name].shape} is {value.shape}"
    error = largest_error(expected, outputs)
    if allow_noise:
        tolerance = max(tolerance, 2 * largest_error(expected, session(os.fspath(path), optimise=False).run(None, feeds)))
    assert error <= tolerance, f"{path}: largest relative error {error:.2e}"
    return model


def main(arguments: list[str]) -> None:
    """same_outputs.py MODEL.onnx [x=1,3,640,640 ...]"""
    shapes = {a.split("=")[0]: tuple(int(d) for d in a.split("=")[1].split(",")) for a in arguments[1:]}
    model = check_same(arguments[0], shapes, allow_noise=True)
    print(f"{arguments[0]}: same, {len(model.graph.nodes)} nodes", *model.notes, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
