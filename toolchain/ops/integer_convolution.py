"""Convolution on codes: what it computes, the tiles it may be cut into, and the instructions of each tile.

Accumulators are requantized per output channel, clamped, taken through a table, and a residual is added (each optional).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from quant.fixed_point.conv import conv2d
from quant.fixed_point.requant import Requant
from quant.fixed_point.requantization import requantize
from toolchain.hw.chip import Chip, ConvolutionLimits
from toolchain.isa import operations as machine
from toolchain.isa.accesses import PARAMETER_BYTES
from toolchain.ops.base import Array, Block, Layer, Region, Site, Tiling, Work, halvings, spans
from toolchain.ops.requants import LookupTable, channel_slice, pack_weights, packed_bytes, parameter_block
from toolchain.ops.residual import Residual, no_residual_fields, residual_fields
from toolchain.ops.window import Window

Pads = tuple[int, int, int, int]


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

    def works(self, layer: Layer, tiling: Tiling) -> Iterator[Work]:
        if self.depthwise(layer):
            yield from _Depthwise(self, layer).works(tiling)
            return
        for group in range(self.groups):
            yield from _Dense(self, layer, group).works(tiling)


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


@dataclass(frozen=True)
class _Tile:
    """Output elements of one tile."""

    n: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    channels: tuple[int, int]


@dataclass(frozen=True)
class _Part:
    """Kernel elements and reduction channels of one instruction."""

    ky: tuple[int, int]
    kx: tuple[int, int]
    inner: tuple[int, int]


class _Lowering:
    """What dense and depthwise instructions share: windows, tiles, parts and the common fields."""

    def __init__(self, op: IntegerConvolution, layer: Layer):
        self.op, self.layer = op, layer
        self.x, self.weights, self.bias = layer.node.inputs[:3]
        _, height, width, _ = layer.input_type(0).shape
        _, self.kh, self.kw, _ = layer.constants[self.weights].shape
        self.vertical = Window(height, self.kh, op.strides[0], op.dilations[0], op.pads[0])
        self.horizontal = Window(width, self.kw, op.strides[1], op.dilations[1], op.pads[1])
        self.limits = _limits(op, layer)

    def tiles(self, tiling: Tiling, channels: int, first_channel: int = 0) -> Iterator[_Tile]:
        batch, height, width, _ = self.layer.output.shape
        rows = 1 if self.limits.max_stride and self.op.strides[0] > self.limits.max_stride[0] else tiling.rows
        places = product(range(batch), spans(height, rows), spans(width, tiling.columns))
        groups = [(first_channel + o, size) for o, size in spans(channels, tiling.channels)]
        if tiling.rows_outer:
            return (_Tile(n, r, c, o) for (n, r, c), o in product(places, groups))
        return (_Tile(n, r, c, o) for o, (n, r, c) in product(groups, places))

    def parts(self, tiling: Tiling, reduction: int, tile: _Tile) -> list[_Part]:
        """Kernel and reduction cut to the limits; parts that meet only padding are left out."""
        kernel, dilation = self.limits.max_kernel or (self.kh, self.kw), self.limits.max_dilation
        high = 1 if dilation and self.op.dilations[0] > dilation[0] else min(kernel[0], tiling.taps or kernel[0])
        wide = 1 if dilation and self.op.dilations[1] > dilation[1] else kernel[1]
        cut = self.kh > high or self.kw > wide
        found = [
            _Part(ky, kx, inner)
            for inner in spans(reduction, tiling.inner)
            for ky in spans(self.kh, high)
            for kx in spans(self.kw, wide)
            if not cut or (self._meets(self.vertical, ky, tile.rows) and self._meets(self.horizontal, kx, tile.columns))
        ]
        return found or [_Part((0, min(high, self.kh)), (0, min(wide, self.kw)), (0, min(tiling.inner, reduction)))]

    @staticmethod
    def _meets(window: Window, taps: tuple[int, int], outputs: tuple[int, int]) -> bool:
        part = window.part(taps)
        first = outputs[0] * part.stride - part.pad
        last = first + (outputs[1] - 1) * part.stride + (part.kernel - 1) * part.dilation
        return last >= 0 and first < part.size

    def read(self, tile: _Tile, part: _Part, channels: tuple[int, int], tiling: Tiling) -> Region:
        """What the tile reads; of the kernel rows of this part alone where the tiling cuts them to save memory."""
        vertical = self.vertical.part(part.ky) if tiling.taps else self.vertical
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

    def table_blocks(self) -> tuple[Block, ...]:
        table = self.op.table
        return () if table is None else (table.block(self.layer.node.name),)

    def block(self, tile: _Tile, part: _Part, shape: tuple[int, int], last: bool) -> tuple[Block, int]:
        """Weights of one instruction and, for the last of a tile, its parameters behind them; and where those begin.

        shape: rows x row length of the weights, which are packed row by row.
        """
        numerics = self.layer.chip.numerics
        start, size = tile.channels
        parameters = _aligned(packed_bytes(shape, numerics))

        def data() -> bytes:
            packed = pack_weights(self.rows(tile, part).reshape(shape), numerics)
            if not last:
                return packed
            bias = self.layer.constants[self.bias][start : start + size]
            return packed.ljust(parameters, b"\0") + parameter_block(bias, channel_slice(self.op.requant, start, size))

        key = (self.layer.node.name, tile.channels, part.ky, part.kx, part.inner, last)
        total = parameters + PARAMETER_BYTES * size if last else packed_bytes(shape, numerics)
        return Block(key, total, data), parameters

    def rows(self, tile: _Tile, part: _Part) -> Array:
        """The weights of one instruction in the order of memory."""
        raise NotImplementedError


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


class _Dense(_Lowering):
    """One group: every output channel sees every input channel of the group."""

    def __init__(self, op: IntegerConvolution, layer: Layer, group: int):
        super().__init__(op, layer)
        self.reduction = layer.input_type(0).shape[3] // op.groups
        self.outputs = layer.output.shape[3] // op.groups
        self.first_input, self.first_output = group * self.reduction, group * self.outputs

    def works(self, tiling: Tiling) -> Iterator[Work]:
        for tile in self.tiles(tiling, self.outputs, self.first_output):
            parts = self.parts(tiling, self.reduction, tile)
            for i, part in enumerate(parts):
                yield self._work(tile, part, tiling, i > 0, i == len(parts) - 1)

    def _work(self, tile: _Tile, part: _Part, tiling: Tiling, accumulate: bool, last: bool) -> Work:
        region = self.read(tile, part, (self.first_input + part.inner[0], part.inner[1]), tiling)
        write = self.write(tile) if last else None
        reads = [region]
        if last and self.op.residual is not None:
            reads.append(replace(self.write(tile), tensor=self.layer.node.inputs[3]))
        shape = (tile.channels[1], part.ky[1] * part.kx[1] * part.inner[1])
        block, parameters = self.block(tile, part, shape, last)

        def emit(sites: Sequence[Site], blocks: Sequence[int], out: Site | None) -> tuple[machine.MachineOp, ...]:
            fields: dict[str, Any] = self.window_fields(tile, part, region, sites[0])
            fields.update(self.output_fields(out))
            fields.update(
                residual_fields(self.op.residual, sites[1]) if len(sites) > 1 and self.op.residual else no_residual_fields()
            )
            return (
                machine.Convolution(
                    **fields,
                    input_channels=part.inner[1],
                    output_channels=tile.channels[1],
                    weight_address=blocks[0],
                    parameter_address=blocks[0] + parameters if last else 0,
                    accumulate=int(accumulate),
                    emit=int(last),
                    use_table=int(last and self.op.table is not None),
                    table_address=blocks[1] if last and self.op.table is not None else 0,
                ),
            )

        blocks = (block, *(self.table_blocks() if last else ()))
        return Work(tuple(reads), blocks, write, emit)

    def rows(self, tile: _Tile, part: _Part) -> Array:
        return self.layer.constants[self.weights][_cut(tile.channels), _cut(part.ky), _cut(part.kx), _cut(part.inner)]


def _cut(span: tuple[int, int]) -> slice:
    return slice(span[0], span[0] + span[1])


class _Depthwise(_Lowering):
    """One weight plane a channel: w[ky, kx, c] in memory."""

    def works(self, tiling: Tiling) -> Iterator[Work]:
        for tile in self.tiles(tiling, self.layer.output.shape[3]):
            parts = self.parts(tiling, 1, tile)
            for i, part in enumerate(parts):
                yield self._work(tile, part, tiling, i > 0, i == len(parts) - 1)

    def _work(self, tile: _Tile, part: _Part, tiling: Tiling, accumulate: bool, last: bool) -> Work:
        region = self.read(tile, part, tile.channels, tiling)
        block, parameters = self.block(tile, part, (part.ky[1] * part.kx[1], tile.channels[1]), last)

        def emit(sites: Sequence[Site], blocks: Sequence[int], out: Site | None) -> tuple[machine.MachineOp, ...]:
            fields: dict[str, Any] = self.window_fields(tile, part, region, sites[0])
            fields.update(self.output_fields(out))
            return (
                machine.Depthwise(
                    **fields,
                    channels=tile.channels[1],
                    weight_address=blocks[0],
                    parameter_address=blocks[0] + parameters if last else 0,
                    accumulate=int(accumulate),
                    emit=int(last),
                    use_table=int(last and self.op.table is not None),
                    table_address=blocks[1] if last and self.op.table is not None else 0,
                ),
            )

        blocks = (block, *(self.table_blocks() if last else ()))
        return Work((region,), blocks, self.write(tile) if last else None, emit)

    def rows(self, tile: _Tile, part: _Part) -> Array:
        cut = self.layer.constants[self.weights][_cut(tile.channels), _cut(part.ky), _cut(part.kx), 0]
        return cut.transpose(1, 2, 0)
