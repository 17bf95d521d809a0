"""Rules of the operators that only move or rename data: Reshape, Transpose, Slice, Pad, Concat and their other spellings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.rewrite import Rewrite, RewriteScope, Rule, node, operand, reshape
from toolchain.ir.graph import MAX_PARTS, OnnxNode, OnnxOp


def identity(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    return Rewrite(same=n.inputs[0])


def dropout(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    if operand(n, 2) and scope.constants.get(operand(n, 2), np.True_).any():
        raise refuse_node(n, "is in training mode", "export the model for inference (eval mode)")
    if any(n.outputs[1:]):
        raise refuse_node(n, "its mask is used", "export the model for inference (eval mode)")
    return Rewrite(same=n.inputs[0])


def cast(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    return Rewrite(same=n.inputs[0]) if scope.types[n.inputs[0]] == scope.types[n.outputs[0]] else None


def expand(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    return Rewrite(same=n.inputs[0]) if scope.shape(n.inputs[0]) == scope.shape(n.outputs[0]) else None


def to_reshape(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
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


def transpose(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
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


def slice_(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
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


def reversed_slice(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    """A negative step over few elements, in slice_'s form: the other cuts, then a Concat of the elements."""
    starts, ends, axes, steps = (scope.constants.get(name) for name in n.inputs[1:])
    if starts is None or ends is None or axes is None or steps is None or not scope.is_float(n.inputs[0]):
        return None
    cuts = {a: (s, e, d) for a, s, e, d in zip(axes.tolist(), starts.tolist(), ends.tolist(), steps.tolist())}
    axis = next((a for a, (_, _, step) in cuts.items() if step < 0), None)
    if axis is None:
        return None
    start, end, step = cuts.pop(axis)
    wanted = range(start, max(end, -1), step)
    if not 0 < len(wanted) <= MAX_PARTS:
        return None
    nodes, x = [], n.inputs[0]
    if cuts:
        x = scope.tensor(f"{n.outputs[0]}/cut")
        nodes.append(slice_node(f"{n.name}/cut", n.inputs[0], cuts, x, n.sources, scope))
    return Rewrite((*nodes, *joined(n, x, [{axis: (i, i + 1, 1)} for i in wanted], axis, n.outputs[0], scope)))


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
    name: str, x: str, cuts: Mapping[int, tuple[int, int, int]], output: str, sources: Sequence[str], scope: RewriteScope
) -> OnnxNode:
    starts = scope.ints(f"{name}/starts", [c[0] for c in cuts.values()])
    ends = scope.ints(f"{name}/ends", [c[1] for c in cuts.values()])
    axes = scope.ints(f"{name}/axes", list(cuts))
    steps = scope.ints(f"{name}/steps", [c[2] for c in cuts.values()])
    return node(name, "Slice", (x, starts, ends, axes, steps), output, sources)


def split(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    axis, start, slices = n.op.attributes["axis"], 0, []
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


def pad(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
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


def concat(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    full = tuple(x for x in n.inputs if 0 not in scope.shape(x)) or n.inputs[:1]
    if len(full) == 1:
        return Rewrite(same=full[0])
    if full == n.inputs:
        return None
    return Rewrite((replace(n, inputs=full),))


def concat_constant(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    """One computed part between constants: zeros put around it, then the constants added to those. A class token."""
    computed = [i for i, name in enumerate(n.inputs) if name not in scope.constants]
    if len(computed) != 1 or len(n.inputs) == 1 or not scope.is_float(n.inputs[0]):
        return None
    (index,), axis = computed, n.op.attributes["axis"]
    x, sizes = n.inputs[index], [scope.shape(name)[axis] for name in n.inputs]
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


def gather(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    """Constant indices in few evenly rising runs: Slices, joined by a Concat, under the output's shape."""
    indices, axis, x = scope.constants.get(n.inputs[1]), n.op.attributes["axis"], n.inputs[0]
    if indices is None or indices.size == 0 or x in scope.constants:
        return None
    dim = scope.shape(x)[axis]
    wanted = rising_runs([int(i) % dim for i in indices.reshape(-1)])
    if len(wanted) > MAX_PARTS:
        return None
    part = scope.tensor(f"{n.outputs[0]}/slice")
    cuts = [{axis: (run.start, run.stop, run.step)} for run in wanted]
    return Rewrite((*joined(n, x, cuts, axis, part, scope), reshape(n, "", part, scope.shape(n.outputs[0]), n.outputs[0], scope)))


def rising_runs(indices: Sequence[int]) -> list[range]:
    """The indices as ranges of positive step, the longest first run first."""
    runs: list[range] = []
    for i in indices:
        last = runs[-1] if runs else range(0)
        step = i - last.start if len(last) == 1 else last.step
        if runs and step > 0 and i == last[-1] + step:
            runs[-1] = range(last.start, i + 1, step)
        else:
            runs.append(range(i, i + 1))
    return runs


def joined(
    n: OnnxNode, x: str, cuts: Sequence[Mapping[int, tuple[int, int, int]]], axis: int, output: str, scope: RewriteScope
) -> list[OnnxNode]:
    """Slices of x behind each other along `axis`; a slice that is asked for twice is made once."""
    if len(cuts) == 1:
        return [slice_node(f"{n.name}/slice", x, cuts[0], output, n.sources, scope)]
    nodes: list[OnnxNode] = []
    made: dict[tuple[int, int, int], str] = {}
    for cut in cuts:
        if cut[axis] not in made:
            made[cut[axis]] = part = scope.tensor(f"{output}/part")
            nodes.append(slice_node(f"{n.name}/part{len(made)}", x, cut, part, n.sources, scope))
    parts = [made[cut[axis]] for cut in cuts]
    return [*nodes, node(f"{n.name}/join", "Concat", parts, output, n.sources, axis=axis)]


def crop(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    """Negative padding by a constant: a Slice, then what is positive of it."""
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


def pad_by_copies(n: OnnxNode, scope: RewriteScope) -> Rewrite | None:
    """Padding by the edge or by reflection, one axis after the other: a Concat of rows and the whole."""
    mode, pads = n.op.attributes["mode"], scope.constants.get(n.inputs[1])
    if mode not in ("edge", "reflect") or pads is None or operand(n, 3) or not scope.is_float(n.inputs[0]):
        return None
    shape = list(scope.shape(n.inputs[0]))
    rank = len(shape)
    wide = [(a, int(pads[a]), int(pads[a + rank])) for a in range(rank) if pads[a] or pads[a + rank]]
    least = 0 if mode == "edge" else 1
    if not wide or any(min(b, e) < 0 or b + e + 1 > MAX_PARTS or max(b, e) > shape[a] - least for a, b, e in wide):
        return None
    nodes, x = [], n.inputs[0]
    for a, before, after in wide:
        d = shape[a]
        first = [0] * before if mode == "edge" else range(before, 0, -1)
        last = [d - 1] * after if mode == "edge" else range(d - 2, d - 2 - after, -1)
        cuts = [{a: (i, i + 1, 1)} for i in first] + [{a: (0, d, 1)}] + [{a: (i, i + 1, 1)} for i in last]
        y = n.outputs[0] if (a, before, after) == wide[-1] else scope.tensor(f"{n.outputs[0]}/axis{a}")
        nodes += joined(replace(n, name=f"{n.name}/axis{a}"), x, cuts, a, y, scope)
        shape[a], x = d + before + after, y
    return Rewrite(tuple(nodes))


RULES: Mapping[str, Sequence[Rule]] = {
    "Identity": (identity,),
    "Dropout": (dropout,),
    "Cast": (cast,),
    "Expand": (expand,),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), (to_reshape,)),
    "Transpose": (transpose,),
    "Slice": (slice_, reversed_slice),
    "Split": (split,),
    "Pad": (pad, crop, pad_by_copies),
    "Concat": (concat, concat_constant),
    "Gather": (gather,),
}
