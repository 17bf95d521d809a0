"""Rules of the operators that only move or rename data: Reshape, Transpose, Slice, Pad, Concat and their other spellings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.rewrite import Rewrite, Rule, Scope, node, operand, reshape
from toolchain.ir.graph import Node, OnnxOp


def identity(n: Node, scope: Scope) -> Rewrite | None:
    return Rewrite(same=n.inputs[0])


def dropout(n: Node, scope: Scope) -> Rewrite | None:
    if operand(n, 2) and scope.constants.get(operand(n, 2), np.True_).any():
        raise refuse_node(n, "is in training mode", "export the model for inference (eval mode)")
    if any(n.outputs[1:]):
        raise refuse_node(n, "its mask is used", "export the model for inference (eval mode)")
    return Rewrite(same=n.inputs[0])


def cast(n: Node, scope: Scope) -> Rewrite | None:
    return Rewrite(same=n.inputs[0]) if scope.types[n.inputs[0]] == scope.types[n.outputs[0]] else None


def expand(n: Node, scope: Scope) -> Rewrite | None:
    return Rewrite(same=n.inputs[0]) if scope.shape(n.inputs[0]) == scope.shape(n.outputs[0]) else None


def to_reshape(n: Node, scope: Scope) -> Rewrite | None:
    """Flatten, Squeeze, Unsqueeze and Reshape by any rule: Reshape to the static shape."""
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


def transpose(n: Node, scope: Scope) -> Rewrite | None:
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
    return list(values) == sorted(values)


def slice_(n: Node, scope: Scope) -> Rewrite | None:
    """starts, ends, axes, steps all there, one entry an axis that is really cut, axes rising, all counted from the front.

    With a negative step an end before the first element is -dim - 1, as counted by ONNX.
    """
    parameters = [scope.constants.get(name) if name else None for name in (*n.inputs[1:], "", "")[:4]]
    given = [bool(name) for name in (*n.inputs[1:], "", "")[:4]]
    if any(g and p is None for g, p in zip(given, parameters)):
        return None
    shape = scope.shape(n.inputs[0])
    cuts = slice_cuts(shape, *parameters)
    cuts = {a: c for a, c in cuts.items() if c != (0, shape[a], 1)}
    if not cuts:
        return Rewrite(same=n.inputs[0])
    columns = [[cuts[a][0] for a in cuts], [cuts[a][1] for a in cuts], list(cuts), [cuts[a][2] for a in cuts]]
    if all(p is not None and p.tolist() == c for p, c in zip(parameters, columns)):
        return None
    return Rewrite((slice_node(n.name, n.inputs[0], cuts, n.outputs[0], n.sources, scope),))


def slice_cuts(
    shape: tuple[int, ...],
    starts: np.ndarray | None,
    ends: np.ndarray | None,
    axes: np.ndarray | None,
    steps: np.ndarray | None,
) -> dict[int, tuple[int, int, int]]:
    """axis -> (start, end, step), by rising axis."""
    first = [] if starts is None else starts.tolist()
    last = [] if ends is None else ends.tolist()
    where = list(range(len(first))) if axes is None else [a % len(shape) for a in axes.tolist()]
    step = [1] * len(first) if steps is None else steps.tolist()
    cuts = {}
    for a, s, e, d in sorted(zip(where, first, last, step)):
        start, stop, _ = slice(s, e, d).indices(shape[a])
        if d > 0:
            stop = max(stop, start)
        cuts[a] = (start, stop if stop >= 0 else -shape[a] - 1, d)
    return cuts


def slice_node(
    name: str, x: str, cuts: Mapping[int, tuple[int, int, int]], output: str, sources: Sequence[str], scope: Scope
) -> Node:
    starts = scope.ints(f"{name}/starts", [c[0] for c in cuts.values()])
    ends = scope.ints(f"{name}/ends", [c[1] for c in cuts.values()])
    axes = scope.ints(f"{name}/axes", list(cuts))
    steps = scope.ints(f"{name}/steps", [c[2] for c in cuts.values()])
    return node(name, "Slice", (x, starts, ends, axes, steps), output, sources)


def split(n: Node, scope: Scope) -> Rewrite | None:
    axis, start, slices = n.op.attributes["axis"], 0, []
    if not 0 <= axis < len(scope.shape(n.inputs[0])):
        raise refuse_node(n, f"axis {axis} is outside rank {len(scope.shape(n.inputs[0]))}")
    dim = scope.shape(n.inputs[0])[axis]
    sizes = scope.constants.get(operand(n, 1))
    if sizes is None:
        if operand(n, 1):
            return None
        sizes = np.full(n.op.attributes["num_outputs"], -(-dim // n.op.attributes["num_outputs"]))
    for index, (output, size) in enumerate(zip(n.outputs, sizes.tolist())):
        end = min(start + size, dim)
        if output:
            slices.append(slice_node(f"{n.name}/{index}", n.inputs[0], {axis: (start, end, 1)}, output, n.sources, scope))
        start = end
    return Rewrite(tuple(slices))


def pad(n: Node, scope: Scope) -> Rewrite | None:
    """pads for every axis, no axes; a constant pad has its value."""
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


def concat(n: Node, scope: Scope) -> Rewrite | None:
    full = tuple(x for x in n.inputs if 0 not in scope.shape(x)) or n.inputs[:1]
    if len(full) == 1:
        return Rewrite(same=full[0])
    if full == n.inputs:
        return None
    return Rewrite((replace(n, inputs=full),))


def gather(n: Node, scope: Scope) -> Rewrite | None:
    """Constant indices that rise one by one, or a single one: a Slice, and a Reshape when the axis goes."""
    indices, axis, x = scope.constants.get(n.inputs[1]), n.op.attributes["axis"], n.inputs[0]
    if indices is None or indices.ndim > 1 or indices.size == 0 or x in scope.constants:
        return None
    dim = scope.shape(x)[axis]
    wanted = [int(i) % dim for i in indices.reshape(-1)]
    if wanted != list(range(wanted[0], wanted[0] + len(wanted))):
        return None
    part = scope.tensor(f"{n.outputs[0]}/slice")
    cut = slice_node(f"{n.name}/slice", x, {axis: (wanted[0], wanted[-1] + 1, 1)}, part, n.sources, scope)
    return Rewrite((cut, reshape(n, "", part, scope.shape(n.outputs[0]), n.outputs[0], scope)))


RULES: Mapping[str, Sequence[Rule]] = {
    "Identity": (identity,),
    "Dropout": (dropout,),
    "Cast": (cast,),
    "Expand": (expand,),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), (to_reshape,)),
    "Transpose": (transpose,),
    "Slice": (slice_,),
    "Split": (split,),
    "Pad": (pad,),
    "Concat": (concat,),
    "Gather": (gather,),
}
