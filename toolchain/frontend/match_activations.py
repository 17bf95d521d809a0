"""Match one function that is written as several operators: Softmax, LogSoftmax, HardSigmoid, HardSwish, Gelu.

Each rule in `RULES` is anchored at the last node of the pattern; it returns the function in its place, or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose, sqrt

import numpy as np

from toolchain.frontend.arithmetic_rules import clip_limits, scalar
from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, operand
from toolchain.ir.graph import OnnxNode

SIXTH = 1 / 6


def quotient(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Match exp(z) / sum(exp(z)) as Softmax(z), and as Softmax(x) where z is x - max(x)."""
    e, total = n.inputs
    exponential, summed = scope.producer(e, "Exp"), sum_of(total, scope)
    if exponential is None or summed is None or summed[0] != e:
        return None
    return build_softmax(n, "Softmax", exponential.inputs[0], summed[1], (*exponential.sources, *summed[2], *n.sources), scope)


def difference(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Match z - log(sum(exp(z))) as LogSoftmax(z), and as LogSoftmax(x) where z is x - max(x)."""
    shifted, logarithm = n.inputs[0], scope.producer(n.inputs[1], "Log")
    summed = sum_of(logarithm.inputs[0], scope) if logarithm is not None else None
    exponential = scope.producer(summed[0], "Exp") if summed is not None else None
    if logarithm is None or summed is None or exponential is None or exponential.inputs[0] != shifted:
        return None
    sources = (*exponential.sources, *summed[2], *logarithm.sources, *n.sources)
    return build_softmax(n, "LogSoftmax", shifted, summed[1], sources, scope)


def sum_of(name: str, scope: Rewriter) -> tuple[str, int, tuple[str, ...]] | None:
    """Return the summand, its axis and the sources of a sum over one axis, which canonical form has as a mean times the count."""
    factor = scope.producer(name, "Mul")
    mean = scope.producer(factor.inputs[0], "ReduceMean") if factor is not None else None
    axis = only_axis(mean, scope) if mean is not None else None
    if factor is None or mean is None or axis is None:
        return None
    x = mean.inputs[0]
    return (x, axis, (*mean.sources, *factor.sources)) if scalar(factor.inputs[1], scope) == scope.shape(x)[axis] else None


def only_axis(reduction: OnnxNode, scope: Rewriter) -> int | None:
    """Return the axis of a reduction over one constant axis; else None."""
    axes = scope.constants.get(operand(reduction, 1))
    return int(axes[0]) if axes is not None and axes.size == 1 else None


def build_softmax(n: OnnxNode, op_type: str, shifted: str, axis: int, sources: Sequence[str], scope: Rewriter) -> Rewrite | None:
    """Return the Softmax of x over `axis`, where `shifted` is x - max(x); of `shifted` itself where it is anything else."""
    if not scope.is_float(shifted):
        return None
    less = scope.producer(shifted, "Sub")
    largest = scope.producer(less.inputs[1], "ReduceMax") if less is not None else None
    if less is None or largest is None or largest.inputs[0] != less.inputs[0] or only_axis(largest, scope) != axis:
        return Rewrite((node(n.name, op_type, (shifted,), n.outputs[0], sources, axis=axis),))
    return Rewrite(
        (node(n.name, op_type, less.inputs[:1], n.outputs[0], (*largest.sources, *less.sources, *sources), axis=axis),)
    )


def close(a: float | None, b: float) -> bool:
    """Return whether a is b within 1e-5 of it; False for None."""
    return a is not None and isclose(a, b, rel_tol=1e-5)


def match_clipped_sum(name: str, scope: Rewriter) -> tuple[OnnxNode, OnnxNode, float, float] | None:
    """Return (Clip, Add, b, k) where `name` is clip(x + b, 0, k) of floats and each step has one reader; else None."""
    clip = scope.only_user(name, ("Clip",)) if scope.is_float(name) else None
    add = scope.only_user(clip.inputs[0], ("Add",)) if clip is not None else None
    if clip is None or add is None:
        return None
    limits, b = clip_limits(clip, scope), scalar(add.inputs[1], scope)
    if limits is None or limits[0] != 0 or not limits[1] or b is None or scope.shape(add.inputs[0]) != scope.shape(name):
        return None
    return clip, add, b, limits[1]


def hard_sigmoid(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Match clip(x + b, 0, k) * (1 / k) as HardSigmoid with alpha 1 / k and beta b / k."""
    clipped_sum, factor = match_clipped_sum(n.inputs[0], scope), scalar(n.inputs[1], scope)
    if clipped_sum is None or not close(factor, 1 / clipped_sum[3]):
        return None
    clip, add, b, k = clipped_sum
    sources = (*add.sources, *clip.sources, *n.sources)
    return Rewrite((node(n.name, "HardSigmoid", add.inputs[:1], n.outputs[0], sources, alpha=1 / k, beta=b / k),))


def hard_swish(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Match x * clip(x + 3, 0, 6) as 6 HardSwish(x), and x * HardSigmoid(x) with alpha 1/6 and beta 1/2 as HardSwish(x)."""
    for x, other in (n.inputs, n.inputs[::-1]):
        gate = scope.only_user(other, ("HardSigmoid",))
        if gate is not None and gate.inputs[0] == x:
            if close(gate.op.attributes["alpha"], SIXTH) and close(gate.op.attributes["beta"], 0.5):
                return Rewrite((node(n.name, "HardSwish", (x,), n.outputs[0], (*gate.sources, *n.sources)),))
            return None
        clipped_sum = match_clipped_sum(other, scope)
        if clipped_sum is None or clipped_sum[1].inputs[0] != x or not close(clipped_sum[2], 3) or not close(clipped_sum[3], 6):
            continue
        sources = (*clipped_sum[1].sources, *clipped_sum[0].sources, *n.sources)
        return Rewrite(build_scaled_function(n, "HardSwish", x, 6.0, sources, scope))
    return None


def build_scaled_function(
    n: OnnxNode, op_type: str, x: str, factor: float, sources: Sequence[str], scope: Rewriter
) -> tuple[OnnxNode, ...]:
    """Return nodes for factor * f(x); the factor then merges with a constant that follows."""
    attributes = {"approximate": "none"} if op_type == "Gelu" else {}
    y = scope.tensor(f"{n.outputs[0]}/unscaled")
    constant = scope.constant(f"{n.name}/factor", np.asarray(factor, scope.types[x].dtype))
    return (
        node(n.name, op_type, (x,), y, sources, **attributes),
        node(f"{n.name}/scale", "Mul", (y, constant), n.outputs[0], n.sources),
    )


def gelu(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Match (x / 2) * (1 + erf(x / sqrt 2)) as Gelu(x); without the half it is 2 Gelu(x)."""
    for half_operand, other in (n.inputs, n.inputs[::-1]):
        erf_match = one_plus_erf(other, scope)
        if erf_match is None:
            continue
        x, inside = erf_match
        sources = (*inside, *n.sources)
        half = scope.only_user(half_operand, ("Mul",))
        if half_operand == x:
            return Rewrite(build_scaled_function(n, "Gelu", x, 2.0, sources, scope))
        if half is not None and half.inputs[0] == x and close(scalar(half.inputs[1], scope), 0.5):
            return Rewrite((node(n.name, "Gelu", (x,), n.outputs[0], (*half.sources, *sources), approximate="none"),))
    return None


def one_plus_erf(name: str, scope: Rewriter) -> tuple[str, tuple[str, ...]] | None:
    """Return x and the sources where `name` is 1 + erf(x / sqrt 2) and each step has one reader; else None."""
    add = scope.only_user(name, ("Add",))
    erf = scope.only_user(add.inputs[0], ("Erf",)) if add is not None and close(scalar(add.inputs[1], scope), 1) else None
    mul = scope.only_user(erf.inputs[0], ("Mul",)) if erf is not None else None
    if add is None or erf is None or mul is None or not close(scalar(mul.inputs[1], scope), sqrt(0.5)):
        return None
    return mul.inputs[0], (*mul.sources, *erf.sources, *add.sources)


RULES: Mapping[str, Sequence[Rule]] = {
    "Div": (quotient,),
    "Mul": (hard_sigmoid, hard_swish, gelu),
    "Sub": (difference,),
}
