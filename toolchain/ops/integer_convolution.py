"""Convolution on codes: what it computes, the tiles it may be cut into, and the instructions of each tile.

Accumulators are requantized per output channel, clamped, taken through a table, and a residual is added (each optional).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from quant.fixed_point.conv import conv2d
from quant.fixed_point.requant import Requant
from quant.fixed_point.requantization import requantize
from toolchain.hw.chip import Chip, ConvolutionLimits
from toolchain.isa import operations as machine
from toolchain.isa.accesses import PARAMETER_BYTES, weight_bytes
from toolchain.ops.base import Array, Block, Layer, Region, Site, Tiling, Work, aligned, halvings, spans
from toolchain.ops.nest import Nest, alike, cut_axis, reduction_axis, window_axis
from toolchain.ops.requants import LookupTable, channel_slice, pack_weights, parameter_block
from toolchain.ops.residual import Residual, no_residual_fields, residual_fields
from toolchain.ops.window import Window

Pads = tuple[int, int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class IntegerConvolution:
    """Inputs x, weights int8[o, kh, kw, i / groups], bias int64[o] and, with `residual`, the tensor that is added."""

    strides: tuple[int, int]
    pads: Pads
    dilations: tuple[int, int]
    groups: int
    x_zero_point: int
    accumulator_bits: int
    requant: Requant
    table: LookupTable | None
    residual: Residual | None

    def reference(self, inputs: Sequence[Array]) -> Array:
        x, weights, bias = inputs[:3]
        acc = conv2d(
            x,
            weights,
            strides=self.strides,
            dilations=self.dilations,
            pads=self.pads,
            groups=self.groups,
            x_zero_point=self.x_zero_point,
            bias=bias,
            accumulator_bits=self.accumulator_bits,
        )
        y = requantize(acc, self.requant, x.dtype)
        if self.table is not None:
            y = self.table.apply(y)
        return y if self.residual is None else self.residual.add(y, inputs[3])

    def depthwise(self, layer: Layer) -> bool:
        """True when machine.Depthwise runs it."""
        outputs = layer.constants[layer.node.inputs[1]].shape[0]
        return self.residual is None and is_depthwise(self.groups, layer.input_type(0).shape[3], outputs, layer.chip)

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        return _tilings(self, layer)

    def nest(self, layer: Layer, tiling: Tiling) -> Nest:
        lowering = _Depthwise if self.depthwise(layer) else _Dense
        return lowering(self, layer, tiling).nest()


def _tilings(op: IntegerConvolution, layer: Layer) -> Iterable[Tiling]:
    """Rows x columns x channels within accumulators and limits; whole reductions first, cut ones where they must be."""
    _, height, width, channels = layer.output.shape
    mac, limits = layer.chip.engines.mac, _limits(op, layer)
    if op.depthwise(layer):
        reduction, step = 1, mac.columns
    else:
        reduction, channels, step = layer.input_type(0).shape[3] // op.groups, channels // op.groups, mac.columns
    entries = mac.accumulators.entries
    most_inner = min(reduction, limits.max_input_channels or reduction)
    most_channels = min(channels, limits.max_output_channels or channels, entries)
    for inner in halvings(most_inner, mac.rows * mac.depth):
        for tile_channels in halvings(most_channels, step):
            columns = min(width, entries // tile_channels, _most_columns(op, layer, limits))
            for rows in halvings(height):
                if rows * columns * tile_channels > entries and rows > 1:
                    continue
                yield Tiling(rows, columns, tile_channels, inner, False)
                if tile_channels < channels and (rows < height or columns < width):
                    yield Tiling(rows, columns, tile_channels, inner, True)
        for part in halvings(columns)[1:]:
            yield Tiling(1, part, tile_channels, inner, False)
    kernel_rows = layer.constants[layer.node.inputs[1]].shape[1]
    for taps in halvings(kernel_rows)[1:]:
        yield Tiling(1, 1, tile_channels, inner, False, taps)


def _most_columns(op: IntegerConvolution, layer: Layer, limits: ConvolutionLimits) -> int:
    if limits.max_stride and op.strides[1] > limits.max_stride[1]:
        return 1
    return limits.max_width or layer.output.shape[2]


def _limits(op: IntegerConvolution, layer: Layer) -> ConvolutionLimits:
    return layer.chip.limits.depthwise if op.depthwise(layer) else layer.chip.limits.convolution


def is_depthwise(groups: int, inputs: int, outputs: int, chip: Chip) -> bool:
    """One weight plane a channel, and the array has a mode for it."""
    return groups == inputs == outputs and inputs > 1 and chip.engines.mac.depthwise != "none"


def exceeds_max_pad(pads: Pads, groups: int, inputs: int, outputs: int, chip: Chip) -> bool:
    """True when the padding must be written into memory first."""
    depthwise = is_depthwise(groups, inputs, outputs, chip)
    limit = (chip.limits.depthwise if depthwise else chip.limits.convolution).max_pad
    return limit is not None and (max(pads[0], pads[2]) > limit[0] or max(pads[1], pads[3]) > limit[1])


class _Tile(NamedTuple):
    """Output elements of one tile."""

    group: int
    n: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    channels: tuple[int, int]


class _Part(NamedTuple):
    """Kernel elements and reduction channels of one instruction."""

    ky: tuple[int, int]
    kx: tuple[int, int]
    inner: tuple[int, int]


class _Lowering:
    """What dense and depthwise instructions share: windows, tiles, parts and the common fields.

    Groups, tiles of a group, pieces of the reduction and parts of the kernel are the loops, parts that meet only padding
    left out. The last work of a tile has the results, those before it leave partial sums.
    """

    groups: int  # that run one after another
    reduction: int  # input channels that one output channel of the works sees
    outputs: int  # output channels of a group

    def __init__(self, op: IntegerConvolution, layer: Layer, tiling: Tiling):
        self.op, self.layer, self.tiling = op, layer, tiling
        self.x, self.weights, self.bias = layer.node.inputs[:3]
        _, height, width, _ = layer.input_type(0).shape
        _, self.kh, self.kw, _ = layer.constants[self.weights].shape
        self.vertical = Window(height, self.kh, op.strides[0], op.dilations[0], op.pads[0])
        self.horizontal = Window(width, self.kw, op.strides[1], op.dilations[1], op.pads[1])
        self.limits = _limits(op, layer)
        self.high, self.wide = self._kernel_part()
        self.table_blocks = () if op.table is None else (op.table.block(layer.node.name),)

    def _kernel_part(self) -> tuple[int, int]:
        """Kernel rows and columns of one instruction."""
        kernel, dilation = self.limits.max_kernel or (self.kh, self.kw), self.limits.max_dilation
        high = 1 if dilation and self.op.dilations[0] > dilation[0] else min(kernel[0], self.tiling.taps or kernel[0])
        wide = 1 if dilation and self.op.dilations[1] > dilation[1] else kernel[1]
        return min(high, self.kh), min(wide, self.kw)

    def nest(self) -> Nest:
        batch, height, width, _ = self.layer.output.shape
        tile_rows = 1 if self.limits.max_stride and self.op.strides[0] > self.limits.max_stride[0] else self.tiling.rows
        ky, kx = tuple(spans(self.kh, self.high)), tuple(spans(self.kw, self.wide))
        rows = window_axis(self.vertical, tuple(spans(height, tile_rows)), ky)
        columns = window_axis(self.horizontal, tuple(spans(width, self.tiling.columns)), kx)
        inner = reduction_axis(self.reduction, self.tiling.inner)
        places, channels = (alike(batch), rows, columns), cut_axis(self.outputs, self.tiling.channels)
        order = (*places, channels) if self.tiling.rows_outer else (channels, *places)
        taps = list(product(ky, kx))
        return Nest((alike(self.groups), *order, inner), lambda point: self._works(point, taps))

    def _works(self, point: tuple[Any, ...], taps: list[tuple[Pair, Pair]]) -> list[Work]:
        """One tile and one piece of the reduction: a work for each part of the kernel that meets more than padding."""
        if self.tiling.rows_outer:
            group, n, rows, columns, (channel, size), inner = point
        else:
            group, (channel, size), n, rows, columns, inner = point
        tile = _Tile(group, n, rows, columns, (group * self.outputs + channel, size))
        met = [(ky, kx) for ky, kx in taps if self._meets(tile, ky, kx)] if len(taps) > 1 else taps
        first, final = inner[0] == 0, inner[0] + inner[1] == self.reduction
        if not met:
            return [self.work(tile, _Part(*taps[0], inner), False, True)] if first else []
        ends = len(met) - 1
        return [self.work(tile, _Part(ky, kx, inner), i > 0 or not first, final and i == ends) for i, (ky, kx) in enumerate(met)]

    def _meets(self, tile: _Tile, ky: Pair, kx: Pair) -> bool:
        return self.vertical.part(ky).meets(*tile.rows) and self.horizontal.part(kx).meets(*tile.columns)

    def work(self, tile: _Tile, part: _Part, accumulate: bool, last: bool) -> Work:
        """The work of one instruction."""
        raise NotImplementedError

    def read(self, tile: _Tile, part: _Part, channels: tuple[int, int]) -> Region:
        """What the tile reads; of the kernel rows of this part alone where the tiling cuts them to save memory."""
        vertical = self.vertical.part(part.ky) if self.tiling.taps else self.vertical
        top, rows = vertical.needed(*tile.rows)
        left, columns = self.horizontal.needed(*tile.columns)
        return Region(self.x, (tile.n, top, left, channels[0]), (1, rows, columns, channels[1]))

    def write(self, tile: _Tile) -> Region:
        start = (tile.n, tile.rows[0], tile.columns[0], tile.channels[0])
        return Region(self.layer.node.outputs[0], start, (1, tile.rows[1], tile.columns[1], tile.channels[1]))

    def window_fields(self, tile: _Tile, part: _Part, region: Region, site: Site) -> dict[str, int]:
        """Addresses, sizes and padding of the input as this part of the kernel sees it."""
        op = self.op
        vertical, horizontal = self.vertical.part(part.ky), self.horizontal.part(part.kx)
        skip_rows, pad_top = vertical.offset(tile.rows[0], region.start[1])
        skip_columns, pad_left = horizontal.offset(tile.columns[0], region.start[2])
        return {
            "input_address": site.address + skip_rows * site.strides[1] + skip_columns * site.strides[2],
            "input_row_stride": site.strides[1],
            "input_column_stride": site.strides[2],
            "input_height": max(0, region.size[1] - skip_rows),
            "input_width": max(0, region.size[2] - skip_columns),
            "pad_top": pad_top,
            "pad_left": pad_left,
            "kernel_height": part.ky[1],
            "kernel_width": part.kx[1],
            "stride_height": op.strides[0] if tile.rows[1] > 1 else 1,
            "stride_width": op.strides[1] if tile.columns[1] > 1 else 1,
            "dilation_height": op.dilations[0] if part.ky[1] > 1 else 1,
            "dilation_width": op.dilations[1] if part.kx[1] > 1 else 1,
            "output_height": tile.rows[1],
            "output_width": tile.columns[1],
            "input_zero_point": op.x_zero_point,
        }

    def array_fields(self, blocks: Sequence[int], parameters: int, accumulate: bool, last: bool) -> dict[str, int]:
        """Weights, parameters behind them, table, and what becomes of the sums; blocks: addresses of weights and table."""
        table = last and self.op.table is not None
        return {
            "weight_address": blocks[0],
            "parameter_address": blocks[0] + parameters if last else 0,
            "accumulate": int(accumulate),
            "emit": int(last),
            "use_table": int(table),
            "table_address": blocks[1] if table else 0,
        }

    def output_fields(self, site: Site | None) -> dict[str, int]:
        r = self.op.requant
        return {
            "output_address": site.address if site else 0,
            "output_row_stride": site.strides[1] if site else 0,
            "output_column_stride": site.strides[2] if site else 0,
            "output_zero_point": r.zero_point,
            "clamp_low": r.low,
            "clamp_high": r.high,
        }

    def block(self, tile: _Tile, part: _Part, shape: tuple[int, int], last: bool) -> tuple[Block, int]:
        """Weights of one instruction and, for the last of a tile, its parameters behind them; and where those begin.

        shape: rows x row length of the weights, which are packed row by row.
        """
        numerics = self.layer.chip.numerics
        start, size = tile.channels
        packed_bytes = shape[0] * weight_bytes(shape[1], self.layer.chip)
        parameters = aligned(packed_bytes, PARAMETER_BYTES)

        def data() -> bytes:
            packed = pack_weights(self.rows(tile, part).reshape(shape), numerics)
            if not last:
                return packed
            bias = self.layer.constants[self.bias][start : start + size]
            return packed.ljust(parameters, b"\0") + parameter_block(bias, channel_slice(self.op.requant, start, size))

        key = (self.layer.node.name, tile.channels, part.ky, part.kx, part.inner, last)
        total = parameters + PARAMETER_BYTES * size if last else packed_bytes
        return Block(key, total, data), parameters

    def rows(self, tile: _Tile, part: _Part) -> Array:
        """The weights of one instruction in the order of memory."""
        raise NotImplementedError


class _Dense(_Lowering):
    """One group: every output channel sees every input channel of the group."""

    def __init__(self, op: IntegerConvolution, layer: Layer, tiling: Tiling):
        self.groups = op.groups
        self.reduction, self.outputs = layer.input_type(0).shape[3] // op.groups, layer.output.shape[3] // op.groups
        super().__init__(op, layer, tiling)

    def work(self, tile: _Tile, part: _Part, accumulate: bool, last: bool) -> Work:
        region = self.read(tile, part, (tile.group * self.reduction + part.inner[0], part.inner[1]))
        write = self.write(tile) if last else None
        reads = [region]
        if last and self.op.residual is not None:
            reads.append(self.write(tile)._replace(tensor=self.layer.node.inputs[3]))
        shape = (tile.channels[1], part.ky[1] * part.kx[1] * part.inner[1])
        block, parameters = self.block(tile, part, shape, last)

        def emit(sites: Sequence[Site], blocks: Sequence[int], out: Site | None) -> tuple[machine.MachineOp, ...]:
            residual = self.op.residual if len(sites) > 1 else None
            return (
                machine.Convolution(
                    **self.window_fields(tile, part, region, sites[0]),
                    **self.array_fields(blocks, parameters, accumulate, last),
                    **self.output_fields(out),
                    **(no_residual_fields() if residual is None else residual_fields(residual, sites[1])),
                    input_channels=part.inner[1],
                    output_channels=tile.channels[1],
                ),
            )

        blocks = (block, *(self.table_blocks if last else ()))
        return Work(tuple(reads), blocks, write, emit)

    def rows(self, tile: _Tile, part: _Part) -> Array:
        return self.layer.constants[self.weights][_cut(tile.channels), _cut(part.ky), _cut(part.kx), _cut(part.inner)]


def _cut(span: tuple[int, int]) -> slice:
    return slice(span[0], span[0] + span[1])


class _Depthwise(_Lowering):
    """One weight plane a channel: w[ky, kx, c] in memory."""

    def __init__(self, op: IntegerConvolution, layer: Layer, tiling: Tiling):
        self.groups, self.reduction, self.outputs = 1, 1, layer.output.shape[3]
        super().__init__(op, layer, tiling)

    def work(self, tile: _Tile, part: _Part, accumulate: bool, last: bool) -> Work:
        region = self.read(tile, part, tile.channels)
        block, parameters = self.block(tile, part, (part.ky[1] * part.kx[1], tile.channels[1]), last)

        def emit(sites: Sequence[Site], blocks: Sequence[int], out: Site | None) -> tuple[machine.MachineOp, ...]:
            return (
                machine.Depthwise(
                    **self.window_fields(tile, part, region, sites[0]),
                    **self.array_fields(blocks, parameters, accumulate, last),
                    **self.output_fields(out),
                    channels=tile.channels[1],
                ),
            )

        blocks = (block, *(self.table_blocks if last else ()))
        return Work((region,), blocks, self.write(tile) if last else None, emit)

    def rows(self, tile: _Tile, part: _Part) -> Array:
        cut = self.layer.constants[self.weights][_cut(tile.channels), _cut(part.ky), _cut(part.kx), 0]
        return cut.transpose(1, 2, 0)
