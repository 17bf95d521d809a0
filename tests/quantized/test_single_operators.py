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
from onnx import helper

from quant.fixed_point.core.codes import CodeType
from scripts.onnx_builder import build_model
from tests.quantized.forms import float32_machine, on_kernels
from tests.support.unsigned_machines import make_unsigned
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.isa import Machine
from toolchain.runtime import Session, verify

SEEDS = range(6)
MACHINES = {"int8": float32_machine, "uint8": lambda: make_unsigned(float32_machine())}
Array = np.ndarray
QuantPair = tuple[float, int]  # scale and zero point


class Drawn:
    """Codes, scales and zero points of a machine's activations."""

    def __init__(self, kind: CodeType, seed: int):
        self.kind, self.rng = kind, np.random.default_rng(seed)

    def codes(self, shape: tuple[int, ...]) -> Array:
        """Return codes of every size, and in a third of the draws only the two ends."""
        if self.rng.integers(3) == 0:
            return self.rng.choice(np.array(self.kind.limits, self.kind.dtype), shape)
        return self.rng.integers(self.kind.low, self.kind.high + 1, shape).astype(self.kind.dtype)

    def weights(self, shape: tuple[int, ...]) -> Array:
        return self.rng.integers(-63, 64, shape).astype(np.int8)

    def quant(self) -> QuantPair:
        return float(np.float32(self.rng.uniform(0.01, 0.09))), int(self.rng.integers(self.kind.low, self.kind.high + 1))

    def out(self, real: float, parameters: QuantPair) -> QuantPair:
        """A scale of which `real` is 50 to 83 steps, and that zero point."""
        return float(np.float32(real * self.rng.uniform(0.012, 0.02))), parameters[1]

    def around(self, real: Array) -> QuantPair:
        """Return the qparams with which a few of these numbers saturate."""
        first, last = np.quantile(real, [0.05, 0.95])
        first, last = min(first, 0.0), max(last, 0.0)
        scale = float(np.float32((last - first) / 255))
        return scale, int(np.clip(np.rint(self.kind.low - first / scale), *self.kind.limits))


def _model(
    kind: CodeType,
    op: str,
    inputs: Mapping[str, tuple[Array, QuantPair]],
    constants: Mapping[str, Any],
    order: str,
    y: QuantPair,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """float inputs, quantized; the operator; its output dequantized. And what is fed, whose codes are those given."""
    values = {n: np.asarray(v) for n, v in constants.items()}
    values |= {"ys": np.float32(y[0]), "yz": np.array(y[1], kind.dtype)}
    nodes, ports, feeds = [], {}, {}
    for name, (codes, (scale, zero)) in inputs.items():
        values |= {f"{name}s": np.float32(scale), f"{name}z": np.array(zero, kind.dtype)}
        nodes.append(helper.make_node("QuantizeLinear", [f"{name}_real", f"{name}s", f"{name}z"], [name], f"{name}_quantize"))
        ports[f"{name}_real"] = codes.shape
        feeds[f"{name}_real"] = (codes.astype(np.float32) - np.float32(zero)) * np.float32(scale)
    domain = "com.microsoft" if op in ("QLinearAdd", "QLinearMul") else ""
    nodes.append(helper.make_node(op, order.split(), ["y"], "op", domain=domain, **attributes))
    nodes.append(helper.make_node("DequantizeLinear", ["y", "ys", "yz"], ["y_real"], "y_dequantize"))
    shape = [None] * next(iter(inputs.values()))[0].ndim
    return build_model(nodes, ports, {"y_real": shape}, values), feeds


def _both(model: onnx.ModelProto, feeds: dict[str, Array], machine: Machine, y: QuantPair, folder: Path) -> tuple[Array, Array]:
    """Codes less their zero point: of the reference, which the program equals, and of onnxruntime."""
    onnx.save(model, folder / "one.onnx")
    built = build(folder / "one.onnx", BuildOptions(machine))
    assert built.figures["host"]["macs"] == 0 and built.figures["host"]["nodes"] == 0
    run, difference = verify(Session(built.data), Session(built.data, backend="reference"), feeds)
    assert difference is None
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    (port,) = region.outputs
    assert (port.dtype, port.scale, port.zero_point) == (machine.chip.numerics.activation, float(np.float32(y[0])), y[1])
    got, expected = run.outputs["y_real"] / np.float32(y[0]), on_kernels(model, feeds)[0] / np.float32(y[0])
    return np.rint(got).astype(int), np.rint(expected).astype(int)


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
    got, expected = _both(model, feeds, MACHINES[kind](), y, tmp_path)
    np.testing.assert_array_equal(got, expected)
    assert len(np.unique(expected)) > 20


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("computed", [False, True])
def test_qlinear_matmul(computed: bool, kind: str, seed: int, tmp_path: Path) -> None:
    """Check products with weights, and with activations of 7 bits."""
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
    got, expected = _both(model, feeds, MACHINES[kind](), y, tmp_path)
    np.testing.assert_array_equal(got, expected)
    assert len(np.unique(expected)) > 20


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", MACHINES)
def test_qlinear_matmul_of_a_constant_on_the_left(kind: str, seed: int, tmp_path: Path) -> None:
    d = Drawn(CodeType(kind), 70 + seed)
    offset = 64 if d.kind.low == 0 else 0
    a, a_quant = (d.weights((6, 33)).astype(int) + offset).astype(d.kind.dtype), (0.02, offset)
    b, b_quant = (d.weights((2, 33, 17)).astype(int) + offset).astype(d.kind.dtype), (0.03, offset + 5)
    y = d.around(a_quant[0] * b_quant[0] * ((a.astype(float) - a_quant[1]) @ (b.astype(float) - b_quant[1])))
    constants = {"a": a, "as": np.float32(a_quant[0]), "az": d.kind.dtype.type(a_quant[1])}
    model, feeds = _model(d.kind, "QLinearMatMul", {"b": (b, b_quant)}, constants, "a as az b bs bz ys yz", y)
    got, expected = _both(model, feeds, MACHINES[kind](), y, tmp_path)
    np.testing.assert_array_equal(got, expected)
    assert len(np.unique(expected)) > 20


# Of which many sums and products of codes lie halfway between two codes.
ROUND_SCALES = (0.1, 0.2, 0.3, 0.05, 0.7, 0.25, 0.5, 1.0, 0.15, 0.02)
SHAPES = [
    ((1, 4, 12, 40), (1, 4, 12, 40)),
    ((1, 4, 1, 1), (1, 4, 12, 40)),
    ((1, 4, 12, 40), (1, 4, 1, 1)),
    ((1, 1, 12, 40), (1, 4, 12, 40)),
    ((1, 4, 12, 1), (1, 4, 1, 40)),
    ((1, 4, 1, 1), (1, 4, 12, 1)),
    ((40,), (12, 40)),
    ((12, 40), (12, 1)),
]


def _drawn_pair(d: Drawn, op: str, scales: tuple[float, ...], codes: tuple[Array, Array]) -> tuple[dict, QuantPair]:
    """Operands of these codes, and an output of which few saturate."""
    quants = [(float(np.float32(d.rng.choice(scales))), d.quant()[1]) if scales else d.quant() for _ in range(2)]
    real = sum(q[0] for q in quants) if op == "QLinearAdd" else quants[0][0] * quants[1][0] * 80
    steps = np.array([s for s in scales if real / 2 <= s <= 2 * real] or [real * d.rng.uniform(0.8, 1.3)])
    y = float(np.float32(d.rng.choice(steps))), d.quant()[1]
    return dict(zip("ab", zip(codes, quants))), y


def _exact(op: str, inputs: dict, y: QuantPair, kind: CodeType) -> Array:
    """Codes less their zero point, of the real numbers that the codes stand for, rounded once."""
    a, b = ((codes.astype(np.float64) - zero) * scale for codes, (scale, zero) in inputs.values())
    return np.clip(np.rint((a + b if op == "QLinearAdd" else a * b) / y[0]), kind.low - y[1], kind.high - y[1])


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_add_and_mul(op: str, kind: str, shapes: tuple, tmp_path: Path) -> None:
    """Check sums and products of any shapes, which decide the operand whose product onnxruntime adds last; ties show it."""
    d = Drawn(CodeType(kind), 90 + SHAPES.index(shapes))
    for scales in ((), ROUND_SCALES, ROUND_SCALES, ROUND_SCALES):
        inputs, y = _drawn_pair(d, op, scales, (d.codes(shapes[0]), d.codes(shapes[1])))
        model, feeds = _model(d.kind, op, inputs, {}, "a as az b bs bz ys yz", y)
        got, expected = _both(model, feeds, MACHINES[kind](), y, tmp_path)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("round_scales", [False, True])
@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_add_and_mul_of_every_pair_of_codes(op: str, kind: str, round_scales: bool, tmp_path: Path) -> None:
    d = Drawn(CodeType(kind), 150)
    each = np.arange(d.kind.low, d.kind.high + 1).astype(d.kind.dtype)
    grid = [np.ascontiguousarray(v).reshape(1, 16, 64, 64) for v in np.meshgrid(each, each)]
    elsewhere = 0
    for _ in range(4):
        inputs, y = _drawn_pair(d, op, ROUND_SCALES if round_scales else (), (grid[0], grid[1]))
        model, feeds = _model(d.kind, op, inputs, {}, "a as az b bs bz ys yz", y)
        got, expected = _both(model, feeds, MACHINES[kind](), y, tmp_path)
        np.testing.assert_array_equal(got, expected)
        exact = _exact(op, inputs, y, d.kind)
        assert np.abs(got - exact).max() <= 1
        elsewhere += int((got != exact).sum())
    assert (elsewhere > 100) == round_scales  # float32 shows in ties


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("first", [True, False])
def test_qlinear_add_behind_a_convolution(first: bool, kind: str, tmp_path: Path) -> None:
    """Check that a convolution is fused with the sum where it is the sum's first operand, whose product is added last."""
    d = Drawn(CodeType(kind), 190)
    x, (scale, zero) = d.codes((1, 8, 20, 20)), (0.1, d.quant()[1])
    constants = {"w": d.weights((8, 8, 1, 1)), "ws": np.float32(0.01), "wz": np.int8(0)}
    constants |= {"cs": np.float32(0.3), "cz": np.array(d.quant()[1], d.kind.dtype)}
    model, feeds = _model(d.kind, "QLinearAdd", {"x": (x, (scale, zero))}, constants, _sum_of("c", "x", first), (0.3, 3))
    conv = helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "cs", "cz"], ["c"], "conv")
    model.graph.node.insert(1, conv)
    got, expected = _both(model, feeds, MACHINES[kind](), (0.3, 3), tmp_path)
    np.testing.assert_array_equal(got, expected)
    assert len(np.unique(expected)) > 20
    layers = build(tmp_path / "one.onnx", BuildOptions(MACHINES[kind]())).container.graph.nodes
    assert len(layers) == (1 if first else 2)


def _sum_of(c: str, x: str, first: bool) -> str:
    names = (c, x) if first else (x, c)
    return " ".join(f"{n} {n}s {n}z" for n in names) + " ys yz"
