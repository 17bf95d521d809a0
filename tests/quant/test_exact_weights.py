"""Products of uint8 and int8 codes mean the same with weights of uint8, of which no processor's kernel saturates a sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from quant import exact_weights
from quant.exact_weights import may_saturate, with_exact_weights
from quant.float_session import open_session
from toolchain.errors import CompileError

Array = np.ndarray[Any, Any]
ROUND = "q = QuantizeLinear(x, s, z)"
REAL = "d = DequantizeLinear(q, s, z) k = DequantizeLinear(w, ws, wz) c = MatMul(d, k)"
PRODUCTS = {  # what makes float c of x; the int8 weights w
    "QLinearMatMul": f"{ROUND} p = QLinearMatMul(q, s, z, w, ws, wz, ys, z) c = DequantizeLinear(p, ys, z)",
    "MatMulInteger": f"{ROUND} i = MatMulInteger(q, w, z, wz) c = Cast<to=1>(i)",
    "no zero point of the weights": f"{ROUND} i = MatMulInteger(q, w, z) c = Cast<to=1>(i)",
    "moved codes": f"{ROUND} t = Transpose<perm=[0,1]>(q) i = MatMulInteger(t, w, z, wz) c = Cast<to=1>(i)",
    "moved weights": f"{ROUND} v = Transpose<perm=[1,0]>(w) i = MatMulInteger(q, v, z, wz) c = Cast<to=1>(i)",
    "dynamic": "q, s0, z0 = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, z0, wz) f = Cast<to=1>(i) c = Mul(f, s0)",
    "real": f"{ROUND} {REAL}",
}
SIZE = 48


def model(body: str) -> tuple[onnx.ModelProto, Array]:
    """Return a model whose weights are at the ends of their codes, and an input whose codes are all near the largest."""
    rng = np.random.default_rng(1)
    weights = rng.choice([-128, 127, 90], (SIZE, SIZE)).astype(np.int8)
    constants: dict[str, Array] = {"w": weights, "wz": np.array(3, np.int8), "z": np.array(2, np.uint8)}
    constants |= {n: np.array(v, np.float32) for n, v in (("s", 0.01), ("ws", 0.02), ("ys", 0.8))}
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[4,{SIZE}] x) => (float[4,{SIZE}] c) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    return proto, rng.uniform(2.2, 2.6, (4, SIZE)).astype(np.float32)


def codes_of(x: Array, dynamic: bool) -> tuple[Array, float, int]:
    scale, point = (np.float32(x.max() / 255), 0) if dynamic else (np.float32(0.01), 2)
    return np.clip(np.rint(x / scale) + point, 0, 255).astype(np.int64), float(scale), point


@pytest.mark.parametrize("case", PRODUCTS)
def test_weights_are_raised_and_mean_the_same(case: str) -> None:
    proto, x = model(PRODUCTS[case])
    raised = with_exact_weights(proto)
    assert may_saturate(proto.SerializeToString())
    used = {i for n in raised.graph.node for i in n.input}
    assert {t.data_type for t in raised.graph.initializer if t.name in used and len(t.dims) == 2} == {TensorProto.UINT8}
    q, scale, point = codes_of(x, case == "dynamic")
    weights = numpy_helper.to_array(next(t for t in proto.graph.initializer if t.name == "w")).astype(np.int64)
    weights = weights.T if case == "moved weights" else weights
    sums = (q - point) @ (weights - (0 if case.startswith("no zero") else 3))
    session = onnxruntime.InferenceSession(raised.SerializeToString())
    got = np.asarray(session.run(None, {"x": x})[0], np.float64)
    unit = {"real": 0.01 * 0.02, "QLinearMatMul": 0.01 * 0.02, "dynamic": scale}.get(case, 1.0)
    expected = sums * unit
    if case == "QLinearMatMul":
        expected = 0.8 * (np.clip(np.rint(expected / 0.8) + 2, 0, 255) - 2)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    "body",
    [
        "q = QuantizeLinear(x, s, wz) d = DequantizeLinear(q, s, wz) k = DequantizeLinear(w, ws, wz) c = MatMul(d, k)",
        "k = DequantizeLinear(w, ws, wz) c = MatMul(x, k)",
        f"{ROUND} d = DequantizeLinear(q, s, z) k = DequantizeLinear(w, ws, wz) f = MatMul(d, d2) c = Add(f, k)",
        f"{ROUND} k = DequantizeLinear(w, ws, wz) v = QuantizeLinear(k, ws, wz) i = MatMulInteger(q, v, z, wz) c = Cast<to=1>(i)",
    ],
)
def test_others_stay_as_they_are(body: str) -> None:
    proto, _ = model(body)
    assert with_exact_weights(proto).SerializeToString() == proto.SerializeToString()


@pytest.mark.parametrize("where", ["external data", "beside the model"])
def test_weights_that_lie_outside_are_raised_too(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_weights, "saturates", lambda: True)
    proto, x = model(PRODUCTS["MatMulInteger"])
    expected = np.asarray(onnxruntime.InferenceSession(with_exact_weights(proto).SerializeToString()).run(None, {"x": x})[0])
    codes = next(t for t in proto.graph.initializer if t.name == "w")
    values = {"w": numpy_helper.to_array(codes)}
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=64)
    outside = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert [t.name for t in outside.graph.initializer if t.data_location == TensorProto.EXTERNAL] == ["w"]
    places: dict[str, Any] = {"folder": str(tmp_path)} if where == "external data" else {"weights": values}
    raised = with_exact_weights(outside, **places)
    assert "w/uint8" in {i for n in raised.graph.node for i in n.input}
    assert np.array_equal(open_session(outside.SerializeToString(), **places).run(None, {"x": x})[0], expected)
    assert np.array_equal(open_session(tmp_path / "m.onnx").run(None, {"x": x})[0], expected)


def test_more_than_a_model_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_weights, "_MOST_BYTES", SIZE * SIZE - 1)
    message = "^weight w: int8 weights beside uint8 codes are 2,303 bytes and more, .* use one with VNNI$"
    with pytest.raises(CompileError, match=message):
        with_exact_weights(model(PRODUCTS["MatMulInteger"])[0])
