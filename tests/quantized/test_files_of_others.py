"""Small quantized models in spellings that tools write beside those of bench/make_quantized.py: onnxruntime's numbers, all
products on the chip."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.quantized.forms import float32_machine, on_kernels
from tests.quantized.test_forms import db
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.frontend.subgraphs import list_captured_names
from toolchain.runtime import Session

RNG = np.random.default_rng(4)
KERNEL, MATRIX = RNG.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8), RNG.integers(-127, 128, (16, 10)).astype(np.int8)
SIGNS = np.array([-1, 0, 1, 1, -1, 1, 1, 1], np.float32)
ROUND = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
AGAIN = "r = QuantizeLinear(c, s2, z) y = DequantizeLinear(r, s2, z)"


@dataclass(frozen=True)
class Case:
    """A case of a quantized file.

    `least_db`: SQNR of a result that the file does not round; None: the file rounds it, and the bits are onnxruntime's.
    `dtypes`: types of input and output.
    """

    graph: str
    constants: dict[str, Any] = field(default_factory=dict)
    least_db: float | None = None
    shape: tuple[int, ...] = (1, 4, 8, 8)
    dtypes: tuple[str, str] = ("float", "float")
    opset: int = 17
    host: int = 0


def real(low: float, high: float, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(dtype)


COMMON_CONSTANTS: dict[str, Any] = {
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
    "scales of both signs, and none": Case(
        f"{ROUND} k = DequantizeLinear<axis=0>(w, signed) y = Conv(d, k)", {"signed": real(0.002, 0.004, 8) * SIGNS}, 32
    ),
    "one scale below zero": Case(
        f"{ROUND} k = DequantizeLinear(m, below) y = MatMul(d, k)", {"below": np.float32(-0.003)}, 32, (4, 16)
    ),
    "weights of float8": Case(
        f"{ROUND} k = DequantizeLinear(eighths, below) y = MatMul(d, k)",
        {"eighths": real(-0.4, 0.4, 16, 10).astype(ml_dtypes.float8_e4m3fn), "below": np.float32(0.7)}, 32, (4, 16), opset=19,
    ),
    "onnxruntime's scaled product": Case(
        f"q = QuantizeLinear(x, s, z) c = com.microsoft.MatMulIntegerToFloat(q, m, s, ms, z, mz, mb) {AGAIN}", shape=(4, 16)
    ),
    "onnxruntime's dynamic product": Case(
        "y = com.microsoft.DynamicQuantizeMatMul(x, m, ms, mz, mb)", {}, 30, (4, 16), host=2
    ),
    "channels last": Case(
        "q = QuantizeLinear(x, s, z) t = Transpose<perm=[0,2,3,1]>(q) m1 = com.microsoft.NhwcMaxPool<kernel_shape=[2,2]>(t)"
        " c = com.microsoft.QLinearConv<channels_last=1, pads=[1,1,1,1]>(m1, s, z, w, ws, wz, s2, z)"
        " p = com.microsoft.QLinearAveragePool<channels_last=1, kernel_shape=[2,2], strides=[2,2]>(c, s2, z, s2, z)"
        " g = com.microsoft.QLinearGlobalAveragePool<channels_last=1>(p, s2, z, s3, z) y = DequantizeLinear(g, s3, z)",
        {"wz": np.zeros(8, np.int8)},
    ),
    "onnxruntime's choice": Case(
        "q = QuantizeLinear(x, s, z) c = com.microsoft.QLinearWhere(which, q, s, z, fixed, s2, z, s3, z)"
        " y = DequantizeLinear(c, s3, z)", shape=(4, 16),
    ),
    "onnxruntime's fully connected layer": Case(
        "q = QuantizeLinear(x, s, z) g = com.microsoft.QGemm(q, s, z, m, ms, mz, , s2, z) y = DequantizeLinear(g, s2, z)",
        shape=(4, 16),
    ),
    "onnxruntime's functions": Case(
        "q = QuantizeLinear(x, s, z) a = com.microsoft.QLinearLeakyRelu<alpha=0.1>(q, s, z, s3, z)"
        " f = com.microsoft.QLinearSigmoid(a, s3, z, of255, none) y = DequantizeLinear(f, of255, none)",
        {"of255": np.float32(1 / 255), "none": np.uint8(0)}, 45,
    ),
    "onnxruntime's Concat": Case(
        "q = QuantizeLinear(x, s, z) p = com.microsoft.QLinearLeakyRelu<alpha=0.1>(q, s, z, s2, z)"
        " c = com.microsoft.QLinearConcat<axis=2>(s3, z, q, s, z, p, s2, z) y = DequantizeLinear(c, s3, z)", {}, 45,
    ),
    "a Softmax whose codes are not onnxruntime's choice": Case(
        f"{ROUND} p = com.microsoft.QLinearSoftmax<axis=-1, opset=13>(q, s, z, of255, none)"
        " y = DequantizeLinear(p, of255, none)",
        {"of255": np.float32(1 / 255), "none": np.uint8(0)}, 30, (4, 16),
    ),
    "float8 on both sides, activations by the host": Case(
        "q = QuantizeLinear(x, s, eight) d = DequantizeLinear(q, s, eight) j = QuantizeLinear(floats, below, eight)"
        " k = DequantizeLinear(j, below, eight) y = MatMul(d, k)",
        {"eight": np.zeros((), ml_dtypes.float8_e4m3fn), "floats": real(-400, 400, 16, 10), "below": np.float32(0.7)},
        32, (4, 16), opset=19, host=2,
    ),
    "products that may round more": Case(
        "y = com.microsoft.MatMulNBits<K=16, N=8, bits=4, block_size=16, accuracy_level=4>(x, n, ns)",
        {"n": RNG.integers(0, 256, (8, 1, 8)).astype(np.uint8), "ns": RNG.uniform(0.02, 0.04, 8).astype("f")}, 30, (4, 16),
    ),
    "products of a branch that may round more": Case(
        "y = If(c) <then_branch = t () => (float[4,8] a) "
        "{ a = com.microsoft.MatMulNBits<K=16, N=8, bits=4, block_size=16, accuracy_level=4>(x, n, ns) },"
        " else_branch = e () => (float[4,8] b) { b = MatMul(x, w) }>",
        {"n": RNG.integers(0, 256, (8, 1, 8)).astype(np.uint8), "ns": RNG.uniform(0.02, 0.04, 8).astype("f"),
         "c": np.bool_(True), "w": real(-1, 1, 16, 8)}, 30, (4, 16),
    ),
}  # fmt: skip


def save_case(case: Case, folder: Path) -> Path:
    shape, (input_type, output_type) = ",".join(map(str, case.shape)), case.dtypes
    imports = f'["": {case.opset}, "com.microsoft": 1]'
    proto = onnx.parser.parse_model(
        f"<ir_version: 9, opset_import: {imports}> g ({input_type}[{shape}] x) => ({output_type} y) {{ {case.graph} }}"
    )
    read = {n for node in proto.graph.node for n in (*node.input, *list_captured_names(node))}
    for name, value in {**COMMON_CONSTANTS, **case.constants}.items():
        if name in read:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("name", CASES)
def test_it_says_what_onnxruntime_makes_of_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path, rng = save_case(case, tmp_path), np.random.default_rng(0)
    kind = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, case.dtypes[0].upper()))
    draws = [rng.integers(0, 256, case.shape) if kind == np.uint8 else rng.normal(size=case.shape) for _ in range(8)]
    samples = [{"x": np.asarray(d, kind)} for d in draws]
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in samples]))
    built = build(path, BuildOptions(float32_machine(), calibration=str(tmp_path / "data.npz")))
    assert (built.figures["host"]["macs"], built.figures["host"]["nodes"]) == (0, case.host)
    session, proto = Session(built.data, backend="reference"), onnx.load(path)
    expected, got = (
        [np.asarray(run(s)[0], np.float64) for s in samples]
        for run in (lambda s: on_kernels(proto, s), lambda s: session.run(["y"], s))
    )
    assert len(np.unique(expected)) > 20
    if case.least_db is None:
        np.testing.assert_array_equal(got, expected)
    else:
        assert db(np.stack(expected), np.stack(got)) >= case.least_db


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_table_in_blocks(bits: int, points: bool, tmp_path: Path) -> None:
    constants = {
        "table": RNG.integers(0, 256, (20, 32 * bits // 8)).astype(np.uint8),
        "scales": real(0.01, 0.02, 20, 2),
        "points": RNG.integers(0, 256, (20, 2 * bits // 8)).astype(np.uint8),
        "w": real(-1, 1, 32, 5),
    }
    graph = f"<gather_axis=0, quantize_axis=1, block_size=16, bits={bits}>(table, x, scales{', points' if points else ''})"
    case = Case(
        f"g = com.microsoft.GatherBlockQuantized{graph} y = MatMul(g, w)", constants, None, (1, 6), ("int64", "float"), 21
    )
    path, x = save_case(case, tmp_path), RNG.integers(0, 20, (8, 1, 6))
    np.savez(tmp_path / "data.npz", x=x)
    built = build(path, BuildOptions("transformer64", calibration=str(tmp_path / "data.npz")))
    assert built.figures["host"]["macs"] == 0
    session, proto = Session(built.data, backend="reference"), onnx.load(path)
    expected, got = (
        np.stack([run({"x": s})[0] for s in x]) for run in (lambda s: on_kernels(proto, s), lambda s: session.run(["y"], s))
    )
    assert db(expected, got) >= 36


def test_what_is_not_read_is_refused_with_its_node(tmp_path: Path) -> None:
    graph = "q = QuantizeLinear(x, s, z) y = com.microsoft.QAttention<num_heads=2>(q, m, mb, s, ms, , z, mz)"
    path = save_case(Case(graph, shape=(1, 4, 16)), tmp_path)
    with pytest.raises(
        CompileError,
        match=r'QAttention\): is onnxruntime.s attention on codes\n  help: quantize without it .* without "Attention"',
    ):
        build(path, BuildOptions("edge16"))


@pytest.mark.parametrize("scale", ["-0.1", "0", "inf"])
def test_a_scale_of_an_activation_is_above_zero(scale: str, tmp_path: Path) -> None:
    path = save_case(Case("q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, bad, z)", {"bad": np.float32(scale)}), tmp_path)
    with pytest.raises(
        CompileError, match=rf"DequantizeLinear\): has the scale {scale}; scales are finite and above zero\n  help: quan"
    ):
        build(path, BuildOptions("edge16"))


@pytest.mark.parametrize("other", ["p = QuantizeLinear(x, s2, z) e = DequantizeLinear(p, s2, z)", "e = Identity(x)"])
@pytest.mark.parametrize("machine", ["nvdla_small", "ws8_pow2"])
def test_an_input_that_ends_twice(machine: str, other: str, tmp_path: Path) -> None:
    """Check inputs on machines that lack such scales: they end at two roundings, or at one and nowhere else."""
    graph = f"q = QuantizeLinear(x, narrow, z) d = DequantizeLinear(q, narrow, z) {other} y = Concat<axis=1>(d, e)"
    path = save_case(Case(graph, {"narrow": np.float32(0.005)}, shape=(4, 16)), tmp_path)
    samples = [{"x": np.asarray(RNG.normal(size=(4, 16)), np.float32)} for _ in range(8)]
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in samples]))
    session = Session(build(path, BuildOptions(machine, calibration=str(tmp_path / "data.npz"))).data, backend="reference")
    proto = onnx.load(path)
    assert db(np.stack([on_kernels(proto, s)[0] for s in samples]), np.stack([session.run(["y"], s)[0] for s in samples])) >= 28


@pytest.mark.parametrize("machine", ["nvdla_small", "wide32_w4a16", "ws8_pow2"])
def test_an_input_ends_where_its_codes_end(machine: str, tmp_path: Path) -> None:
    """Check inputs on machines that lack such scales, whose own codes reach further than the data may."""
    graph = "q = QuantizeLinear(x, narrow, z) d = DequantizeLinear(q, narrow, z) y = Neg(d)"
    path = save_case(Case(graph, {"narrow": np.float32(0.005), "z": np.uint8(200)}, shape=(4, 16)), tmp_path)
    samples = [{"x": np.asarray(RNG.normal(size=(4, 16)), np.float32)} for _ in range(8)]
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in samples]))
    session = Session(build(path, BuildOptions(machine, calibration=str(tmp_path / "data.npz"))).data, backend="reference")
    proto = onnx.load(path)
    assert db(np.stack([on_kernels(proto, s)[0] for s in samples]), np.stack([session.run(["y"], s)[0] for s in samples])) >= 30


@pytest.mark.parametrize("machine", ["edge16", "transformer64", "wide32_w4a16", "ws8_pow2"])
def test_codes_that_the_host_reads_besides(machine: str, tmp_path: Path) -> None:
    """Check that the host makes the codes from the input itself, whatever the chip stores for the rounded input."""
    products = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = Neg(d) r = Tanh(x)"
    path = save_case(
        Case(f"{products} place = ArgMax<axis=1>(q) number = Cast<to=1>(place) y = Concat<axis=1>(e, r, number)", shape=(4, 16)),
        tmp_path,
    )
    samples = [{"x": np.asarray(RNG.normal(size=(4, 16)), np.float32)} for _ in range(8)]
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in samples]))
    session = Session(build(path, BuildOptions(machine, calibration=str(tmp_path / "data.npz"))).data, backend="reference")
    (got,), expected = session.run(["y"], samples[0]), on_kernels(onnx.load(path), samples[0])[0]
    assert np.abs(got - expected).max() <= 0.15  # a code of places up to 15 and numbers below zero; another place is 1 off


def test_where_a_file_ends_a_tensor_behind_moves_is_no_fault(tmp_path: Path) -> None:
    """Half of the sums lie below the codes, as a Relu that a quantizer removed leaves them; of an input it is told."""
    conv = "com.microsoft.QLinearConv<channels_last=1, pads=[1,1,1,1]>"
    graph = f"q = QuantizeLinear(x, s, low) t = Transpose<perm=[0,2,3,1]>(q) c = {conv}(t, s, low, w, ws, wz, s2, low)"
    constants = {"low": np.uint8(0), "wz": np.zeros(8, np.int8), "s2": np.float32(0.06)}
    path = save_case(Case(f"{graph} y = DequantizeLinear(c, s2, low)", constants), tmp_path)
    np.savez(tmp_path / "data.npz", x=RNG.normal(size=(8, 1, 4, 8, 8)).astype(np.float32))
    built = build(path, BuildOptions("edge16", calibration=str(tmp_path / "data.npz")))
    warnings = [w for w in built.warnings if "lie outside the codes of" in w]
    assert len(warnings) == 1 and " of: x " in warnings[0] and "," not in warnings[0]


def test_values_that_others_read_beyond_the_codes_of_a_rounding_are_told(tmp_path: Path) -> None:
    """Check the warning for a tensor that has codes from 0 on for the convolution and is read unrounded by the sum.
    On a machine of 8 bits both have these codes.
    """
    graph = f"{ROUND} e = Conv(d, k) p = QuantizeLinear(e, s2, low) f = DequantizeLinear(p, s2, low)"
    constants = {"low": np.int8(-128), "s2": np.float32(0.02), "k": RNG.normal(size=(4, 4, 1, 1)).astype(np.float32)}
    path = save_case(Case(f"{graph} c = Conv(f, k) y = Add(e, c)", constants), tmp_path)
    np.savez(tmp_path / "data.npz", x=RNG.normal(size=(8, 1, 4, 8, 8)).astype(np.float32))
    built = build(path, BuildOptions("edge16", calibration=str(tmp_path / "data.npz")))
    prefix = (
        "e is rounded to codes for some of what reads it and left in float for others, and edge16 has it once, in these codes:"
    )
    (warning,) = [w for w in built.warnings if w.startswith(prefix)]
    assert 40 < float(warning.removeprefix(prefix).split()[0]) < 60 and warning.endswith(
        "; quantize it so that they hold all of it"
    )


def wide_codes(codes: np.ndarray, zero_points: Any, axis: int = 1) -> dict[str, Any]:
    """Weights `w9`, whose codes less their zero points need 9 bits or more, with scales along `axis` where zero points are."""
    zeros = np.asarray(zero_points, codes.dtype)
    scales = np.float32(0.003) if not zeros.ndim else RNG.uniform(0.002, 0.004, zeros.shape).astype(np.float32)
    return {"w9": codes, "z9": zeros, "s9": scales}


UNSIGNED = RNG.integers(0, 256, (16, 10)).astype(np.uint8)
EACH = np.linspace(90, 160, 10).astype(np.uint8)
KERNELS = RNG.integers(0, 256, (8, 4, 3, 3)).astype(np.uint8)
OF_KERNELS = np.linspace(90, 160, 8).astype(np.uint8)
TABLE_CODES = "k = DequantizeLinear<axis={axis}>(w9, s9, z9)"
WIDE = {  # measured 35.7 dB from onnxruntime at least on edge16, 27.6 on ws8_pow2
    "MatMul": (f"{ROUND} {TABLE_CODES.format(axis=1)} y = MatMul(d, k)", wide_codes(UNSIGNED, 132)),
    "MatMul, each channel": (f"{ROUND} {TABLE_CODES.format(axis=1)} y = MatMul(d, k)", wide_codes(UNSIGNED, EACH)),
    "Gemm": (f"{ROUND} {TABLE_CODES.format(axis=1)} y = Gemm(d, k)", wide_codes(UNSIGNED, 0)),
    "Gemm, each channel": (f"{ROUND} {TABLE_CODES.format(axis=0)} y = Gemm<transB=1>(d, k)", wide_codes(UNSIGNED.T.copy(), EACH)),
    "Conv": (f"{ROUND} {TABLE_CODES.format(axis=0)} y = Conv(d, k)", wide_codes(KERNELS, 120)),
    "Conv, each channel": (f"{ROUND} {TABLE_CODES.format(axis=0)} y = Conv(d, k)", wide_codes(KERNELS, OF_KERNELS)),
    "int16": (f"{ROUND} {TABLE_CODES.format(axis=1)} y = MatMul(d, k)", wide_codes((UNSIGNED.astype(np.int16) - 128) * 200, 0)),
    "QLinearConv": (
        "q = QuantizeLinear(x, s, z) r = QLinearConv(q, s, z, w9, s9, z9, s2, z) y = DequantizeLinear(r, s2, z)",
        wide_codes(KERNELS, OF_KERNELS),
    ),
    "QLinearMatMul": (
        "q = QuantizeLinear(x, s, z) r = QLinearMatMul(q, s, z, w9, s9, z9, s2, z) y = DequantizeLinear(r, s2, z)",
        wide_codes(UNSIGNED, 132),
    ),
    "MatMulInteger": (
        "q = QuantizeLinear(x, s, z) i = MatMulInteger(q, w9, z, z9) f = Cast<to=1>(i) y = Mul(f, one)",
        wide_codes(UNSIGNED, 132),
    ),
    "ConvInteger": (
        "q = QuantizeLinear(x, s, z) i = ConvInteger(q, w9, z, z9) f = Cast<to=1>(i) y = Mul(f, one)",
        wide_codes(KERNELS, 120),
    ),
}


@pytest.mark.parametrize("machine", ["edge16", "ws8_pow2"])
@pytest.mark.parametrize("name", WIDE)
def test_weights_of_more_bits_than_the_machine_has_are_rounded_anew(name: str, machine: str, tmp_path: Path) -> None:
    graph, constants = WIDE[name]
    shape = (1, 4, 8, 8) if "Conv" in name else (4, 16)
    path = save_case(Case(graph, constants, shape=shape, opset=21), tmp_path)
    samples = [{"x": one} for one in RNG.normal(size=(8, *shape)).astype(np.float32)]
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in samples]))
    built = build(path, BuildOptions(machine, calibration=str(tmp_path / "data.npz"), repair="none"))
    assert [n for n in built.notes if n.startswith(f"weights of 1 layer are rounded anew, {machine} has ")]
    assert built.figures["host"]["macs"] == 0
    session, float_session = Session(built.data, backend="reference"), onnxruntime.InferenceSession(str(path))
    integer, expected = (np.stack([np.asarray(s.run(None, x)[0]) for x in samples]) for s in (session, float_session))
    assert db(expected, integer) >= {"edge16": 33, "ws8_pow2": 24}[machine]


CHIP_NEEDS = "a tensor of the chip has"
HOSTED = [
    (
        "q = QuantizeLinear(x, s, eight) y = DequantizeLinear(q, s, eight)",
        f"its codes are float8_e4m3fn, and {CHIP_NEEDS} integers of 8 or 16 bits",
    ),
    (
        "q = QuantizeLinear<axis=1>(x, ms, mz) y = DequantizeLinear<axis=1>(q, ms, mz)",
        f"it has 10 scales, and {CHIP_NEEDS} one",
    ),
    (
        "a = ReduceMax<keepdims=0>(x) q = QuantizeLinear(x, a, z) y = DequantizeLinear(q, a, z)",
        f"its scale is computed, and {CHIP_NEEDS} one that is known",
    ),
    (
        "q, a, o = DynamicQuantizeLinear(x) i = MatMulInteger(q, turned, o) f = Cast<to=1>(i) y = Mul(f, a)",
        "each run computes its scale; --static-ranges has it calibrated",
    ),
]


@pytest.mark.parametrize("graph, reason", HOSTED)
def test_why_the_host_rounds(graph: str, reason: str, tmp_path: Path) -> None:
    """Check the reasons where rounding gives codes that no tensor of the chip can have."""
    constants = {"eight": np.zeros((), ml_dtypes.float8_e4m3fn)}
    path = save_case(Case(graph, constants, shape=(4, 10), opset=19), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.asarray(np.random.default_rng(0).uniform(0.1, 1, (8, 4, 10)), np.float32))
    built = build(path, BuildOptions("edge16", calibration=str(tmp_path / "data.npz")))
    assert reason in (fallback_reason for _, op, fallback_reason in built.container.fallbacks if op != "DequantizeLinear")


def test_codes_of_single_numbers_in_a_norm_are_no_weights(tmp_path: Path) -> None:
    """The norm is taken apart into steps, one of which is a product with ones: not with the exponent, which is in codes."""
    graph = (
        f"{ROUND} a = Constant<value_ints=[-1]>() e = Constant<value_float=1e-3>() p = DequantizeLinear(two, tiny, least)"
        f" n = ReduceMean<axes=[-1]>(d) f = Sub(d, n) g = Pow(f, p) v = ReduceMean<axes=[-1]>(g) h = Add(v, e) i = Sqrt(h)"
        f" c = Div(f, i) {AGAIN}"
    )
    constants = {"two": np.int8(127), "tiny": np.float32(2 / 255), "least": np.int8(-128)}
    path = save_case(Case(graph, constants, shape=(4, 16)), tmp_path)
    samples = [{"x": np.asarray(RNG.normal(size=(4, 16)), np.float32)} for _ in range(8)]
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in samples]))
    built = build(path, BuildOptions("transformer64", calibration=str(tmp_path / "data.npz")))
    assert built.figures["host"]["nodes"] == 0
    session, proto = Session(built.data, backend="reference"), onnx.load(path)
    expected, got = (
        np.stack([run(s)[0] for s in samples]) for run in (lambda s: on_kernels(proto, s), lambda s: session.run(["y"], s))
    )
    assert db(expected, got) >= 25
