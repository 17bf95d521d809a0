"""Rewrite Gemm and MatMul into canonical form, and fold an Add or Mul by a constant into the weighted operator before it.

Products by constant weights become Gemm with weights [n, k] and a bias [n]; others become MatMul. Each rule returns the
replacement of its node, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, operand, reshape
from toolchain.ir.graph import OnnxNode
from toolchain.ir.masks import is_mask

GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
WEIGHTED = ("Conv", "ConvTranspose", "Gemm")


def gemm(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a Gemm of constant weights to weights [n, k] and at most a bias [n]; one of computed weights to MatMul."""
    a = dict(n.op.attributes)
    if not scope.is_float(n.inputs[0]):
        return None
    weights = scope.constants.get(n.inputs[1])
    if weights is None or n.inputs[0] in scope.constants:
        return Rewrite(as_matmul(n, scope))
    bias = scope.constants.get(operand(n, 2))
    outputs = weights.shape[0 if a["transB"] else 1]
    is_bias = bias is not None and prod(bias.shape[:-1]) == 1 and bias.size in (1, outputs) and not is_mask(bias)
    if a == GEMM and (not operand(n, 2) or (is_bias and bias is not None and bias.shape == (outputs,))):
        return None
    nodes, x, y = list[OnnxNode](), n.inputs[0], n.outputs[0]
    if a["transA"]:
        x = scope.tensor(f"{n.inputs[0]}/transposed")
        nodes.append(node(f"{n.name}/transpose_a", "Transpose", n.inputs[:1], x, n.sources, perm=(1, 0)))
    scaled = (weights if a["transB"] else weights.T) * weights.dtype.type(a["alpha"])
    inputs = [x, n.inputs[1] if a["transB"] and a["alpha"] == 1 else scope.constant(f"{n.inputs[1]}/nk", scaled)]
    if is_bias and bias is not None:
        row = np.broadcast_to(bias.reshape(-1) * bias.dtype.type(a["beta"]), (outputs,))
        inputs.append(scope.constant(f"{n.inputs[2]}/row", row))
    elif operand(n, 2):
        y = scope.tensor(f"{n.outputs[0]}/product")
    nodes.append(node(n.name, "Gemm", inputs, y, n.sources, **GEMM))
    if y != n.outputs[0]:
        nodes += add_scaled_bias(n, y, n.inputs[2], a["beta"], scope)
    return Rewrite(tuple(nodes))


def as_matmul(n: OnnxNode, scope: Rewriter) -> tuple[OnnxNode, ...]:
    """Return alpha A' B' + beta C as MatMul, Mul and Add."""
    a, nodes, operands = n.op.attributes, list[OnnxNode](), list[str]()
    for index, key in enumerate(("transA", "transB")):
        matrix = n.inputs[index]
        if a[key]:
            matrix = scope.tensor(f"{n.inputs[index]}/transposed")
            name = f"{n.name}/transpose_{'ab'[index]}"
            nodes.append(node(name, "Transpose", (n.inputs[index],), matrix, n.sources, perm=(1, 0)))
        operands.append(matrix)
    has_c = bool(operand(n, 2))
    y = scope.tensor(f"{n.outputs[0]}/product") if has_c else n.outputs[0]
    product = scope.tensor(f"{n.outputs[0]}/unscaled") if a["alpha"] != 1 else y
    nodes.append(node(n.name, "MatMul", operands, product, n.sources))
    if product != y:
        alpha = scope.constant(f"{n.name}/alpha", np.asarray(a["alpha"], scope.types[n.inputs[0]].dtype))
        nodes.append(node(f"{n.name}/scale", "Mul", (product, alpha), y, n.sources))
    if has_c:
        nodes += add_scaled_bias(n, y, n.inputs[2], a["beta"], scope)
    return tuple(nodes)


def add_scaled_bias(n: OnnxNode, x: str, c: str, beta: float, scope: Rewriter) -> list[OnnxNode]:
    """Return nodes that make the node's output of x + beta c."""
    nodes = list[OnnxNode]()
    if beta != 1:
        factor = scope.constant(f"{n.name}/beta", np.asarray(beta, scope.types[c].dtype))
        scaled = scope.tensor(f"{c}/scaled")
        nodes.append(node(f"{n.name}/beta", "Mul", (c, factor), scaled, n.sources))
        c = scaled
    return [*nodes, node(f"{n.name}/add", "Add", (x, c), n.outputs[0], n.sources)]


def matmul(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite x[..., k] times a constant [k, n] as a Gemm over flattened rows, between two Reshapes.

    A product without rows, or of no elements, stays as it is.
    """
    weights, x = scope.constants.get(n.inputs[1]), n.inputs[0]
    if weights is None or not scope.is_float(x) or weights.ndim == 0 or prod(weights.shape[:-2]) != 1 or 0 in scope.shape(x):
        return None
    square = weights.reshape(weights.shape[-2:]) if weights.ndim > 1 else weights.reshape(-1, 1)
    k = len(square)
    flat, product = scope.tensor(f"{x}/rows"), scope.tensor(f"{n.outputs[0]}/rows")
    w = scope.constant(f"{n.inputs[1]}/nk", square.T)
    return Rewrite(
        (
            reshape(n, "to_rows", x, (prod(scope.shape(x)) // k, k), flat, scope),
            node(n.name, "Gemm", (flat, w), product, n.sources, **GEMM),
            reshape(n, "from_rows", product, scope.shape(n.outputs[0]), n.outputs[0], scope),
        )
    )


def fold_constant(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Fold a Mul or Add of one number a channel into the weights and bias of the Conv, ConvTranspose or Gemm before it.

    A mask is not folded: as a bias, minus infinity would take the weights' bits.
    """
    value = scope.constants.get(n.inputs[1])
    if value is None or not scope.is_float(n.inputs[0]) or (n.op.op_type == "Add" and is_mask(value)):
        return None
    weighted, back = producer_through_reshape(n.inputs[0], scope)
    if weighted is None or scope.shape(n.inputs[0]) != scope.shape(n.outputs[0]) or weighted.inputs[1] not in scope.constants:
        return None
    if operand(weighted, 2) and operand(weighted, 2) not in scope.constants:
        return None
    channels = scope.shape(weighted.outputs[0])[1]
    axis = 1 if back is None else len(scope.shape(n.inputs[0])) - 1
    row = per_channel(value, scope.shape(n.outputs[0]), axis, channels)
    if row is None:
        return None
    inputs = fold_into_weights(n, weighted, row, scope)
    if not all(np.isfinite(scope.constants[name]).all() for name in inputs[1:]):
        return None  # it would overflow; kept as two steps
    sources = (*weighted.sources, *n.sources)
    if back is None:
        return Rewrite((replace(weighted, inputs=inputs, outputs=n.outputs, sources=sources),))
    product = scope.tensor(f"{n.outputs[0]}/rows")
    after = replace(back, inputs=(product, back.inputs[1]), outputs=n.outputs)
    return Rewrite((replace(weighted, inputs=inputs, outputs=(product,), sources=sources), after))


def producer_through_reshape(x: str, scope: Rewriter) -> tuple[OnnxNode | None, OnnxNode | None]:
    """Return the weighted operator that makes `x`, and the Reshape between them where that keeps a Gemm's last axis.

    Each is None where there is none, or others read its output too.
    """
    if weighted := scope.only_user(x, WEIGHTED):
        return weighted, None
    back = scope.only_user(x, ("Reshape",))
    if back is None or not scope.shape(x) or scope.shape(x)[-1:] != scope.shape(back.inputs[0])[-1:]:
        return None, None
    return scope.only_user(back.inputs[0], ("Gemm",)), back


def per_channel(value: np.ndarray, shape: Sequence[int], axis: int, channels: int) -> np.ndarray | None:
    """Return [channels] numbers where `value`, broadcast to `shape`, varies along `axis` alone; else None."""
    aligned = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if any(d != 1 for a, d in enumerate(aligned.shape) if a != axis):
        return None
    return np.broadcast_to(aligned.reshape(-1), (channels,))


def fold_into_weights(n: OnnxNode, weighted: OnnxNode, row: np.ndarray, scope: Rewriter) -> tuple[str, ...]:
    """Return the inputs of the weighted operator with the Add or Mul by `row` folded in, as new constants."""
    w = scope.constants[weighted.inputs[1]]
    row = row.astype(np.float64)
    b = scope.constants.get(operand(weighted, 2))
    base = f"{weighted.name}/bias" if b is None else weighted.inputs[2]
    if n.op.op_type == "Add":
        total = row if b is None else b + row
        return (*weighted.inputs[:2], scope.constant(base, total.astype(w.dtype)))
    scaled = scope.constant(weighted.inputs[1], scale_outputs(weighted, w, row).astype(w.dtype))
    if b is None:
        return (weighted.inputs[0], scaled)
    return (weighted.inputs[0], scaled, scope.constant(base, (b * row).astype(w.dtype)))


def scale_outputs(weighted: OnnxNode, w: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return the weights times one number an output channel: Conv [oc, ic/g, kh, kw], ConvTranspose [ic, oc/g, kh, kw], Gemm
    [n, k].
    """
    if weighted.op.op_type != "ConvTranspose":
        return w * row.reshape((-1,) + (1,) * (w.ndim - 1))
    group = weighted.op.attributes["group"]
    grouped = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    return (grouped * row.reshape(group, 1, -1, *(1,) * (w.ndim - 2))).reshape(w.shape)


RULES: Mapping[str, Sequence[Rule]] = {
    "Gemm": (gemm,),
    "MatMul": (matmul,),
    "Add": (fold_constant,),
    "Mul": (fold_constant,),
}
