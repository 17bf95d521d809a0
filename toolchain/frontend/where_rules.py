"""Rewrite operators on bool tensors, Where, and Clip with computed limits. Each rule returns the node's replacement, or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, operand
from toolchain.ir.graph import OnnxNode, OnnxOp


def _find_producer(name: str, kind: str, scope: Rewriter) -> OnnxNode | None:
    producer = scope.producers.get(name)
    return producer if producer is not None and producer.op.op_type == kind and not producer.op.domain else None


def not_not(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Remove a double Not."""
    before = _find_producer(n.inputs[0], "Not", scope)
    return None if before is None else Rewrite(same=before.inputs[0])


def where_not(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite Where(Not(c), x, y) as Where(c, y, x)."""
    before = _find_producer(n.inputs[0], "Not", scope)
    if before is None:
        return None
    _, x, y = n.inputs
    return Rewrite((replace(n, inputs=(before.inputs[0], y, x), sources=(*before.sources, *n.sources)),))


def fold_constant_where(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Replace a Where whose constant condition is true throughout, or false throughout, by the chosen operand."""
    chosen = scope.constants.get(n.inputs[0])
    if chosen is None or not chosen.size or (chosen != chosen.reshape(-1)[0]).any():
        return None
    chosen_input = n.inputs[1 if chosen.reshape(-1)[0] else 2]
    return (
        Rewrite(same=chosen_input)
        if scope.shape(chosen_input) == scope.shape(n.outputs[0]) and chosen_input not in scope.constants
        else None
    )


def cast_of_truth(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Merge two Casts of a bool into one; every type holds 0 and 1."""
    before = _find_producer(n.inputs[0], "Cast", scope)
    if before is None or scope.types[before.inputs[0]].dtype != "bool":
        return None
    return Rewrite((replace(n, inputs=before.inputs, sources=(*before.sources, *n.sources)),))


def decompose_clip(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite Clip(x, low, high) as Min(Max(x, low), high) where a limit is computed."""
    x, low, high = (operand(n, i) for i in range(3))
    if not scope.is_float(x) or all(name in scope.constants for name in (low, high) if name):
        return None
    nodes: list[OnnxNode] = []
    if low:
        y = scope.tensor(f"{n.outputs[0]}/low") if high else n.outputs[0]
        nodes.append(node(f"{n.name}/low" if high else n.name, "Max", (x, low), y, n.sources))
        x = y
    if high:
        nodes.append(replace(n, op=OnnxOp("Min"), inputs=(x, high)))
    return Rewrite(tuple(nodes))


RULES: Mapping[str, Sequence[Rule]] = {
    "Not": (not_not,),
    "Where": (fold_constant_where, where_not),
    "Cast": (cast_of_truth,),
    "Clip": (decompose_clip,),
}
