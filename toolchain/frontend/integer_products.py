"""Convert products of codes, their sums of 32 bits and the scales behind them into products of real numbers.

The dequantizing walk (`dequantize`) calls these rules; each returns whether it converted its node. New nodes and constants
then go into `walk`; it stays as it was where a rule returns False.
`split_batched_matmul` splits a MatMul by a quantized constant of several matrices, since one product has no place for their
scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from toolchain.frontend.dequantize_state import SUMS, CodeTensor, DequantizeState, QuantizedConstant, get_real_tensor
from toolchain.frontend.rewrite import operand
from toolchain.ir.file_quantization import make_file_weights
from toolchain.ir.graph import MAX_PARTS, Node, OnnxNode, OnnxOp, fresh_name

PRODUCTS: Mapping[str, str] = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}


def integer_product(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert a ConvInteger or MatMulInteger, sum (a - za)(b - zb), into a float product; return whether it was converted.

    It is where a is a tensor of codes of known scale, and b is one too or is constant.
    """
    a, b = node.inputs[:2]
    x = walk.code_tensors.get(a)
    if x is None or not _zero_point(node, 2, x, walk):
        return False
    name = walk.fresh(f"{node.outputs[0]}/real")
    scale, file_weights = x.scale, None
    if b in walk.constants:
        codes = walk.constants[b].astype(np.int64)
        point = walk.constants.get(operand(node, 3)) if operand(node, 3) else np.zeros((), np.int64)
        if point is None:
            return False
        axis = 0 if node.op.op_type == "ConvInteger" else codes.ndim - 1
        shape = [1] * codes.ndim
        shape[axis] = -1
        codes = codes - (point.astype(np.int64).reshape(shape) if point.size > 1 else point.astype(np.int64).reshape(()))
        weights = walk.constant(f"{b}/real", codes.astype(np.float32))
        file_weights = replace(make_file_weights(codes, np.ones(1), axis), product=True)
    else:
        w = walk.code_tensors.get(b)
        if w is None or not _zero_point(node, 3, w, walk):
            return False
        weights, scale = get_real_tensor(b, walk), scale * w.scale
    real = get_real_tensor(a, walk)
    op = replace(node.op, op_type=PRODUCTS[node.op.op_type])
    walk.emit(replace(node, op=op, inputs=(real, weights), outputs=(name,)))
    if file_weights is not None:
        walk.stored[node.name] = file_weights
    walk.code_tensors[node.outputs[0]] = CodeTensor(name, scale, 0, SUMS)
    return True


def _zero_point(node: OnnxNode, index: int, codes: CodeTensor, walk: DequantizeState) -> bool:
    """Return whether the node subtracts the same zero point that the codes have."""
    point = walk.scalar(operand(node, index)) if operand(node, index) else 0.0
    return point is not None and point == codes.zero_point


def cast_codes(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert a Cast of codes to float32: the real numbers over their scale, plus the zero point."""
    codes = walk.code_tensors.get(node.inputs[0])
    y = node.outputs[0]
    if codes is None or walk.types[y].dtype != "float32":
        return False
    real = get_real_tensor(node.inputs[0], walk)
    factor = walk.constant(f"{node.name}/factor", np.asarray(1 / codes.scale, np.float32))
    scaled = y if codes.zero_point == 0 else walk.fresh(f"{y}/scaled")
    walk.emit(Node(node.name, OnnxOp("Mul"), (real, factor), (scaled,), node.sources))
    if scaled != y:
        point = walk.constant(f"{node.name}/zero_point", np.asarray(codes.zero_point, np.float32))
        walk.emit(Node(f"{node.name}/add", OnnxOp("Add"), (scaled, point), (y,), node.sources))
    return True


def fold_bias_into_product(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert the Add of an int32 constant to sums of products into an Add of real numbers."""
    sums = [walk.code_tensors.get(n) for n in node.inputs]
    at = next((i for i, s in enumerate(sums) if s is not None and s.dtype == SUMS), None)
    if at is None or (bias := walk.constants.get(node.inputs[1 - at])) is None:
        return False
    sum_tensor, y = sums[at], node.outputs[0]
    assert sum_tensor is not None
    real = walk.constant(f"{node.name}/bias", (bias.astype(np.float64) * sum_tensor.scale).astype(np.float32))
    real_name = walk.fresh(f"{y}/real")
    walk.emit(Node(node.name, OnnxOp("Add"), (get_real_tensor(node.inputs[at], walk), real), (real_name,), node.sources))
    walk.code_tensors[y] = replace(sum_tensor, real=real_name)
    return True


def fold_scale_into_product(node: OnnxNode, scale: np.ndarray, point: np.ndarray, walk: DequantizeState) -> bool:
    """Convert a DequantizeLinear of sums of products into a Mul by its scale over theirs."""
    sums = walk.code_tensors.get(node.inputs[0])
    if sums is None or sums.dtype != SUMS or point.any():
        return False
    shape = [1] * len(walk.types[node.inputs[0]].shape)
    if scale.size > 1:
        shape[int(node.op.attributes.get("axis", 1))] = -1
    factor = (scale.astype(np.float64) / sums.scale).astype(np.float32).reshape(shape if scale.size > 1 else ())
    inputs = (get_real_tensor(node.inputs[0], walk), walk.constant(f"{node.name}/factor", factor))
    walk.emit(Node(node.name, OnnxOp("Mul"), inputs, node.outputs, node.sources))
    return True


def split_batched_matmul(node: OnnxNode, walk: DequantizeState) -> tuple[OnnxNode, ...]:
    """Return the nodes that replace a batched MatMul with a quantized constant, a Concat last, or () where it stays.

    To the chip a constant of several matrices is an activation of one scale.
    The node is therefore split where each matrix has its own scale.
    It is also split where the scale varies by column, which only a single matrix on the right may have.
    Constants of the parts, and how the file holds them, are added to `walk`.
    """
    index = next((i for i in (1, 0) if operand(node, i) in walk.quantized_constants), None)
    quantized_constant = None if index is None else walk.quantized_constants[node.inputs[index]]
    if index is None or not isinstance(quantized_constant, QuantizedConstant):
        return ()
    cut, rank = _cut(quantized_constant, on_the_right=index == 1), len(walk.types[node.inputs[1 - index]].shape)
    if cut is None or rank < 2 or quantized_constant.codes.shape[cut] > MAX_PARTS:
        return ()
    return tuple(_parts(node, index, quantized_constant, cut, walk))


def _cut(quantized_constant: QuantizedConstant, *, on_the_right: bool) -> int | None:
    """Return the dimension along which the constant is cut; None where the node stays."""
    several = [axis for axis, size in enumerate(quantized_constant.codes.shape[:-2]) if size > 1]
    if quantized_constant.scale.size == 1 or not several:
        return None
    if quantized_constant.axis in several:
        return quantized_constant.axis
    by_column = on_the_right and quantized_constant.axis == quantized_constant.codes.ndim - 1
    return several[0] if by_column and len(several) == 1 else None


def _parts(
    node: OnnxNode, index: int, quantized_constant: QuantizedConstant, cut: int, walk: DequantizeState
) -> Iterator[OnnxNode]:
    """Yield the nodes of the split product.

    `index`: index of the constant among the operands.
    """
    constant, other, y = node.inputs[index], node.inputs[1 - index], node.outputs[0]
    shape, back = walk.types[other].shape, quantized_constant.codes.ndim - cut  # counted from the end
    each = back <= len(shape) and shape[-back] > 1  # else all read the same
    names, outputs = {n.name for n in walk.graph.nodes}, list[str]()
    for i in range(quantized_constant.codes.shape[cut]):
        mine = walk.constant(f"{constant}/{i}", np.take(walk.constants[constant], [i], cut))
        scale = quantized_constant.scale[i : i + 1] if quantized_constant.axis == cut else quantized_constant.scale
        walk.quantized_constants[mine] = replace(
            quantized_constant, codes=np.take(quantized_constant.codes, [i], cut), scale=scale
        )
        read = other
        if each:
            read = walk.fresh(f"{other}/{i}")
            bounds = [walk.constant(f"{read}/bound", np.array([v], np.int64)) for v in (i, i + 1, len(shape) - back, 1)]
            yield Node(f"{node.name}/slice_{i}", OnnxOp("Slice"), (other, *bounds), (read,), node.sources)
        outputs.append(walk.fresh(f"{y}/{i}"))
        name = fresh_name(f"{node.name}/{i}", names)
        yield replace(node, name=name, inputs=(read, mine) if index else (mine, read), outputs=(outputs[-1],))
    axis = max(quantized_constant.codes.ndim, len(shape)) - back
    yield Node(f"{node.name}/parts", OnnxOp("Concat", {"axis": axis}), tuple(outputs), (y,), node.sources)
