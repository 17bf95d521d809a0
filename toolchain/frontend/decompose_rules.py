"""Decompose operators that canonical form does not have into those that it has: reductions, norms, Hardmax, LRN.

`canonicalize` makes a rule of each. A decomposition adds steps to its chain, or none where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx

from toolchain.frontend.rewrite import Decomposition, NodeChain, Rewriter, operand
from toolchain.ir.graph import MAX_PARTS, OnnxNode

Axes = tuple[int, ...]
MOST_CHANNELS = 1024  # of which the windows of an LRN are a matrix
TINY = float(np.finfo(np.float32).tiny)  # a variance of zero divides by its root


def axes_of(n: OnnxNode, scope: Rewriter) -> Axes | None:
    """Return the axes of a reduction of floats, once they are explicit and dimensions are kept; else None."""
    axes = scope.constants.get(operand(n, 1)) if operand(n, 1) else None
    if axes is None or not axes.size or not n.op.attributes["keepdims"] or not scope.is_float(n.inputs[0]):
        return None
    return tuple(axes.tolist())


def decompose_reduction(add_steps: Callable[[NodeChain, str, Axes], object]) -> Decomposition:
    """Return the decomposition of a reduction over some elements.

    `add_steps`: takes the chain, the input and the axes.
    """

    def decompose(chain: NodeChain) -> None:
        axes = axes_of(chain.node, chain.scope)
        if axes is not None and 0 not in chain.shape():
            add_steps(chain, chain.node.inputs[0], axes)

    return decompose


def least(chain: NodeChain) -> None:
    """Decompose ReduceMin as -max(-x).

    A minimum over what a Where masks by infinity is left alone, since no range of it is measured.
    """
    n, scope = chain.node, chain.scope
    axes, chosen = axes_of(n, scope), scope.producer(n.inputs[0], "Where")
    far = [scope.constants[name] for name in chosen.inputs[1:] if name in scope.constants] if chosen is not None else []
    if axes is None or 0 in scope.shape(n.inputs[0]) or not all(np.isfinite(value).all() for value in far):
        return
    chain.add("Neg", chain.add("ReduceMax", chain.add("Neg", n.inputs[0]), axes))


def sum_of_squares(chain: NodeChain, x: str, axes: Axes) -> str:
    """Add the sum of x * x over the axes and return its tensor."""
    return chain.add("ReduceSum", chain.add("Mul", x, x), axes)


def log_sum_exp(chain: NodeChain, x: str, axes: Axes) -> None:
    """Decompose ReduceLogSumExp as max + log(sum(exp(x - max))), in which no exponential is above 1."""
    largest = chain.add("ReduceMax", x, axes)
    power = chain.add("Exp", chain.add("Sub", x, largest))
    chain.add("Add", largest, chain.add("Log", chain.add("ReduceSum", power, axes)))


def product(chain: NodeChain) -> None:
    """Decompose ReduceProd of few elements axis by axis: one half times the other, until one element is left."""
    n, scope = chain.node, chain.scope
    axes = axes_of(n, scope)
    if axes is None or not 0 < prod(scope.shape(n.inputs[0])[a] for a in axes) <= MAX_PARTS:
        return
    x = n.inputs[0]
    for axis in axes:
        size = chain.shape()[axis]
        while size > 1:
            half = size // 2
            parts = [chain.add("Slice", x, (start,), (start + half,), (axis,), (1,)) for start in (0, half)]
            both = chain.add("Mul", *parts)
            if size % 2:
                both = chain.add("Concat", both, chain.add("Slice", x, (size - 1,), (size,), (axis,), (1,)), axis=axis)
            x, size = both, half + size % 2


def split_axes(chain: NodeChain) -> None:
    """Decompose a reduction over axes that are no neighbours, in either layout, into two: over the last axes, then over the
    others.
    """
    n, scope = chain.node, chain.scope
    axes = axes_of(n, scope)
    if axes is None:
        return
    shape = scope.shape(n.inputs[0])
    orders = [tuple(range(len(shape)))] + ([(0, 2, 3, 1)] if len(shape) == 4 else [])
    if any(neighbours([order.index(a) for a in axes], [shape[i] for i in order]) for order in orders):
        return
    first = next(i for i in range(len(axes), 0, -1) if neighbours(axes[-i:], shape))
    chain.add(n.op.op_type, chain.add(n.op.op_type, n.inputs[0], axes[-first:]), axes[:-first])


def neighbours(axes: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether only dimensions of one lie between the axes."""
    ordered = sorted(axes)
    between = range(ordered[0], ordered[-1])
    return prod(shape[i] for i in between if i not in ordered) == 1


def transpose_to_last(chain: NodeChain) -> None:
    """Decompose a Softmax or LogSoftmax over another axis than the last into one over the last, between two Transposes."""
    n, scope = chain.node, chain.scope
    axis, shape = n.op.attributes["axis"], scope.shape(n.inputs[0])
    if not shape or axis == len(shape) - 1 or not scope.is_float(n.inputs[0]):
        return
    perm = [*range(axis), *range(axis + 1, len(shape)), axis]
    last = chain.add("Transpose", n.inputs[0], perm=tuple(perm))
    result = chain.add(n.op.op_type, last, takes_node_name=True, axis=len(shape) - 1)
    chain.add("Transpose", result, perm=tuple(int(i) for i in np.argsort(perm)))


def hardmax(chain: NodeChain) -> None:
    """Decompose Hardmax into ArgMax and OneHot: one at the first place of the largest element."""
    n, scope = chain.node, chain.scope
    axis, shape = n.op.attributes["axis"], scope.shape(n.inputs[0])
    if not shape or not scope.is_float(n.inputs[0]):
        return
    place = chain.add("ArgMax", n.inputs[0], axis=axis, keepdims=0)
    depth, values = np.asarray(shape[axis], np.int64), np.asarray([0, 1], scope.types[n.inputs[0]].dtype)
    chain.add("OneHot", place, depth, values, axis=axis)


def local_response(chain: NodeChain) -> None:
    """Decompose LRN as x (bias + alpha / size * sum of squares)^-beta; the sum over neighbouring channels is a 1x1
    convolution.
    """
    n, scope = chain.node, chain.scope
    a, shape, x = n.op.attributes, scope.shape(n.inputs[0]), n.inputs[0]
    if len(shape) != 4 or shape[1] > MOST_CHANNELS or not scope.is_float(x):
        return
    channel = np.arange(shape[1])
    distance = channel[None, :] - channel[:, None]
    within = (distance >= -((a["size"] - 1) // 2)) & (distance <= a["size"] // 2)
    weights = (within * (a["alpha"] / a["size"])).astype(scope.types[x].dtype).reshape(*within.shape, 1, 1)
    same: dict[str, Any] = {"kernel_shape": (1, 1), "pads": (0, 0, 0, 0), "strides": (1, 1), "dilations": (1, 1)}
    total = chain.add("Conv", chain.add("Mul", x, x), weights, **same)
    chain.add("Mul", x, chain.add("Pow", chain.add("Add", total, a["bias"]), -a["beta"]))


def decompose_lp_normalization(chain: NodeChain) -> None:
    """Decompose LpNormalization: x over its norm, and zero where the norm is zero."""
    n, scope = chain.node, chain.scope
    x, a = n.inputs[0], n.op.attributes
    if not scope.shape(x) or not scope.is_float(x):
        return
    if a["p"] == 2:  # a norm of the mean square, which is found
        squares = chain.add("ReduceSum", chain.add("Mul", x, x), (a["axis"] % len(scope.shape(x)),))
        chain.add("Div", x, chain.add("Sqrt", chain.add("Add", squares, TINY)))
        return
    norm = chain.add(f"ReduceL{a['p']}", x, (a["axis"] % len(scope.shape(x)),))
    nothing = chain.add("Cast", chain.add("Equal", norm, 0.0), to=onnx.TensorProto.FLOAT)
    chain.add("Div", x, chain.add("Add", norm, nothing))


def mean_and_variance(chain: NodeChain) -> None:
    """Decompose MeanVarianceNormalization into a LayerNormalization over its axes, between Transposes that make them the last."""
    n, scope = chain.node, chain.scope
    x, shape = n.inputs[0], scope.shape(n.inputs[0])
    axes: list[int] = sorted(a % len(shape) for a in n.op.attributes["axes"])
    if not axes or not scope.is_float(x):
        return
    perm = [*(a for a in range(len(shape)) if a not in axes), *axes]
    last = chain.add("Transpose", x, perm=tuple(perm))
    ones = np.ones([shape[a] for a in axes], scope.types[x].dtype)
    normal = chain.add("LayerNormalization", last, ones, takes_node_name=True, axis=len(shape) - len(axes), epsilon=TINY)
    chain.add("Transpose", normal, perm=tuple(int(i) for i in np.argsort(perm)))


DECOMPOSITIONS: Mapping[str, Decomposition] = {
    "Hardmax": hardmax,
    "LRN": local_response,
    "LogSoftmax": transpose_to_last,
    "LpNormalization": decompose_lp_normalization,
    "MeanVarianceNormalization": mean_and_variance,
    "ReduceL1": decompose_reduction(lambda chain, x, axes: chain.add("ReduceSum", chain.add("Abs", x), axes)),
    "ReduceL2": decompose_reduction(lambda chain, x, axes: chain.add("Sqrt", sum_of_squares(chain, x, axes))),
    "ReduceLogSum": decompose_reduction(lambda chain, x, axes: chain.add("Log", chain.add("ReduceSum", x, axes))),
    "ReduceLogSumExp": decompose_reduction(log_sum_exp),
    "ReduceMin": least,
    "ReduceProd": product,
    "ReduceSumSquare": decompose_reduction(sum_of_squares),
    "Softmax": transpose_to_last,
}
LATE_DECOMPOSITIONS: Mapping[str, Sequence[Decomposition]] = {"ReduceMax": (split_axes,), "ReduceMean": (split_axes,)}
