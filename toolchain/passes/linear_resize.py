"""Rule of linear upsampling by whole factors: a depthwise convolution for each place an output can have, then interleaved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from toolchain.ir.graph import Node
from toolchain.ops.convolution import Convolution
from toolchain.ops.movement import Reshape, Slice, Stack

if TYPE_CHECKING:
    from toolchain.passes.select import Scope

Shape = tuple[int, ...]
Step = Reshape | Slice | Stack | Convolution
MAX_FACTOR = 4
HALF_PIXEL = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")


def linear_resize(scope: Scope) -> None:
    """[n, h, w, c] -> [n, h fr, w fc, c]. What is beyond the edge is the edge (ONNX Resize-19, mode linear)."""
    x, y, how = scope.node.inputs[0], scope.node.outputs[0], scope.attributes["coordinate_transformation_mode"]
    before, after = scope.shape(x), scope.shape(y)
    if len(before) != 4 or before[:2] != after[:2] or any(b % s for s, b in zip(before, after)):
        return scope.refuse(f"mode linear from {before} to {after}; the chip resizes rows and columns by whole factors")
    rows, columns = (b // s for s, b in zip(before[2:], after[2:]))
    if how not in (*HALF_PIXEL, "asymmetric") or max(rows, columns) > MAX_FACTOR:
        return scope.refuse(
            f"mode linear, {how}, by {rows} x {columns}; the chip has half_pixel and asymmetric up to {MAX_FACTOR}"
        )
    source = _with_edges(scope, scope.read(x, "nhwc"), rows > 1, columns > 1)
    n, c, h, w = before
    made = []
    for r in range(rows):
        parts = [_phase(scope, source, (r, s), (rows, columns), (n, h, w, c)) for s in range(columns)]
        made.append(_stacked(scope, f"row{r}", parts, (n * h, w, 1, c), (n, h, 1, w * columns * c)))
    whole = _stacked(scope, "rows", made, (n, h, 1, w * columns * c), (n, h * rows, w * columns, c))
    return scope.emit(Reshape((n, h * rows, w * columns, c)), (whole,), "nhwc")


def taps(phase: int, factor: int, half_pixel: bool) -> np.ndarray:
    """Weights of the elements before, at and behind the one whose output number `phase` this is; [1] for a factor of one."""
    if factor == 1:
        return np.ones(1)
    at = (phase + 0.5) / factor - 0.5 if half_pixel else phase / factor
    left = int(np.floor(at))
    weights = np.zeros(3)
    weights[left + 1], weights[left + 2] = 1 - (at - left), at - left
    return weights


def _with_edges(scope: Scope, source: str, rows: bool, columns: bool) -> str:
    for axis, wanted in ((1, rows), (2, columns)):
        if not wanted:
            continue
        shape = scope.types[source].shape
        line = tuple(1 if i == axis else d for i, d in enumerate(shape))
        ends = []
        for side, at in (("first", 0), ("last", shape[axis] - 1)):
            starts = tuple(at if i == axis else 0 for i in range(4))
            ends.append(_step(scope, f"{side}{axis}", Slice(starts, (1, 1, 1, 1), line), (source,), line, source))
        padded = tuple(d + 2 if i == axis else d for i, d in enumerate(shape))
        source = _step(scope, f"edges{axis}", Stack(axis), (ends[0], source, ends[1]), padded, source)
    return source


def _phase(scope: Scope, source: str, phase: tuple[int, int], factors: tuple[int, int], shape: Shape) -> str:
    half = scope.attributes["coordinate_transformation_mode"] in HALF_PIXEL
    kernel = np.outer(*(taps(p, f, half) for p, f in zip(phase, factors)))
    channels = shape[3]
    weights = np.ascontiguousarray(np.broadcast_to(kernel[None, :, :, None], (channels, *kernel.shape, 1)), np.float32)
    name = scope.constant(f"{scope.node.name}@taps{phase[0]}.{phase[1]}", weights)
    op = Convolution((1, 1), (0, 0, 0, 0), (1, 1), channels)
    return _step(scope, f"phase{phase[0]}.{phase[1]}", op, (source, name), shape)


def _stacked(scope: Scope, suffix: str, parts: list[str], view: Shape, target: Shape) -> str:
    """The parts, each under the shape `view`, side by side along its dimension 2; the result under the shape `target`."""
    if len(parts) == 1:
        return _step(scope, suffix, Reshape(target), (parts[0],), target)
    views = [_step(scope, f"{suffix}.view{i}", Reshape(view), (part,), view) for i, part in enumerate(parts)]
    joined = (*view[:2], len(parts), view[3])
    stack = _step(scope, f"{suffix}.stack", Stack(2), tuple(views), joined)
    return _step(scope, suffix, Reshape(target), (stack,), target)


def _step(scope: Scope, suffix: str, op: Step, inputs: tuple[str, ...], shape: Shape, like: str = "") -> str:
    """A node between the model's, with the values of the node's output, or of `like`."""
    name = scope.inner(suffix, shape, "nhwc")
    if like:
        scope.origins[name] = scope.origins[like]
    scope.nodes.append(Node(name, op, inputs, (name,), scope.node.sources))
    return name
