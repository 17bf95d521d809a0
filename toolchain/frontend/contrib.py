"""Operators on codes, and onnxruntime's own, written out: DequantizeLinear, the float operator, QuantizeLinear.

Sources: ONNX QLinearConv, QLinearMatMul; onnxruntime docs/ContribOperators.md for com.microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.fused import FUSED
from toolchain.frontend.upgrade import Upgraded
from toolchain.frontend.written import CONTRIB, Written
from toolchain.ir.graph import Node, OnnxNode, OnnxOp, TensorType


def _convolution(w: Written) -> None:
    """x, scale, zero point, w, scale, zero point, y's scale and zero point, bias."""
    inputs = [w.real(0), w.real(3)]
    if w.input(8):
        inputs.append(w.bias(w.node.inputs[8], w.product_scale(1, 4)))
    w.codes(w.add("", "Conv", inputs, attributes=_channels_first(w)), 6)


def _channels_first(w: Written) -> dict[str, Any]:
    """The attributes. CompileError where the node reads feature maps of another layout."""
    if w.attribute("channels_last", 0):
        raise refuse_node(w.node, "reads channels last", "export it with channels first")
    return {k: v for k, v in w.node.op.attributes.items() if k != "channels_last"}


def _matrix_product(w: Written) -> None:
    if w.value(1, "scale").size > 1:
        raise refuse_node(w.node, "has a scale for each row of its first operand", "export it with one scale for all")
    w.codes(w.add("", "MatMul", [w.real(0), w.real(3, -1)]), 6)


def _gemm(w: Written) -> None:
    """A, scale, zero point, B, scale, zero point, C, y's scale and zero point; a float without those."""
    a = {"alpha": w.attribute("alpha", 1.0), "transA": w.attribute("transA", 0), "transB": w.attribute("transB", 0)}
    inputs = [w.real(0), w.real(3, 0 if a["transB"] else 1)]
    if w.input(6):
        inputs.append(w.bias(w.node.inputs[6], w.product_scale(1, 4) * np.float32(a["alpha"])))
    if w.input(7):
        w.codes(w.add("", "Gemm", inputs, attributes=a), 7)
    else:
        w.add("", "Gemm", inputs, w.node.outputs[0], a)


def _binary(op_type: str) -> Callable[[Written], None]:
    return lambda w: w.codes(w.add("", op_type, [w.real(0), w.real(3)]), 6)


def _unary(op_type: str, *kept: str) -> Callable[[Written], None]:
    def rule(w: Written) -> None:
        attributes = {k: v for k, v in w.node.op.attributes.items() if k in kept}
        w.codes(w.add("", op_type, [w.real(0)], attributes=attributes), 3)

    return rule


def _global_pool(w: Written) -> None:
    w.codes(w.add("", "GlobalAveragePool", [w.real(0)], attributes=_channels_first(w)), 3)


def _pool(w: Written) -> None:
    if w.attribute("ceil_mode", 0) and w.attribute("count_include_pad", 0):
        reason = "counts padding in windows that ceil_mode cuts, which onnxruntime does otherwise than ONNX says"
        raise refuse_node(w.node, reason, "export it with ceil_mode = 0 or count_include_pad = 0")
    w.codes(w.add("", "AveragePool", [w.real(0)], attributes=_channels_first(w)), 3)


def _softmax(w: Written) -> None:
    axis, rank = w.attribute("axis", -1), len(w.types[w.node.inputs[0]].shape)
    if w.attribute("opset", 13) < 13 and axis % rank != rank - 1:
        raise refuse_node(w.node, f"normalises the dimensions from {axis} on as one", "export it with opset 13 or newer")
    w.codes(w.add("", "Softmax", [w.real(0)], attributes={"axis": axis}), 3)


def _mean(w: Written) -> None:
    inputs = [w.real(0)]
    if w.attribute("axes", None) is not None:
        inputs.append(w.constant("axes", np.asarray(w.attribute("axes", ()), np.int64)))
    w.codes(w.add("", "ReduceMean", inputs, attributes={"keepdims": w.attribute("keepdims", 1)}), 3)


def _concat(w: Written) -> None:
    """y's scale and zero point, then each part with its own."""
    parts = [w.real(i) for i in range(2, len(w.node.inputs), 3)]
    w.codes(w.add("", "Concat", parts, attributes={"axis": w.attribute("axis", 1)}), 0)


def _where(w: Written) -> None:
    """A condition, two operands with scale and zero point, y's scale and zero point."""
    w.codes(w.add("", "Where", [w.node.inputs[0], w.real(1), w.real(4)]), 7)


def _scaled_product(w: Written) -> None:
    """MatMulIntegerToFloat: A, B, their scales, their zero points, bias."""
    _product_of_codes(w, (w.node.inputs[0], w.node.inputs[2], w.input(4)), (w.node.inputs[1], w.node.inputs[3], w.input(5)), 6)


def _dynamic_product(w: Written) -> None:
    """DynamicQuantizeMatMul: A, which is quantized by its own range in each run, B, B's scale and zero point, bias."""
    names = tuple(f"{w.node.name}/{part}" for part in ("codes", "scale", "zero_point"))
    made = Node(f"{w.node.name}/dynamic", OnnxOp("DynamicQuantizeLinear"), (w.node.inputs[0],), names, w.node.sources)
    w.nodes.append(made)
    _product_of_codes(w, names, (w.node.inputs[1], w.node.inputs[2], w.input(3)), 4)


def _product_of_codes(w: Written, a: tuple[str, ...], b: tuple[str, ...], bias: int) -> None:
    """a, b: codes, scale and zero point ("" for none); bias: the number of that input."""
    inputs = [a[0], b[0], a[2], b[2]]
    while not inputs[-1]:
        inputs.pop()
    sums = w.add("sums", "Cast", [w.add("product", "MatMulInteger", inputs)], attributes={"to": TensorProto.FLOAT})
    scale, last = w.add("scales", "Mul", [a[1], b[1]]), w.node.outputs[0]
    y = w.add("", "Mul", [sums, scale], "" if w.input(bias) else last)
    if w.input(bias):
        w.add("bias", "Add", [y, w.node.inputs[bias]], last)


def _linear(w: Written) -> None:
    """com.microsoft's QuantizeLinear and DequantizeLinear: ONNX's, of all widths at any opset."""
    axis = {"axis": w.attribute("axis", 1)} if len(w.types[w.node.inputs[1]].shape) else {}
    w.add("", w.node.op.op_type, w.node.inputs, w.node.outputs[0], axis)


def _n_bits(w: Written) -> None:
    """MatMulNBits: y = A B^T + bias, B of few bits with a scale for each block of K. It becomes a MatMul by B's real values."""
    bits, size = w.attribute("bits", 4), w.attribute("block_size", 0)
    n, k = w.attribute("N", 0), w.attribute("K", 0)
    if w.input(4):
        raise refuse_node(w.node, "reorders its rows (input g_idx)", "export it without reordering")
    if bits not in (2, 4, 8) or size < 1 or n < 1 or k < 1:
        raise refuse_node(w.node, f"has bits={bits}, block_size={size}, N={n}, K={k}; bits of 2, 4 or 8 are read")
    blocks = -(-k // size)
    codes = _unpacked(w.value(1, "weights"), bits, n * blocks, size, w.node).reshape(n, blocks, size)
    scales = w.value(2, "scales").astype(np.float32)
    if scales.size != n * blocks:
        raise refuse_node(w.node, f"has {scales.size} scales; {n} x {blocks} are needed")
    points = np.full(n * blocks, 1 << (bits - 1), np.float32)
    if w.input(3):
        given = w.value(3, "zero points")
        packed = given.dtype == np.uint8
        points = (_unpacked(given, bits, n, blocks, w.node) if packed else given).astype(np.float32)
    weight = _blocked(w, codes, scales.reshape(n, blocks), points.reshape(n, blocks), (k, bits))
    bias = w.input(5)
    y = w.add("", "MatMul", [w.node.inputs[0], weight], "" if bias else w.node.outputs[0])
    if bias:
        w.add("bias", "Add", [y, bias], w.node.outputs[0])


def _blocked(w: Written, codes: np.ndarray, scales: np.ndarray, points: np.ndarray, of: tuple[int, int]) -> str:
    """codes: uint8[n, blocks, size]; of: how many a row has, and of how many bits. Real numbers [k, n], by a DequantizeLinear.

    Its scales are above zero: codes of a scale below turn around, those of a scale of zero are zero points. Zero points that are
    no codes are added behind it.
    """
    (k, bits), size = of, codes.shape[2]
    most, whole = (1 << bits) - 1, (points == np.rint(points)) & (points >= 0) & (points < 1 << bits)
    turned, nothing = scales < 0, scales == 0
    near = np.clip(np.rint(points), 0, most)
    zero = np.where(whole | nothing, near, 0)
    found = np.where(nothing[..., None], near[..., None], codes)
    found, zero = np.where(turned[..., None], most - found, found), np.where(turned, most - zero, zero)
    row = np.abs(scales).max(1, keepdims=True)
    scale = np.where(nothing, np.where(row > 0, row, 1), np.abs(scales)).astype(np.float32)
    names = [
        w.constant("codes", np.ascontiguousarray(found.reshape(len(found), -1)[:, :k].T.astype(np.uint8))),
        w.constant("scales", np.ascontiguousarray(scale.T.astype(w.types[w.node.inputs[0]].dtype))),
        w.constant("points", np.ascontiguousarray(zero.T.astype(np.uint8))),
    ]
    real = w.add("real", "DequantizeLinear", names, attributes={"axis": 0, "block_size": size})
    minima = np.where(whole | nothing, 0, -points * scales).astype(np.float32)
    if not minima.any():
        return real
    least = np.ascontiguousarray(np.repeat(minima.T, size, 0)[:k].astype(w.types[w.node.inputs[0]].dtype))
    return w.add("minima", "Add", [real, w.constant("least", least)])


def _unpacked(packed: np.ndarray, bits: int, rows: int, columns: int, node: OnnxNode) -> np.ndarray:
    """uint8 -> uint8[rows, columns], low bits first, each row in bytes of its own."""
    a_byte = 8 // bits
    row_bytes = -(-columns // a_byte)
    if packed.size != rows * row_bytes:
        raise refuse_node(node, f"has {packed.size} bytes of codes; {rows} x {row_bytes} are needed")
    flat = packed.reshape(rows, row_bytes, 1).astype(np.uint8)
    parts = (flat >> (np.arange(a_byte, dtype=np.uint8) * bits)) & ((1 << bits) - 1)
    return parts.reshape(rows, -1)[:, :columns]


RULES: Mapping[tuple[str, str], Callable[[Written], None]] = {
    ("", "QLinearConv"): _convolution,
    ("", "QLinearMatMul"): _matrix_product,
    ("", "SimplifiedLayerNormalization"): FUSED["SimplifiedLayerNormalization"],
    **{
        (CONTRIB, name): rule
        for name, rule in {
            "QLinearConv": _convolution,
            "QGemm": _gemm,
            "QLinearAdd": _binary("Add"),
            "QLinearMul": _binary("Mul"),
            "QLinearSigmoid": _unary("Sigmoid"),
            "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
            "QLinearAveragePool": _pool,
            "QLinearGlobalAveragePool": _global_pool,
            "QLinearReduceMean": _mean,
            "QLinearSoftmax": _softmax,
            "QLinearConcat": _concat,
            "QuantizeLinear": _linear,
            "DequantizeLinear": _linear,
            "QLinearWhere": _where,
            "MatMulIntegerToFloat": _scaled_product,
            "DynamicQuantizeMatMul": _dynamic_product,
            "MatMulNBits": _n_bits,
            **FUSED,
        }.items()
    },
}


def written_out(node: OnnxNode, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray]) -> Upgraded:
    """A node of RULES as nodes of ONNX (opset 21), and the constants they name. CompileError: scales that are not constant."""
    written = Written(node, types, constants)
    missing = [n for n in node.inputs if n and n not in types]
    if missing or not node.outputs or not node.inputs:
        raise refuse_node(node, f"has {len(node.inputs)} inputs and {len(node.outputs)} outputs, which do not fit it")
    RULES[node.op.domain, node.op.op_type](written)
    return Upgraded(written.nodes, written.constants)
