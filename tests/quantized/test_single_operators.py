"""One quantized operator on random codes, on machines of float32 scales: the codes of onnxruntime's kernel, bit for bit.

Weights have 7 bits: processors without VNNI saturate sums of two products of 8 by 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quant.fixed_point.core.codes import CodeType
from tests.quantized.forms import float32_machine, on_kernels
from tests.unsigned import unsigned
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.isa import Machine
from toolchain.runtime import Session, verify

SEEDS = range(6)
MACHINES = {"int8": float32_machine, "uint8": lambda: unsigned(float32_machine())}
Array = np.ndarray
Given = tuple[float, int]  # scale and zero point


class Drawn:
    """Codes, scales and zero points of a machine's activations."""

    def __init__(self, kind: CodeType, seed: int):
        self.kind, self.rng = kind, np.random.default_rng(seed)

    def codes(self, shape: tuple[int, ...]) -> Array:
        """Of every size, and in a third of the draws of the two ends alone."""
        if self.rng.integers(3) == 0:
            return self.rng.choice(np.array(self.kind.limits, self.kind.dtype), shape)
        return self.rng.integers(self.kind.low, self.kind.high + 1, shape).astype(self.kind.dtype)

    def weights(self, shape: tuple[int, ...]) -> Array:
        return self.rng.integers(-63, 64, shape).astype(np.int8)

    def quant(self) -> Given:
        return float(np.float32(self.rng.uniform(0.01, 0.09))), int(self.rng.integers(self.kind.low, self.kind.high + 1))

    def even_quant(self) -> Given:
        """A power of two, and an even zero point."""
        return 2.0 ** -int(self.rng.integers(2, 6)), 2 * int(self.rng.integers(self.kind.low // 2, self.kind.high // 2 + 1))

    def out(self, real: float, parameters: Given) -> Given:
        """A scale of which `real` is 50 to 83 steps, and that zero point."""
        return float(np.float32(real * self.rng.uniform(0.012, 0.02))), parameters[1]

    def around(self, real: Array) -> Given:
        """Of which a few of these numbers saturate."""
        first, last = np.quantile(real, [0.05, 0.95])
        first, last = min(first, 0.0), max(last, 0.0)
        scale = float(np.float32((last - first) / 255))
        return scale, int(np.clip(np.rint(self.kind.low - first / scale), *self.kind.limits))


def _model(
    kind: CodeType,
    op: str,
    inputs: Mapping[str, tuple[Array, Given]],
    constants: Mapping[str, Any],
    order: str,
    y: Given,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """float inputs, quantized; the operator; its output dequantized. And what is fed, whose codes are those given."""
    values = {n: np.asarray(v) for n, v in constants.items()}
    values |= {"ys": np.float32(y[0]), "yz": np.array(y[1], kind.dtype)}
    nodes, ports, feeds = [], [], {}
    for name, (codes, (scale, zero)) in inputs.items():
        values |= {f"{name}s": np.float32(scale), f"{name}z": np.array(zero, kind.dtype)}
        nodes.append(helper.make_node("QuantizeLinear", [f"{name}_real", f"{name}s", f"{name}z"], [name], f"{name}_quantize"))
        ports.append(helper.make_tensor_value_info(f"{name}_real", TensorProto.FLOAT, codes.shape))
        feeds[f"{name}_real"] = (codes.astype(np.float32) - np.float32(zero)) * np.float32(scale)
    domain = "com.microsoft" if op in ("QLinearAdd", "QLinearMul") else ""
    nodes.append(helper.make_node(op, order.split(), ["y"], "op", domain=domain, **attributes))
    nodes.append(helper.make_node("DequantizeLinear", ["y", "ys", "yz"], ["y_real"], "y_dequantize"))
    shape = [None] * next(iter(inputs.values()))[0].ndim
    outputs = [helper.make_tensor_value_info("y_real", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(
        nodes, "one", ports, outputs, [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def _both(model: onnx.ModelProto, feeds: dict[str, Array], machine: Machine, y: Given, folder: Path) -> tuple[Array, Array]:
    """Codes less their zero point: of the reference, which the program equals, and of onnxruntime."""
    onnx.save(model, folder / "one.onnx")
    built = build(folder / "one.onnx", BuildOptions(machine))
    assert built.figures["host"]["macs"] == 0 and built.figures["host"]["nodes"] == 0
    run, difference = verify(Session(built.data), Session(built.data, backend="reference"), feeds)
    assert difference is None
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    (port,) = region.outputs
    assert (port.dtype, port.scale, port.zero_point) == (machine.chip.numerics.activation, float(np.float32(y[0])), y[1])
    got, wanted = run.outputs["y_real"] / np.float32(y[0]), on_kernels(model, feeds)[0] / np.float32(y[0])
    return np.rint(got).astype(int), np.rint(wanted).astype(int)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", MACHINES)
def test_qlinear_conv(kind: str, seed: int, tmp_path: Path) -> None:
    d = Drawn(CodeType(kind), seed)
    groups, (height, width) = (1, 1, 8)[seed % 3], (3, (1, 3)[seed % 2])
    x, (scale, zero) = d.codes((1, 8, 9, 7)), d.quant()
    w = d.weights((8, 8 // groups, height, width))
    w_scale = d.rng.uniform(0.005, 0.02, 8).astype(np.float32)
    real = scale * 0.0125 * 80 * 40 * np.sqrt(w[0].size)
    y = d.out(real, d.quant())
    constants = {"w": w, "ws": w_scale, "wz": np.zeros(8, np.int8), "b": d.rng.integers(-3000, 3000, 8).astype(np.int32)}
    attributes = {"group": groups, "pads": [1, 0, 1, 1], "strides": [1, 1 + seed % 2]}
    model, feeds = _model(d.kind, "QLinearConv", {"x": (x, (scale, zero))}, constants, "x xs xz w ws wz ys yz b", y, **attributes)
    got, wanted = _both(model, feeds, MACHINES[kind](), y, tmp_path)
    np.testing.assert_array_equal(got, wanted)
    assert len(np.unique(wanted)) > 20


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("computed", [False, True])
def test_qlinear_matmul(computed: bool, kind: str, seed: int, tmp_path: Path) -> None:
    """By weights, or by activations of 7 bits."""
    d = Drawn(CodeType(kind), 50 + seed)
    a, a_quant = d.codes((5, 33)), d.quant()
    b = (d.weights((33, 17)).astype(int) + (64 if computed and d.kind.low == 0 else 0)).astype(
        d.kind.dtype if computed else np.int8
    )
    b_quant = (0.02, int(d.rng.integers(20, 40)) if computed else 0)
    y = d.around(a_quant[0] * 0.02 * ((a.astype(float) - a_quant[1]) @ (b.astype(float) - b_quant[1])))
    inputs = {"a": (a, a_quant)} | ({"b": (b, b_quant)} if computed else {})
    constants = {} if computed else {"b": b, "bs": np.float32(b_quant[0]), "bz": np.int8(0)}
    model, feeds = _model(d.kind, "QLinearMatMul", inputs, constants, "a as az b bs bz ys yz", y)
    got, wanted = _both(model, feeds, MACHINES[kind](), y, tmp_path)
    np.testing.assert_array_equal(got, wanted)
    assert len(np.unique(wanted)) > 20


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_add_and_mul(op: str, kind: str, seed: int, tmp_path: Path) -> None:
    """Scales that are powers of two and even zero points: float32 then rounds nothing before the one rounding."""
    d = Drawn(CodeType(kind), 90 + seed)
    quants = {"a": d.even_quant(), "b": d.even_quant()}
    inputs = {name: (d.codes((1, 4, 12, 40)), quant) for name, quant in quants.items()}
    real = sum(q[0] for q in quants.values()) if op == "QLinearAdd" else quants["a"][0] * quants["b"][0] * 64
    y = (2.0 ** np.round(np.log2(real)), d.even_quant()[1])
    model, feeds = _model(d.kind, op, inputs, {}, "a as az b bs bz ys yz", y)
    got, wanted = _both(model, feeds, MACHINES[kind](), y, tmp_path)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_sums_and_products_of_any_scales_differ_in_ties_alone(op: str, kind: str, tmp_path: Path) -> None:
    """onnxruntime adds in float32, and the zero point before it rounds: next to a tie it is a code apart."""
    d = Drawn(CodeType(kind), 150)
    apart = count = 0
    for _ in range(4):
        quants = {"a": d.quant(), "b": d.quant()}
        inputs = {
            name: (d.rng.integers(d.kind.low, d.kind.high + 1, (1, 16, 32, 32)).astype(d.kind.dtype), q)
            for name, q in quants.items()
        }
        real = sum(q[0] for q in quants.values()) * 60 if op == "QLinearAdd" else quants["a"][0] * quants["b"][0] * 4000
        y = d.out(real, d.quant())
        model, feeds = _model(d.kind, op, inputs, {}, "a as az b bs bz ys yz", y)
        got, wanted = _both(model, feeds, MACHINES[kind](), y, tmp_path)
        a, b = (v.astype(np.float64) for v in feeds.values())
        steps = (a + b if op == "QLinearAdd" else a * b) / np.float32(y[0])
        differ = got != wanted
        assert (np.abs(steps - np.floor(steps) - 0.5)[differ] < 1e-4).all()
        assert np.abs(got - wanted).max() <= 1
        apart, count = apart + int(differ.sum()), count + differ.size
    assert apart <= 1e-4 * count
