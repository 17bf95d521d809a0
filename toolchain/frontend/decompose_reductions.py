"""Reductions that the normal form has not, written as means, sums and maxima."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from toolchain.frontend.node_chain import NodeChain
from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, operand
from toolchain.ir.graph import MAX_PARTS, OnnxNode

Axes = tuple[int, ...]


def axes_of(n: OnnxNode, scope: Rewriter) -> Axes | None:
    """Return the axes of a reduction of real numbers, once they are explicit and kept as ones."""
    axes = scope.constants.get(operand(n, 1)) if operand(n, 1) else None
    if axes is None or not axes.size or not n.op.attributes["keepdims"] or not scope.is_float(n.inputs[0]):
        return None
    return tuple(axes.tolist())


def decompose_reduction(make: Callable[[NodeChain, str, Axes], object]) -> Rule:
    def rule(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
        axes = axes_of(n, scope)
        if axes is None or 0 in scope.shape(n.inputs[0]):
            return None
        chain = NodeChain(n, scope)
        make(chain, n.inputs[0], axes)
        return chain.done()

    return rule


def least(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """-max(-x); but of what an infinity stands for that is not chosen, of which no range is measured."""
    axes, chosen = axes_of(n, scope), scope.producer(n.inputs[0], "Where")
    far = [scope.constants[name] for name in chosen.inputs[1:] if name in scope.constants] if chosen is not None else []
    if axes is None or 0 in scope.shape(n.inputs[0]) or not all(np.isfinite(value).all() for value in far):
        return None
    chain = NodeChain(n, scope)
    chain.make("Neg", chain.make("ReduceMax", chain.make("Neg", n.inputs[0]), axes))
    return chain.done()


def sum_of_squares(chain: NodeChain, x: str, axes: Axes) -> str:
    return chain.make("ReduceSum", chain.make("Mul", x, x), axes)


def log_sum_exp(chain: NodeChain, x: str, axes: Axes) -> None:
    """max + log(sum(exp(x - max))): no exponential is above 1."""
    largest = chain.make("ReduceMax", x, axes)
    power = chain.make("Exp", chain.make("Sub", x, largest))
    chain.make("Add", largest, chain.make("Log", chain.make("ReduceSum", power, axes)))


def product(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Axis by axis, one half times the other until one is left; of few numbers, as one of many spans too many powers."""
    axes = axes_of(n, scope)
    if axes is None or not 0 < prod(scope.shape(n.inputs[0])[a] for a in axes) <= MAX_PARTS:
        return None
    chain, x = NodeChain(n, scope), n.inputs[0]
    for axis in axes:
        size = chain.shape()[axis]
        while size > 1:
            half = size // 2
            parts = [chain.make("Slice", x, (start,), (start + half,), (axis,), (1,)) for start in (0, half)]
            both = chain.make("Mul", *parts)
            if size % 2:
                both = chain.make("Concat", both, chain.make("Slice", x, (size - 1,), (size,), (axis,), (1,)), axis=axis)
            x, size = both, half + size % 2
    return chain.done()


def split_axes(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Over dimensions that are no neighbours, with channels in their place or last: over the last ones, then over the others."""
    axes = axes_of(n, scope)
    if axes is None:
        return None
    shape = scope.shape(n.inputs[0])
    orders = [tuple(range(len(shape)))] + ([(0, 2, 3, 1)] if len(shape) == 4 else [])
    if any(neighbours([order.index(a) for a in axes], [shape[i] for i in order]) for order in orders):
        return None
    first = next(i for i in range(len(axes), 0, -1) if neighbours(axes[-i:], shape))
    chain = NodeChain(n, scope)
    chain.make(n.op.op_type, chain.make(n.op.op_type, n.inputs[0], axes[-first:]), axes[:-first])
    return chain.done()


def neighbours(axes: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether only dimensions of one lie between the axes."""
    ordered = sorted(axes)
    between = range(ordered[0], ordered[-1])
    return prod(shape[i] for i in between if i not in ordered) == 1


RULES: Mapping[str, Sequence[Rule]] = {
    "ReduceL1": (decompose_reduction(lambda chain, x, axes: chain.make("ReduceSum", chain.make("Abs", x), axes)),),
    "ReduceL2": (decompose_reduction(lambda chain, x, axes: chain.make("Sqrt", sum_of_squares(chain, x, axes))),),
    "ReduceLogSum": (decompose_reduction(lambda chain, x, axes: chain.make("Log", chain.make("ReduceSum", x, axes))),),
    "ReduceLogSumExp": (decompose_reduction(log_sum_exp),),
    "ReduceMin": (least,),
    "ReduceProd": (product,),
    "ReduceSumSquare": (decompose_reduction(sum_of_squares),),
}
LATE: Mapping[str, Sequence[Rule]] = {"ReduceMax": (split_axes,), "ReduceMean": (split_axes,)}
