"""Cut the output of an operator that works element by element into tiles: boxes over the last three dimensions.

Those are called rows, columns and channels. Every index of the other dimensions is a tile of its own.
"""

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
    """Return the shape with at least three dimensions, by ones in front."""
    return (1,) * (3 - len(shape)) + shape


def box_tilings(layer: Layer, multiple: int) -> Iterable[Tiling]:
    """Yield the tilings: all rows first, then fewer rows, columns and last channels.

    `multiple`: of which the channels of a tile are a multiple unless it has all.
    """
    height, width, channels = pad_to_three_dims(layer.output.shape)[-3:]
    multiple = math.lcm(multiple, layer.channel_step(*layer.activations, *layer.node.outputs))
    for rows in halvings(height):
        yield Tiling(rows, width, channels, 0)
    for columns in halvings(width)[1:]:
        yield Tiling(1, columns, channels, 0)
    for part in halvings(channels, multiple)[1:]:
        yield Tiling(1, 1, part, 0)


def box_orders(layer: Layer, full_reason: str = "") -> tuple[LoopOrder, ...]:
    """Return the one loop order of such boxes.

    `full_reason`: why a tile has the whole last dimension; "" where it may be cut.
    """
    *outer, height, width, channels = pad_to_three_dims(layer.output.shape)
    multiple = channels if full_reason else layer.channel_step(*layer.activations, *layer.node.outputs)
    places = LoopAxis("rows", height, "rows"), LoopAxis("columns", width, "columns")
    last = LoopAxis("channels", channels, "channels", multiple=multiple, why=full_reason or GRANULES)
    return (LoopOrder((*one_by_one(outer), *places, last)),)


def box_nest(shape: Shape, tiling: Tiling, make_task: Callable[[Shape, Shape], TileTask], extent: Extent | None = None) -> Nest:
    """Return the nest with one task for every tile of a tensor of this shape, or of the part `extent` of it.

    `make_task`: takes the tile's start and size, in as many dimensions as `shape`.
    """
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
    """Return the windows of an elementwise operator along `axis`, by activation.

    Each row, or column, is made of the same one of every operand that has more than one; other operands have no window.
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
    """Return the part of an operand, which may be broadcast, that the output box needs. Dimensions are aligned at the last."""
    skip = len(start) - len(shape)
    own_start = tuple(0 if n == 1 else s for n, s in zip(shape, start[skip:]))
    own_size = tuple(1 if n == 1 else k for n, k in zip(shape, size[skip:]))
    return Box(name, own_start, own_size)


def constant_block(layer: Layer, box: Box) -> ConstantBlock:
    """Return the elements of a constant operand in `box`, dense, as a block of constants."""
    values = layer.constants[box.tensor]
    cut = tuple(slice(s, s + n) for s, n in zip(box.start, box.size))

    def data() -> bytes:
        return np.ascontiguousarray(values[cut]).astype(memory_type(values.dtype)).tobytes()

    return ConstantBlock((layer.node.name, box), math.prod(box.size) * values.dtype.itemsize, data, box.role)


def broadcast_strides(box: Box, site: BoxLocation, rank: int) -> Shape:
    """Return (row, column, channel) byte strides of an operand inside a box of `rank` dimensions; 0 where it is broadcast."""
    strides = tuple(0 if n == 1 else s for n, s in zip(box.size, site.strides.along))
    return ((0,) * (max(rank, 3) - len(strides)) + strides)[-3:]


def row_column(site: BoxLocation) -> Shape:
    """Return the (row, column) byte strides of a location, of any rank; 0 for dimensions that it lacks."""
    return (0, 0, 0, *site.strides.along)[-3:-1]


class PointwiseOp(TiledOp):
    """The base of operators of the vector engine that work element by element, in boxes. A class adds its reference and its
    nest.
    """

    is_pointwise = True

    def reads_granules(self, layer: Layer) -> bool:
        return True

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        return box_tilings(layer, layer.chip.lanes)

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        return box_orders(layer)

    def windows(self, layer: Layer, axis: int) -> Windows:
        return pointwise_windows(layer, axis)
