"""Rules that find a Softmax or LogSoftmax written as a maximum, a difference, exponentials and their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolchain.frontend.arithmetic_rules import scalar
from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, operand
from toolchain.ir.graph import OnnxNode


def quotient(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """exp(x - max) / sum(exp(x - max)) = Softmax(x)."""
    e, total = n.inputs
    exponential, summed = scope.producer(e, "Exp"), sum_of(total, scope)
    if exponential is None or summed is None or summed[0] != e:
        return None
    return build_softmax(n, "Softmax", exponential.inputs[0], summed[1], (*exponential.sources, *summed[2], *n.sources), scope)


def difference(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """(x - max) - log(sum(exp(x - max))) = LogSoftmax(x)."""
    shifted, logarithm = n.inputs[0], scope.producer(n.inputs[1], "Log")
    summed = sum_of(logarithm.inputs[0], scope) if logarithm is not None else None
    exponential = scope.producer(summed[0], "Exp") if summed is not None else None
    if logarithm is None or summed is None or exponential is None or exponential.inputs[0] != shifted:
        return None
    sources = (*exponential.sources, *summed[2], *logarithm.sources, *n.sources)
    return build_softmax(n, "LogSoftmax", shifted, summed[1], sources, scope)


def sum_of(name: str, scope: Rewriter) -> tuple[str, int, tuple[str, ...]] | None:
    """The summand, its axis and the sources of a sum over one axis: in normal form a mean and a factor."""
    factor = scope.producer(name, "Mul")
    mean = scope.producer(factor.inputs[0], "ReduceMean") if factor is not None else None
    axis = only_axis(mean, scope) if mean is not None else None
    if factor is None or mean is None or axis is None:
        return None
    x = mean.inputs[0]
    return (x, axis, (*mean.sources, *factor.sources)) if scalar(factor.inputs[1], scope) == scope.shape(x)[axis] else None


def only_axis(reduction: OnnxNode, scope: Rewriter) -> int | None:
    axes = scope.constants.get(operand(reduction, 1))
    return int(axes[0]) if axes is not None and axes.size == 1 else None


def build_softmax(n: OnnxNode, op_type: str, shifted: str, axis: int, sources: Sequence[str], scope: Rewriter) -> Rewrite | None:
    """Over `axis` of x, where `shifted` is x - max(x) over it; of `shifted` itself, where it is anything else."""
    if not scope.is_float(shifted):
        return None
    less = scope.producer(shifted, "Sub")
    largest = scope.producer(less.inputs[1], "ReduceMax") if less is not None else None
    if less is None or largest is None or largest.inputs[0] != less.inputs[0] or only_axis(largest, scope) != axis:
        return Rewrite((node(n.name, op_type, (shifted,), n.outputs[0], sources, axis=axis),))
    return Rewrite(
        (node(n.name, op_type, less.inputs[:1], n.outputs[0], (*largest.sources, *less.sources, *sources), axis=axis),)
    )


RULES: Mapping[str, Sequence[Rule]] = {"Div": (quotient,), "Sub": (difference,)}
