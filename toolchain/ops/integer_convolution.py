"""Convolution on codes: what it computes and the tiles it may be cut into.

Accumulators are requantized per output channel, clamped, taken through a table, and a residual is added (each optional).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from quant.fixed_point.conv import conv2d
from quant.fixed_point.requant import Requant
from quant.fixed_point.requantization import requantize
from toolchain.hw.chip import Chip, ConvolutionLimits
from toolchain.hw.engines import MacArray
from toolchain.machine.parameter import OPEN_LIMIT
from toolchain.ops.arrays import able_arrays, main_array
from toolchain.ops.base import Array, Layer, PerSample, Tiling, alike_per_sample, halvings
from toolchain.ops.convolution_tiles import Dense, Depthwise, Lowering
from toolchain.ops.grouped_convolution import Grouped, grouped_tilings
from toolchain.ops.nest import Nest
from toolchain.ops.requants import LookupTable
from toolchain.ops.residual import Residual

Pads = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class IntegerConvolution:
    """Inputs x, weights int8[o, kh, kw, i / groups], bias int64[o] and, with `residual`, the tensor that is added."""

    NAME = "Convolution"
    VERSION = 1
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

    @property
    def post(self) -> frozenset[str]:
        """What an array must do to its outputs on their way to memory."""
        wanted = (("table", self.table), ("add", self.residual))
        return frozenset(name for name, part in wanted if part is not None)

    def array(self, layer: Layer) -> MacArray:
        """The largest array that can run it."""
        return main_array(able_arrays(layer.chip, self.post, self.depthwise(layer)))

    def can_have(self, post: str, layer: Layer) -> bool:
        """True where an array that can run the convolution as it is has this `post` too."""
        return bool(able_arrays(layer.chip, self.post | {post}, self.depthwise(layer)))

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Pixels are samples too where each is made from one."""
        _, kh, kw, _ = layer.constants[layer.node.inputs[1]].shape
        pointwise = (kh, kw) == self.strides == (1, 1) and not any(self.pads)
        return alike_per_sample(self, layer, axis) if axis == 0 or (axis < 3 and pointwise) else None

    def depthwise(self, layer: Layer) -> bool:
        """True when machine.Depthwise runs it."""
        outputs = layer.constants[layer.node.inputs[1]].shape[0]
        return self.residual is None and is_depthwise(self.groups, layer.input_type(0).shape[3], outputs, layer.chip)

    def limits(self, layer: Layer) -> ConvolutionLimits:
        """Those of the machine operation that runs it."""
        return stated(getattr(layer.chip.limits, self.section(layer)))

    def section(self, layer: Layer) -> str:
        """Where `limits` has those of the machine operation that runs it."""
        return "depthwise" if self.depthwise(layer) else "convolution"

    def stride_cut(self, layer: Layer) -> str | None:
        """What a stride beyond the machine's limit costs: outputs apart from each other take an instruction each."""
        section = self.section(layer)
        limit = getattr(layer.chip.limits, section).max_stride
        apart = [axis for axis, s, most in zip(("row", "column"), self.strides, limit or self.strides) if s > most]
        if limit is None or not apart:
            return None
        stride, each = "x".join(map(str, self.strides)), " and one ".join(apart)
        return f"limits.{section}.max_stride={list(limit)}: stride {stride}, so one output {each} an instruction"

    def most_columns(self, layer: Layer) -> int:
        """Output columns of one instruction."""
        limits = self.limits(layer)
        if limits.max_stride and self.strides[1] > limits.max_stride[1]:
            return 1
        return limits.max_width or layer.output.shape[2]

    def macs(self, layer: Layer) -> int:
        """Products that the convolution takes, those with padding included."""
        _, kh, kw, inputs = layer.constants[layer.node.inputs[1]].shape
        n, height, width, channels = layer.output.shape
        return n * height * width * channels * kh * kw * inputs

    def tiling_key(self) -> Hashable:
        return (
            (self.strides, self.pads, self.dilations, self.groups),
            self.table is not None,
            self.residual is not None,
        )

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        """Neighbouring groups together, then each group alone: a small SRAM may hold no more."""
        if self.groups > 1 and self.residual is None and not self.depthwise(layer):
            yield from grouped_tilings(self, layer)
        yield from _tilings(self, layer)

    def nest(self, layer: Layer, tiling: Tiling) -> Nest:
        return _lowering(self, layer, tiling).nest()


def _lowering(op: IntegerConvolution, layer: Layer, tiling: Tiling) -> Lowering:
    if op.depthwise(layer):
        return Depthwise(op, layer, tiling)
    # More output channels than a group has: the tiling takes neighbouring groups together.
    together = tiling.channels > layer.output.shape[3] // op.groups
    return (Grouped if together else Dense)(op, layer, tiling)


def _tilings(op: IntegerConvolution, layer: Layer) -> Iterable[Tiling]:
    """Rows x columns x channels within accumulators and limits; whole reductions first, cut ones where they must be."""
    _, height, width, channels = layer.output.shape
    mac, limits = op.array(layer), op.limits(layer)
    if op.depthwise(layer):
        reduction, step = 1, mac.columns
    else:
        reduction, channels, step = layer.input_type(0).shape[3] // op.groups, channels // op.groups, mac.columns
    entries = mac.accumulators.entries
    most_inner = min(reduction, limits.max_input_channels or reduction)
    most_channels = min(channels, limits.max_output_channels or channels, entries)
    for inner in halvings(most_inner, mac.rows * mac.depth):
        for tile_channels in halvings(most_channels, step):
            columns = min(width, entries // tile_channels, op.most_columns(layer))
            for rows in halvings(height):
                if rows * columns * tile_channels > entries and rows > 1:
                    continue
                yield Tiling(rows, columns, tile_channels, inner, False)
                if tile_channels < channels and (rows < height or columns < width):
                    yield Tiling(rows, columns, tile_channels, inner, True)
        for part in halvings(columns)[1:]:
            yield Tiling(1, part, tile_channels, inner, False)
    kernel_rows = layer.constants[layer.node.inputs[1]].shape[1]
    for tile_channels in halvings(most_channels, step):
        for taps in halvings(kernel_rows)[1:]:
            yield Tiling(1, 1, tile_channels, inner, False, taps)


def is_depthwise(groups: int, inputs: int, outputs: int, chip: Chip) -> bool:
    """One weight plane a channel, and an array has a mode for it."""
    return groups == inputs == outputs and inputs > 1 and bool(able_arrays(chip, depthwise=True))


def stated(limits: ConvolutionLimits) -> ConvolutionLimits:
    """With what an instruction can say of a window at most, where the machine sets no limit."""
    names = ("max_kernel", "max_stride", "max_dilation", "max_pad")
    return limits.model_copy(update={n: (OPEN_LIMIT, OPEN_LIMIT) for n in names if getattr(limits, n) is None})


def exceeds_max_pad(pads: Pads, groups: int, inputs: int, outputs: int, chip: Chip) -> bool:
    """True when the padding must be written into memory first."""
    depthwise = is_depthwise(groups, inputs, outputs, chip)
    limit = stated(chip.limits.depthwise if depthwise else chip.limits.convolution).max_pad
    return limit is not None and (max(pads[0], pads[2]) > limit[0] or max(pads[1], pads[3]) > limit[1])
