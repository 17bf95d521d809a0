"""Select Resize by integer factors: nearest repeats elements; linear is a depthwise convolution for each phase of the output.

The phases are then interleaved.
Where the machine's weights do not hold the products of both axes' weights, one axis is resized after the other.
For example, 1/4 and 3/4 are codes of int4, but 9/16 beside 1/16 is not.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quant.parameters.weight_codes import weight_code_range
from toolchain.ir.graph import HALF_PIXEL, MAX_RESIZE_FACTOR
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.data_movement import RescalingConcat, ResizeNearest, Slice
from toolchain.ops.kit.layout import permute_to_layout
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.permutation import Reshape

Shape = tuple[int, ...]


def resize(scope: SelectionContext) -> None:
    """Select a Resize of constant sizes. What the chip lacks is refused with a reason and stays with the host.

    Nearest takes every whole factor with which each element is repeated alike. Linear takes rows and columns of four
    dimensions, half_pixel or asymmetric, by whole factors up to MAX_RESIZE_FACTOR.
    """
    x, a = scope.node.inputs[0], scope.attributes
    before, after = scope.shape(x), scope.shape(scope.node.outputs[0])
    if a.get("mode", "nearest") == "linear":
        return _linear(scope)
    factors = tuple(b // s for s, b in zip(before, after))
    if a.get("mode", "nearest") != "nearest" or any(s * f != b for s, f, b in zip(before, factors, after)):
        return scope.refuse(f"mode {a.get('mode', 'nearest')} from {before} to {after}; the chip repeats by whole factors")
    if not _repeats(a, max(factors)):
        return scope.refuse("its coordinates do not repeat each element alike")
    layout = scope.layout(x)
    return scope.emit(ResizeNearest(permute_to_layout(factors, layout)), (scope.read(x, layout),), layout)


def _repeats(a: Mapping[str, Any], factor: int) -> bool:
    """Return whether output i comes from input i // factor for every i (ONNX Resize, nearest)."""
    how = a.get("coordinate_transformation_mode", "half_pixel")
    rounding = a.get("nearest_mode", "round_prefer_floor")
    out = np.arange(4 * factor, dtype=np.float64)
    if how in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        at = (out + 0.5) / factor - 0.5
    elif how == "asymmetric":
        at = out / factor
    else:
        return factor == 1
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
    }[rounding]
    return bool((np.clip(rounded, 0, 3) == out // factor).all())


def _linear(scope: SelectionContext) -> None:
    """Select a linear Resize, [n, h, w, c] -> [n, h fr, w fc, c]. Beyond an edge the edge counts (ONNX Resize-19, mode
    linear).
    """
    x, y, how = scope.node.inputs[0], scope.node.outputs[0], scope.attributes["coordinate_transformation_mode"]
    before, after = scope.shape(x), scope.shape(y)
    if len(before) != 4 or before[:2] != after[:2] or any(b % s for s, b in zip(before, after)):
        return scope.refuse(f"mode linear from {before} to {after}; the chip resizes rows and columns by whole factors")
    rows, columns = (b // s for s, b in zip(before[2:], after[2:]))
    if how not in (*HALF_PIXEL, "asymmetric") or max(rows, columns) > MAX_RESIZE_FACTOR:
        return scope.refuse(
            f"mode linear, {how}, by {rows} x {columns}; the chip has half_pixel and asymmetric up to {MAX_RESIZE_FACTOR}"
        )
    source = _with_edges(scope, scope.read(x, "nhwc"), rows > 1, columns > 1)
    n, c, h, w = before
    if not _weights_are_exact(scope, (rows, columns)):
        lines = [_phase(scope, source, (r, 0), (rows, 1), (n, h, w + 2, c), alone=True) for r in range(rows)]
        source = _stack_parts(scope, "rows_alone", lines, (n, h, 1, (w + 2) * c), (n, h * rows, w + 2, c), like=source)
        rows, h = 1, h * rows
    row_phases: list[str] = []
    for r in range(rows):
        parts = [_phase(scope, source, (r, s), (rows, columns), (n, h, w, c)) for s in range(columns)]
        row_phases.append(_stack_parts(scope, f"row{r}", parts, (n * h, w, 1, c), (n, h, 1, w * columns * c)))
    full_map = _stack_parts(scope, "rows", row_phases, (n, h, 1, w * columns * c), (n, h * rows, w * columns, c))
    return scope.emit(Reshape((n, h * rows, w * columns, c)), (full_map,), "nhwc")


def taps(phase: int, factor: int, half_pixel: bool) -> np.ndarray:
    """Return the weights of the elements before, at and behind one, for output number `phase` of the `factor` that it
    becomes.

    There are three, which sum to one. For a factor of one it is [1].
    """
    if factor == 1:
        return np.ones(1)
    at = (phase + 0.5) / factor - 0.5 if half_pixel else phase / factor
    lower_index = int(np.floor(at))
    weights = np.zeros(3)
    weights[lower_index + 1], weights[lower_index + 2] = 1 - (at - lower_index), at - lower_index
    return weights


def _with_edges(scope: SelectionContext, source: str, rows: bool, columns: bool) -> str:
    """Return the source with its first and last row repeated once where `rows` says so, and its columns where `columns` does."""
    for axis, is_padded in ((1, rows), (2, columns)):
        if not is_padded:
            continue
        shape = scope.types[source].shape
        line = tuple(1 if i == axis else d for i, d in enumerate(shape))
        ends: list[str] = []
        for side, at in (("first", 0), ("last", shape[axis] - 1)):
            starts = tuple(at if i == axis else 0 for i in range(4))
            ends.append(scope.step(f"{side}{axis}", Slice(starts, (1, 1, 1, 1), line), (source,), line, like=source))
        padded = tuple(d + 2 if i == axis else d for i, d in enumerate(shape))
        source = scope.step(f"edges{axis}", RescalingConcat(axis), (ends[0], source, ends[1]), padded, like=source)
    return source


def _weights_are_exact(scope: SelectionContext, factors: tuple[int, int]) -> bool:
    """Return whether the machine's weights hold the products of both axes' weights, which are integer parts, as they hold each
    axis's.
    """
    half = scope.attributes["coordinate_transformation_mode"] in HALF_PIXEL
    parts = [[taps(p, f, half) * 2 * f for p in range(f)] for f in factors]
    products = (np.rint(np.outer(row, column)).astype(np.int64) for row in parts[0] for column in parts[1])
    most = weight_code_range(scope.chip.numerics.weight)[1]
    return 1 in factors or all(kernel.max() // np.gcd.reduce(kernel, axis=None) <= most for kernel in products)


def _phase(
    scope: SelectionContext, source: str, phase: tuple[int, int], factors: tuple[int, int], shape: Shape, alone: bool = False
) -> str:
    """Add the convolution of one phase (row, column) and return its output.

    `alone`: the weights are those of the rows only; the result is then calibrated as `source`, not as the output.
    """
    half = scope.attributes["coordinate_transformation_mode"] in HALF_PIXEL
    kernel = np.outer(*(taps(p, f, half) for p, f in zip(phase, factors)))
    channels = shape[3]
    weights = np.ascontiguousarray(np.broadcast_to(kernel[None, :, :, None], (channels, *kernel.shape, 1)), np.float32)
    suffix = f"{'_rows' if alone else ''}{phase[0]}.{phase[1]}"
    name = scope.constant(f"{scope.node.name}@taps{suffix}", weights)
    op = Convolution((1, 1), (0, 0, 0, 0), (1, 1), channels)
    return scope.step(f"phase{suffix}", op, (source, name), shape, like=source if alone else "")


def _stack_parts(scope: SelectionContext, suffix: str, parts: list[str], view: Shape, target: Shape, like: str = "") -> str:
    """Join the parts, each under the shape `view`, along dimension 2, and return the result under the shape `target`.

    `like`: the tensor as which all of these are calibrated; "": the node's output.
    """
    if len(parts) == 1:
        return scope.step(suffix, Reshape(target), (parts[0],), target, like=like)
    views = [scope.step(f"{suffix}.view{i}", Reshape(view), (part,), view, like=like) for i, part in enumerate(parts)]
    joined = (*view[:2], len(parts), view[3])
    stack = scope.step(f"{suffix}.stack", RescalingConcat(2), tuple(views), joined, like=like)
    return scope.step(suffix, Reshape(target), (stack,), target, like=like)


RULES = {"Resize": Rule(resize, "any")}
