"""Rewrite elementwise arithmetic and limits into canonical form; `canonicalize` applies `RULES` by operator.

Each rule returns the replacement of its node, or None where it does not apply. Constants of Add and Mul stand second.
Sub and Div by constants become Add and Mul. Min, Max, Clip and Relu in a row become one Clip or Relu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, reshape
from toolchain.ir.graph import OnnxNode, OnnxOp


def scalar(name: str, scope: Rewriter) -> float | None:
    """Return the one number that a constant holds everywhere, as a float.

    None where it varies, is empty or bool, or is no constant.
    """
    value = scope.constants.get(name)
    if value is None or value.size == 0 or value.dtype.kind not in "fiu":
        return None
    first = value.reshape(-1)[0]
    return float(first) if value.size == 1 or (value == first).all() else None


def keeps_shape(n: OnnxNode, scope: Rewriter, index: int = 0) -> bool:
    """Return whether the node's output has the shape of input `index`."""
    return scope.shape(n.inputs[index]) == scope.shape(n.outputs[0])


def even_rank(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Give a constant no higher rank than its operand.

    A constant of higher rank loses its leading ones, and the result gets its rank by a Reshape. Where they are
    more than ones the other operand gets the rank first. So constants never raise a rank.
    """
    index = next((i for i, name in enumerate(n.inputs) if name in scope.constants), None)
    if index is None or len(n.inputs) != 2 or n.inputs[1 - index] in scope.constants or 0 in scope.shape(n.outputs[0]):
        return None
    x, value = n.inputs[1 - index], scope.constants[n.inputs[index]]
    lead = value.ndim - len(scope.shape(x))
    if lead <= 0:
        return None
    if any(d != 1 for d in value.shape[:lead]):
        wide = scope.tensor(f"{x}/wide")
        before = reshape(n, "widen", x, (*(1,) * lead, *scope.shape(x)), wide, scope)
        return Rewrite((before, with_operands(n, index, n.inputs[index], wide)))
    narrow = scope.tensor(f"{n.outputs[0]}/narrow")
    small = scope.constant(n.inputs[index], value.reshape(value.shape[lead:]))
    after = reshape(n, "widen", narrow, scope.shape(n.outputs[0]), n.outputs[0], scope)
    return Rewrite((replace(with_operands(n, index, small, x), outputs=(narrow,)), after))


def with_operands(n: OnnxNode, index: int, constant: str, other: str) -> OnnxNode:
    """Return a copy of a node of two operands, with the constant at `index` and the other operand beside it."""
    return replace(n, inputs=(constant, other) if index == 0 else (other, constant))


def constant_second(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Move the constant operand of a commutative operator to the second place."""
    if n.inputs[0] in scope.constants and n.inputs[1] not in scope.constants:
        return Rewrite((replace(n, inputs=n.inputs[::-1]),))
    return None


def small_constant(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Drop leading ones of a constant operand's shape; make it a scalar where all its values are equal.

    It applies where the constant does not broadcast the other operand.
    """
    value = scope.constants.get(n.inputs[1])
    if value is None or not value.ndim or not keeps_shape(n, scope):
        return None
    if value.size and (value == value.reshape(-1)[0]).all():
        small = value.reshape(-1)[0].reshape(())
    else:
        first = next((axis for axis, d in enumerate(value.shape) if d != 1), value.ndim)
        small = value.reshape(value.shape[first:])
    if small.shape == value.shape:
        return None
    return Rewrite((replace(n, inputs=(n.inputs[0], scope.constant(n.inputs[1], small))),))


def remove_identity(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Remove x + 0, x - 0, x * 1, x / 1 and x ** 1."""
    unit = 0.0 if n.op.op_type in ("Add", "Sub") else 1.0
    if scalar(n.inputs[1], scope) == unit and keeps_shape(n, scope):
        return Rewrite(same=n.inputs[0])
    return None


def merge_constants(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite (x + a) + b as x + (a + b), and products likewise, for floats.

    Constants whose merged value would overflow, or whose product would vanish though neither is zero, stay apart.
    """
    op_type, outer = n.op.op_type, scope.constants.get(n.inputs[1])
    before = scope.only_user(n.inputs[0], (op_type,))
    if before is None or outer is None or not scope.is_float(n.inputs[0]):
        return None
    inner = scope.constants.get(before.inputs[1])
    if inner is None:
        return None
    with np.errstate(all="ignore"):
        both = inner + outer if op_type == "Add" else inner * outer
    constant_finite = np.isfinite(both) | (np.isinf(inner) | np.isinf(outer)) & ~np.isnan(
        both
    )  # a mask's infinity stays what it is
    product_kept = np.isfinite(both) & ((np.abs(both) >= np.finfo(both.dtype).tiny) | (inner == 0) | (outer == 0))
    if not (constant_finite if op_type == "Add" else product_kept).all():
        return None
    inputs = (before.inputs[0], scope.constant(n.inputs[1], np.asarray(both)))
    return Rewrite((replace(before, inputs=inputs, outputs=n.outputs, sources=(*before.sources, *n.sources)),))


def divide(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite x / c as x * (1 / c) for floats, where 1 / c is finite and not zero."""
    value = scope.constants.get(n.inputs[1])
    if value is None or not scope.is_float(n.inputs[0]):
        return None
    with np.errstate(all="ignore"):
        reciprocal = np.asarray(1 / value, value.dtype)
    if not np.isfinite(reciprocal).all() or not reciprocal.all():
        return None
    inputs = (n.inputs[0], scope.constant(f"{n.inputs[1]}/reciprocal", reciprocal))
    return Rewrite((replace(n, op=OnnxOp("Mul"), inputs=inputs),))


def subtract(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite x - c as x + (-c), for signed types without the most negative integer."""
    value = scope.constants.get(n.inputs[1])
    if value is None or value.dtype.kind not in "fi":
        return None
    if value.dtype.kind == "i" and (value == np.iinfo(value.dtype).min).any():
        return None
    inputs = (n.inputs[0], scope.constant(f"{n.inputs[1]}/negative", np.asarray(-value)))
    return Rewrite((replace(n, op=OnnxOp("Add"), inputs=inputs),))


def power(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a power by 2 as x * x, and powers of floats by 0.5 and -1 as Sqrt and Reciprocal."""
    exponent, x = scalar(n.inputs[1], scope), n.inputs[0]
    if exponent is None or not keeps_shape(n, scope):
        return None
    if exponent == 2:
        return Rewrite((replace(n, op=OnnxOp("Mul"), inputs=(x, x)),))
    unary = {0.5: "Sqrt", -1.0: "Reciprocal"}.get(exponent)
    if unary is None or not scope.is_float(x):
        return None
    return Rewrite((replace(n, op=OnnxOp(unary), inputs=(x,)),))


def chain(op_type: str) -> Rule:
    """Return the rule that rewrites an operator of any number of operands as a chain of `op_type`, left to right.

    An operator of one operand is removed.
    """

    def rule(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
        if len(n.inputs) == 1:
            return Rewrite(same=n.inputs[0])
        if len(n.inputs) == 2 and op_type == n.op.op_type:
            return None
        nodes, total = list[OnnxNode](), n.inputs[0]
        for index, operand in enumerate(n.inputs[1:]):
            is_last = index == len(n.inputs) - 2
            y = n.outputs[0] if is_last else scope.tensor(f"{n.outputs[0]}/{index}")
            name = n.name if is_last else f"{n.name}/{index}"
            nodes.append(node(name, op_type, (total, operand), y, n.sources))
            total = y
        return Rewrite(tuple(nodes))

    return rule


def mean(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite the elementwise Mean of operands as their Sum times 1 / n."""
    total = scope.tensor(f"{n.outputs[0]}/sum")
    dtype = scope.types[n.outputs[0]].dtype
    factor = scope.constant(f"{n.name}/factor", np.asarray(1 / len(n.inputs), dtype))
    add = node(f"{n.name}/sum", "Sum", n.inputs, total, n.sources)
    return Rewrite((add, node(n.name, "Mul", (total, factor), n.outputs[0], n.sources)))


def limit(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a Min or Max of a float tensor and one number as a Clip."""
    for index in (1, 0):
        value, x = scalar(n.inputs[index], scope), 1 - index
        if value is None or n.inputs[x] in scope.constants or not keeps_shape(n, scope, x) or not scope.is_float(n.inputs[x]):
            continue
        low, high = (value, None) if n.op.op_type == "Max" else (None, value)
        return Rewrite((clip_node(n, n.inputs[x], low, high, scope),))
    return None


def clip_node(n: OnnxNode, x: str, low: float | None, high: float | None, scope: Rewriter) -> OnnxNode:
    """Return a Clip of `x` in the place of `n`. None: no such limit."""
    dtype = scope.types[x].dtype
    inputs = [x]
    for key, value in (("min", low), ("max", high)):
        inputs.append("" if value is None else scope.constant(f"{n.name}/{key}", np.asarray(value, dtype)))
    while not inputs[-1]:
        inputs.pop()
    return replace(n, op=OnnxOp("Clip"), inputs=tuple(inputs), outputs=n.outputs)


def clip_limits(n: OnnxNode, scope: Rewriter) -> tuple[float | None, float | None] | None:
    """Return (low, high) of a Clip or Relu, None for an absent limit; None altogether where a limit is computed.

    Where low is above high, both are high, as ONNX has it.
    """
    if n.op.op_type == "Relu":
        return 0.0, None
    limits: list[float | None] = []
    for name in (*n.inputs[1:], "", "")[:2]:
        value = scalar(name, scope) if name else None
        if name and value is None:
            return None
        limits.append(value)
    low, high = limits
    return (high if low is not None and high is not None and low > high else low), high


def clip(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Merge a Clip or Relu of floats with one before it, and drop limits beyond the type's largest number.

    Limits (0, none) become Relu; no limits leave the input.
    """
    limits, x = clip_limits(n, scope), n.inputs[0]
    if limits is None or not scope.is_float(x):
        return None
    largest = float(np.finfo(scope.types[x].dtype).max)
    low = None if limits[0] is None or limits[0] <= -largest else limits[0]
    high = None if limits[1] is None or limits[1] >= largest else limits[1]
    before = scope.only_user(x, ("Clip", "Relu"))
    inner = clip_limits(before, scope) if before is not None else None
    if before is not None and inner is not None:
        low, high = compose(inner, (low, high))
        n = replace(n, sources=(*before.sources, *n.sources))
        x = before.inputs[0]
    elif (low, high) == limits and not (low == 0 and high is None and n.op.op_type == "Clip"):
        return None if n.op.op_type == "Relu" or (low, high) != (None, None) else Rewrite(same=x)
    if low is None and high is None:
        return Rewrite(same=x)
    if low == 0 and high is None:
        return Rewrite((replace(n, op=OnnxOp("Relu"), inputs=(x,)),))
    return Rewrite((clip_node(n, x, low, high, scope),))


def compose(
    inner: tuple[float | None, float | None], outer: tuple[float | None, float | None]
) -> tuple[float | None, float | None]:
    """Return the limits of clip(clip(x, inner), outer)."""

    def through(value: float | None) -> float | None:
        if value is None:
            return None
        value = value if outer[0] is None else max(value, outer[0])
        return value if outer[1] is None else min(value, outer[1])

    low = outer[0] if inner[0] is None else through(inner[0])
    high = outer[1] if inner[1] is None else through(inner[1])
    return low, high


def prelu(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a PRelu of one slope as LeakyRelu; drop other slopes' leading ones: [c, 1, 1] for [n, c, h, w]."""
    slope = scope.constants.get(n.inputs[1])
    if slope is None:
        return None
    alpha = scalar(n.inputs[1], scope)
    if alpha is not None:
        return Rewrite((replace(n, op=OnnxOp("LeakyRelu", {"alpha": alpha}), inputs=n.inputs[:1]),))
    first = next((axis for axis, d in enumerate(slope.shape) if d != 1), 0)
    if first == 0:
        return None
    return Rewrite((replace(n, inputs=(n.inputs[0], scope.constant(n.inputs[1], slope.reshape(slope.shape[first:])))),))


RULES: Mapping[str, Sequence[Rule]] = {
    "Add": (even_rank, constant_second, small_constant, remove_identity, merge_constants),
    "Mul": (even_rank, constant_second, small_constant, remove_identity, merge_constants),
    "Sub": (even_rank, remove_identity, subtract),
    "Div": (even_rank, remove_identity, divide),
    "Pow": (even_rank, remove_identity, power),
    "Sum": (chain("Add"),),
    "Mean": (mean,),
    "Max": (chain("Max"), even_rank, limit),
    "Min": (chain("Min"), even_rank, limit),
    "Clip": (clip,),
    "Relu": (clip,),
    "PRelu": (prelu,),
}
