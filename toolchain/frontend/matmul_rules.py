"""Decompose selections and mixtures along one dimension, which no copy can do, into products with a constant matrix.

Such are reversed Slices, Gathers in any order, Pads by reflection, and Resizes with fractional factors.
Plain selections use a matrix of 0 and 1, which integers multiply exactly. A decomposition adds no steps where copies suffice.
Each adds none either for inputs that are not float, or where a matrix has more than `MAX_MATRIX` elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.frontend.infer import evaluate
from toolchain.frontend.reduction_rules import is_repeat
from toolchain.frontend.rewrite import Decomposition, NodeChain, Rewriter, operand
from toolchain.frontend.slice_rules import rising_runs
from toolchain.ir.graph import HALF_PIXEL, MAX_MATRIX, MAX_PARTS, MAX_RESIZE_FACTOR, MAX_WRAPS, OnnxNode


def multiply_axis(chain: NodeChain, x: str, axis: int, rank: int, matrix: np.ndarray) -> str:
    """Add a product of `x` with a matrix along one axis and return its output.

    The last axis is multiplied from the right, the one before it from the left. Any other axis is transposed to be the last.
    `axis`: from 0 on. `rank`: of x. `matrix`: [after, before] of the dimension; it takes the type of the node's first input.
    """
    matrix = matrix.astype(chain.scope.types[chain.node.inputs[0]].dtype)
    if axis == rank - 1:
        return chain.add("MatMul", x, np.ascontiguousarray(matrix.T))
    if axis == rank - 2:
        return chain.add("MatMul", matrix, x)
    perm = [*range(axis), *range(axis + 1, rank), axis]
    product = chain.add("MatMul", chain.add("Transpose", x, perm=tuple(perm)), np.ascontiguousarray(matrix.T))
    return chain.add("Transpose", product, perm=tuple(int(i) for i in np.argsort(perm)))


def make_selection_matrix(indices: Sequence[int], size: int) -> np.ndarray:
    """Return the 0-1 matrix [len(indices), size] that selects the elements with these indices."""
    return np.eye(size)[np.asarray(indices, np.int64)]


def cut(chain: NodeChain, x: str, axis: int, start: int, end: int) -> str:
    """Add a Slice of `x` along one axis and return its output."""
    return chain.add("Slice", x, (start,), (end,), (axis,), (1,))


def pad(chain: NodeChain) -> None:
    """Rewrite a Pad by edge, reflection or wrap-around, by at most sqrt(`MAX_MATRIX`) elements at each end.

    A reflection is less than the dimension, and a wrap-around at most `MAX_WRAPS` times the dimension. Axis by axis the Pad
    becomes a Concat of the parts before, the tensor, and the parts after.
    """
    n, scope = chain.node, chain.scope
    mode, pads, x = n.op.attributes["mode"], scope.constants.get(n.inputs[1]), n.inputs[0]
    if mode not in ("edge", "reflect", "wrap") or pads is None or operand(n, 3) or not scope.is_float(x):
        return
    shape = list(scope.shape(x))
    rank = len(shape)
    most = {"edge": (MAX_MATRIX, 0), "reflect": (1, -1), "wrap": (MAX_WRAPS, 0)}[mode]  # times the dimension, and more
    wide = [(a, int(pads[a]), int(pads[a + rank])) for a in range(rank) if pads[a] or pads[a + rank]]
    ends = [(a, count) for a, *counts in wide for count in counts]
    if not wide or any(c < 0 or c > most[0] * shape[a] + most[1] or c**2 > MAX_MATRIX for a, c in ends):
        return
    for a, before, after in wide:
        first, last = (
            _copy_end(chain, x, shape, a, mode, count, at_start) for count, at_start in ((before, True), (after, False))
        )
        x, shape[a] = chain.add("Concat", *first, x, *last, axis=a), before + shape[a] + after


def _copy_end(chain: NodeChain, x: str, shape: Sequence[int], axis: int, mode: str, count: int, at_start: bool) -> list[str]:
    """Return the parts, in their order, that a Pad by copies puts at one end of an axis of `x`, `count` elements together.

    `shape`: of x.
    `at_start`: in front of x, else behind it.
    """
    d = shape[axis]
    if not count:
        return []
    if mode == "edge":
        part = cut(chain, x, axis, *((0, 1) if at_start else (d - 1, d)))
        return [chain.add("Expand", part, (*shape[:axis], count, *shape[axis + 1 :]))]
    if mode == "reflect":
        part = cut(chain, x, axis, *((1, 1 + count) if at_start else (d - 1 - count, d - 1)))
        return [multiply_axis(chain, part, axis, len(shape), make_selection_matrix(range(count)[::-1], count))]
    copies, rest = [x] * (count // d), count % d
    if not rest:
        return copies
    part = cut(chain, x, axis, *((d - rest, d) if at_start else (0, rest)))
    return [part, *copies] if at_start else [*copies, part]


def reverse_slice(chain: NodeChain) -> None:
    """Decompose a Slice by negative steps, in the form of `slice_rules`, into a product for each reversed axis.

    One of its reversed axes has more than `MAX_PARTS` elements.
    """
    n, scope = chain.node, chain.scope
    starts, ends, axes, steps = (scope.constants.get(name) for name in n.inputs[1:])
    if starts is None or ends is None or axes is None or steps is None or not scope.is_float(n.inputs[0]):
        return
    x, shape = n.inputs[0], scope.shape(n.inputs[0])
    cuts: list[tuple[int, int, int, int]] = list(zip(axes.tolist(), starts.tolist(), ends.tolist(), steps.tolist()))
    reversed_ranges = {a: range(s, max(e, -1), d) for a, s, e, d in cuts if d < 0}
    small = all(0 < len(r) * shape[a] <= MAX_MATRIX for a, r in reversed_ranges.items())
    if not small or all(len(r) <= MAX_PARTS for r in reversed_ranges.values()):
        return
    forward_cuts = [c for c in cuts if c[3] > 0]
    if forward_cuts:
        x = chain.add("Slice", x, *(tuple(c[i] for c in forward_cuts) for i in (1, 2, 0, 3)))
    for a, indices in reversed_ranges.items():
        x = multiply_axis(chain, x, a, len(shape), make_selection_matrix(indices, shape[a]))


def gather(chain: NodeChain) -> None:
    """Decompose a Gather whose constant indices form more than `MAX_PARTS` runs."""
    n, scope = chain.node, chain.scope
    indices, x = scope.constants.get(n.inputs[1]), n.inputs[0]
    axis: int = n.op.attributes["axis"]
    if indices is None or not indices.size or x in scope.constants or not scope.is_float(x):
        return
    size = scope.shape(x)[axis]
    source_indices = [int(i) % size for i in indices.reshape(-1)]
    if len(source_indices) * size > MAX_MATRIX or len(rising_runs(source_indices)) <= MAX_PARTS:
        return
    product = multiply_axis(chain, x, axis, len(scope.shape(x)), make_selection_matrix(source_indices, size))
    chain.add("Reshape", product, scope.shape(n.outputs[0]))


def resize(chain: NodeChain) -> None:
    """Decompose a Resize with fractional factors, or with modes other than repetition or interpolation between two
    neighbours.

    Each axis is multiplied by the matrix that onnxruntime makes from a unit matrix.
    """
    n, scope = chain.node, chain.scope
    a, x = n.op.attributes, n.inputs[0]
    before, after = scope.shape(x), scope.shape(n.outputs[0])
    _, _, scales, sizes = (*n.inputs, "", "", "")[:4]
    scale_values, size_values = (
        factor_or_size if factor_or_size is not None and factor_or_size.size else None
        for factor_or_size in map(scope.constants.get, (scales, sizes))
    )
    if a.get("axes") or a["keep_aspect_ratio_policy"] != "stretch" or 0 in (*before, *after) or not scope.is_float(x):
        return
    if a["coordinate_transformation_mode"] == "tf_crop_and_resize" or (scale_values is None and size_values is None):
        return
    changed = [i for i in range(len(before)) if before[i] != after[i] or (scale_values is not None and scale_values[i] != 1)]
    has_integer_factors = all(
        after[i] % before[i] == 0 and (scale_values is None or scale_values[i] == after[i] // before[i]) for i in changed
    )
    plain = {
        "nearest": has_integer_factors and all(is_repeat(before[i], after[i] // before[i], a) for i in changed),
        "linear": has_integer_factors and _has_phases(before, after, a),
    }
    if plain.get(a["mode"], False) and not a["antialias"]:
        return
    if not changed or any(before[i] * after[i] > MAX_MATRIX for i in changed):
        return
    for i in sorted(changed, key=lambda i: after[i] / before[i]):  # what makes it smaller first
        scale = None if scale_values is None else float(scale_values[i])
        is_beside = before[i] == after[i] and before != after
        x = multiply_axis(chain, x, i, len(before), _matrix(n, before[i], after[i], scale, is_beside, scope))


def _has_phases(before: Sequence[int], after: Sequence[int], a: Mapping[str, object]) -> bool:
    """Return whether a linear Resize by whole factors is a convolution for each phase of its rows and columns."""
    if (
        len(before) not in (3, 4)
        or before[:2] != after[:2]
        or a["coordinate_transformation_mode"] not in (*HALF_PIXEL, "asymmetric")
    ):
        return False
    return max(large // small for small, large in zip(before[2:], after[2:])) <= MAX_RESIZE_FACTOR


def _matrix(n: OnnxNode, before: int, after: int, scale: float | None, is_beside: bool, scope: Rewriter) -> np.ndarray:
    """Return the matrix [after, before], float64, by which the Resize maps one axis.

    `is_beside`: compute it beside an axis that gets larger. onnxruntime copies where no axis changes its size, whatever
    the scale.
    """
    more = (1, 1) if is_beside else ()  # neutral, so that the last two axes are those that may change
    others = (1, 1, 2) if is_beside else (1,)
    names = ("x", "", "by") if scale is not None else ("x", "", "", "by")
    by = np.asarray([*others, scale], np.float32) if scale is not None else np.asarray([before, *others[1:], after], np.int64)
    node = replace(n, inputs=names, outputs=("y",))
    unit: np.ndarray = np.eye(before, dtype=np.float32).reshape(before, *more, before)
    interpolation = evaluate(node, {"x": unit, "by": by}, scope.opset)["y"]
    return interpolation.reshape(before, -1, after)[:, 0].T.astype(np.float64)


DECOMPOSITIONS: Mapping[str, Decomposition] = {"Gather": gather, "Pad": pad, "Resize": resize, "Slice": reverse_slice}
