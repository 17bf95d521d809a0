"""Expand operators on codes (QLinear...) and onnxruntime's own (com.microsoft) into standard ONNX, during import.

An operator on codes becomes DequantizeLinear, the float operator and QuantizeLinear. Each rule in `DECOMPOSITIONS` expands
one operator: it adds nodes to the `ExpansionBuilder` that `expand_node` gives it.
Sources: ONNX QLinearConv, QLinearMatMul; onnxruntime docs/ContribOperators.md for com.microsoft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from toolchain.frontend import expand_ort_fused
from toolchain.frontend.errors import refuse_node
from toolchain.frontend.expansion_builder import CONTRIB, Expansion, ExpansionBuilder
from toolchain.frontend.upgrade import Upgraded
from toolchain.ir.graph import Node, OnnxNode, OnnxOp, TensorType


def _convolution(w: ExpansionBuilder) -> None:
    """Expand QLinearConv.

    Its inputs are x, scale, zero point, w, scale, zero point, y's scale and zero point, bias.
    """
    inputs = [w.real(0), w.real(3)]
    if w.input(8):
        inputs.append(w.bias(w.node.inputs[8], w.product_scale(1, 4)))
    w.codes(_over_space(w, "Conv", inputs), 6)


def _over_space(w: ExpansionBuilder, op_type: str, inputs: Sequence[str]) -> str:
    """Add an operator with the node's own attributes, and return its output.

    Where the node reads its channels last, it stands between Transposes. Weights are in ONNX's order either way.
    """
    attributes = dict(w.node.op.attributes)
    if attributes.pop("channels_last", 0):
        return _apply_channels_first(w, op_type, inputs, attributes)
    return w.add(op_type, *inputs, **attributes)


def _apply_channels_first(
    w: ExpansionBuilder, op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any], output: int | None = None
) -> str:
    """Add an operator between Transposes to channels first and back, and return its output.

    `output`: the node's output that this is; None: none.
    """
    rank = len(w.types[w.node.inputs[0]].shape)
    first = w.add("Transpose", *inputs[:1], what="channels_first", perm=(0, rank - 1, *range(1, rank - 1)))
    op_output = w.add(op_type, first, *inputs[1:], **attributes)
    return w.add("Transpose", op_output, what="channels_last", output=output, perm=(0, *range(2, rank), 1))


def _max_pool(w: ExpansionBuilder) -> None:
    """Expand NhwcMaxPool, which pools codes channels-last."""
    _apply_channels_first(w, "MaxPool", w.node.inputs, w.node.op.attributes, 0)


def _matrix_product(w: ExpansionBuilder) -> None:
    """Expand QLinearMatMul. Raise NodeFault where its first operand has several scales."""
    if w.value(1, "scale").size > 1:
        raise refuse_node(w.node, "has a scale for each row of its first operand", "export it with one scale for all")
    w.codes(w.add("MatMul", w.real(0), w.real(3, -1)), 6)


def _gemm(w: ExpansionBuilder) -> None:
    """Expand QGemm.

    Its inputs are A, scale, zero point, B, scale, zero point, C, y's scale and zero point; without the last two y is float.
    """
    a = {"alpha": w.attribute("alpha", 1.0), "transA": w.attribute("transA", 0), "transB": w.attribute("transB", 0)}
    inputs = [w.real(0), w.real(3, 0 if a["transB"] else 1)]
    if w.input(6):
        inputs.append(w.bias(w.node.inputs[6], w.product_scale(1, 4) * np.float32(a["alpha"])))
    if w.input(7):
        w.codes(w.add("Gemm", *inputs, **a), 7)
    else:
        w.add("Gemm", *inputs, output=0, **a)


def _binary(op_type: str) -> Expansion:
    """Return a rule that expands an operator of two operands, each with scale and zero point: QLinearAdd, QLinearMul."""
    return lambda w: w.codes(w.add(op_type, w.real(0), w.real(3)), 6)


def _unary(op_type: str, *attribute_names: str) -> Expansion:
    """Return a rule that expands an operator of one operand, with these of its attributes."""

    def rule(w: ExpansionBuilder) -> None:
        attributes = {k: v for k, v in w.node.op.attributes.items() if k in attribute_names}
        w.codes(w.add(op_type, w.real(0), **attributes), 3)

    return rule


def _global_pool(w: ExpansionBuilder) -> None:
    w.codes(_over_space(w, "GlobalAveragePool", [w.real(0)]), 3)


def _pool(w: ExpansionBuilder) -> None:
    """Expand QLinearAveragePool. Raise NodeFault where onnxruntime counts its windows unlike ONNX."""
    if w.attribute("ceil_mode", 0) and w.attribute("count_include_pad", 0):
        reason = "counts padding in windows that ceil_mode cuts, which onnxruntime does otherwise than ONNX says"
        raise refuse_node(w.node, reason, "export it with ceil_mode = 0 or count_include_pad = 0")
    w.codes(_over_space(w, "AveragePool", [w.real(0)]), 3)


def _softmax(w: ExpansionBuilder) -> None:
    """Expand QLinearSoftmax. Raise NodeFault for the form before opset 13 that normalizes several dimensions as one."""
    axis, rank = w.attribute("axis", -1), len(w.types[w.node.inputs[0]].shape)
    if w.attribute("opset", 13) < 13 and axis % rank != rank - 1:
        raise refuse_node(w.node, f"normalises the dimensions from {axis} on as one", "export it with opset 13 or newer")
    w.codes(w.add("Softmax", w.real(0), axis=axis), 3)


def _mean(w: ExpansionBuilder) -> None:
    inputs = [w.real(0)]
    if w.attribute("axes", None) is not None:
        inputs.append(w.constant("axes", np.asarray(w.attribute("axes", ()), np.int64)))
    w.codes(w.add("ReduceMean", *inputs, keepdims=w.attribute("keepdims", 1)), 3)


def _concat(w: ExpansionBuilder) -> None:
    """Expand QLinearConcat. Its inputs are y's scale and zero point, then each part with its own."""
    parts = [w.real(i) for i in range(2, len(w.node.inputs), 3)]
    w.codes(w.add("Concat", *parts, axis=w.attribute("axis", 1)), 0)


def _where(w: ExpansionBuilder) -> None:
    """Expand QLinearWhere: a condition, two operands with scale and zero point, y's scale and zero point."""
    w.codes(w.add("Where", w.node.inputs[0], w.real(1), w.real(4)), 7)


def _expand_scaled_product(w: ExpansionBuilder) -> None:
    """Expand MatMulIntegerToFloat. Its inputs are A, B, their scales, their zero points, bias."""
    _product_of_codes(w, (w.node.inputs[0], w.node.inputs[2], w.input(4)), (w.node.inputs[1], w.node.inputs[3], w.input(5)), 6)


def _dynamic_product(w: ExpansionBuilder) -> None:
    """Expand DynamicQuantizeMatMul, whose A is quantized by its own range in each run.

    Its inputs are A, B, B's scale and zero point, bias.
    """
    names = tuple(f"{w.node.name}/{part}" for part in ("codes", "scale", "zero_point"))
    quantize_node = Node(f"{w.node.name}/dynamic", OnnxOp("DynamicQuantizeLinear"), (w.node.inputs[0],), names, w.node.sources)
    w.nodes.append(quantize_node)
    _product_of_codes(w, names, (w.node.inputs[1], w.node.inputs[2], w.input(3)), 4)


def _product_of_codes(w: ExpansionBuilder, a: tuple[str, ...], b: tuple[str, ...], bias: int) -> None:
    """Emit an integer product of two tensors of codes, scaled, with its bias.

    `a`, `b`: codes, scale and zero point of an operand, "" for none.
    `bias`: the number of the bias input.
    """
    inputs = [a[0], b[0], a[2], b[2]]
    while not inputs[-1]:
        inputs.pop()
    sums = w.add("Cast", w.add("MatMulInteger", *inputs, what="product"), what="sums", to=TensorProto.FLOAT)
    scale = w.add("Mul", a[1], b[1], what="scales")
    y = w.add("Mul", sums, scale, output=None if w.input(bias) else 0)
    if w.input(bias):
        w.add("Add", y, w.node.inputs[bias], what="bias", output=0)


def _linear(w: ExpansionBuilder) -> None:
    """Expand com.microsoft's QuantizeLinear and DequantizeLinear into those of ONNX."""
    axis = {"axis": w.attribute("axis", 1)} if len(w.types[w.node.inputs[1]].shape) else {}
    w.add(w.node.op.op_type, *w.node.inputs, output=0, **axis)


def _n_bits(w: ExpansionBuilder) -> None:
    """Expand MatMulNBits, y = A B^T + bias, into a MatMul by B's real values.

    B has codes of 2, 4 or 8 bits with a scale for each block of K. Raise NodeFault for other forms.
    """
    bits, size = w.attribute("bits", 4), w.attribute("block_size", 0)
    n, k = w.attribute("N", 0), w.attribute("K", 0)
    if w.input(4):
        raise refuse_node(w.node, "reorders its rows (input g_idx)", "export it without reordering")
    if bits not in (2, 4, 8) or size < 1 or n < 1 or k < 1:
        raise refuse_node(w.node, f"has bits={bits}, block_size={size}, N={n}, K={k}; bits of 2, 4 or 8 are read")
    blocks = -(-k // size)
    codes = _unpack_codes(w.value(1, "weights"), bits, n * blocks, size, w.node).reshape(n, blocks, size)
    scales = w.value(2, "scales").astype(np.float32)
    if scales.size != n * blocks:
        raise refuse_node(w.node, f"has {scales.size} scales; {n} x {blocks} are needed")
    points = np.full(n * blocks, 1 << (bits - 1), np.float32)
    if w.input(3):
        zero_points = w.value(3, "zero points")
        packed = zero_points.dtype == np.uint8
        points = (_unpack_codes(zero_points, bits, n, blocks, w.node) if packed else zero_points).astype(np.float32)
    weight = _dequantize_blocks(w, codes, scales.reshape(n, blocks), points.reshape(n, blocks), (k, bits))
    bias = w.input(5)
    y = w.add("MatMul", w.node.inputs[0], weight, output=None if bias else 0)
    if bias:
        w.add("Add", y, bias, what="bias", output=0)


def _dequantize_blocks(
    w: ExpansionBuilder, codes: np.ndarray, scales: np.ndarray, points: np.ndarray, of: tuple[int, int]
) -> str:
    """Return the real numbers [k, n] of blocked codes, by a DequantizeLinear.

    Zero points that are no codes are added after the DequantizeLinear.
    `codes`: uint8[n, blocks, size].
    `of`: how many codes a row has, and how many bits each.
    """
    (k, bits), size = of, codes.shape[2]
    is_code = (points == np.rint(points)) & (points >= 0) & (points < 1 << bits)
    names = [
        w.constant("codes", np.ascontiguousarray(codes.reshape(len(codes), -1)[:, :k].T)),
        w.constant("scales", np.ascontiguousarray(scales.T.astype(w.types[w.node.inputs[0]].dtype))),
        w.constant("points", np.ascontiguousarray(np.where(is_code, points, 0).T.astype(np.uint8))),
    ]
    real = w.add("DequantizeLinear", *names, what="real", axis=0, block_size=size)
    minima = np.where(is_code, 0, -points * scales).astype(np.float32)
    if not minima.any():
        return real
    least = np.ascontiguousarray(np.repeat(minima.T, size, 0)[:k].astype(w.types[w.node.inputs[0]].dtype))
    return w.add("Add", real, w.constant("least", least), what="minima")


def _expand_gathered_blocks(w: ExpansionBuilder) -> None:
    """Expand GatherBlockQuantized into a Gather of real values.

    Its table has codes of 4 or 8 bits with a scale for each block of a row. Raise NodeFault for other forms.
    """
    table, scales = w.value(0, "table"), w.value(2, "scales")
    size, bits = w.attribute("block_size", 128), w.attribute("bits", 4)
    flat = table.ndim == scales.ndim == 2 and w.attribute("gather_axis", 0) == 0 and w.attribute("quantize_axis", 1) in (1, -1)
    if not flat or bits not in (4, 8) or size < 1:
        raise refuse_node(w.node, "is read of rows of a matrix, in blocks along them, of 4 or 8 bits", "leave Gather in float")
    packed = table.dtype == np.uint8
    codes = _unpack_codes(table, bits, len(table), table.shape[1] * 8 // bits, w.node) if packed else table.astype(np.int8)
    points = np.full(scales.shape, 1 << (bits - 1) if packed else 0, codes.dtype)
    if w.input(3):
        zero_points = w.value(3, "zero points")
        rows, columns = scales.shape
        points = _unpack_codes(zero_points, bits, rows, columns, w.node) if packed else zero_points.astype(np.int8)
    names = [w.constant("codes", codes), w.node.inputs[2], w.constant("points", points.reshape(scales.shape))]
    real = w.add("DequantizeLinear", *names, what="real", axis=1, block_size=size)
    w.add("Gather", real, w.node.inputs[1], output=0, axis=0)


def _unpack_codes(packed: np.ndarray, bits: int, rows: int, columns: int, node: OnnxNode) -> np.ndarray:
    """Return packed codes as uint8[rows, columns]. In a byte the low bits come first; each row begins a new byte."""
    a_byte = 8 // bits
    row_bytes = -(-columns // a_byte)
    if packed.size != rows * row_bytes:
        raise refuse_node(node, f"has {packed.size} bytes of codes; {rows} x {row_bytes} are needed")
    flat = packed.reshape(rows, row_bytes, 1).astype(np.uint8)
    parts = (flat >> (np.arange(a_byte, dtype=np.uint8) * bits)) & ((1 << bits) - 1)
    return parts.reshape(rows, -1)[:, :columns]


DECOMPOSITIONS: Mapping[tuple[str, str], Expansion] = {
    ("", "QLinearConv"): _convolution,
    ("", "QLinearMatMul"): _matrix_product,
    ("", "SimplifiedLayerNormalization"): expand_ort_fused.DECOMPOSITIONS["SimplifiedLayerNormalization"],
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
            "MatMulIntegerToFloat": _expand_scaled_product,
            "DynamicQuantizeMatMul": _dynamic_product,
            "MatMulNBits": _n_bits,
            "GatherBlockQuantized": _expand_gathered_blocks,
            "NhwcMaxPool": _max_pool,
            **expand_ort_fused.DECOMPOSITIONS,
        }.items()
    },
}


def expand_node(node: OnnxNode, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray]) -> Upgraded:
    """Return the standard nodes (opset 21) that a node of `DECOMPOSITIONS` becomes, and their constants.

    Raise NodeFault where the node's form is not supported, such as scales that are not constant.
    """
    written = ExpansionBuilder(node, types, constants)
    missing = [n for n in node.inputs if n and n not in types]
    if missing or not node.outputs or not node.inputs:
        raise refuse_node(node, f"has {len(node.inputs)} inputs and {len(node.outputs)} outputs, which do not fit it")
    DECOMPOSITIONS[node.op.domain, node.op.op_type](written)
    return Upgraded(written.nodes, written.constants)
