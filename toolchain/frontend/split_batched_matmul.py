"""A MatMul by a constant of several matrices, whose scales one product has no place for: a product for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from toolchain.frontend.dequantize_state import DequantizeState
from toolchain.frontend.quantized_constants import QuantizedConstant
from toolchain.frontend.rewrite import operand
from toolchain.ir.graph import MAX_PARTS, Node, OnnxNode, OnnxOp, fresh_name


def split_batched_matmul(node: OnnxNode, walk: DequantizeState) -> tuple[OnnxNode, ...]:
    """Return the nodes that replace a batched MatMul with a quantized constant, a Concat last, or () where it stays.

    To the chip a constant of several matrices is an activation of one scale.
    The node is therefore split where each matrix has its own scale.
    It is also split where the scale varies by column, which only a single matrix on the right may have.
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
    """The dimension along which the constant is cut."""
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
