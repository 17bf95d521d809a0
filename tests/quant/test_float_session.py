"""onnxruntime computes what the model says, also where its own fusions do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from quant.float_session import open_session

X = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
POOL = "<ceil_mode = 1, count_include_pad = 1, kernel_shape = [2,3], pads = [0,0,0,1], strides = [2,1]>"


@pytest.mark.parametrize(
    ("pads", "pool", "expected"),
    [
        ("0,0,0,0,0,0,1,0", f"AveragePool{POOL}", [[2.5, 2.0], [0.0, 0.0]]),
        ("0,0,0,0,0,0,0,3", "AveragePool<kernel_shape = [2,3], strides = [1,3]>", [[2.5, 0.0]]),
    ],
)
def test_padding_before_a_pool(pads: str, pool: str, expected: list[list[float]]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,1,2,3] x) => (float[a,b,c,d] y) '
        f"<int64[8] p = {{{pads}}}> {{ t = Pad(x, p) y = {pool}(t) }}"
    )
    (y,) = open_session(model.SerializeToString()).run(None, {"x": X})
    assert y.tolist() == [[expected]]


def test_a_convolution_in_front_of_a_sum_that_is_asked_for() -> None:
    """Its weights are rounded, as a quantized model's are, and the sum's other operand is made behind it."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[1,8,4,4] x)
      => (float[1,8,4,4] y, float[1,8,4,4] b)
      <float s = {0.1}, int8 z = {0}> {
        xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
        v = QuantizeLinear(w, s, z) vd = DequantizeLinear(v, s, z) b = Conv(xd, vd, u)
        wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z) a = Conv(xd, wd, u)
        h = Relu(a) hq = QuantizeLinear(h, s, z) hd = DequantizeLinear(hq, s, z)
        k = QuantizeLinear(w, s, z) kd = DequantizeLinear(k, s, z) c = Conv(hd, kd, u)
        d = Add(c, b) y = Relu(d) }""")
    rng = np.random.default_rng(0)
    for name, shape in {"w": (8, 8, 1, 1), "u": (8,)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    x = rng.standard_normal((1, 8, 4, 4)).astype(np.float32)
    found = dict(zip("yb", open_session(model.SerializeToString()).run(["y", "b"], {"x": x})))
    wanted = dict(zip("yb", open_session(model.SerializeToString(), few_runs=True).run(["y", "b"], {"x": x})))
    assert all(np.allclose(found[n], wanted[n], atol=1e-5) for n in "yb")
