"""Tiles of operators that work element by element: boxes over the last three dimensions, one by one over the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from toolchain.machine import memory_type
from toolchain.ops.kit.loops import GRANULES, LoopAxis, LoopOrder, one_by_one
from toolchain.ops.kit.nest import Nest, cut_axis, uniform_axis
from toolchain.ops.kit.operator import Layer, TiledOp, Windows
from toolchain.ops.kit.tile import Box, BoxLocation, ConstantBlock, Extent, TileTask, Tiling, halvings
from toolchain.ops.kit.window import Window

Shape = tuple[int, ...]


def pad_to_three_dims(shape: Shape) -> Shape:
    """The shape with at least three dimensions, ones in front."""
    return (1,) * (3 - len(shape)) + shape


def box_tilings(layer: Layer, multiple: int) -> Iterable[Tiling]:
    """Whole rows first, then fewer rows, columns, channels."""
    height, width, channels = pad_to_three_dims(layer.output.shape)[-3:]
    multiple = math.lcm(multiple, layer.channel_step(*layer.activations, *layer.node.outputs))
    for rows in halvings(height):
        yield Tiling(rows, width, channels, 0)
    for columns in halvings(width)[1:]:
        yield Tiling(1, columns, channels, 0)
    for part in halvings(channels, multiple)[1:]:
        yield Tiling(1, 1, part, 0)


def box_orders(layer: Layer, full_reason: str = "") -> tuple[LoopOrder, ...]:
    """The one order of such boxes. whole: why rows along the last dimension are not cut, where they are not."""
    *outer, height, width, channels = pad_to_three_dims(layer.output.shape)
    multiple = channels if full_reason else layer.channel_step(*layer.activations, *layer.node.outputs)
    places = LoopAxis("rows", height, "rows"), LoopAxis("columns", width, "columns")
    last = LoopAxis("channels", channels, "channels", multiple=multiple, why=full_reason or GRANULES)
    return (LoopOrder((*one_by_one(outer), *places, last)),)


def box_nest(shape: Shape, tiling: Tiling, make_task: Callable[[Shape, Shape], TileTask], extent: Extent | None = None) -> Nest:
    """One work for every tile of a tensor of this shape, or of that part of it; `work` is given its start and size."""
    padded = pad_to_three_dims(shape)
    lead, drop = len(padded) - 3, len(padded) - len(shape)
    rows, columns, channels = ((0, n) for n in padded[-3:])
    if extent is not None:
        rows, channels, columns = extent.rows, extent.channels, extent.columns or columns
    cuts = zip((rows, columns, channels), (tiling.rows, tiling.columns, tiling.channels))
    axes = (*(uniform_axis(n) for n in padded[:-3]), *(cut_axis(total, tile, first) for (first, total), tile in cuts))

    def body(point: tuple[Any, ...]) -> tuple[TileTask]:
        start = (*point[:lead], *(s for s, _ in point[lead:]))
        size = (*(1 for _ in point[:lead]), *(n for _, n in point[lead:]))
        return (make_task(start[drop:], size[drop:]),)

    return Nest(axes, body)


def pointwise_windows(layer: Layer, axis: int) -> Windows:
    """Return the windows of elementwise operators.

    Each row, or column, is made of the same one of every operand that has more than one.
    Operands of fewer dimensions have the last ones.
    """
    size, trailing_dims = layer.output.shape[axis], len(layer.output.shape) - axis
    sizes = {n: layer.types[n].shape[-trailing_dims:] for n in layer.activations}
    window_by_tensor = {
        n: (Window(size, 1, 1, 1, 0),)
        for n, trailing_shape in sizes.items()
        if len(trailing_shape) == trailing_dims and trailing_shape[0] > 1
    }
    single = {n: () for n in layer.activations if n not in window_by_tensor}
    return {**window_by_tensor, **single}


def operand_box(name: str, shape: Shape, start: Shape, size: Shape) -> Box:
    """The part of a (broadcast) operand that an output box needs."""
    skip = len(start) - len(shape)
    own_start = tuple(0 if n == 1 else s for n, s in zip(shape, start[skip:]))
    own_size = tuple(1 if n == 1 else k for n, k in zip(shape, size[skip:]))
    return Box(name, own_start, own_size)


def constant_block(layer: Layer, box: Box) -> ConstantBlock:
    """The bytes of a constant operand's box, dense."""
    values = layer.constants[box.tensor]
    cut = tuple(slice(s, s + n) for s, n in zip(box.start, box.size))

    def data() -> bytes:
        return np.ascontiguousarray(values[cut]).astype(memory_type(values.dtype)).tobytes()

    return ConstantBlock((layer.node.name, box), math.prod(box.size) * values.dtype.itemsize, data, box.role)


def broadcast_strides(box: Box, site: BoxLocation, rank: int) -> Shape:
    """(row, column, channel) bytes for an operand inside a box of `rank` dimensions; 0 where it is broadcast."""
    strides = tuple(0 if n == 1 else s for n, s in zip(box.size, site.strides.along))
    return ((0,) * (max(rank, 3) - len(strides)) + strides)[-3:]


def row_column(site: BoxLocation) -> Shape:
    """(row, column) bytes of a site of any rank."""
    return (0, 0, 0, *site.strides.along)[-3:-1]


class PointwiseOp(TiledOp):
    """An operator of the vector engine that works element by element, in boxes. A class adds its reference and its nest."""

    is_pointwise = True

    def reads_granules(self, layer: Layer) -> bool:
        return True

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        return box_tilings(layer, layer.chip.lanes)

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        return box_orders(layer)

    def windows(self, layer: Layer, axis: int) -> Windows:
        return pointwise_windows(layer, axis)
