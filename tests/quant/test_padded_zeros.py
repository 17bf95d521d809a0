"""A tensor that was zero has the scale of what it is made from: what is padded with is held all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from toolchain.api import BuildOptions, build
from toolchain.runtime import Session


@pytest.mark.parametrize("machine", ["edge16", "wide32_w4a16"])
def test_a_pad_of_zeros_gives_its_number(machine: str, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float[1,4,10,10] y)
      <float far = {1000000.0}, int64[8] p = {0,0,1,1,0,0,1,1}, float half = {0.5}>
      { a = Sub(x, far) b = Relu(a) y = Pad(b, p, half) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x = np.random.default_rng(0).uniform(-30000, 30000, (16, 1, 4, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=x)
    build_result = build(tmp_path / "m.onnx", BuildOptions(machine, calibration=str(tmp_path / "c.npz"), repair="none"))
    (y,) = Session(build_result.data, backend="reference").run(["y"], {"x": x[0]})
    assert y[0, 0, 0, 0] == pytest.approx(0.5, rel=0.01) and (y[0, :, 1:-1, 1:-1] == 0).all()
