"""Rules that find a LayerNormalization written as means, a difference, a square root and a quotient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from toolchain.frontend.arithmetic import scalar
from toolchain.frontend.rewrite import Rewrite, Rule, Scope, node, operand
from toolchain.ir.graph import Node

CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def quotient(n: Node, scope: Scope) -> Rewrite | None:
    """(x - mean) / sqrt(variance + epsilon)."""
    root = scope.producer(n.inputs[1], "Sqrt")
    return None if root is None else normalised(n, n.inputs[0], root, scope)


def product(n: Node, scope: Scope) -> Rewrite | None:
    """(x - mean) * (1 / sqrt(variance + epsilon))."""
    for difference, other in (n.inputs, n.inputs[::-1]):
        inverse = scope.producer(other, "Reciprocal")
        root = scope.producer(inverse.inputs[0], "Sqrt") if inverse is not None else None
        if root is not None:
            return normalised(n, difference, root, scope)
    return None


def normalised(n: Node, difference: str, root: Node, scope: Scope) -> Rewrite | None:
    shifted = scope.producer(root.inputs[0], "Add")
    epsilon = scalar(shifted.inputs[1], scope) if shifted is not None else None
    variance = scope.producer(shifted.inputs[0], "ReduceMean") if shifted is not None else None
    square = scope.producer(variance.inputs[0], "Mul") if variance is not None else None
    less = scope.producer(difference, "Sub")
    if (
        shifted is None
        or epsilon is None
        or variance is None
        or square is None
        or less is None
        or square.inputs != (difference, difference)
    ):
        return None
    x, mean = less.inputs[0], scope.producer(less.inputs[1], "ReduceMean")
    if mean is None or mean.inputs[0] != x or axes_of(mean, scope) != axes_of(variance, scope) or not scope.is_float(x):
        return None
    sources = tuple(s for step in (mean, less, square, variance, shifted, root, n) for s in step.sources)
    return layer_norm(n, x, axes_of(mean, scope), epsilon, sources, scope)


def axes_of(mean: Node, scope: Scope) -> tuple[int, ...] | None:
    axes = scope.constants.get(operand(mean, 1))
    return None if axes is None else tuple(axes.tolist())


def layer_norm(
    n: Node, x: str, axes: tuple[int, ...] | None, epsilon: float, sources: Sequence[str], scope: Scope
) -> Rewrite | None:
    """Over the last dimensions; over the channels of a feature map between two Transposes."""
    shape = scope.shape(x)
    if not axes or epsilon <= 0:
        return None
    if axes == tuple(i for i in range(axes[0], len(shape)) if shape[i] != 1):
        return Rewrite((norm_node(n.name, x, axes[0], n.outputs[0], shape[axes[0] :], epsilon, sources, scope),))
    if axes != (1,) or len(shape) != 4:
        return None
    last, done = scope.tensor(f"{x}/last"), scope.tensor(f"{n.outputs[0]}/last")
    return Rewrite(
        (
            node(f"{n.name}/to_last", "Transpose", (x,), last, n.sources, perm=CHANNELS_LAST),
            norm_node(n.name, last, 3, done, shape[1:2], epsilon, sources, scope),
            node(f"{n.name}/from_last", "Transpose", (done,), n.outputs[0], n.sources, perm=CHANNELS_FIRST),
        )
    )


def norm_node(
    name: str, x: str, axis: int, y: str, over: Sequence[int], epsilon: float, sources: Sequence[str], scope: Scope
) -> Node:
    ones = scope.constant(f"{name}/scale", np.ones(tuple(over), scope.types[x].dtype))
    return node(name, "LayerNormalization", (x, ones), y, sources, axis=axis, epsilon=epsilon, stash_type=1)


def scale_or_shift(n: Node, scope: Scope) -> Rewrite | None:
    """A Mul, then an Add, of one number for each place normalised over: the scale and the bias."""
    value = scope.constants.get(n.inputs[1])
    before = scope.only_user(n.inputs[0], ("LayerNormalization",))
    if value is None or before is None or any(before.outputs[1:]) or scope.shape(n.inputs[0]) != scope.shape(n.outputs[0]):
        return None
    over = scope.shape(n.inputs[0])[before.op.attributes["axis"] :]
    scale, has_bias = scope.constants.get(before.inputs[1]), bool(operand(before, 2))
    if scale is None or scale.shape != over or value.ndim > len(over) or prod(value.shape) > prod(over):
        return None
    full = np.broadcast_to(value, over)
    sources = (*before.sources, *n.sources)
    if n.op.op_type == "Mul" and not has_bias:
        inputs = (before.inputs[0], scope.constant(before.inputs[1], scale * full))
    elif n.op.op_type == "Add" and not has_bias:
        inputs = (*before.inputs[:2], scope.constant(f"{before.name}/bias", full))
    else:
        return None
    return Rewrite((replace(before, inputs=inputs, outputs=n.outputs, sources=sources),))


RULES: Mapping[str, Sequence[Rule]] = {
    "Div": (quotient,),
    "Mul": (product, scale_or_shift),
    "Add": (scale_or_shift,),
}
