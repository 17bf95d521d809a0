"""A machine that rounds twice does so only where the second rounding shows in no code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.runtime import Session

BODIES = {
    "mean of 4": "y = AveragePool<kernel_shape = [2,2], strides = [2,2]>(x)",
    "mean of 6": "y = AveragePool<kernel_shape = [2,3], strides = [2,3]>(x)",
    "a third, by a Rescale": "a = MaxPool<kernel_shape=[2,2]>(x) b = Concat<axis=1>(a, z) y = MaxPool<kernel_shape=[2,2]>(b)",
}


@pytest.mark.parametrize("body", BODIES)
def test_means_of_few_are_not_biased(body: str, tmp_path: Path) -> None:
    rescaled = "Concat" in BODIES[body]
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,24,24] x, float[1,4,23,23] z) => (float y) {{ {BODIES[body]} }}'
    )
    model = parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if not rescaled:
        del model.graph.input[1]
    onnx.save(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.uniform(0, 1, (8, 1, 4, 24, 24)).astype(np.float32)}
    if rescaled:
        feeds["z"] = rng.uniform(0, 3, (8, 1, 4, 23, 23)).astype(np.float32)
    np.savez(tmp_path / "c.npz", **feeds)  # pyright: ignore[reportArgumentType]
    built = build(tmp_path / "m.onnx", BuildOptions("edge16", calibration=str(tmp_path / "c.npz")))
    session, exact = Session(built.data, backend="reference"), open_session(str(tmp_path / "m.onnx"))
    quant = built.container.graph.types["y"].quant
    assert quant is not None
    runs = [{n: v[i] for n, v in feeds.items()} for i in range(8)]
    off = np.stack([(session.run(None, r)[0] - exact.run(None, r)[0]) / quant.scale for r in runs])
    assert np.abs(off).max() < 0.9 and np.mean(np.abs(off) > 0.75) < 0.01 and abs(off.mean()) < 0.01
