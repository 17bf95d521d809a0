"""A tensor without dimensions crosses between the chip and the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.fit_sample import fit_sample
from toolchain.api import BuildOptions, build
from toolchain.ir.graph import TensorType
from toolchain.runtime import Session

SCALAR_INPUTS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4] a, float s) => (float[1,4] y, float z) {
    t = Sigmoid(s)
    y = Mul(a, t)
    z = Add(t, s)
}
"""
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,4,4] x) => (float[1,2,4,4] y) {
    a = Relu(x)
    m = ReduceMean<keepdims = 0>(a)
    y = Div(x, m)
}
"""


def test_a_mean_of_everything_feeds_the_host(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    x = np.linspace(-1, 2, 32, dtype=np.float32).reshape(1, 2, 4, 4)
    np.savez(tmp_path / "x.npz", x=x)
    built = build(path, BuildOptions("ethos_u65_512", calibration=str(tmp_path / "x.npz")))
    assert [f["op"] for f in built.figures["fallbacks"]] == ["Div"]
    (y,) = Session(built.data).run(None, {"x": x})
    expected = x / np.maximum(x, 0).mean()
    assert np.abs(y - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("hw", ["edge16", "wide32_w4a16", "ws8_pow2"])
def test_an_input_without_dimensions_is_calibrated_and_fed(tmp_path: Path, hw: str) -> None:
    path, rng = tmp_path / "m.onnx", np.random.default_rng(0)
    onnx.save(parser.parse_model(SCALAR_INPUTS), path)
    data = {"a": rng.uniform(-1, 1, (8, 1, 4)).astype(np.float32), "s": rng.uniform(-2, 2, 8).astype(np.float32)}
    np.savez(tmp_path / "c.npz", **data)  # pyright: ignore[reportArgumentType]
    built = build(path, BuildOptions(hw, calibration=str(tmp_path / "c.npz")))
    feeds = {name: np.asarray(value[3]) for name, value in data.items()}
    gate = 1 / (1 + np.exp(-feeds["s"]))
    for backend in ("simulator", "reference"):
        y, z = Session(built.data, backend=backend).run(None, feeds)
        assert y.shape == (1, 4) and z.shape == ()
        assert np.abs(y - feeds["a"] * gate).max() < 0.05
        assert abs(z - gate - feeds["s"]) < 0.05


def test_a_sample_without_dimensions_stays_so() -> None:
    fitted = fit_sample({"s": np.float32(1.5)}, {"s": TensorType((), "float32")}, "here")
    assert fitted["s"].shape == ()
