"""Select means and maxima over any neighbouring dimensions, as the chip's pools on a view that makes rows of them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from toolchain.ir.graph import Node
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.kit.layout import axis_in, permute_to_layout
from toolchain.ops.kit.rule import Layout, Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.permutation import Reshape
from toolchain.ops.pool.geometry import Geometry, Pair, Shape, over_one
from toolchain.ops.pool.select_pool import MaxPool, mean_over_space, smaller_windows, split_max_pool


def reduce_mean(scope: SelectionContext) -> None:
    """Select a ReduceMean with kept dimensions, as an average pool or a product. Refuse dimensions that are no neighbours."""
    x = scope.node.inputs[0]
    shape, axes = scope.shape(x), _axes(scope)
    if _over_space(scope, axes):
        op = mean_over_space(shape[2], shape[3], tuple(axis_in(i, "nhwc") for i in axes))
        return scope.emit(op, (scope.read(x, "nhwc"),), "nhwc")
    source, layout, (outer, length, inner) = _split(scope, "a mean")
    if inner == 1:
        return _mean_of_rows(scope, source, layout, outer, length)
    view = _view(scope, source, (outer, length, 1, inner))
    pooled = scope.add_main_step("mean", mean_over_space(length, 1, (1,)), (view,), (outer, 1, 1, inner))
    return _emit(scope, pooled, layout)


def _mean_of_rows(scope: SelectionContext, source: str, layout: str, outer: int, length: int) -> None:
    """Emit the mean over the last dimension as a product with weights of 1 / length, which integers hold exactly."""
    wide = (1, 1, outer, length)
    view = _view(scope, source, wide)
    weights = scope.constant(f"{scope.node.name}@mean", np.full((1, 1, 1, length), 1 / length, np.float32))
    op = Convolution((1, 1), (0, 0, 0, 0), (1, 1), 1)
    return _emit(scope, scope.add_main_step("mean", op, (view, weights), (1, 1, outer, 1)), layout)


def reduce_max(scope: SelectionContext) -> None:
    """Select a ReduceMax with kept dimensions, as max pools. Refuse dimensions that are no neighbours."""
    x = scope.node.inputs[0]
    shape, axes = scope.shape(x), _axes(scope)
    if _over_space(scope, axes):
        kernel = (shape[2] if 2 in axes else 1, shape[3] if 3 in axes else 1)
        source, last = smaller_windows(scope, scope.read(x, "nhwc"), _get_full_window(scope, kernel))
        return scope.emit(MaxPool(last), (source,), "nhwc")
    source, layout, (outer, length, inner) = _split(scope, "a maximum")
    wide, output_shape, kernel = over_one(outer, length, inner)
    view, last = smaller_windows(scope, _view(scope, source, wide), _get_full_window(scope, kernel))
    return _emit(scope, scope.add_main_step("max", MaxPool(last), (view,), output_shape), layout)


def _get_full_window(scope: SelectionContext, kernel: Pair) -> Geometry:
    """Return one window over all elements. Its stride is its kernel where smaller windows can lie side by side, else 1."""
    limit = scope.chip.limits.pool.max_kernel
    beyond = limit is not None and (kernel[0] > limit[0] or kernel[1] > limit[1])
    side_by_side = Geometry(kernel, kernel, (0, 0, 0, 0))
    chain = split_max_pool(side_by_side, limit, scope.chip.limits.pool.max_stride) if beyond and limit else None
    return side_by_side if chain and chain[-1].strides == chain[-1].kernel else Geometry(kernel, (1, 1), (0, 0, 0, 0))


def _over_space(scope: SelectionContext, axes: Shape) -> bool:
    """Return whether the axes are rows or columns of a feature map that lies, or may arrive, channels last."""
    x = scope.node.inputs[0]
    may = x not in scope.layouts and 2 in axes
    return set(axes) <= {2, 3} and len(scope.shape(x)) == 4 and (may or scope.layout(x) == "nhwc")


def _layout(node: Node[Any]) -> Layout:
    """Return the layout: over both rows and columns it is that of feature maps, over one of them alone it may be any."""
    return "nhwc" if {*node.op.attributes.get("axes", ())} == {2, 3} else "any"


def _axes(scope: SelectionContext) -> Shape:
    """Return the axes as non-negative numbers. Refuse a node that drops them."""
    rank = len(scope.shape(scope.node.inputs[0]))
    if not scope.attributes.get("keepdims", 1):
        scope.refuse("its dimensions are dropped")
    return tuple(int(v) % rank for v in scope.attributes.get("axes") or range(rank))


def _split(scope: SelectionContext, what: str) -> tuple[str, str, tuple[int, int, int]]:
    """Return the operand in a layout in which the axes are neighbours, the layout, and (elements before, in, behind them)."""
    x, axes = scope.node.inputs[0], _axes(scope)
    shape = scope.shape(x)
    first = scope.layout(x)
    for layout in dict.fromkeys((first, "plain")):
        places = sorted(axis_in(i, layout) for i in axes)
        sizes = permute_to_layout(shape, layout)
        if all(d == 1 for i, d in enumerate(sizes) if places[0] < i < places[-1] and i not in places):
            parts = (sizes[: places[0]], sizes[places[0] : places[-1] + 1], sizes[places[-1] + 1 :])
            return scope.read(x, layout), layout, (prod(parts[0]), prod(parts[1]), prod(parts[2]))
    scope.refuse(f"{what} over dimensions {list(axes)} of {len(shape)}, which are no neighbours")
    raise AssertionError("unreachable")


def _view(scope: SelectionContext, source: str, shape: Shape) -> str:
    return scope.step("view", Reshape(shape), (source,), shape, like=source)


def _emit(scope: SelectionContext, source: str, layout: str) -> None:
    """Emit a view of `source` as the node's output."""
    shape = scope.shape(scope.node.outputs[0])
    return scope.emit(Reshape(permute_to_layout(shape, layout)), (source,), layout)


RULES = {"ReduceMean": Rule(reduce_mean, _layout), "ReduceMax": Rule(reduce_max, _layout)}
