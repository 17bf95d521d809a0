"""MaxPool and AveragePool; the mean over rows and columns is the average over one window.

Average: requantize(sum(x - zero_point), S_x / (S_y n)), n the elements the window counts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.sums import pool as fixed_point
from toolchain import machine
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.machine.parameter import OPEN_LIMIT
from toolchain.ops.convolution.integer import IntegerConvolution, exceeds_max_pad
from toolchain.ops.kit.division import divides, mean_weight
from toolchain.ops.kit.nest import Nest, alike, cut_axis, window_axis
from toolchain.ops.kit.operator import Array, FloatOp, Layer, PerSample, QuantScope, TiledOp, alike_per_sample, clamp_codes
from toolchain.ops.kit.requants import pair
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.scope import Scope
from toolchain.ops.kit.tile import Box, Site, Tiling, Work, halvings, spans
from toolchain.ops.kit.window import Window, output_size, pair_of

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]
Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class Geometry:
    """A window over rows and columns of [n, h, w, c]; `pads` are top, left, bottom, right."""

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair = (1, 1)

    def axes(self, height: int, width: int) -> tuple[Window, Window]:
        vertical = Window(height, self.kernel[0], self.strides[0], self.dilations[0], self.pads[0])
        return vertical, Window(width, self.kernel[1], self.strides[1], self.dilations[1], self.pads[1])


def _beyond(geometry: Geometry, channels: int, chip: Chip) -> str | None:
    limits = chip.limits.pool
    window_bytes = math.prod(geometry.kernel) * min(channels, chip.lanes) * chip.activation_bytes
    if window_bytes > chip.sram.size // 4:
        return f"one window of {window_bytes} bytes fills more than a quarter of memories.sram.size={chip.sram.size}"
    for what, value, limit, key in (
        ("kernel", geometry.kernel, limits.max_kernel, "limits.pool.max_kernel"),
        ("stride", geometry.strides, limits.max_stride, "limits.pool.max_stride"),
        ("dilation", geometry.dilations, limits.max_kernel, "limits.pool.max_kernel"),
    ):
        most, source = limit or (OPEN_LIMIT, OPEN_LIMIT), key if limit else "what an instruction can say"
        if value[0] > most[0] or value[1] > most[1]:
            return f"{what} {value[0]}x{value[1]} is larger than {source}={most[0]}x{most[1]}"
    return None


@dataclass(frozen=True)
class MaxPool(FloatOp):
    """Largest code of each window; padding never wins."""

    geometry: Geometry
    keeps_scale = True

    def unsupported(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        if "max_pool" not in chip.functions:
            return f"{chip.key('vector')}.functions has no max_pool"
        return _beyond(self.geometry, graph.types[node.inputs[0]].shape[3], chip)

    def quantize(self, node: Node, scope: QuantScope) -> list[Node]:
        return [Node(node.name, IntegerMaxPool(self.geometry), node.inputs, node.outputs, node.sources)]


@dataclass(frozen=True)
class AveragePool(FloatOp):
    """Mean of each window. `count_padding`: padding counts as zeros."""

    geometry: Geometry
    count_padding: bool
    activation: Bounds = (None, None)

    @property
    def takes_clamp(self) -> bool:
        return self.activation == (None, None)

    def unsupported(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        if self.as_convolution(graph.types[node.inputs[0]].shape[3], chip):
            return None
        if "average_pool" not in chip.functions:
            return f"{chip.key('vector')}.functions has no average_pool"
        _, height, width, channels = graph.types[node.inputs[0]].shape
        odd = [n for n in self._window_counts(height, width) if not divides(n, chip.numerics)]
        if odd:
            return f"windows of {', '.join(map(str, odd))} elements; numerics.scale.kind=pow2 divides by powers of two alone"
        return _beyond(self.geometry, channels, chip)

    def as_convolution(self, channels: int, chip: Chip) -> bool:
        """A window the vector engine cannot do, or cannot divide by, is a depthwise convolution where all windows count alike."""
        uniform = self.count_padding or not any(self.geometry.pads)
        on_vector = "average_pool" in chip.functions and _beyond(self.geometry, channels, chip) is None
        exact = divides(math.prod(self.geometry.kernel), chip.numerics)
        beyond = exceeds_max_pad(self.geometry.pads, channels, channels, channels, chip)
        return uniform and not (on_vector and exact) and not beyond

    def _window_counts(self, height: int, width: int) -> list[int]:
        return sorted({int(v) for v in np.unique(_counts(self.geometry, height, width, self.count_padding))})

    def quantize(self, node: Node, scope: QuantScope) -> list[Node]:
        x, y = scope.quant(node.inputs[0]), scope.quant(node.outputs[0])
        low, high = clamp_codes(self.activation, y, scope.code_range)
        _, height, width, channels = scope.graph.types[node.inputs[0]].shape
        if self.as_convolution(channels, scope.chip):
            return [self._convolution(node, scope, channels, low, high)]
        requants = tuple(
            (n, scope.requant(x.scale / (y.scale * n), "average_pool", y.zero_point, low, high, where=node.name))
            for n in self._window_counts(height, width)
        )
        op = IntegerAveragePool(self.geometry, self.count_padding, x.zero_point, requants)
        return [Node(node.name, op, node.inputs, node.outputs, node.sources)]

    def _convolution(self, node: Node, scope: QuantScope, channels: int, low: int, high: int) -> Node:
        x, y = scope.quant(node.inputs[0]), scope.quant(node.outputs[0])
        g, (kh, kw), numerics = self.geometry, self.geometry.kernel, scope.chip.numerics
        weight, step = mean_weight(kh * kw, numerics)
        requant = scope.requant(x.scale * step / y.scale, "convolution", y.zero_point, low, high, where=node.name)
        op = IntegerConvolution(
            g.strides,
            g.pads,
            g.dilations,
            channels,
            x.zero_point,
            numerics.accumulator_bits,
            requant,
            None,
            None,
        )
        weights = scope.constant(f"{node.name}.weights", np.full((channels, kh, kw, 1), weight, np.int8))
        zeros = scope.constant(f"{node.name}.bias", np.zeros(channels, np.int64))
        return Node(node.name, op, (node.inputs[0], weights, zeros), node.outputs, node.sources)


def _counts(geometry: Geometry, height: int, width: int, count_padding: bool) -> Array:
    """int[oh, ow]: how many elements each window counts."""
    kh, kw = geometry.kernel
    if count_padding:
        return np.array([[kh * kw]])
    rows = _axis_counts(geometry, 0, height)
    columns = _axis_counts(geometry, 1, width)
    return np.outer(rows, columns)


def _axis_counts(geometry: Geometry, axis: int, size: int) -> Array:
    """int[outputs]: kernel elements of each output that lie inside the input; 1 where none does."""
    return np.maximum(_met(geometry, axis, size, 0, size), 1)


def all_windows_meet(geometry: Geometry, axis: int, size: int, start: int, count: int) -> bool:
    """True where every window over an input of `size` has an element in [start, start + count)."""
    return bool(_met(geometry, axis, size, start, count).all())


def _met(geometry: Geometry, axis: int, size: int, start: int, count: int) -> Array:
    """int[outputs]: kernel elements of each output in [start, start + count) of an input of `size`."""
    kernel, stride, dilation = geometry.kernel[axis], geometry.strides[axis], geometry.dilations[axis]
    before, after = geometry.pads[axis], geometry.pads[axis + 2]
    first = np.arange(output_size(size, kernel, stride, dilation, (before, after))) * stride - before
    taps = first[:, None] + np.arange(kernel) * dilation
    return ((taps >= start) & (taps < start + count)).sum(1)


class _Pooling(TiledOp):
    """Tiles of both pools: boxes of rows, columns and channels."""

    geometry: Geometry

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return alike_per_sample(self, layer, axis) if axis == 0 else None

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        _, height, width, channels = layer.output.shape
        for part in halvings(channels, layer.chip.lanes):
            for rows in halvings(height):
                yield Tiling(rows, width, part, 0)
        for columns in halvings(width)[1:]:
            yield Tiling(1, columns, min(channels, layer.chip.lanes), 0)

    def _nest(self, layer: Layer, tiling: Tiling, row_runs: list[Pair], column_runs: list[Pair]) -> Nest:
        batch, _, _, channels = layer.output.shape
        _, height, width, _ = layer.input_type(0).shape
        vertical, horizontal = self.geometry.axes(height, width)
        rows = tuple((s + r, n) for s, size in row_runs for r, n in spans(size, tiling.rows))
        columns = tuple((s + c, n) for s, size in column_runs for c, n in spans(size, tiling.columns))
        places = (window_axis(vertical, rows), window_axis(horizontal, columns))
        return Nest(
            (alike(batch), cut_axis(channels, tiling.channels), *places),
            lambda point: (self._work(layer, point[0], point[2], point[3], point[1]),),
        )

    def _work(self, layer: Layer, n: int, rows: Pair, columns: Pair, channels: Pair) -> Work:
        _, height, width, _ = layer.input_type(0).shape
        vertical, horizontal = self.geometry.axes(height, width)
        top, high = vertical.needed(*rows)
        left, wide = horizontal.needed(*columns)
        box = Box(layer.node.inputs[0], (n, top, left, channels[0]), (1, high, wide, channels[1]))
        write = Box(layer.node.outputs[0], (n, rows[0], columns[0], channels[0]), (1, rows[1], columns[1], channels[1]))

        def emit(sites: Sequence[Site], blocks: Sequence[int], out: Site | None) -> tuple[machine.MachineOp, ...]:
            assert out is not None
            site = sites[0]
            # padding is below the kernel, so that every window begins before the input's end: nothing is skipped
            _, pad_top = vertical.offset(rows[0], top)
            _, pad_left = horizontal.offset(columns[0], left)
            g = self.geometry
            return (
                machine.Pool(
                    input_address=site.address,
                    input_row_stride=site.strides[1],
                    input_column_stride=site.strides[2],
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
                    output_height=rows[1],
                    output_width=columns[1],
                    **self._numbers(layer, rows[0], columns[0]),
                ),
            )

        return Work((box,), (), write, emit)

    def _numbers(self, layer: Layer, row: int, column: int) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class IntegerMaxPool(_Pooling):
    NAME = "MaxPool"
    VERSION = 1
    geometry: Geometry

    def reference(self, inputs: Sequence[Array]) -> Array:
        g = self.geometry
        return fixed_point.max_pool(inputs[0], kernel=g.kernel, strides=g.strides, pads=g.pads, dilations=g.dilations)

    def tiling_key(self) -> Hashable:
        return self.geometry

    def nest(self, layer: Layer, tiling: Tiling) -> Nest:
        _, height, width, _ = layer.output.shape
        return self._nest(layer, tiling, [(0, height)], [(0, width)])

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
    """`requants`: (elements counted, requantization) for every count that occurs."""

    NAME = "AveragePool"
    VERSION = 1
    geometry: Geometry
    count_padding: bool
    x_zero_point: int
    requants: tuple[tuple[int, Requant], ...]

    def reference(self, inputs: Sequence[Array]) -> Array:
        x, g = inputs[0], self.geometry
        sums = fixed_point.pool_sum(
            x, kernel=g.kernel, strides=g.strides, pads=g.pads, dilations=g.dilations, x_zero_point=self.x_zero_point
        )
        counts = np.broadcast_to(_counts(g, x.shape[1], x.shape[2], self.count_padding), sums.shape[1:3])
        y = np.empty(sums.shape, x.dtype)
        for n, requant in self.requants:
            here = counts == n
            y[:, here, :] = requantize(sums[:, here, :], requant, x.dtype)
        return y

    def tiling_key(self) -> Hashable:
        return self.geometry, self.count_padding

    def nest(self, layer: Layer, tiling: Tiling) -> Nest:
        _, height, width, _ = layer.output.shape
        if self.count_padding or not any(self.geometry.pads):
            return self._nest(layer, tiling, [(0, height)], [(0, width)])
        _, in_height, in_width, _ = layer.input_type(0).shape
        rows = _runs(_axis_counts(self.geometry, 0, in_height))
        return self._nest(layer, tiling, rows, _runs(_axis_counts(self.geometry, 1, in_width)))

    def _numbers(self, layer: Layer, row: int, column: int) -> dict[str, Any]:
        _, height, width, _ = layer.input_type(0).shape
        counts = _counts(self.geometry, height, width, self.count_padding)
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


def _runs(counts: Array) -> list[Pair]:
    """(start, size) of neighbours that count alike."""
    found: list[Pair] = []
    start = 0
    for _, group in groupby(counts.tolist()):
        size = len(list(group))
        found.append((start, size))
        start += size
    return found


def split_max_pool(geometry: Geometry, limit: Pair) -> list[Geometry] | None:
    """A large max pool as a chain of small ones: max over k is max over k2 of max over k1, k1 + k2 - 1 = k.

    All but the last have stride 1; the first carries the padding. None where dilation stands in the way.
    """
    if geometry.dilations != (1, 1) or min(limit) < 2:
        return None
    chain: list[Geometry] = []
    kh, kw = geometry.kernel
    while kh > limit[0] or kw > limit[1]:
        step = (min(kh, limit[0]), min(kw, limit[1]))
        chain.append(Geometry(step, (1, 1), (0, 0, 0, 0)))
        kh, kw = kh - step[0] + 1, kw - step[1] + 1
    chain.append(Geometry((kh, kw), geometry.strides, (0, 0, 0, 0)))
    chain[0] = replace(chain[0], pads=geometry.pads)
    return chain


def mean_over_space(height: int, width: int, axes: tuple[int, ...]) -> AveragePool:
    """The mean over rows (1), columns (2) or both of [n, h, w, c], dimensions kept."""
    kernel = (height if 1 in axes else 1, width if 2 in axes else 1)
    return AveragePool(Geometry(kernel, (1, 1), (0, 0, 0, 0)), False)


def _geometry(scope: Scope) -> Geometry | None:
    a = scope.attributes
    kernel = a.get("kernel_shape")
    if kernel is None or len(kernel) != 2 or a.get("ceil_mode", 0):
        return None
    top, left, bottom, right = (int(p) for p in a.get("pads", (0, 0, 0, 0)))
    height, width = pair_of(a, "kernel_shape")
    down, across = pair_of(a, "dilations")
    dilations = (down if height > 1 else 1, across if width > 1 else 1)
    return Geometry((height, width), pair_of(a, "strides"), (top, left, bottom, right), dilations)


def max_pool(scope: Scope) -> None:
    geometry = _geometry(scope)
    if geometry is None or len([o for o in scope.node.outputs if o]) > 1:
        return scope.refuse("windows that are not over rows and columns, or indices asked for")
    source = scope.read(scope.node.inputs[0], "nhwc")
    limit = scope.chip.limits.pool.max_kernel
    chain = [geometry]
    if limit and (geometry.kernel[0] > limit[0] or geometry.kernel[1] > limit[1]):
        chain = split_max_pool(geometry, limit) or chain
    for i, step in enumerate(chain[:-1]):
        n, h, w, c = scope.types[source].shape
        top, left, bottom, right = step.pads
        shape = (n, h + top + bottom - step.kernel[0] + 1, w + left + right - step.kernel[1] + 1, c)
        name = scope.inner(f"stage{i}", shape)
        scope.nodes.append(Node(f"{scope.node.name}@stage{i}", MaxPool(step), (source,), (name,), scope.node.sources))
        source = name
    return scope.emit(MaxPool(chain[-1]), (source,), "nhwc")


def average_pool(scope: Scope) -> None:
    geometry = _geometry(scope)
    if geometry is None:
        return scope.refuse("windows that are not over rows and columns")
    op = AveragePool(geometry, bool(scope.attributes.get("count_include_pad", 0)))
    return scope.emit(op, (scope.read(scope.node.inputs[0], "nhwc"),), "nhwc")


RULES = {"MaxPool": Rule(max_pool, "nhwc"), "AveragePool": Rule(average_pool, "nhwc")}
