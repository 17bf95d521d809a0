"""Define pools on codes: their reference, their tiles, their instructions. Methods are those of `TiledOp` in
`ops.kit.operator`.

An average is requantize(sum(x - zero_point), S_x / (S_y n)), with n the elements that the window counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import lcm
from typing import Any

import numpy as np

from quant.fixed_point.core.device_arrays import as_like
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.sums import pool_sums as fixed_point
from toolchain import machine
from toolchain.ops.kit.loops import GRANULES, LoopAxis, LoopOrder, one_by_one
from toolchain.ops.kit.nest import Nest, cut_axis, uniform_axis, window_axis
from toolchain.ops.kit.operator import Array, Layer, PerSample, TiledOp, Windows, split_per_sample
from toolchain.ops.kit.requants import pair
from toolchain.ops.kit.tile import Box, BoxLocation, Extent, TileTask, Tiling, find_padded_edges, halvings, spans
from toolchain.ops.pool.geometry import Geometry, Pair, axis_counts, window_counts


class _Pooling(TiledOp):
    """The base of both pools: tiles are boxes of rows, columns and channels."""

    geometry: Geometry

    def reads_granules(self, layer: Layer) -> bool:
        return True

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Return the operator itself for one image; None where samples are not along dimension 0."""
        return split_per_sample(self, layer, axis) if axis == 0 else None

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        """Yield cuts of channels, then rows; columns are cut only in tiles of one row and the fewest channels."""
        _, height, width, channels = layer.output.shape
        lanes = lcm(layer.chip.lanes, layer.channel_step(layer.node.inputs[0], layer.node.outputs[0]))
        for part in halvings(channels, lanes):
            for rows in halvings(height):
                yield Tiling(rows, width, part, 0)
        for columns in halvings(width)[1:]:
            yield Tiling(1, columns, min(channels, lanes), 0)

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        images, height, width, channels = layer.output.shape
        multiple = layer.channel_step(layer.node.inputs[0], layer.node.outputs[0])
        parts = LoopAxis("channels", channels, "channels", multiple=multiple, why=GRANULES)
        places = LoopAxis("rows", height, "rows"), LoopAxis("columns", width, "columns")
        return (LoopOrder((*one_by_one((images,)), parts, *places)),)

    def windows(self, layer: Layer, axis: int) -> Windows:
        """Return the pool's window on its input."""
        _, height, width, _ = layer.input_type(0).shape
        return {layer.node.inputs[0]: (self.geometry.axes(height, width)[axis - 1],)}

    def _nest(self, layer: Layer, tiling: Tiling, row_runs: list[Pair], column_runs: list[Pair], extent: Extent | None) -> Nest:
        """Return the nest over these runs of rows and of columns, which tiles do not cross; `extent` limits it to a part."""
        batch, _, _, channels = layer.output.shape
        first, tile_channels = 0, channels
        if extent is not None:
            first, tile_channels = extent.channels
            row_runs = _within(row_runs, extent.rows)
            column_runs = column_runs if extent.columns is None else _within(column_runs, extent.columns)
        _, height, width, _ = layer.input_type(0).shape
        vertical, horizontal = self.geometry.axes(height, width)
        rows = tuple((s + r, n) for s, size in row_runs for r, n in spans(size, tiling.rows))
        columns = tuple((s + c, n) for s, size in column_runs for c, n in spans(size, tiling.columns))
        places = (window_axis(vertical, rows), window_axis(horizontal, columns))
        return Nest(
            (uniform_axis(batch), cut_axis(tile_channels, tiling.channels, first), *places),
            lambda point: (self._make_task(layer, point[0], point[2], point[3], point[1]),),
        )

    def _make_task(self, layer: Layer, n: int, rows: Pair, columns: Pair, channels: Pair) -> TileTask:
        _, height, width, _ = layer.input_type(0).shape
        vertical, horizontal = self.geometry.axes(height, width)
        top, high = vertical.get_input_span(*rows)
        first_column, wide = horizontal.get_input_span(*columns)
        box = Box(layer.node.inputs[0], (n, top, first_column, channels[0]), (1, high, wide, channels[1]))
        write = Box(layer.node.outputs[0], (n, rows[0], columns[0], channels[0]), (1, rows[1], columns[1], channels[1]))

        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[machine.MachineOp, ...]:
            assert out is not None
            site = sites[0]
            # padding is below the kernel, so that every window begins before the input's end: nothing is skipped
            _, pad_top = vertical.offset(rows[0], top)
            _, pad_left = horizontal.offset(columns[0], first_column)
            g = self.geometry
            return (
                machine.Pool(
                    input_address=site.address,
                    input_row_stride=site.strides[1],
                    input_column_stride=site.strides[2],
                    input_surface_stride=site.strides.surface_bytes,
                    input_height=high,
                    input_width=wide,
                    channels=channels[1],
                    pad_top=pad_top,
                    pad_left=pad_left,
                    kernel_height=g.kernel[0],
                    kernel_width=g.kernel[1],
                    stride_height=g.strides[0] if rows[1] > 1 else 1,
                    stride_width=g.strides[1] if columns[1] > 1 else 1,
                    dilation_height=g.dilations[0],
                    dilation_width=g.dilations[1],
                    output_address=out.address,
                    output_row_stride=out.strides[1],
                    output_column_stride=out.strides[2],
                    output_surface_stride=out.strides.surface_bytes,
                    output_height=rows[1],
                    output_width=columns[1],
                    input_type=layer.type_number(layer.node.inputs[0]),
                    output_type=layer.output_number,
                    **self._numbers(layer, rows[0], columns[0]),
                ),
            )

        return TileTask((box,), (), write, emit, find_padded_edges((rows[0], columns[0]), box, layer.input_type(0).shape))

    def _numbers(self, layer: Layer, row: int, column: int) -> dict[str, Any]:
        """Return the fields of the instruction that differ between pools, for a tile that begins at this output."""
        raise NotImplementedError


@dataclass(frozen=True)
class IntegerMaxPool(_Pooling):
    """A max pool on codes; padding never wins. Every window must hold an element of the input."""

    NAME = "MaxPool"
    VERSION = 1
    takes_device_arrays = True
    geometry: Geometry

    def reference(self, inputs: Sequence[Array]) -> Array:
        g = self.geometry
        return fixed_point.max_pool(inputs[0], kernel=g.kernel, strides=g.strides, pads=g.pads, dilations=g.dilations)

    def tiling_key(self) -> Hashable:
        return self.geometry

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        _, height, width, _ = layer.output.shape
        return self._nest(layer, tiling, [(0, height)], [(0, width)], extent)

    def _numbers(self, layer: Layer, row: int, column: int) -> dict[str, Any]:
        limits = np.iinfo(layer.output.dtype)
        return {
            "kind": machine.PoolKind.MAX,
            "input_zero_point": 0,
            "output_zero_point": 0,
            "multiplier": 0,
            "shift": 0,
            "clamp_low": int(limits.min),
            "clamp_high": int(limits.max),
        }


@dataclass(frozen=True, eq=False)
class IntegerAveragePool(_Pooling):
    """An average pool on codes.

    `count_padding`: whether padding counts as zeros; else tiles are cut where windows count other numbers of elements.
    `requants`: (elements counted, requantization) for every count that occurs.
    """

    NAME = "AveragePool"
    VERSION = 2
    takes_device_arrays = True
    geometry: Geometry
    count_padding: bool
    x_zero_point: int
    requants: tuple[tuple[int, Requant], ...]

    def reference(self, inputs: Sequence[Array]) -> Array:
        """Compute the window sums, each requantized by the number of elements that its window counts."""
        x, g = inputs[0], self.geometry
        sums = fixed_point.pool_sum(
            x, kernel=g.kernel, strides=g.strides, pads=g.pads, dilations=g.dilations, x_zero_point=self.x_zero_point
        )
        if len(self.requants) == 1:
            return requantize(sums, self.requants[0][1], self.requants[0][1].dtype)
        counts = np.broadcast_to(window_counts(g, x.shape[1], x.shape[2], self.count_padding), sums.shape[1:3])
        y = np.empty(sums.shape, self.requants[0][1].dtype, like=x)
        for n, requant in self.requants:
            here = tuple(as_like(places, x) for places in np.nonzero(counts == n))
            y[:, *here, :] = requantize(sums[:, *here, :], requant, requant.dtype)
        return y

    def tiling_key(self) -> Hashable:
        return self.geometry, self.count_padding

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        """Return the loop nest. No tile holds windows that count different numbers of elements."""
        _, height, width, _ = layer.output.shape
        if self.count_padding or not any(self.geometry.pads):
            return self._nest(layer, tiling, [(0, height)], [(0, width)], extent)
        _, in_height, in_width, _ = layer.input_type(0).shape
        rows = _runs(axis_counts(self.geometry, 0, in_height))
        return self._nest(layer, tiling, rows, _runs(axis_counts(self.geometry, 1, in_width)), extent)

    def _numbers(self, layer: Layer, row: int, column: int) -> dict[str, Any]:
        _, height, width, _ = layer.input_type(0).shape
        counts = window_counts(self.geometry, height, width, self.count_padding)
        count = int(counts[min(row, counts.shape[0] - 1), min(column, counts.shape[1] - 1)])
        r = dict(self.requants)[count]
        multiplier, shift = pair(r)
        return {
            "kind": machine.PoolKind.AVERAGE,
            "input_zero_point": self.x_zero_point,
            "output_zero_point": r.zero_point,
            "multiplier": multiplier,
            "shift": shift,
            "clamp_low": r.low,
            "clamp_high": r.high,
        }


def _within(runs: list[Pair], part: Pair) -> list[Pair]:
    """Return the parts of (start, size) runs that lie in `part`, which is such a pair too."""
    met = ((max(start, part[0]), min(start + size, sum(part))) for start, size in runs)
    return [(begin, end - begin) for begin, end in met if begin < end]


def _runs(counts: Array) -> list[Pair]:
    """Return the (start, size) runs of neighbours with equal counts."""
    runs: list[Pair] = []
    start = 0
    for _, group in groupby(counts.tolist()):
        size = len(list(group))
        runs.append((start, size))
        start += size
    return runs
