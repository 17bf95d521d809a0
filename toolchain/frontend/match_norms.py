"""Match a LayerNormalization or RMSNormalization that is written out as means, differences, roots and quotients.

Each rule in `RULES` is anchored at the last node of such a pattern. It returns the norm in its place, or None.
All weights of the norm are one, or one over the root's constant factor. Later rules fold a scale and a bias behind it into
the norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from toolchain.frontend.match_moments import Sources, VarianceRoot, differences, is_mean, is_same_tensor, roots_of, strip_reshapes
from toolchain.frontend.read_onnx import has_operator
from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, operand
from toolchain.ir.graph import OnnxNode

LAYER_NORM, RMS_NORM = "LayerNormalization", "RMSNormalization"
Scaled = tuple[str, str, Sources]  # a tensor, the constant that it is multiplied by or "", and the product's sources


def quotient(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Match a Div: (x - mean) / sqrt(variance + epsilon), or x / sqrt(mean square + epsilon), its dividend times a constant
    or not.
    """
    spread = scope.producer(n.inputs[1], "Expand")
    roots = (root for root in roots_of(spread.inputs[0] if spread else n.inputs[1], scope) if not root.inverse)
    return next(filter(None, (of_dividend(n, n.inputs[0], root, "", (), scope) for root in roots)), None)


def product(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Match a Mul by one over the root, where either factor may carry a constant."""
    for dividend, other in (n.inputs, n.inputs[::-1]):
        for inverse, scale, sources in strip_constant_factor(other, scope):
            for root in roots_of(inverse, scope):
                norm_rewrite = of_dividend(n, dividend, root, scale, sources, scope) if root.inverse else None
                if norm_rewrite is not None:
                    return norm_rewrite
    return None


def of_dividend(n: OnnxNode, name: str, root: VarianceRoot, scale: str, sources: Sources, scope: Rewriter) -> Rewrite | None:
    """Return the norm of a dividend `name` above a root, or None. `scale`: the root's constant factor, "" for none."""
    for dividend, own_scale, scaling in strip_constant_factor(name, scope):
        dividend_match = is_dividend(dividend, root, scope) if not (scale and own_scale) else None
        if dividend_match is not None:
            x, steps = dividend_match
            return build_norm(n, x, root, scale or own_scale, "", (*sources, *steps, *scaling), scope)
    return None


def is_dividend(name: str, root: VarianceRoot, scope: Rewriter) -> tuple[str, Sources] | None:
    """Return x and the sources of `name` where it belongs above `root`: x - mean where that is centred, else x; None
    otherwise.
    """
    if not root.centred:
        has_same_elements = scope.shape(name) == root.shape and strip_reshapes(name, scope)[0] == strip_reshapes(root.x, scope)[0]
        return (name, ()) if has_same_elements else None
    less = scope.producer(name, "Sub") or scope.producer(name, "Add")
    for x, mean, difference_sources in differences(less, scope) if less is not None else ():
        inner = is_mean(mean, root, scope)
        if is_same_tensor(x, root.x, scope) and inner is not None:
            return root.x, (*inner, *difference_sources)
    return None


def match_expanded_norm(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Match `x * s - mean * s`, or `x * s + (shift - mean * s)`, with `s = scale / sqrt(variance+epsilon)`."""
    for minuend, subtrahend, shift, sources in minuends(n, scope):
        left, right = scope.producer(minuend, "Mul"), scope.producer(subtrahend, "Mul")
        for x, s in (left.inputs, left.inputs[::-1]) if left is not None and right is not None else ():
            other = [m for m, t in (right.inputs, right.inputs[::-1]) if t == s] if right is not None else []
            for inverse, scale, scaling in strip_constant_factor(s, scope) if other else ():
                root = next(
                    (r for r in roots_of(inverse, scope) if r.centred and r.inverse and is_same_tensor(r.x, x, scope)), None
                )
                inner = is_mean(other[0], root, scope) if root is not None else None
                if root is not None and inner is not None and left is not None and right is not None:
                    steps = (*inner, *scaling, *left.sources, *right.sources, *sources)
                    return build_norm(n, root.x, root, scale, shift, steps, scope)
    return None


def minuends(n: OnnxNode, scope: Rewriter) -> Iterator[tuple[str, str, str, Sources]]:
    """Yield (a, b, shift, sources) for each way to read `n` as a - b, or as a + (shift - b).

    `shift`: the name of a constant; "" where there is none.
    """
    for a, b, sources in differences(n, scope):
        yield a, b, "", sources
    for a, rest in (n.inputs, n.inputs[::-1]) if n.op.op_type == "Add" else ():
        less = scope.producer(rest, "Sub") or scope.producer(rest, "Add")
        for shift, b, sources in differences(less, scope) if less is not None else ():
            if shift in scope.constants:
                yield a, b, shift, (*sources, *n.sources)


def strip_constant_factor(name: str, scope: Rewriter) -> Iterator[Scaled]:
    """Yield (`name`, "", ()), and, where it is a product with a constant, (the other factor, the constant, sources)."""
    yield name, "", ()
    n = scope.producer(name, "Mul")
    if n is not None and n.inputs[1] in scope.constants:
        yield n.inputs[0], n.inputs[1], n.sources


def build_norm(
    n: OnnxNode, x: str, root: VarianceRoot, scale: str, shift: str, sources: Sources, scope: Rewriter
) -> Rewrite | None:
    """Return the norm of x in the place of `n`, followed by its scale and its shift where they are not "".

    None where x is no float, the result is larger than x by an Expand, or onnxruntime has no RMSNormalization.
    """
    if not scope.is_float(x) or not (root.centred or has_operator(RMS_NORM)):
        return None
    steps = [(op, constant) for op, constant in (("Mul", scale), ("Add", shift)) if constant]
    if np.broadcast_shapes(root.shape, *(scope.shape(constant) for _, constant in steps)) != scope.shape(n.outputs[0]):
        return None
    y = scope.tensor(f"{n.outputs[0]}/normalised") if steps else n.outputs[0]
    norm = norm_of(n, x, root, y, (*root.sources, *sources, *n.sources), scope)
    if norm is None:
        return None
    nodes = list(norm)
    for i, (op, constant) in enumerate(steps):
        last = i == len(steps) - 1
        after = n.outputs[0] if last else scope.tensor(f"{n.outputs[0]}/scaled")
        nodes.append(node(f"{n.name}/{op.lower()}", op, (y, constant), after, n.sources))
        y = after
    return Rewrite(tuple(nodes))


def norm_of(
    n: OnnxNode, x: str, root: VarianceRoot, y: str, sources: Sequence[str], scope: Rewriter
) -> tuple[OnnxNode, ...] | None:
    """Return the nodes of a norm over the root's axes, which makes `y`; other axes than the last stand between two Transposes."""
    axes, shape = root.axes, root.shape
    if not axes:
        return None
    if axes == tuple(i for i in range(axes[0], len(shape)) if shape[i] != 1):
        return (norm_node(n.name, x, axes[0], y, shape[axes[0] :], root, sources, scope),)
    others = [i for i in range(len(shape)) if i not in axes]
    to_last = (*others, *axes)
    from_last = tuple(to_last.index(i) for i in range(len(shape)))
    last, done = scope.tensor(f"{x}/last"), scope.tensor(f"{n.outputs[0]}/last")
    return (
        node(f"{n.name}/to_last", "Transpose", (x,), last, n.sources, perm=to_last),
        norm_node(n.name, last, len(others), done, [shape[i] for i in axes], root, sources, scope),
        node(f"{n.name}/from_last", "Transpose", (done,), y, n.sources, perm=from_last),
    )


def norm_node(
    name: str, x: str, axis: int, y: str, over: Sequence[int], root: VarianceRoot, sources: Sequence[str], scope: Rewriter
) -> OnnxNode:
    """Return a norm over the dimensions from `axis` on, of sizes `over`."""
    ones = scope.constant(f"{name}/scale", np.full(tuple(over), 1 / root.factor, scope.types[x].dtype))
    kind = LAYER_NORM if root.centred else RMS_NORM
    return node(name, kind, (x, ones), y, sources, axis=axis, epsilon=root.epsilon, stash_type=1)


def scale_or_shift(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Fold a Mul, or an Add, of one number for each normalised place into the norm before it, also through a Transpose."""
    value, moved = scope.constants.get(n.inputs[1]), scope.only_user(n.inputs[0], ("Transpose",))
    norm_output = n.inputs[0] if moved is None else moved.inputs[0]
    before = scope.only_user(norm_output, (LAYER_NORM, RMS_NORM))
    if value is None or before is None or any(before.outputs[1:]) or scope.shape(n.inputs[0]) != scope.shape(n.outputs[0]):
        return None
    axis = before.op.attributes["axis"]
    over = scope.shape(norm_output)[axis:]
    if moved is not None:
        perm = moved.op.attributes["perm"]
        value = value.reshape((1,) * (len(perm) - value.ndim) + value.shape).transpose(np.argsort(perm))
        value = value.reshape(value.shape[axis:]) if prod(value.shape[:axis]) == 1 else value
    scale, has_bias = scope.constants.get(before.inputs[1]), bool(operand(before, 2))
    if scale is None or scale.shape != over or value.ndim > len(over) or prod(value.shape) > prod(over):
        return None
    full = np.broadcast_to(value, over)
    sources = (*before.sources, *n.sources)
    if n.op.op_type == "Mul" and not has_bias:
        inputs = (before.inputs[0], scope.constant(before.inputs[1], scale * full))
    elif n.op.op_type == "Add" and before.op.op_type == LAYER_NORM and not has_bias:
        inputs = (*before.inputs[:2], scope.constant(f"{before.name}/bias", full))
    else:
        return None
    if moved is None:
        return Rewrite((replace(before, inputs=inputs, outputs=n.outputs, sources=sources),))
    done = scope.tensor(f"{n.outputs[0]}/last")
    norm = replace(before, inputs=inputs, outputs=(done,), sources=sources)
    return Rewrite((norm, replace(moved, inputs=(done,), outputs=n.outputs)))


RULES: Mapping[str, Sequence[Rule]] = {
    "Div": (quotient,),
    "Mul": (product, scale_or_shift),
    "Add": (match_expanded_norm, scale_or_shift),
    "Sub": (match_expanded_norm,),
}
