"""Select operators that exchange channels and space: DepthToSpace, SpaceToDepth, and ConvTranspose by way of them.

A transposed convolution of stride s is s x s ordinary ones, called phases, one for each place of an output between two
inputs.
They run as one convolution with s x s times the channels, whose output is interleaved and cut to size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolchain.ops.convolution.integer_convolution import exceeds_max_pad
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.data_movement import Pad, Slice
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.permutation import Reshape, permutation

Shape = tuple[int, ...]


def depth_to_space(scope: SelectionContext) -> None:
    """Select DepthToSpace as a view, a Transpose and a view."""
    block = int(scope.attributes["blocksize"])
    source = scope.read(scope.node.inputs[0], "nhwc")
    n, h, w, c = scope.types[source].shape
    rest = c // block**2
    if scope.attributes.get("mode", "DCR") == "DCR":
        view, perm = (n, h, w, block, block, rest), (0, 1, 3, 2, 4, 5)
    else:
        view, perm = (n, h, w, rest, block, block), (0, 1, 4, 2, 5, 3)
    return _emit_transposed(scope, source, view, perm)


def space_to_depth(scope: SelectionContext) -> None:
    """Select SpaceToDepth as a view, a Transpose and a view."""
    block = int(scope.attributes["blocksize"])
    source = scope.read(scope.node.inputs[0], "nhwc")
    n, h, w, c = scope.types[source].shape
    perm = (0, 1, 3, 5, 2, 4) if scope.attributes.get("mode") == "CRD" else (0, 1, 3, 2, 4, 5)
    return _emit_transposed(scope, source, (n, h // block, block, w // block, block, c), perm)


def _emit_transposed(scope: SelectionContext, source: str, view: Shape, perm: Shape) -> None:
    """Make the node's output: `source` under the shape `view`, transposed, under the output's own shape."""
    moved = _transpose_view(scope, source, view, perm)
    n, c, h, w = scope.shape(scope.node.outputs[0])
    return scope.emit(Reshape((n, h, w, c)), (moved,), "nhwc")


def _transpose_view(scope: SelectionContext, source: str, view: Shape, perm: Shape) -> str:
    """Add a view of `source` and its Transpose; return the result."""
    view_tensor = scope.step("view", Reshape(view), (source,), view)
    return scope.step("moved", permutation(view, perm), (view_tensor,), tuple(view[p] for p in perm))


@dataclass(frozen=True)
class Phases:
    """One dimension of a transposed convolution, as an ordinary convolution whose output is interleaved.

    `stride`: outputs of a group. `taps`: inputs that meet an output. `before`, `after`: padding of the input; negative cuts
    it.
    `count`: groups of outputs that are made. `cut`: outputs in front of the first that is wanted.
    """

    stride: int
    taps: int
    before: int
    after: int
    count: int
    cut: int


def phases(size: int, out: int, kernel: int, stride: int, begin: int) -> Phases:
    """Return the phases of a dimension of `size` inputs and `out` outputs, where y[i stride + k - begin] += x[i] w[k].

    Groups that no wanted output lies in are not made.
    """
    taps = max(-(-kernel // stride), 1)
    first, last = begin // stride, (begin + out - 1) // stride
    before = taps - 1 - first
    return Phases(stride, taps, before, last + 1 - size, last - first + 1, begin - first * stride)


def both_phases(attributes: Mapping[str, Any], weights: Shape, size: Shape, out: Shape) -> tuple[Phases, Phases]:
    """Return the phases of rows and of columns.

    `weights`: [c, o/g, kh, kw].
    `size`, `out`: NCHW.
    `attributes`: of a ConvTranspose in canonical form.
    """
    strides, dilations, pads = (attributes[name] for name in ("strides", "dilations", "pads"))
    rows, columns = (
        phases(size[2 + i], out[2 + i], (weights[2 + i] - 1) * int(dilations[i]) + 1, int(strides[i]), int(pads[i]))
        for i in (0, 1)
    )
    return rows, columns


def conv_transpose(scope: SelectionContext) -> None:
    """Select a ConvTranspose, y[o, i s + k - p] += x[c, i] w[c, o, k]. Refuse computed weights and other than two dimensions."""
    x, w = scope.node.inputs[:2]
    bias = scope.node.inputs[2] if len(scope.node.inputs) > 2 else ""
    weights, a = scope.value(w), scope.attributes
    if weights is None or (bias and scope.value(bias) is None):
        return scope.refuse("its weights or bias are computed, not constant")
    if weights.ndim != 4 or "pads" not in a:
        return scope.refuse("windows that are not over rows and columns, or padding that is not given")
    groups = int(a["group"])
    rows, columns = both_phases(a, weights.shape, scope.shape(x), scope.shape(scope.node.outputs[0]))
    kernel = phase_weights(_spread(weights, tuple(a["dilations"])), groups, rows, columns)
    names = [scope.constant(f"{w}@phases", kernel)]
    if bias:
        per_group = np.asarray(scope.value(bias)).reshape(groups, 1, -1)
        spread_bias = np.broadcast_to(per_group, (groups, rows.stride * columns.stride, per_group.shape[2]))
        names.append(scope.constant(f"{bias}@phases", np.ascontiguousarray(spread_bias).reshape(-1)))
    phase_outputs = _add_convolution(scope, scope.read(x, "nhwc"), rows, columns, groups, names)
    return _emit_interleaved(scope, phase_outputs, rows, columns, groups)


def _spread(weights: np.ndarray, dilations: Shape) -> np.ndarray:
    """Return the weights with zeros between the taps of a dilated window."""
    if all(d == 1 for d in dilations):
        return weights
    kernel = tuple((k - 1) * d + 1 for k, d in zip(weights.shape[2:], dilations))
    spread = np.zeros((*weights.shape[:2], *kernel), weights.dtype)
    spread[:, :, :: dilations[0], :: dilations[1]] = weights
    return spread


def phase_weights(weights: np.ndarray, groups: int, rows: Phases, columns: Phases) -> np.ndarray:
    """Return the weights [c, o/g, kh, kw] as [g (row phase) (column phase) o/g, taps, taps, c/g], for an ordinary convolution."""
    channels, outputs, height, width = weights.shape
    full = (rows.taps * rows.stride, columns.taps * columns.stride)
    padded = np.zeros((channels, outputs, *full), weights.dtype)
    padded[:, :, :height, :width] = weights
    split = padded.reshape(groups, -1, outputs, rows.taps, rows.stride, columns.taps, columns.stride)
    ordered = split[:, :, :, ::-1, :, ::-1, :].transpose(0, 4, 6, 2, 3, 5, 1)
    return np.ascontiguousarray(ordered).reshape(-1, rows.taps, columns.taps, channels // groups)


def _add_convolution(scope: SelectionContext, source: str, rows: Phases, columns: Phases, groups: int, names: list[str]) -> str:
    """Add the ordinary convolution and return its output [n, groups of rows, groups of columns, channels of all phases]."""
    n, h, w, c = scope.types[source].shape
    pads = (rows.before, columns.before, rows.after, columns.after)
    lows, highs = [max(p, 0) for p in pads[:2]], [max(p, 0) for p in pads[2:]]
    if min(pads) < 0:
        top, left, bottom, right = (max(-p, 0) for p in pads)
        cut_shape = (n, h - top - bottom, w - left - right, c)
        source = scope.step("kept", Slice((0, top, left, 0), (1, 1, 1, 1), cut_shape), (source,), cut_shape, like=source)
        n, h, w, c = cut_shape
    outputs = scope.constants[names[0]].shape[0]
    window = (lows[0], lows[1], highs[0], highs[1])
    if exceeds_max_pad(window, groups, c, outputs, scope.chip):
        around = (n, h + lows[0] + highs[0], w + lows[1] + highs[1], c)
        before, after = (0, lows[0], lows[1], 0), (0, highs[0], highs[1], 0)
        source, window = scope.step("padded", Pad(before, after, 0.0), (source,), around, like=source), (0, 0, 0, 0)
    shape = (n, rows.count, columns.count, outputs)
    return scope.step("phases", Convolution((1, 1), window, (1, 1), groups), (source, *names), shape)


def _emit_interleaved(scope: SelectionContext, phase_outputs: str, rows: Phases, columns: Phases, groups: int) -> None:
    """Interleave the outputs of all phases and cut them to the size of the node's output, which this makes."""
    n, h, w, channels = scope.types[phase_outputs].shape
    inner = channels // (groups * rows.stride * columns.stride)
    view, perm = (n, h, w, groups, rows.stride, columns.stride, inner), (0, 1, 4, 2, 5, 3, 6)
    moved = _transpose_view(scope, phase_outputs, view, perm)
    full_shape = (n, h * rows.stride, w * columns.stride, groups * inner)
    n, c, height, width = scope.shape(scope.node.outputs[0])
    if full_shape == (n, height, width, c):
        return scope.emit(Reshape(full_shape), (moved,), "nhwc")
    uncut = scope.step("uncut", Reshape(full_shape), (moved,), full_shape)
    cut = Slice((0, rows.cut, columns.cut, 0), (1, 1, 1, 1), (n, height, width, c))
    return scope.emit(cut, (uncut,), "nhwc")


RULES = {
    "ConvTranspose": Rule(conv_transpose, "nhwc"),
    "DepthToSpace": Rule(depth_to_space, "nhwc"),
    "SpaceToDepth": Rule(space_to_depth, "nhwc"),
}
