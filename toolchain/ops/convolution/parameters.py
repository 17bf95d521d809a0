"""Define the parameters of a convolution on codes, and how instructions within a machine's limits share its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.sums.grouped_sums import WeightGroups
from toolchain.hw.chip import Chip
from toolchain.hw.chip_sections import ConvolutionLimits
from toolchain.hw.engines import MacArray
from toolchain.hw.unit_map import Unit
from toolchain.machine.parameters.description import OPEN_LIMIT
from toolchain.ops.kit.array_choice import find_capable_arrays, main_array
from toolchain.ops.kit.operator import Array, Layer, TiledOp
from toolchain.ops.kit.requants import LookupTable
from toolchain.ops.kit.residual import Residual
from toolchain.ops.kit.tile import Tiling, ceil_div, spans
from toolchain.ops.kit.window import Taps

Pads = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class ConvolutionParameters(TiledOp):
    """The parameters of a convolution of a layer's inputs: x, weights int8[o, kh, kw, i / groups], bias int64[o], and the
    addend.

    The addend is there only with `residual`. `pads` are top, left, bottom, right.
    `weight_type`: of the weights' codes.
    `requant`: of the sums, one scale or one for each output channel.
    `table`: applied to the requantized codes. `residual`: the sum with the addend, behind the table. Each is None where there
    is none.
    `weight_groups`: scales and minima of groups of weights, for a kernel of 1x1 and one group of channels; None where there
    are none.
    """

    strides: tuple[int, int]
    pads: Pads
    dilations: tuple[int, int]
    groups: int
    x_zero_point: int
    accumulator_bits: int
    weight_type: CodeType
    requant: Requant
    table: LookupTable | None
    residual: Residual | None
    weight_groups: WeightGroups | None = None

    @property
    def group(self) -> int:
        """The number of weights along the reduction that share a scale; 0: all of an output channel."""
        return 0 if self.weight_groups is None else self.weight_groups.size

    def whole_weights(self, codes: Array) -> Array:
        """Return the factors of the sums: `codes`, multiplied by the integer scales of their groups where they have any."""
        return codes if self.weight_groups is None else self.weight_groups.apply_scales(codes)

    @property
    def post(self) -> frozenset[str]:
        """The epilogues that an array must apply to its outputs: "table", "add"."""
        output_steps = (("table", self.table), ("add", self.residual))
        return frozenset(name for name, part in output_steps if part is not None)

    def list_capable_units(self, layer: Layer, *post: str) -> tuple[Unit, ...]:
        """Return the arrays that can run the convolution and have the epilogues `post` besides."""
        pair = layer.input_type(0).dtype, self.weight_type
        return find_capable_arrays(layer.chip, self.post | {*post}, self.depthwise(layer), self.group, pair)

    def array(self, layer: Layer) -> MacArray:
        """Return the largest array that can run the convolution. Raise InternalError where none can."""
        return main_array(self.list_capable_units(layer))

    def can_have(self, post: str, layer: Layer) -> bool:
        """Return whether an array that can run the convolution as it is has this epilogue too."""
        return bool(self.list_capable_units(layer, post))

    def depthwise(self, layer: Layer) -> bool:
        """Return whether machine.Depthwise runs it, and not machine.Convolution."""
        outputs = layer.constants[layer.node.inputs[1]].shape[0]
        return self.residual is None and is_depthwise(self.groups, layer.input_type(0).shape[3], outputs, layer.chip)

    def limits(self, layer: Layer) -> ConvolutionLimits:
        """Return the limits of the machine operation that runs it."""
        return fill_default_limits(getattr(layer.chip.limits, self.section(layer)))

    def section(self, layer: Layer) -> str:
        """Return the section of `limits` for the machine operation that runs it."""
        return "depthwise" if self.depthwise(layer) else "convolution"

    def beyond(self, layer: Layer) -> tuple[bool, bool]:
        """Return whether the strides of (rows, columns) are beyond the machine's limit."""
        rows, columns = self.limits(layer).max_stride or self.strides
        return self.strides[0] > rows, self.strides[1] > columns

    def element_steps(self, layer: Layer, tiling: Tiling) -> tuple[int, int]:
        """Return (rows, columns): how far apart the input elements lie that an instruction sees as neighbours.

        They are above 1 only for tiles of several outputs at a stride beyond the limit. Among inputs so far apart it is
        within the limit.
        """
        most = self.limits(layer).max_stride or self.strides
        rows, columns = (
            find_element_step(stride, limit) if count > 1 else 1
            for stride, limit, count in zip(self.strides, most, (tiling.rows, tiling.columns))
        )
        return rows, columns

    def kernel_parts(self, layer: Layer, tiling: Tiling) -> tuple[tuple[Taps, ...], tuple[Taps, ...]]:
        """Return the parts of the kernel's rows and of its columns; each instruction of a tile takes one of each."""
        _, height, width, _ = layer.constants[layer.node.inputs[1]].shape
        rows, columns = self.element_steps(layer, tiling)
        return self._list_taps(layer, 0, height, rows, tiling.taps), self._list_taps(layer, 1, width, columns)

    def _list_taps(self, layer: Layer, axis: int, kernel: int, element_step: int, most: int = 0) -> tuple[Taps, ...]:
        """Return the kernel elements of each instruction along an axis.

        `most`: the most elements of one; 0: as many as the limits allow.
        """
        dilation, limits = self.dilations[axis], self.limits(layer)
        tap_step = element_step // gcd(element_step, dilation)
        far = limits.max_dilation is not None and dilation * tap_step // element_step > limits.max_dilation[axis]
        size = 1 if far else min(limits.max_kernel[axis] if limits.max_kernel else kernel, most or kernel)
        return tuple(
            Taps(phase + first * tap_step, count, tap_step if count > 1 else 1)
            for phase in range(min(tap_step, kernel))
            for first, count in spans(ceil_div(kernel - phase, tap_step), size)
        )

    def widths(self, layer: Layer) -> tuple[int, ...]:
        """Return the most output columns of an instruction, by the machine's limits.

        With a stride beyond them a second entry, 1, follows: with one column the kernel's columns need not be parted.
        """
        most = self.limits(layer).max_width or layer.output.shape[2]
        return (most, 1) if self.beyond(layer)[1] and most > 1 else (most,)

    def stride_cut(self, layer: Layer) -> str | None:
        """Return a sentence on what a stride beyond the machine's limit costs, or None.

        An instruction then takes a part of the kernel, or one output along that axis. None too where the kernel has one
        element there.
        """
        kernel = layer.constants[layer.node.inputs[1]].shape[1:3]
        cut = [axis for axis, far, size in zip(("row", "column"), self.beyond(layer), kernel) if far and size > 1]
        section, stride = self.section(layer), "x".join(map(str, self.strides))
        limit = getattr(layer.chip.limits, section).max_stride
        if limit is None or not cut:
            return None
        return (
            f"limits.{section}.max_stride={list(limit)}: stride {stride}, so an instruction takes part of the kernel's "
            f"{' and '.join(f'{axis}s' for axis in cut)}, or one {' and '.join(cut)} of outputs"
        )

    def macs(self, layer: Layer) -> int:
        """Return the products that the convolution takes, those with padding included."""
        _, kh, kw, inputs = layer.constants[layer.node.inputs[1]].shape
        n, height, width, channels = layer.output.shape
        return n * height * width * channels * kh * kw * inputs


def find_element_step(stride: int, most: int) -> int:
    """Return the least distance of elements, a divisor of `stride`, among which the stride is at most `most`."""
    return next(step for step in range(1, stride + 1) if stride % step == 0 and stride // step <= most)


def is_depthwise(groups: int, inputs: int, outputs: int, chip: Chip) -> bool:
    """Return whether a convolution has one weight plane a channel, and an array of the machine has a mode for it."""
    return groups == inputs == outputs and inputs > 1 and bool(find_capable_arrays(chip, depthwise=True))


@cache
def fill_default_limits(limits: ConvolutionLimits) -> ConvolutionLimits:
    """Return the limits with the largest window that an instruction can express, where the machine sets no limit."""
    names = ("max_kernel", "max_stride", "max_dilation", "max_pad")
    return limits.model_copy(update={n: (OPEN_LIMIT, OPEN_LIMIT) for n in names if getattr(limits, n) is None})
