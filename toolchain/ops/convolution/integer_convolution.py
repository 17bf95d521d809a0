"""Define convolution on codes: what it computes and the tiles it may be cut into.

Accumulators are requantized per output channel, clamped, taken through a table, and a residual is added (each optional).
The operator's methods are those of `TiledOp` in `ops.kit.operator`; `tiles`, `dense` and `grouped_convolution` make
instructions. A schedule by hand that joins one group with no other is refused with the reason _TOGETHER.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import lcm

from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.sums.conv import conv2d
from toolchain.hw.chip import Chip
from toolchain.machine import granule_of
from toolchain.ops.convolution.dense import Dense, Depthwise
from toolchain.ops.convolution.grouped_convolution import Grouped, list_grouped_tilings
from toolchain.ops.convolution.parameters import ConvolutionParameters, Pads, fill_default_limits, is_depthwise
from toolchain.ops.convolution.tiles import Lowering
from toolchain.ops.kit.array_choice import add_dataflows
from toolchain.ops.kit.loops import GRANULES, LoopAxis, LoopOrder, one_by_one
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Array, Layer, PerSample, Windows, split_per_sample
from toolchain.ops.kit.tile import Extent, Tiling, halvings
from toolchain.ops.kit.window import Window

_TOGETHER = "groups alone are `for groups by 1`"


@dataclass(frozen=True, eq=False)
class IntegerConvolution(ConvolutionParameters):
    """An integer convolution of x, weights int8[o, kh, kw, i / groups], bias int64[o] and, with `residual`, the addend.

    The fields are those of `ConvolutionParameters`. Where a tiling's `channels` exceed those of a group, groups run together.
    """

    NAME = "Convolution"
    VERSION = 3
    takes_device_arrays = True

    def reference(self, inputs: Sequence[Array]) -> Array:
        """Compute the sums in accumulators, requantize them, and apply the table, then the residual sum, where it has them."""
        x, weights, bias = inputs[:3]
        acc = conv2d(
            x,
            self.whole_weights(weights),
            strides=self.strides,
            dilations=self.dilations,
            pads=self.pads,
            groups=self.groups,
            x_zero_point=self.x_zero_point,
            bias=bias,
            accumulator_bits=self.accumulator_bits,
        )
        y = requantize(acc, self.requant, self.requant.dtype)
        if self.table is not None:
            y = self.table.apply(y)
        return y if self.residual is None else self.residual.add(y, inputs[3])

    def reads_granules(self, layer: Layer) -> bool:
        """Return whether each group begins with whole granules, so that tensors may lie in them."""
        if self.groups == 1 or self.depthwise(layer):
            return True
        channels = layer.input_type(0).shape[3] // self.groups, layer.output.shape[3] // self.groups
        return all(count % granule_of(layer.chip) == 0 for count in channels)

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Return the operator itself for one sample; pixels count as samples too for 1x1 kernels."""
        _, kh, kw, _ = layer.constants[layer.node.inputs[1]].shape
        pointwise = (kh, kw) == self.strides == (1, 1) and not any(self.pads)
        return split_per_sample(self, layer, axis) if axis == 0 or (axis < 3 and pointwise) else None

    def tiling_key(self) -> Hashable:
        return (
            (self.strides, self.pads, self.dilations, self.groups),
            self.table is not None,
            self.residual is not None,
            self.group,
            self.weight_type,
        )

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        """Yield tilings of neighbouring groups together, then of each group alone: a small SRAM may hold no more."""
        deep = self.depthwise(layer)
        grouped = list_grouped_tilings(self, layer) if self.groups > 1 and self.residual is None and not deep else ()
        return add_dataflows(chain(grouped, _tilings(self, layer)), self.list_capable_units(layer), deep)

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        return loop_orders(self, layer)

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        return _lowering(self, layer, tiling).nest(extent)

    def count_kernel_parts(self, layer: Layer, tilings: Sequence[Tiling]) -> dict[Tiling, int]:
        keys = [(tiling.rows > 1, tiling.columns > 1, tiling.taps) for tiling in tilings]  # all that the parts depend on
        parts = {key: self.kernel_parts(layer, tiling) for key, tiling in dict(zip(keys, tilings)).items()}
        return {tiling: len(parts[key][0]) * len(parts[key][1]) for key, tiling in zip(keys, tilings)}

    def windows(self, layer: Layer, axis: int) -> Windows:
        """Return the kernel's window on the input, and windows of one element on the residual's tensor."""
        kernel, at = layer.constants[layer.node.inputs[1]].shape[axis], axis - 1
        sliding = Window(layer.input_type(0).shape[axis], kernel, self.strides[at], self.dilations[at], self.pads[at])
        windows_by_input = {layer.node.inputs[0]: [sliding]}
        if self.residual is not None:
            windows_by_input.setdefault(layer.node.inputs[3], []).append(Window(layer.output.shape[axis], 1, 1, 1, 0))
        return windows_by_input

    def overwritable(self, layer: Layer) -> tuple[str, ...]:
        """Return the addend, unless it is the input too."""
        x, addends = layer.node.inputs[0], layer.node.inputs[3:]
        return tuple(name for name in addends if name != x)


def _lowering(op: IntegerConvolution, layer: Layer, tiling: Tiling) -> Lowering:
    """Return what makes the tile tasks: depthwise, groups together, or one group at a time."""
    if op.depthwise(layer):
        return Depthwise(op, layer, tiling)
    # More output channels than a group has: the tiling takes neighbouring groups together.
    together = tiling.channels > layer.output.shape[3] // op.groups
    return (Grouped if together else Dense)(op, layer, tiling)


def _tilings(op: IntegerConvolution, layer: Layer) -> Iterable[Tiling]:
    """Yield tilings within accumulators and limits, whole reductions first, cut ones behind them."""
    _, height, width, channels = layer.output.shape
    mac, limits = op.array(layer), op.limits(layer)
    x, out, deep = layer.node.inputs[0], layer.node.outputs[0], op.depthwise(layer)
    channel_multiple = layer.channel_step(out, *((x,) if deep else layer.activations[1:]))
    if deep:
        reduction, within = 1, 1
    else:
        reduction, channels, within = layer.input_type(0).shape[3] // op.groups, channels // op.groups, layer.channel_step(x)
    step, piece, entries = lcm(mac.columns, channel_multiple), lcm(op.group or 1, within), mac.accumulators.entries
    most_inner = _most(reduction, limits.max_input_channels or reduction, piece)
    most_channels = _most(channels, min(limits.max_output_channels or channels, entries), channel_multiple)

    widths = op.widths(layer)
    columns_limit = min(width, widths[0])

    def most_columns(tile_channels: int) -> int:
        return min(columns_limit, entries // tile_channels)

    all_channels, inners = halvings(most_channels, step), halvings(most_inner, lcm(mac.rows * mac.depth, piece))
    least = all_channels[-1]
    for inner in inners:
        for tile_channels in all_channels:
            columns = most_columns(tile_channels)
            most_rows = min(height, entries // tile_channels)
            tall = width == 1 and height > mac.rows  # rows fill the array
            for rows in dict.fromkeys((most_rows, *halvings(most_rows, mac.rows))) if tall else halvings(height):
                if rows * columns * tile_channels > entries and rows > 1:
                    continue
                for wide in dict.fromkeys((columns, *widths[1:], *(halvings(columns, mac.rows) if height == 1 else ()))):
                    yield Tiling(rows, wide, tile_channels, inner, False)
                    if tile_channels < channels and (rows < height or wide < width):
                        yield Tiling(rows, wide, tile_channels, inner, True)
        for part in halvings(most_columns(least))[1:]:
            yield Tiling(1, part, least, inner, False)
    for tile_channels in all_channels:
        columns = most_columns(tile_channels)
        for taps in halvings(layer.constants[layer.node.inputs[1]].shape[1])[1:]:
            if not _holds_kernel(op, layer, least * inners[-1]):
                for inner, rows in product(inners, halvings(min(height, entries // (tile_channels * columns)))):
                    yield Tiling(rows, columns, tile_channels, inner, False, taps)
            yield Tiling(1, 1, tile_channels, inners[-1], False, taps)


def _holds_kernel(op: IntegerConvolution, layer: Layer, channel_pairs: int) -> bool:
    """Return whether a memory of weights holds all taps of so many pairs of an input and an output channel.

    Where none does, the taps are streamed through it while sums of many pixels wait in the accumulators.
    """
    _, kernel_height, kernel_width, _ = layer.constants[layer.node.inputs[1]].shape
    memories = (layer.chip.spaces[unit.roles["weights"]].memory for unit in layer.chip.workers("mac_array"))
    return channel_pairs * kernel_height * kernel_width * op.weight_type.bits <= 8 * max(memory.size for memory in memories)


def _most(channels: int, limit: int, step: int) -> int:
    """Return the most channels of one instruction: all where the limit allows, else the largest multiple of `step` below it."""
    return channels if channels <= limit else limit - limit % step


def exceeds_max_pad(pads: Pads, groups: int, inputs: int, outputs: int, chip: Chip) -> bool:
    """Return whether the padding is beyond the machine's limit, so that it must be written into memory first."""
    depthwise = is_depthwise(groups, inputs, outputs, chip)
    limits = chip.limits.depthwise if depthwise else chip.limits.convolution
    limit = fill_default_limits(limits).max_pad  # pyright: ignore[reportArgumentType]  # frozen models have a hash
    return limit is not None and (max(pads[0], pads[2]) > limit[0] or max(pads[1], pads[3]) > limit[1])


def loop_orders(op: ConvolutionParameters, layer: Layer) -> tuple[LoopOrder, ...]:
    """Return the loop orders of a convolution's tiles: outputs outside, channels outside, and the same over joined groups."""
    return tuple(_orders(op, layer))


def _orders(op: ConvolutionParameters, layer: Layer) -> Iterator[LoopOrder]:
    """Yield the loop orders of `loop_orders`."""
    images, height, width, outputs = layer.output.shape
    _, kernel, _, inputs = layer.constants[layer.node.inputs[1]].shape
    x, out, deep = layer.node.inputs[0], layer.node.outputs[0], op.depthwise(layer)
    groups = 1 if deep else op.groups
    channel_multiple = layer.channel_step(out, *((x,) if deep else layer.activations[1:]))
    within = 1 if deep else layer.channel_step(x)
    places = (*one_by_one((images,)), LoopAxis("rows", height, "rows"), LoopAxis("columns", width, "columns"))
    channels = LoopAxis("channels", outputs // groups, "channels", multiple=channel_multiple, why=GRANULES)
    why = "a cut lies between groups of weights that share a scale" if op.group else GRANULES
    inner = LoopAxis("inner", inputs, "inner", multiple=lcm(op.group or 1, within), why=why)
    taps = LoopAxis("taps", kernel, "taps")
    group_axis = LoopAxis("groups", groups)
    yield LoopOrder((group_axis, *places, channels, inner, taps))
    yield LoopOrder((group_axis, channels, *places, inner, taps), False)
    if groups > 1 and op.residual is None:
        together = LoopAxis("groups", groups, "channels", outputs // groups, least=2, why=_TOGETHER)
        pieces = LoopAxis("pieces", groups, "inner", inputs)
        yield LoopOrder((*places, together, pieces))
        yield LoopOrder((together, *places, pieces), False)
