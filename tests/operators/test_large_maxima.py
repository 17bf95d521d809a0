"""Maxima over more than a machine's windows hold, on the chip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from quant.fidelity import sqnr_db
from scripts.onnx_builder import build_model
from tests.support.machine_variants import with_keys
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.isa import load_machine
from toolchain.runtime import Session, random_feeds


def test_a_maximum_over_more_than_a_window_holds_is_on_the_chip(tmp_path: Path) -> None:
    """48 as 8 windows of 6; 47, which has no factors, as neighbouring windows; and side by side over rows and columns."""
    sizes = {"rows": [1, 4, 1, 47], "columns": [1, 4, 48, 1], "tiles": [1, 4, 3, 2]}
    nodes = [
        helper.make_node("ReduceMax", ["x", "two"], ["rows"]),
        helper.make_node("ReduceMax", ["x", "three"], ["columns"]),
        helper.make_node("MaxPool", ["x"], ["tiles"], kernel_shape=[16, 16], strides=[16, 16]),
    ]
    axes = {"two": np.array([2]), "three": np.array([3])}
    onnx.save(build_model(nodes, {"x": [1, 4, 48, 47]}, sizes, axes, opset=18), tmp_path / "m.onnx")
    base = load_machine("edge16")
    limits = base.chip.limits.model_dump(mode="json")
    limits["pool"] = {**limits["pool"], "max_kernel": [8, 8], "max_stride": [8, 8]}
    built = build(tmp_path / "m.onnx", BuildOptions(with_keys(base, limits=limits)))
    assert all(isinstance(segment, Region) for segment in built.container.segments)
    session = Session(built.container)
    feeds = random_feeds(built.container.inputs, seed=7)
    float_outputs = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]).run(list(sizes), feeds)
    for got, real in zip(session.run(list(sizes), feeds), float_outputs):
        assert sqnr_db(np.asarray(real), got) > 30
