"""The expansion of each operator on codes gives the codes of onnxruntime's kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from same_outputs import session

from toolchain.frontend import expand_contrib, expand_ort_fused, load_model

SHAPES = "float[1,4,6,6] x, float[1,4,6,6] u, float[1,6,6,4] h, float[3,5] a, float[5,4] b"
QUANTIZED = "q = QuantizeLinear(x, s, z) r = QuantizeLinear(u, s2, z2) c = QuantizeLinear(h, s, z) m = QuantizeLinear(a, s, z)"
MICROSOFT = "com.microsoft"
STEP = 0.04  # of the outputs
RNG = np.random.default_rng(0)
CONSTANTS = {
    "s": np.float32(0.03),
    "z": np.uint8(120),
    "s2": np.float32(0.021),
    "z2": np.uint8(99),
    "so": np.float32(STEP),
    "zo": np.uint8(131),
    "w": RNG.integers(-60, 60, (8, 4, 3, 3)).astype(np.int8),
    "ws": RNG.uniform(0.002, 0.004, 8).astype(np.float32),
    "wz": np.zeros(8, np.int8),
    "wb": RNG.integers(-9000, 9000, 8).astype(np.int32),
    "v": RNG.integers(-60, 60, (5, 4)).astype(np.int8),
    "vt": RNG.integers(-60, 60, (4, 5)).astype(np.int8),
    "vs": np.float32(0.013),
    "vz": np.int8(7),
    "vb": RNG.integers(-9000, 9000, 4).astype(np.int32),
    "fs": np.array([0.011, 0.014, 0.009, 0.017], np.float32),
    "fz": np.array([3, 0, -2, 5], np.int8),
    "fb": RNG.normal(0, 1, 4).astype(np.float32),
    "mask": RNG.random((1, 4, 6, 6)) < 0.4,
}
# Nodes by (domain, operator), which read the pool of constants and the inputs' codes q, r, c and m. Codes are named k, reals y.
CASES: dict[tuple[str, str], list[str]] = {
    ("", "QLinearConv"): ["k = QLinearConv<pads = [1,0,1,1]>(q, s, z, w, ws, wz, so, zo, wb)"],
    ("", "QLinearMatMul"): ["k = QLinearMatMul(m, s, z, v, vs, vz, so, zo)"],
    (MICROSOFT, "QLinearConv"): [
        "k = com.microsoft.QLinearConv<channels_last = 1, strides = [2,1]>(c, s, z, w, ws, wz, so, zo, wb)",
        "k = com.microsoft.QLinearConv(q, s, z, w, ws, wz, so, zo)",
    ],
    (MICROSOFT, "QGemm"): [
        "k = com.microsoft.QGemm<alpha = 0.5>(m, s, z, v, vs, vz, vb, so, zo)",
        "k = com.microsoft.QGemm<transB = 1>(m, s, z, vt, vs, vz, , so, zo)",
        "k = com.microsoft.QGemm<transB = 1>(m, s, z, vt, fs, fz, vb, so, zo)",
        "y = com.microsoft.QGemm(m, s, z, v, vs, vz, vb)",
    ],
    (MICROSOFT, "QLinearAdd"): ["k = com.microsoft.QLinearAdd(q, s, z, r, s2, z2, so, zo)"],
    (MICROSOFT, "QLinearMul"): ["k = com.microsoft.QLinearMul(q, s, z, r, s2, z2, so, zo)"],
    (MICROSOFT, "QLinearSigmoid"): ["k = com.microsoft.QLinearSigmoid(q, s, z, so, zo)"],
    (MICROSOFT, "QLinearLeakyRelu"): ["k = com.microsoft.QLinearLeakyRelu<alpha = 0.3>(q, s, z, so, zo)"],
    (MICROSOFT, "QLinearAveragePool"): [
        "k = com.microsoft.QLinearAveragePool<kernel_shape = [3,2], pads = [1,0,1,0], count_include_pad = 1>(q, s, z, so, zo)",
        "k = com.microsoft.QLinearAveragePool<kernel_shape = [2,2], pads = [1,0,0,0], channels_last = 1>(c, s, z, so, zo)",
        "k = com.microsoft.QLinearAveragePool<kernel_shape = [5,5], strides = [2,2], ceil_mode = 1>(q, s, z, so, zo)",
    ],
    (MICROSOFT, "QLinearGlobalAveragePool"): [
        "k = com.microsoft.QLinearGlobalAveragePool(q, s, z, so, zo)",
        "k = com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(c, s, z, so, zo)",
    ],
    (MICROSOFT, "QLinearSoftmax"): ["k = com.microsoft.QLinearSoftmax<axis = 3, opset = 13>(q, s, z, so, zo)"],
    (MICROSOFT, "QLinearConcat"): ["k = com.microsoft.QLinearConcat<axis = 2>(so, zo, q, s, z, r, s2, z2)"],
    (MICROSOFT, "QuantizeLinear"): ["k = com.microsoft.QuantizeLinear(u, so, zo)"],
    (MICROSOFT, "DequantizeLinear"): ["y = com.microsoft.DequantizeLinear(r, s2, z2)"],
    (MICROSOFT, "QLinearWhere"): ["k = com.microsoft.QLinearWhere(mask, q, s, z, r, s2, z2, so, zo)"],
    (MICROSOFT, "MatMulIntegerToFloat"): [
        "y = com.microsoft.MatMulIntegerToFloat(m, v, s, vs, z, vz, fb)",
        "y = com.microsoft.MatMulIntegerToFloat(m, v, s, vs, z)",
    ],
    (MICROSOFT, "DynamicQuantizeMatMul"): ["y = com.microsoft.DynamicQuantizeMatMul(a, v, vs, vz, fb)"],
    (MICROSOFT, "NhwcMaxPool"): ["k = com.microsoft.NhwcMaxPool<kernel_shape = [2,3], strides = [2,1]>(c)"],
}
ELSEWHERE = {"MatMulNBits", "GatherBlockQuantized", "QLinearReduceMean"}  # tests/quantized; the last has no kernel for the CPU


def test_every_operator_has_a_case() -> None:
    fused = {name for _, name in expand_contrib.DECOMPOSITIONS} & {*expand_ort_fused.DECOMPOSITIONS}
    expected = {key for key in expand_contrib.DECOMPOSITIONS if key[1] not in fused | ELSEWHERE}
    assert expected == CASES.keys()


@pytest.mark.parametrize("nodes", [text for texts in CASES.values() for text in texts])
def test_the_expansion_gives_the_kernels_codes(nodes: str) -> None:
    """No code is off by more than one step, and few are off, so that a bias of all codes shows."""
    real = "" if nodes.startswith("y") else " y = DequantizeLinear(k, so, zo)"
    head = f'<ir_version: 8, opset_import: ["" : 17, "{MICROSOFT}" : 1]> g ({SHAPES}) => (y)'
    model = onnx.parser.parse_model(f"{head} {{ {QUANTIZED} {nodes}{real} }}")
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in CONSTANTS.items() if n in used)
    rng = np.random.default_rng(1)
    shapes = {port.name: [d.dim_value for d in port.type.tensor_type.shape.dim] for port in model.graph.input}
    feeds = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    expected = session(model.SerializeToString(), optimise=False).run(["y"], feeds)[0]
    expanded = load_model(model)
    read_feeds = {name: feeds[name] for name in expanded.graph.inputs}
    actual = session(expanded.proto.SerializeToString(), optimise=False).run(["y"], read_feeds)[0]
    off = np.abs(np.asarray(expected) - np.asarray(actual)) / STEP
    assert off.max() < 1.01 and off.mean() < 0.06
    assert len(np.unique(expected)) > 3
