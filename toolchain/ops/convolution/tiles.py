"""Lower a convolution to tile tasks: the base of dense and depthwise instructions.

It cuts the output into tiles, the reduction into pieces and the kernel into parts, and fills the common fields of
instructions.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from toolchain.machine import parameter_bytes
from toolchain.ops.convolution.constants import Addresses, Constants, DeferredBytes, complete_constants, partial_sum_constants
from toolchain.ops.convolution.parameters import ConvolutionParameters
from toolchain.ops.kit.array_choice import lie_together
from toolchain.ops.kit.nest import Nest, cut_axis, reduction_axis, uniform_axis, window_axis
from toolchain.ops.kit.operator import Array, Layer
from toolchain.ops.kit.requants import channel_slice, parameter_block
from toolchain.ops.kit.tile import Box, BoxLocation, Extent, TileTask, Tiling, find_padded_edges, spans
from toolchain.ops.kit.window import Taps, Window

Pair = tuple[int, int]


class Tile(NamedTuple):
    """The output elements of one tile: group, image `n`, and (start, count) of rows, columns and channels over all groups."""

    group: int
    n: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    channels: tuple[int, int]


class KernelPart(NamedTuple):
    """Kernel rows, kernel columns and reduction channels (start, count) of one instruction."""

    ky: Taps
    kx: Taps
    inner: tuple[int, int]


class WindowInput(NamedTuple):
    """One axis of an instruction's input, within the box that was loaded.

    `skip`: elements of the box before the first. `pad`: elements of padding in front. `size`: number of elements.
    `element_step`: elements of the box from one to the next. `stride`: that of the window over these elements.
    """

    skip: int
    pad: int
    size: int
    element_step: int
    stride: int


def get_window_input(window: Window, outputs: Pair, first: int, available: int, element_step: int = 1) -> WindowInput:
    """Return what a window reads along one axis for outputs (start, count).

    The box that was loaded has `available` elements from `first` on.
    `element_step`: the instruction sees every so many elements; the window's stride and dilation are multiples of it.
    """
    start, count = outputs
    begin = start * window.stride - window.pad - first
    pad = max(0, -(begin // element_step))
    skip = begin + pad * element_step
    size = max(0, -(-(available - skip) // element_step))
    stride = window.stride // element_step if count > 1 else 1
    if element_step == 1:
        return WindowInput(skip, pad, size, 1, stride)
    size = min(size, (count - 1) * stride + (window.kernel - 1) * window.dilation // element_step + 1 - pad)
    return WindowInput(skip, pad, size, element_step if size > 1 else 1, stride) if size > 0 else WindowInput(0, 0, 0, 1, 1)


class Lowering:
    """A base class that lowers a convolution with one tiling to a nest of tile tasks.

    Groups, tiles of a group, pieces of the reduction and parts of the kernel are the loops.
    Parts that meet only padding are left out. The last task of a tile stores the results, the earlier ones leave partial
    sums.
    A subclass sets `groups`, the number that run one after another, and `outputs`, the output channels of one.
    It sets `reduction`, the input channels that an output channel of a task sees, and defines `make_task`, `pack_kernel` and
    `rows`.
    """

    groups: int
    reduction: int
    outputs: int

    def __init__(self, op: ConvolutionParameters, layer: Layer, tiling: Tiling):
        self.op, self.layer, self.tiling = op, layer, tiling
        self.x, self.weights, self.bias = layer.node.inputs[:3]
        _, height, width, _ = layer.input_type(0).shape
        _, self.kh, self.kw, _ = layer.constants[self.weights].shape
        self.vertical = Window(height, self.kh, op.strides[0], op.dilations[0], op.pads[0])
        self.horizontal = Window(width, self.kw, op.strides[1], op.dilations[1], op.pads[1])
        self.element_steps = op.element_steps(layer, tiling)
        self.weight_number = layer.chip.weight_types.index(op.weight_type)
        self.ky, self.kx = op.kernel_parts(layer, tiling)
        self.table_blocks = () if op.table is None else (op.table.block(layer.node.name, "parameters"),)
        entry = layer.chip.layout.parameters
        self.parameter_step = entry.alignment_bytes if lie_together(layer.chip, "weights", "parameters") else 0
        self._constants: dict[tuple[Pair, KernelPart, bool], Constants] = {}

    def nest(self, extent: Extent | None = None) -> Nest:
        """Return the loop nest of the output or of its part `extent`, whose channels are ignored where there are several
        groups.
        """
        batch, height, width, _ = self.layer.output.shape
        (top, high), (first, outputs), across = extent or Extent((0, height), (0, self.outputs))
        outputs, (first_column, wide) = min(outputs, self.outputs), across or (0, width)
        rows = window_axis(self.vertical, tuple(spans(high, self.tiling.rows, top)), self.ky)
        columns = window_axis(self.horizontal, tuple(spans(wide, self.tiling.columns, first_column)), self.kx)
        inner = reduction_axis(self.reduction, self.tiling.inner)
        places, channels = (uniform_axis(batch), rows, columns), cut_axis(outputs, self.tiling.channels, first)
        order = (*places, channels) if self.tiling.rows_outer else (channels, *places)
        taps = list(product(self.ky, self.kx))
        return Nest((uniform_axis(self.groups), *order, inner), lambda point: self._make_tasks(point, taps))

    def _make_tasks(self, point: tuple[Any, ...], taps: list[tuple[Taps, Taps]]) -> list[TileTask]:
        """Return the tasks of one tile and one piece of the reduction: one for each part of the kernel that meets more than
        padding.
        """
        tile, inner = self._tile(point)
        met = self._met(tile, taps)
        first, final = inner[0] == 0, inner[0] + inner[1] == self.reduction
        if not met:
            return [self.make_task(tile, KernelPart(*taps[0], inner), False, True)] if first else []
        ends = len(met) - 1
        return [
            self.make_task(tile, KernelPart(ky, kx, inner), i > 0 or not first, final and i == ends)
            for i, (ky, kx) in enumerate(met)
        ]

    def _tile(self, point: tuple[Any, ...]) -> tuple[Tile, Pair]:
        """Return the tile of a point of the nest, and its piece of the reduction."""
        if self.tiling.rows_outer:
            group, n, rows, columns, (channel, size), inner = point
        else:
            group, (channel, size), n, rows, columns, inner = point
        return Tile(group, n, rows, columns, (group * self.outputs + channel, size)), inner

    def _met(self, tile: Tile, taps: list[tuple[Taps, Taps]]) -> list[tuple[Taps, Taps]]:
        """Return the parts of the kernel that meet more than padding."""
        return [(ky, kx) for ky, kx in taps if self._meets(tile, ky, kx)] if len(taps) > 1 else taps

    def _meets(self, tile: Tile, ky: Taps, kx: Taps) -> bool:
        return self.vertical.part(ky).meets(*tile.rows) and self.horizontal.part(kx).meets(*tile.columns)

    def make_task(self, tile: Tile, part: KernelPart, accumulate: bool, last: bool) -> TileTask:
        """Return the task of one instruction, by the subclass.

        `accumulate`: it adds to the tile's partial sums. `last`: it makes the tile's results.
        """
        raise NotImplementedError

    def read(self, tile: Tile, part: KernelPart, channels: tuple[int, int]) -> Box:
        """Return the box of `channels` (start, count) that the tile reads.

        It has only this part's kernel rows where the tiling cuts the kernel to save memory.
        """
        vertical = self.vertical.part(part.ky) if self.tiling.taps else self.vertical
        top, rows = vertical.get_input_span(*tile.rows)
        first_column, columns = self.horizontal.get_input_span(*tile.columns)
        return Box(self.x, (tile.n, top, first_column, channels[0]), (1, rows, columns, channels[1]))

    def variant(self, tile: Tile, part: KernelPart, box: Box, last: bool) -> tuple[int, ...]:
        """Return the variant of the task: what its cycles depend on beside its shapes (`TileTask`)."""
        sums = () if last else (tile.rows[1], tile.columns[1], tile.channels[1])
        return (*self.tiling.variant, *part.ky, *part.kx, *self.get_padded_edges(tile, box), *sums)

    def get_padded_edges(self, tile: Tile, box: Box) -> tuple[int, int]:
        """Return the tile's first row and column, each -1 where its windows cannot meet padding along that axis."""
        return find_padded_edges((tile.rows[0], tile.columns[0]), box, self.layer.types[self.x].shape)

    def write(self, tile: Tile) -> Box:
        """Return the box of the output that the tile makes."""
        start = (tile.n, tile.rows[0], tile.columns[0], tile.channels[0])
        return Box(self.layer.node.outputs[0], start, (1, tile.rows[1], tile.columns[1], tile.channels[1]))

    def window_fields(self, tile: Tile, part: KernelPart, box: Box, site: BoxLocation) -> dict[str, int]:
        """Return the fields for the input: addresses, sizes and padding, as this part of the kernel sees the loaded `box` at
        `site`.
        """
        op = self.op
        row_step, column_step = self.element_steps
        rows = get_window_input(self.vertical.part(part.ky), tile.rows, box.start[1], box.size[1], row_step)
        columns = get_window_input(self.horizontal.part(part.kx), tile.columns, box.start[2], box.size[2], column_step)
        return {
            "input_address": site.address + rows.skip * site.strides[1] + columns.skip * site.strides[2],
            "input_row_stride": rows.element_step * site.strides[1],
            "input_column_stride": columns.element_step * site.strides[2],
            "input_surface_stride": site.strides.surface_bytes,
            "input_height": rows.size,
            "input_width": columns.size,
            "pad_top": rows.pad,
            "pad_left": columns.pad,
            "kernel_height": part.ky.size,
            "kernel_width": part.kx.size,
            "stride_height": rows.stride,
            "stride_width": columns.stride,
            "dilation_height": op.dilations[0] * part.ky.step // row_step if part.ky.size > 1 else 1,
            "dilation_width": op.dilations[1] * part.kx.step // column_step if part.kx.size > 1 else 1,
            "output_height": tile.rows[1],
            "output_width": tile.columns[1],
            "input_zero_point": op.x_zero_point,
            "input_type": self.layer.type_number(self.layer.node.inputs[0]),
            "output_type": self.layer.output_number,
        }

    def array_fields(self, constants: Addresses, accumulate: bool, last: bool) -> dict[str, int]:
        """Return the fields for weights, parameters and table, and for what becomes of the sums."""
        return {
            "weight_address": constants.weights,
            "parameter_address": constants.parameters if last else 0,
            "accumulate": int(accumulate),
            "emit": int(last),
            "use_table": int(last and self.op.table is not None),
            "table_address": constants.table if last else 0,
            "dataflow": self.tiling.dataflow,
            "weight_type": self.weight_number,
        }

    def output_fields(self, site: BoxLocation | None) -> dict[str, int]:
        """Return the fields for the output at `site`; its addresses are 0 where `site` is None, for partial sums."""
        r = self.op.requant
        return {
            "output_address": site.address if site else 0,
            "output_row_stride": site.strides[1] if site else 0,
            "output_column_stride": site.strides[2] if site else 0,
            "output_surface_stride": site.strides.surface_bytes if site else 0,
            "output_zero_point": r.zero_point,
            "clamp_low": r.low,
            "clamp_high": r.high,
        }

    def constants(self, tile: Tile, part: KernelPart, shape: tuple[int, int], last: bool) -> Constants:
        """Return the weights of one instruction and, for the last of a tile, its parameters and table. Equal requests share
        one result.

        `shape`: rows x row length of the weights, which are packed row by row.
        """
        constants = self._constants.get((tile.channels, part, last))
        if constants is None:
            key, packed = (self.layer.node.name, tile.channels, *part), self.pack_kernel(tile, part, shape)
            ends = (self.parameters(*tile.channels), self.table_blocks, self.parameter_step)
            constants = self._constants[tile.channels, part, last] = (
                complete_constants(key, packed, *ends) if last else partial_sum_constants(key, packed)
            )
        return constants

    def pack_kernel(self, tile: Tile, part: KernelPart, shape: tuple[int, int]) -> DeferredBytes:
        """Return the packed weights of one instruction, by the subclass."""
        raise NotImplementedError

    def parameters(self, start: int, size: int) -> DeferredBytes:
        """Return the parameters of output channels [start, start + size)."""
        bias, requant, chip = self.layer.constants[self.bias], self.op.requant, self.layer.chip

        def data() -> bytes:
            return parameter_block(bias[start : start + size], channel_slice(requant, start, size), chip)

        return DeferredBytes(parameter_bytes(size, chip), data)

    def rows(self, tile: Tile, part: KernelPart) -> Array:
        """Return the weights of one instruction in the order of memory, by the subclass."""
        raise NotImplementedError


def cut(span: Pair) -> slice:
    """Return (start, size) as a slice."""
    return slice(span[0], span[0] + span[1])
