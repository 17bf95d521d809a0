"""Reductions that the normal form has not, written as means, sums and maxima."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from toolchain.frontend.node_chain import Decomposition, NodeChain
from toolchain.frontend.rewrite import Rewriter, operand
from toolchain.ir.graph import MAX_PARTS, OnnxNode

Axes = tuple[int, ...]


def axes_of(n: OnnxNode, scope: Rewriter) -> Axes | None:
    """Return the axes of a reduction of real numbers, once they are explicit and kept as ones."""
    axes = scope.constants.get(operand(n, 1)) if operand(n, 1) else None
    if axes is None or not axes.size or not n.op.attributes["keepdims"] or not scope.is_float(n.inputs[0]):
        return None
    return tuple(axes.tolist())


def decompose_reduction(add_steps: Callable[[NodeChain, str, Axes], object]) -> Decomposition:
    """Return the decomposition of a reduction of some elements. `add_steps`: of the input and the axes."""

    def decompose(chain: NodeChain) -> None:
        axes = axes_of(chain.node, chain.scope)
        if axes is not None and 0 not in chain.shape():
            add_steps(chain, chain.node.inputs[0], axes)

    return decompose


def least(chain: NodeChain) -> None:
    """-max(-x); but of what an infinity stands for that is not chosen, of which no range is measured."""
    n, scope = chain.node, chain.scope
    axes, chosen = axes_of(n, scope), scope.producer(n.inputs[0], "Where")
    far = [scope.constants[name] for name in chosen.inputs[1:] if name in scope.constants] if chosen is not None else []
    if axes is None or 0 in scope.shape(n.inputs[0]) or not all(np.isfinite(value).all() for value in far):
        return
    chain.add("Neg", chain.add("ReduceMax", chain.add("Neg", n.inputs[0]), axes))


def sum_of_squares(chain: NodeChain, x: str, axes: Axes) -> str:
    return chain.add("ReduceSum", chain.add("Mul", x, x), axes)


def log_sum_exp(chain: NodeChain, x: str, axes: Axes) -> None:
    """max + log(sum(exp(x - max))): no exponential is above 1."""
    largest = chain.add("ReduceMax", x, axes)
    power = chain.add("Exp", chain.add("Sub", x, largest))
    chain.add("Add", largest, chain.add("Log", chain.add("ReduceSum", power, axes)))


def product(chain: NodeChain) -> None:
    """Axis by axis, one half times the other until one is left; of few numbers, as one of many spans too many powers."""
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
    """Over dimensions that are no neighbours, with channels in their place or last: over the last ones, then over the others."""
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


DECOMPOSITIONS: Mapping[str, Decomposition] = {
    "ReduceL1": decompose_reduction(lambda chain, x, axes: chain.add("ReduceSum", chain.add("Abs", x), axes)),
    "ReduceL2": decompose_reduction(lambda chain, x, axes: chain.add("Sqrt", sum_of_squares(chain, x, axes))),
    "ReduceLogSum": decompose_reduction(lambda chain, x, axes: chain.add("Log", chain.add("ReduceSum", x, axes))),
    "ReduceLogSumExp": decompose_reduction(log_sum_exp),
    "ReduceMin": least,
    "ReduceProd": product,
    "ReduceSumSquare": decompose_reduction(sum_of_squares),
}
LATE_DECOMPOSITIONS: Mapping[str, Sequence[Decomposition]] = {"ReduceMax": (split_axes,), "ReduceMean": (split_axes,)}
