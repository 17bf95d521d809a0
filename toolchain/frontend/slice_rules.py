"""Rewrite operators that take parts of a tensor into canonical form: Slice, Split, and Gather by constant indices.

Each rule returns the replacement of its node, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, operand, reshape
from toolchain.ir.graph import MAX_PARTS, OnnxNode


def slice_(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Write a Slice with starts, ends, axes and steps for the axes that are really cut, in rising order, counted from the
    front.

    With a negative step an end before the first element is -dim - 1, as counted by ONNX.
    """
    parameters = [scope.constants.get(name) if name else None for name in (*n.inputs[1:], "", "")[:4]]
    present_inputs = [bool(name) for name in (*n.inputs[1:], "", "")[:4]]
    if any(g and p is None for g, p in zip(present_inputs, parameters)):
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


def split_reversed_slice(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a Slice by a negative step over few elements as its other cuts, then a Concat of the elements."""
    starts, ends, axes, steps = (scope.constants.get(name) for name in n.inputs[1:])
    if starts is None or ends is None or axes is None or steps is None or not scope.is_float(n.inputs[0]):
        return None
    cuts = {a: (s, e, d) for a, s, e, d in zip(axes.tolist(), starts.tolist(), ends.tolist(), steps.tolist())}
    axis = next((a for a, (_, _, step) in cuts.items() if step < 0), None)
    if axis is None:
        return None
    start, end, step = cuts.pop(axis)
    source_indices = range(start, max(end, -1), step)
    if not 0 < len(source_indices) <= MAX_PARTS:
        return None
    nodes, x = list[OnnxNode](), n.inputs[0]
    if cuts:
        x = scope.tensor(f"{n.outputs[0]}/cut")
        nodes.append(slice_node(f"{n.name}/cut", n.inputs[0], cuts, x, n.sources, scope))
    return Rewrite((*nodes, *concat_slices(n, x, [{axis: (i, i + 1, 1)} for i in source_indices], axis, n.outputs[0], scope)))


def slice_cuts(
    shape: tuple[int, ...],
    starts: np.ndarray | None,
    ends: np.ndarray | None,
    axes: np.ndarray | None,
    steps: np.ndarray | None,
) -> dict[int, tuple[int, int, int]]:
    """Return axis -> (start, end, step) of a Slice's parameters, by rising axis, each None where it is absent."""
    first: list[int] = [] if starts is None else starts.tolist()
    last: list[int] = [] if ends is None else ends.tolist()
    where: list[int] = list(range(len(first))) if axes is None else [a % len(shape) for a in axes.tolist()]
    step: list[int] = [1] * len(first) if steps is None else steps.tolist()
    cuts = dict[int, tuple[int, int, int]]()
    for a, s, e, d in sorted(zip(where, first, last, step)):
        start, stop, _ = slice(s, e, d).indices(shape[a])
        if d > 0:
            stop = max(stop, start)
        cuts[a] = (start, stop if stop >= 0 else -shape[a] - 1, d)
    return cuts


def slice_node(
    name: str, x: str, cuts: Mapping[int, tuple[int, int, int]], output: str, sources: Sequence[str], scope: Rewriter
) -> OnnxNode:
    """Return a Slice of `x`. `cuts`: axis -> (start, end, step)."""
    starts = scope.ints(f"{name}/starts", [c[0] for c in cuts.values()])
    ends = scope.ints(f"{name}/ends", [c[1] for c in cuts.values()])
    axes = scope.ints(f"{name}/axes", list(cuts))
    steps = scope.ints(f"{name}/steps", [c[2] for c in cuts.values()])
    return node(name, "Slice", (x, starts, ends, axes, steps), output, sources)


def split(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a Split as a Slice for each output."""
    start, slices = 0, list[OnnxNode]()
    axis: int = n.op.attributes["axis"]
    dim = scope.shape(n.inputs[0])[axis]
    sizes = scope.constants.get(operand(n, 1))
    if sizes is None:
        if operand(n, 1):
            return None
        sizes = np.full(n.op.attributes["num_outputs"], -(-dim // n.op.attributes["num_outputs"]))
    lengths: list[int] = sizes.tolist()
    for index, (output, size) in enumerate(zip(n.outputs, lengths)):
        end = min(start + size, dim)
        if output:
            slices.append(slice_node(f"{n.name}/{index}", n.inputs[0], {axis: (start, end, 1)}, output, n.sources, scope))
        start = end
    return Rewrite(tuple(slices))


def gather(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a Gather by constant indices in few evenly rising runs as Slices, a Concat and a Reshape."""
    indices, x = scope.constants.get(n.inputs[1]), n.inputs[0]
    axis: int = n.op.attributes["axis"]
    if indices is None or indices.size == 0 or x in scope.constants:
        return None
    dim = scope.shape(x)[axis]
    index_runs = rising_runs([int(i) % dim for i in indices.reshape(-1)])
    if len(index_runs) > MAX_PARTS:
        return None
    part = scope.tensor(f"{n.outputs[0]}/slice")
    cuts = [{axis: (run.start, run.stop, run.step)} for run in index_runs]
    return Rewrite(
        (*concat_slices(n, x, cuts, axis, part, scope), reshape(n, "", part, scope.shape(n.outputs[0]), n.outputs[0], scope))
    )


def rising_runs(indices: Sequence[int]) -> list[range]:
    """Return the indices, in order, as ranges of positive step; each run from the front is as long as it can be."""
    runs: list[range] = []
    for i in indices:
        last = runs[-1] if runs else range(0)
        step = i - last.start if len(last) == 1 else last.step
        if runs and step > 0 and i == last[-1] + step:
            runs[-1] = range(last.start, i + 1, step)
        else:
            runs.append(range(i, i + 1))
    return runs


def concat_slices(
    n: OnnxNode, x: str, cuts: Sequence[Mapping[int, tuple[int, int, int]]], axis: int, output: str, scope: Rewriter
) -> list[OnnxNode]:
    """Return nodes that join slices of x along `axis`; equal slices are made once."""
    if len(cuts) == 1:
        return [slice_node(f"{n.name}/slice", x, cuts[0], output, n.sources, scope)]
    nodes: list[OnnxNode] = []
    part_by_cut: dict[tuple[int, int, int], str] = {}
    for cut in cuts:
        if cut[axis] not in part_by_cut:
            part_by_cut[cut[axis]] = part = scope.tensor(f"{output}/part")
            nodes.append(slice_node(f"{n.name}/part{len(part_by_cut)}", x, cut, part, n.sources, scope))
    parts = [part_by_cut[cut[axis]] for cut in cuts]
    return [*nodes, node(f"{n.name}/join", "Concat", parts, output, n.sources, axis=axis)]


RULES: Mapping[str, Sequence[Rule]] = {
    "Slice": (slice_, split_reversed_slice),
    "Split": (split,),
    "Gather": (gather,),
}
