"""A tensor without dimensions crosses between the chip and the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from toolchain.api import BuildOptions, build
from toolchain.runtime import Session

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
    built = build(path, BuildOptions("edge16", calibration=str(tmp_path / "x.npz")))
    assert [f["op"] for f in built.figures["fallbacks"]] == ["Div"]
    (y,) = Session(built.data).run(None, {"x": x})
    expected = x / np.maximum(x, 0).mean()
    assert np.abs(y - expected).max() < 0.02 * np.abs(expected).max()
