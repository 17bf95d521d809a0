"""Check four-bit constants and products of small constants against onnxruntime on the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx_text import model, save
from same_outputs import check_same


def test_constants_whose_product_vanishes_stay_apart(tmp_path: Path) -> None:
    proto = model("(float[1,4] x, float a) => (float[1,4] y) { t = Mul(x, a) y = Mul(t, a) }", 21, {"a": np.float32(1e-25)})
    loaded = check_same(save(proto, tmp_path), feeds={"x": np.full((1, 4), 1e38, np.float32)})
    assert len(loaded.graph.nodes) == 2


def test_four_bits_by_output_dtype_without_zero_point(tmp_path: Path) -> None:
    weights = {"w": np.linspace(-3, 3, 16, dtype=np.float32).reshape(4, 4), "s": np.float32(0.25)}
    nodes = "q = QuantizeLinear<output_dtype = 22>(w, s) d = DequantizeLinear(q, s) y = MatMul(x, d)"
    proto = model(f"(float[1,4] x, float[4,4] w, float s) => (float[1,4] y) {{ {nodes} }}", 21, weights)
    check_same(save(proto, tmp_path), allow_noise=True)
