"""Small quantized models in spellings that tools write beside those of scripts/make_quantized.py: onnxruntime's numbers, all
products on the chip."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.quantized.forms import float32_machine, on_kernels
from tests.quantized.test_forms import db
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.runtime import Session

RNG = np.random.default_rng(4)
KERNEL, MATRIX = RNG.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8), RNG.integers(-127, 128, (16, 10)).astype(np.int8)
ROUND = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
AGAIN = "r = QuantizeLinear(c, s2, z) y = DequantizeLinear(r, s2, z)"


@dataclass(frozen=True)
class Case:
    """least_db: of a result that the file does not round; None: it does, and the bits are onnxruntime's. dtypes: of input and
    output."""

    graph: str
    constants: dict[str, Any] = field(default_factory=dict)
    least_db: float | None = None
    shape: tuple[int, ...] = (1, 4, 8, 8)
    dtypes: tuple[str, str] = ("float", "float")
    opset: int = 17
    host: int = 0


def real(low: float, high: float, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(dtype)


KNOWN: dict[str, Any] = {
    "s": np.float32(0.03),
    "s2": np.float32(0.06),
    "s3": np.float32(0.047),
    "one": np.float32(9e-5),
    "half": np.float16(0.03),
    "half2": np.float16(0.06),
    "z": np.uint8(120),
    "zn": np.int8(-8),
    "w": KERNEL,
    "ws": real(0.002, 0.004, 8),
    "halves": real(0.002, 0.004, 8, dtype=np.float16),
    "each": real(6e-5, 12e-5, 8),
    "m": MATRIX,
    "ms": real(0.002, 0.004, 10),
    "mz": np.zeros(10, np.int8),
    "mb": real(-0.3, 0.3, 10),
    "b": RNG.integers(-4000, 4000, (1, 8, 1, 1)).astype(np.int32),
    "turned": np.ascontiguousarray(MATRIX.T),
    "fixed": RNG.integers(0, 256, (4, 16)).astype(np.uint8),
    "which": RNG.integers(0, 2, (4, 16)).astype(bool),
}
CASES = {
    "codes in, codes out": Case(
        "d = DequantizeLinear(x, s, z) k = DequantizeLinear<axis=0>(w, ws) c = Conv(d, k) y = QuantizeLinear(c, s2, z)",
        dtypes=("uint8", "uint8"), host=2,
    ),
    "no zero points": Case(
        "q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) k = DequantizeLinear<axis=0>(w, ws) c = Conv(d, k) v = Relu(c)"
        " r = QuantizeLinear(v, s2) y = DequantizeLinear(r, s2)"
    ),
    "codes turned before their scales": Case(
        f"{ROUND} t = Transpose<perm=[1,0]>(turned) k = DequantizeLinear<axis=1>(t, ms) c = MatMul(d, k) {AGAIN}", shape=(4, 16)
    ),
    "scales multiplied first": Case(
        f"q = QuantizeLinear(x, s, z) i = MatMulInteger(q, m, z) f = Cast<to=1>(i) p = Mul(s, ms) v = Mul(p, f)"
        f" c = Add(mb, v) {AGAIN}",
        shape=(4, 16),
    ),
    "a bias of 32 bits": Case(
        f"q = QuantizeLinear(x, s, z) i = ConvInteger(q, w, z) j = Add(b, i) f = Cast<to=1>(j) c = Mul(f, one) {AGAIN}"
    ),
    "sums dequantized": Case(
        f"q = QuantizeLinear(x, s, z) i = ConvInteger(q, w, z) j = Add(i, b) c = DequantizeLinear<axis=1>(j, each) {AGAIN}"
    ),
    "sums read as they are": Case(
        "q = QuantizeLinear(x, s, z) y = MatMulInteger(q, m, z)", {}, 35, (4, 16), ("float", "int32"), host=1
    ),
    "half precision": Case(
        "q = QuantizeLinear(x, half, zn) d = DequantizeLinear(q, half, zn) k = DequantizeLinear<axis=0>(w, halves) c = Conv(d, k)"
        " r = QuantizeLinear(c, half2, zn) y = DequantizeLinear(r, half2, zn)",
        {}, 45, dtypes=("float16", "float16"), opset=19, host=2,
    ),
    "onnxruntime's scaled product": Case(
        f"q = QuantizeLinear(x, s, z) c = com.microsoft.MatMulIntegerToFloat(q, m, s, ms, z, mz, mb) {AGAIN}", shape=(4, 16)
    ),
    "onnxruntime's dynamic product": Case(
        "y = com.microsoft.DynamicQuantizeMatMul(x, m, ms, mz, mb)", {}, 30, (4, 16), host=2
    ),
    "onnxruntime's choice": Case(
        "q = QuantizeLinear(x, s, z) c = com.microsoft.QLinearWhere(which, q, s, z, fixed, s2, z, s3, z)"
        " y = DequantizeLinear(c, s3, z)", shape=(4, 16),
    ),
    "products that may round more": Case(
        "y = com.microsoft.MatMulNBits<K=16, N=8, bits=4, block_size=16, accuracy_level=4>(x, n, ns)",
        {"n": RNG.integers(0, 256, (8, 1, 8)).astype(np.uint8), "ns": RNG.uniform(0.02, 0.04, 8).astype("f")}, 30, (4, 16),
    ),
}  # fmt: skip


def saved(case: Case, folder: Path) -> Path:
    shape, (given, made) = ",".join(map(str, case.shape)), case.dtypes
    imports = f'["": {case.opset}, "com.microsoft": 1]'
    proto = onnx.parser.parse_model(
        f"<ir_version: 9, opset_import: {imports}> g ({given}[{shape}] x) => ({made} y) {{ {case.graph} }}"
    )
    read = {n for node in proto.graph.node for n in node.input}
    for name, value in {**KNOWN, **case.constants}.items():
        if name in read:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("name", CASES)
def test_it_says_what_onnxruntime_makes_of_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path, rng = saved(case, tmp_path), np.random.default_rng(0)
    kind = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, case.dtypes[0].upper()))
    draws = [rng.integers(0, 256, case.shape) if kind == np.uint8 else rng.normal(size=case.shape) for _ in range(8)]
    samples = [{"x": np.asarray(d, kind)} for d in draws]
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in samples]))
    built = build(path, BuildOptions(float32_machine(), calibration=str(tmp_path / "data.npz")))
    assert (built.figures["host"]["macs"], built.figures["host"]["nodes"]) == (0, case.host)
    session, proto = Session(built.data, backend="reference"), onnx.load(path)
    wanted, got = (
        [np.asarray(run(s)[0], np.float64) for s in samples]
        for run in (lambda s: on_kernels(proto, s), lambda s: session.run(["y"], s))
    )
    assert len(np.unique(wanted)) > 20
    if case.least_db is None:
        np.testing.assert_array_equal(got, wanted)
    else:
        assert db(np.stack(wanted), np.stack(got)) >= case.least_db


def test_what_is_not_read_is_refused_with_its_node(tmp_path: Path) -> None:
    graph = "q = QuantizeLinear(x, s, z) y = com.microsoft.QAttention<num_heads=2>(q, m, mb, s, ms, , z, mz)"
    path = saved(Case(graph, shape=(1, 4, 16)), tmp_path)
    with pytest.raises(CompileError, match=r'QAttention.*: domain "com.microsoft" is not known'):
        build(path, BuildOptions("edge16"))


def test_codes_of_single_numbers_in_a_norm_are_no_weights(tmp_path: Path) -> None:
    """The norm is taken apart into steps, one of which is a product with ones: not with the exponent, which is in codes."""
    graph = (
        f"{ROUND} a = Constant<value_ints=[-1]>() e = Constant<value_float=1e-3>() p = DequantizeLinear(two, tiny, least)"
        f" n = ReduceMean<axes=[-1]>(d) f = Sub(d, n) g = Pow(f, p) v = ReduceMean<axes=[-1]>(g) h = Add(v, e) i = Sqrt(h)"
        f" c = Div(f, i) {AGAIN}"
    )
    constants = {"two": np.int8(127), "tiny": np.float32(2 / 255), "least": np.int8(-128)}
    path = saved(Case(graph, constants, shape=(4, 16)), tmp_path)
    samples = [{"x": np.asarray(RNG.normal(size=(4, 16)), np.float32)} for _ in range(8)]
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in samples]))
    built = build(path, BuildOptions("transformer64", calibration=str(tmp_path / "data.npz")))
    assert built.figures["host"]["nodes"] == 0
    session, proto = Session(built.data, backend="reference"), onnx.load(path)
    wanted, got = (
        np.stack([run(s)[0] for s in samples]) for run in (lambda s: on_kernels(proto, s), lambda s: session.run(["y"], s))
    )
    assert db(wanted, got) >= 25
