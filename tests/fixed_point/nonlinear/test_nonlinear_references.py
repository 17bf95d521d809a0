"""Bit for bit against TFLite's reference kernels, the TOSA reference model and onnxruntime; live and as recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import one_node_model
import onnx
import onnx.parser
import onnxruntime
import pytest
from kernels import KERNELS, Kernel

from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.curves import softmax
from quant.fixed_point.pointwise import real_functions, tables
from quant.fixed_point.pointwise.compare import arg_max, top_k

DATA = Path(__file__).resolve().parent / "data"
CASES = 60
PAIRS = [pytest.param(k, e, id=f"{k.name} {e}") for k in KERNELS for e in k.engines]


@pytest.mark.parametrize(("kernel", "engine"), PAIRS)
def test_equals_the_reference(kernel: Kernel, engine: str) -> None:
    reason = kernel.missing(engine)
    if reason:
        pytest.skip(reason)
    for case in range(CASES):
        parameters, inputs = kernel.draw(np.random.default_rng([1, case]))
        expected = kernel.reference(engine, parameters, *inputs)
        np.testing.assert_array_equal(kernel.ours(parameters, *inputs), expected, err_msg=f"{case}: {parameters}")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_equals_the_recorded_reference(kernel: Kernel) -> None:
    with np.load(DATA / "vectors.npz") as vectors:
        recorded = json.loads(str(vectors["index"]))[kernel.name]
        assert len(recorded) >= 3
        for case, parameters in enumerate(recorded):
            inputs = [vectors[f"{kernel.name}/{case}/{i}"] for i in range(len(kernel.draw(np.random.default_rng(0))[1]))]
            expected = vectors[f"{kernel.name}/{case}/expected"]
            np.testing.assert_array_equal(kernel.ours(parameters, *inputs), expected, err_msg=str(parameters))


def onnxruntime_unary(op: str, x: np.ndarray, xs: float, xz: int, ys: float, yz: int, **attributes) -> np.ndarray:
    scalar = one_node_model.scalar
    inputs = {"x": x, "xs": scalar(xs), "xz": scalar(xz, x.dtype), "ys": scalar(ys), "yz": scalar(yz, x.dtype)}
    return one_node_model.run(op, inputs, x.dtype, domain="com.microsoft", constants=("xs", "xz", "ys", "yz"), **attributes)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_qlinear_softmax(dtype: type) -> None:
    rng = np.random.default_rng(3)
    limits = np.iinfo(dtype)
    for _ in range(25):
        # a row of one element overflows float32 in onnxruntime
        n = int(rng.choice([2, 10, 100, 1000]))
        scale, zero_point = float(np.exp(rng.uniform(np.log(5e-4), np.log(4)))), int(rng.choice([limits.min, 0, 17]))
        out_scale = float(rng.choice([1 / 256, 1 / 255, 0.01]))
        low = rng.integers(limits.min, limits.max, 6)
        x = np.stack([rng.integers(v, rng.integers(v, limits.max + 1) + 1, n) for v in low]).astype(dtype)
        expected = onnxruntime_unary("QLinearSoftmax", x, scale, 3, out_scale, zero_point, opset=13, axis=-1)
        np.testing.assert_array_equal(softmax.qlinear_softmax(x, scale, out_scale, zero_point), expected)


def test_qlinear_softmax_sums_in_order() -> None:
    """A row whose float32 sum from the other end differs in its last bit, and turns two results over a tie."""
    row = [110, -53, 81, 16, -77, 19, 125, 12, -99, -41, 117, -14, -16, -99, -31, -14, -62, 126, 0, 77, 88, -3, -113, 72]
    x = np.array([row], np.int8)
    expected = onnxruntime_unary("QLinearSoftmax", x, 0.01, 3, 1 / 256, -128, opset=13, axis=-1)
    np.testing.assert_array_equal(softmax.qlinear_softmax(x, 0.01, 1 / 256, -128), expected)
    assert (softmax.qlinear_softmax(x[:, ::-1], 0.01, 1 / 256, -128)[:, ::-1] != expected).any()


def test_qlinear_softmax_of_one_element_is_one() -> None:
    assert softmax.qlinear_softmax(np.array([[5]], np.int8), 0.1, 1 / 256, -128).tolist() == [[127]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_qlinear_activations_as_tables(op: str, dtype: type) -> None:
    """onnxruntime's tables are those of build_table8 with half_even, but for entries within 1e-6 of a tie."""
    rng = np.random.default_rng(4)
    limits = np.iinfo(dtype)
    x = np.arange(limits.min, limits.max + 1).astype(dtype)
    wrong = 0
    for _ in range(40):
        xs, ys = (float(np.float32(np.exp(rng.uniform(np.log(0.003), np.log(0.3))))) for _ in range(2))
        xz, yz = (int(z) for z in rng.integers(limits.min, limits.max + 1, 2))
        attributes = {"alpha": 0.1} if op == "QLinearLeakyRelu" else {}
        f = real_functions.sigmoid if op == "QLinearSigmoid" else lambda v: np.where(v >= 0, v, np.float32(0.1) * v)
        table = tables.build_table8(f, xs, xz, ys, yz, signed=dtype is np.int8, rounding=Rounding.HALF_EVEN)
        expected = onnxruntime_unary(op, x, xs, xz, ys, yz, **attributes)
        differs = tables.lookup8(x, table) != expected
        wrong += int(differs.sum())
        steps = f(xs * (x[differs].astype(np.float64) - xz)) / ys
        assert (np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 1e-5 * np.maximum(np.abs(steps), 1)).all()
    assert wrong <= 2


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("last", [False, True])
def test_argmax_equals_onnxruntime(axis: int, last: bool) -> None:
    x = np.random.default_rng(5).integers(-3, 4, (4, 9, 5)).astype(np.int8)
    expected = one_node_model.run("ArgMax", {"x": x}, np.int64, axis=axis, keepdims=1, select_last_index=int(last))
    np.testing.assert_array_equal(arg_max(x, axis, keep_dims=True, last_index=last), expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("largest", [False, True])
def test_top_k_equals_onnxruntime(axis: int, largest: bool) -> None:
    x = np.random.default_rng(6).integers(-3, 4, (4, 9, 5))
    graph = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (int64[4,9,5] x) => (values, indices) <int64[1] k = {{3}}> {{
            values, indices = TopK <axis = {axis}, largest = {int(largest)}, sorted = 1> (x, k)
        }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(graph))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, expected in zip(top_k(x, 3, axis, largest=largest), session.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(ours, expected)
