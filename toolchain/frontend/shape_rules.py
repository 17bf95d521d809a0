"""Rewrite operators that only move data into canonical form: Reshape, Transpose, Pad, Concat and what else means one of them.

`canonicalize` applies `RULES` and `DECOMPOSITIONS` by operator. Each rule returns the replacement of its node, or None where
it does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.rewrite import Decomposition, NodeChain, Rewrite, Rewriter, Rule, node, operand, reshape
from toolchain.frontend.slice_rules import concat_slices, slice_node
from toolchain.ir.graph import MAX_PARTS, OnnxNode, OnnxOp


def identity(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Remove the node: its output is its input."""
    return Rewrite(same=n.inputs[0])


def dropout(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Remove a Dropout. Raise NodeFault where it trains, or may as its flag is computed, or its mask is used."""
    if operand(n, 2) and scope.constants.get(operand(n, 2), np.True_).any():
        raise refuse_node(n, "is in training mode", "export the model for inference (eval mode)")
    if any(n.outputs[1:]):
        raise refuse_node(n, "its mask is used", "export the model for inference (eval mode)")
    return Rewrite(same=n.inputs[0])


def cast(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Remove a Cast to the type that its input has."""
    return Rewrite(same=n.inputs[0]) if scope.types[n.inputs[0]] == scope.types[n.outputs[0]] else None


def expand(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Remove an Expand to the shape that its input has."""
    return Rewrite(same=n.inputs[0]) if scope.shape(n.inputs[0]) == scope.shape(n.outputs[0]) else None


def tile(chain: NodeChain) -> None:
    """Decompose a Tile: for each repeated dimension, Reshape to a new dimension of one before it, Expand that, and Reshape
    back.
    """
    n, scope = chain.node, chain.scope
    repeats, x = scope.constants.get(n.inputs[1]), n.inputs[0]
    shape = scope.shape(x)
    if repeats is None or 0 in (*shape, *scope.shape(n.outputs[0])) or all(r == 1 or d == 1 for r, d in zip(repeats, shape)):
        return
    sizes = list(shape)
    for axis, count in enumerate(repeats.tolist()):
        if count == 1:
            continue
        around = (*sizes[:axis], 1, *sizes[axis:])
        copied = chain.add("Expand", chain.add("Reshape", x, around), (*sizes[:axis], count, *sizes[axis:]))
        sizes[axis] *= count
        x = chain.add("Reshape", copied, tuple(sizes))


def to_reshape(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite Flatten, Squeeze, Unsqueeze and Reshape as a Reshape to the static shape; merge it with a Reshape before.

    One that changes no shape is removed. One without elements stays.
    """
    shape = scope.shape(n.outputs[0])
    if 0 in shape:
        return None
    x = n.inputs[0]
    if scope.shape(x) == shape:
        return Rewrite(same=x)
    if before := scope.producer(x, "Reshape"):
        sources = (*before.sources, *n.sources)
        return Rewrite((replace(reshape(n, "", before.inputs[0], shape, n.outputs[0], scope), sources=sources),))
    if (
        n.op.op_type == "Reshape"
        and np.array_equal(scope.constants.get(n.inputs[1], ()), shape)
        and not n.op.attributes["allowzero"]
    ):
        return None
    return Rewrite((reshape(n, "", x, shape, n.outputs[0], scope),))


def transpose(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Merge Transposes; remove one that changes nothing, or make it a Reshape where only dimensions of one move."""
    x = n.inputs[0]
    shape = scope.shape(x)
    perm = tuple(n.op.attributes.get("perm", range(len(shape))[::-1]))
    if perm == tuple(range(len(shape))):
        return Rewrite(same=x)
    if 0 not in shape and is_sorted([p for p in perm if shape[p] != 1]):
        return Rewrite((reshape(n, "", x, scope.shape(n.outputs[0]), n.outputs[0], scope),))
    if before := scope.producer(x, "Transpose"):
        inner = before.op.attributes["perm"]
        sources = (*before.sources, *n.sources)
        return Rewrite((node(n.name, "Transpose", before.inputs, n.outputs[0], sources, perm=tuple(inner[p] for p in perm)),))
    if "perm" not in n.op.attributes:
        return Rewrite((replace(n, op=OnnxOp("Transpose", {"perm": perm})),))
    return None


def is_sorted(values: Sequence[int]) -> bool:
    """Return whether no value is below the one before it."""
    return list(values) == sorted(values)


def pad(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Write a Pad's pads for every axis, and its value; remove one that adds nothing."""
    pads = scope.constants.get(n.inputs[1])
    if pads is None:
        return None
    rank = len(scope.shape(n.inputs[0]))
    if operand(n, 3):
        axes = scope.constants.get(operand(n, 3))
        if axes is None:
            return None
        full = np.zeros(2 * rank, np.int64)
        for i, a in enumerate(axes.tolist()):
            full[a % rank], full[a % rank + rank] = pads[i], pads[i + len(axes)]
        inputs = (n.inputs[0], scope.constant(f"{n.name}/pads", full), *n.inputs[2:3])
        return Rewrite((replace(n, inputs=inputs if inputs[-1] else inputs[:-1]),))
    if not pads.any():
        return Rewrite(same=n.inputs[0])
    if n.op.attributes["mode"] == "constant" and not operand(n, 2):
        value = scope.constant(f"{n.name}/value", np.zeros((), scope.types[n.inputs[0]].dtype))
        return Rewrite((replace(n, inputs=(*n.inputs[:2], value)),))
    return None


def concat(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Drop parts of a Concat without elements; remove it where one part is left."""
    axis = n.op.attributes["axis"]
    full = tuple(x for x in n.inputs if scope.shape(x)[axis]) or n.inputs[:1]
    if len(full) == 1:
        return Rewrite(same=full[0])
    if full == n.inputs:
        return None
    return Rewrite((replace(n, inputs=full),))


def concat_constant(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a Concat of one computed part and constants as a Pad by zeros and an Add of the constants, as of a class token.

    Only floats are so rewritten.
    """
    computed = [i for i, name in enumerate(n.inputs) if name not in scope.constants]
    if len(computed) != 1 or len(n.inputs) == 1 or not scope.is_float(n.inputs[0]):
        return None
    (index,), x = computed, n.inputs[computed[0]]
    axis: int = n.op.attributes["axis"]
    sizes = [scope.shape(name)[axis] for name in n.inputs]
    rank, dtype = len(scope.shape(x)), scope.types[x].dtype
    pads = np.zeros(2 * rank, np.int64)
    pads[axis], pads[axis + rank] = sum(sizes[:index]), sum(sizes[index + 1 :])
    around = scope.tensor(f"{n.outputs[0]}/around")
    zeros = np.zeros(scope.shape(x), dtype)
    values = np.concatenate([scope.constants.get(name, zeros) for name in n.inputs], axis)
    padding = (x, scope.ints(f"{n.name}/pads", pads.tolist()), scope.constant(f"{n.name}/zero", np.zeros((), dtype)))
    return Rewrite(
        (
            node(f"{n.name}/pad", "Pad", padding, around, n.sources, mode="constant"),
            node(n.name, "Add", (around, scope.constant(f"{n.name}/values", values)), n.outputs[0], n.sources),
        )
    )


def crop(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a constant Pad with negative pads as a Slice, followed by a Pad where some are positive."""
    pads, x = scope.constants.get(n.inputs[1]), n.inputs[0]
    if n.op.attributes["mode"] != "constant" or pads is None or operand(n, 3) or pads.min() >= 0:
        return None
    shape = scope.shape(x)
    before, after = pads[: len(shape)].tolist(), pads[len(shape) :].tolist()
    cuts = {a: (max(0, -b), d + min(0, e), 1) for a, (d, b, e) in enumerate(zip(shape, before, after)) if min(b, e) < 0}
    if any(end <= start for start, end, _ in cuts.values()):
        return None
    if pads.max() <= 0:
        return Rewrite((slice_node(n.name, x, cuts, n.outputs[0], n.sources, scope),))
    part = scope.tensor(f"{n.outputs[0]}/crop")
    around = replace(n, inputs=(part, scope.ints(f"{n.name}/pads", pads.clip(0).tolist()), *n.inputs[2:]))
    return Rewrite((slice_node(f"{n.name}/crop", x, cuts, part, n.sources, scope), around))


def pad_by_copies(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a Pad by the edge or by reflection as a Concat of single rows and the tensor, axis by axis.

    It stays where an axis gets MAX_PARTS elements or more, or some side more than the tensor has to reflect.
    """
    mode, pads = n.op.attributes["mode"], scope.constants.get(n.inputs[1])
    if mode not in ("edge", "reflect") or pads is None or operand(n, 3) or not scope.is_float(n.inputs[0]):
        return None
    shape = list(scope.shape(n.inputs[0]))
    rank = len(shape)
    wide = [(a, int(pads[a]), int(pads[a + rank])) for a in range(rank) if pads[a] or pads[a + rank]]
    most = {a: MAX_PARTS if mode == "edge" and shape[a] else shape[a] - 1 for a, _, _ in wide}
    if not wide or any(min(b, e) < 0 or b + e + 1 > MAX_PARTS or max(b, e) > most[a] for a, b, e in wide):
        return None
    nodes, x = list[OnnxNode](), n.inputs[0]
    for a, before, after in wide:
        d = shape[a]
        first = [0] * before if mode == "edge" else range(before, 0, -1)
        last = [d - 1] * after if mode == "edge" else range(d - 2, d - 2 - after, -1)
        cuts = [{a: (i, i + 1, 1)} for i in first] + [{a: (0, d, 1)}] + [{a: (i, i + 1, 1)} for i in last]
        y = n.outputs[0] if (a, before, after) == wide[-1] else scope.tensor(f"{n.outputs[0]}/axis{a}")
        nodes += concat_slices(replace(n, name=f"{n.name}/axis{a}"), x, cuts, a, y, scope)
        shape[a], x = d + before + after, y
    return Rewrite(tuple(nodes))


RULES: Mapping[str, Sequence[Rule]] = {
    "Identity": (identity,),
    "Dropout": (dropout,),
    "Cast": (cast,),
    "Expand": (expand,),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), (to_reshape,)),
    "Transpose": (transpose,),
    "Pad": (pad, crop, pad_by_copies),
    "Concat": (concat, concat_constant),
}
DECOMPOSITIONS: Mapping[str, Decomposition] = {"Tile": tile}
