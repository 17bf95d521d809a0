"""The bases of operations that slide a window over a feature map: parameters and bytes of convolution, depthwise and
pool.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine.access import Access, AccumulatorUse, read_of
from toolchain.machine.accumulator_access import array_latency_cycles, broken_accumulators, sums_accesses, sums_moved
from toolchain.machine.channel_blocks import count_stored_channels, extent_of
from toolchain.machine.columns import IntOrColumn, by_type, code_bytes, is_column, table_bytes, where
from toolchain.machine.layout import parameter_bytes
from toolchain.machine.manual_text import formula, has, lies, sums_in_memory, sums_kept
from toolchain.machine.operation import MachineOp
from toolchain.machine.operations.addend import WithAddend
from toolchain.machine.parameters.addresses import block_address, operand_address, operand_stride, parameter_address
from toolchain.machine.parameters.codes import code, zero_point
from toolchain.machine.parameters.description import Limit
from toolchain.machine.parameters.extents import extent, window_extent_of
from toolchain.machine.parameters.modes import flag, on_the_way_out, only_with, post_flag
from toolchain.machine.traffic import Compute, Demand, traffic
from toolchain.machine.units.array import Operands, operands_of, window_reads, with_output
from toolchain.machine.window_rows import extent_reached, grid, rows_reached, window_reach


@dataclass(frozen=True, slots=True)
class WindowOp(MachineOp):
    """The base of operations that slide a window over a feature map [h, w, c]. `code_types` and `surfaces` are
    abstract.
    """

    ABSTRACT: ClassVar[bool] = True
    input_address: int = operand_address("input")
    input_row_stride: int = operand_stride("input")
    input_column_stride: int = operand_stride("input")
    input_height: int = extent(least=0)
    input_width: int = extent(least=0)
    pad_top: int = window_extent_of("pad", 0)
    pad_left: int = window_extent_of("pad", 1)
    kernel_height: int = window_extent_of("kernel", 0)
    kernel_width: int = window_extent_of("kernel", 1)
    stride_height: int = window_extent_of("stride", 0)
    stride_width: int = window_extent_of("stride", 1)
    dilation_height: int = window_extent_of("dilation", 0)
    dilation_width: int = window_extent_of("dilation", 1)
    output_address: int = on_the_way_out(operand_address("output"))
    output_row_stride: int = on_the_way_out(operand_stride("output"))
    output_column_stride: int = on_the_way_out(operand_stride("output"))
    output_height: int = extent()
    output_width: int = extent(Limit("max_width", "output width {}"))
    input_zero_point: int = zero_point("input_type")
    output_zero_point: int = on_the_way_out(zero_point("output_type"))
    clamp_low: int = on_the_way_out(code("output_type"))
    clamp_high: int = on_the_way_out(code("output_type"))

    @classmethod
    def describe_window(cls, channels: str, padding: str, chip: Chip) -> Iterator[str]:
        """Describe which input elements a window sees.

        `channels`: the parameter that counts the input's channels.
        `padding`: text of the value that padding reads as.
        """
        yield "The window's element (ky, kx) at output row y, column x sees the input at"
        yield formula("iy = y stride_height + ky dilation_height - pad_top", "ix = x stride_width + kx dilation_width - pad_left")
        yield (
            "for 0 <= y < output_height, 0 <= x < output_width, 0 <= ky < kernel_height, 0 <= kx < kernel_width. Where iy < "
            f"0, iy >= input_height, ix < 0 or ix >= input_width it sees padding: no memory is read, and {padding}. Padding "
            "below and on the right has no parameters: it is what windows reach beyond input_height and input_width. A window "
            "may lie on padding alone, and input_height or input_width may be 0. Rows and columns that no window reaches are "
            "not read."
        )
        yield formula(
            lies("in", "iy, ix, i", "input_address", chip, "input_type") + f",  0 <= i < {channels}",
            lies("out", "y, x, o", "output_address", chip, "output_type"),
        )

    def code_types(self) -> tuple[IntOrColumn, IntOrColumn]:
        """Return (number of the input's type, number of the output's type)."""
        raise NotImplementedError

    def surfaces(self) -> tuple[IntOrColumn, IntOrColumn]:
        """Return the bytes between channel granules of the input and of the output; 0: no granules."""
        raise NotImplementedError

    def pixels(self) -> IntOrColumn:
        """Return the number of output pixels."""
        return self.output_height * self.output_width

    def taps(self) -> IntOrColumn:
        """Return the number of elements of the window."""
        return self.kernel_height * self.kernel_width

    def window_rows(self) -> tuple[IntOrColumn, ...]:
        """Return the arguments of `machine.window_rows` for rows.

        They are output height, kernel height, stride, dilation, top padding, input height.
        """
        return (
            self.output_height,
            self.kernel_height,
            self.stride_height,
            self.dilation_height,
            self.pad_top,
            self.input_height,
        )

    def window_columns(self) -> tuple[IntOrColumn, ...]:
        """Return the same as `window_rows` for columns: widths, and left padding."""
        return self.output_width, self.kernel_width, self.stride_width, self.dilation_width, self.pad_left, self.input_width

    def window_bytes(self, channels: IntOrColumn, chip: Chip) -> IntOrColumn:
        """Return the bytes of the input that windows reach, without those that strides and dilations pass over."""
        return rows_reached(*self.window_rows()) * rows_reached(*self.window_columns()) * self.pixel_bytes(channels, chip)

    def pixel_bytes(self, channels: IntOrColumn, chip: Chip) -> IntOrColumn:
        """Return the bytes of one input pixel."""
        return count_stored_channels(channels, self.surfaces()[0], chip) * code_bytes(self.code_types()[0], chip)

    def input_accesses(self, channels: IntOrColumn, chip: Chip) -> tuple[Access, ...]:
        """Return reads of the input elements that windows reach, without those that strides and dilations skip
        (`window_reach`).

        For columns of operations it is one read that covers them, which is not exact.
        """
        laid = channels, self.surfaces()[0], code_bytes(self.code_types()[0], chip), chip
        strides = self.input_row_stride, self.input_column_stride
        unit = self.unit_in(chip)
        if is_column(self.output_height):
            counts = (extent_reached(*self.window_rows()), extent_reached(*self.window_columns()))
            extent = extent_of(counts, strides, *laid)
            return (Access(unit.roles["input"], self.input_address, *extent, False, exact=False),)
        input_reads: list[Access] = []
        for rows in window_reach(*self.window_rows()):
            for columns in window_reach(*self.window_columns()):
                address = self.input_address + rows.first * strides[0] + columns.first * strides[1]
                extent = extent_of(*grid(rows, strides[0], columns, strides[1]), *laid)
                input_reads.append(read_of(unit, "input", address, *extent))
        return tuple(input_reads)

    def input_block(self, channels: IntOrColumn, chip: Chip) -> Access:
        """Return the access with the bytes of `window_bytes` for the banks of a memory, from input_address on.

        Its rows and columns are those that windows reach, side by side.
        They lie as far apart as the stride where a kernel has one of them.
        """
        counts = rows_reached(*self.window_rows()), rows_reached(*self.window_columns())
        row = self.input_row_stride * where(self.kernel_height == 1, self.stride_height, 1)
        column = self.input_column_stride * where(self.kernel_width == 1, self.stride_width, 1)
        item_bytes = code_bytes(self.code_types()[0], chip)
        extent = extent_of(counts, (row, column), channels, self.surfaces()[0], item_bytes, chip)
        return read_of(self.unit_in(chip), "input", self.input_address, *extent)

    def output_access(self, channels: IntOrColumn, chip: Chip) -> Access:
        """Return the write of the output; of no bytes where `channels` is 0."""
        counts, strides = (self.output_height, self.output_width), (self.output_row_stride, self.output_column_stride)
        extent = extent_of(counts, strides, channels, self.surfaces()[1], code_bytes(self.code_types()[1], chip), chip)
        return Access(self.unit_in(chip).roles["output"], self.output_address, *extent, True)

    def output_bytes(self, channels: IntOrColumn, chip: Chip) -> IntOrColumn:
        """Return the bytes of the output that are written, channel granules filled up."""
        stored_channels = count_stored_channels(channels, self.surfaces()[1], chip)
        return self.pixels() * stored_channels * code_bytes(self.code_types()[1], chip)

    def broken(self, chip: Chip) -> Iterator[str]:
        if min(self.input_height, self.input_width, self.pad_top, self.pad_left) < 0:
            yield "input_height, input_width, pad_top and pad_left must not be negative"


@dataclass(frozen=True, slots=True)
class WeightedWindowOp(WindowOp):
    """The base of window operations on an array: products with weights, sums, and their epilogue.

    `accumulate`: 1: the sums are added to those in the accumulators. `emit`: 1: results are made and written.
    `outputs`, `weights_number` and `get_streamed_bytes` are abstract.
    """

    ABSTRACT: ClassVar[bool] = True
    ENGINE = "mac_array"
    weight_address: int = operand_address("weights")
    parameter_address: int = on_the_way_out(parameter_address("parameters"))
    accumulate: int = flag()
    emit: int = on_the_way_out(flag())
    use_table: int = post_flag("table")
    table_address: int = only_with("table", block_address("parameters"))

    @classmethod
    def describe_results(cls, chip: Chip) -> Iterator[str]:
        """Describe the steps from sums to results: chains of operations, then the output."""
        yield from sums_kept("output_height, output_width, output channels", chip)
        if sums_in_memory(chip):
            return
        entry = chip.layout.parameters
        steps = [
            "a = wrap(sum[y, x, o] + bias[o])                                    to the accumulators' width",
            "q = requantize(a, multiplier[o], shift[o], output_zero_point, clamp_low, clamp_high)",
        ]
        if has(cls.need("use_table", chip).high):
            steps.append("where use_table = 1:  q = table[q], the table at table_address")
        if issubclass(cls, WithAddend):
            steps += cls.describe_sum(chip)
        steps.append("out[y, x, o] = q")
        yield "Results, in this order, for each output pixel and channel:"
        yield formula(*steps)
        yield (
            f"bias[o], multiplier[o] and shift[o] are entry o of the parameters: {entry.size_bytes} bytes from "
            f"parameter_address + {entry.size_bytes} o on ([Layout of constants](#layout-of-constants)). wrap and requantize: "
            "[Arithmetic](#arithmetic). The clamp is where a Relu is made: there is no other activation function unless a "
            "table is named."
        )
        if issubclass(cls, WithAddend) and cls.describe_sum(chip):
            yield formula(lies("addend", "y, x, o", "addend_address", chip, "addend_type"))

    def outputs(self) -> IntOrColumn:
        """Return the number of output channels."""
        raise NotImplementedError

    def weights_number(self) -> IntOrColumn:
        """Return the number of its weights' type in `chip.weight_types`."""
        raise NotImplementedError

    def add_output_time(self, chip: Chip, cycles: Callable[[Operands], Compute], added: IntOrColumn = 0) -> Compute:
        """Return the cycles of all folds and of writing the output.

        `cycles`: returns those of the folds for the operands, whose rate depends on both types.
        `added`: 1 with an addend, else 0.
        """
        mac = self.unit_in(chip).array

        def by_weights(activation: CodeType) -> Compute:
            return by_type(self.weights_number(), chip.weight_types, lambda w: cycles(operands_of(mac, activation, w)))

        folds: Compute = by_type(self.code_types()[0], chip.code_types, by_weights)
        return with_output(mac, folds, self.pixels(), self.outputs(), self.use_table, added, self.emit)

    def get_buffered_bytes(self, channels: IntOrColumn, chip: Chip) -> IntOrColumn:
        """Return the bytes that one pass of the input through the array's window buffer reads."""
        size = self.pixel_bytes(channels, chip)
        columns, reach = rows_reached(*self.window_columns()), (self.kernel_width - 1) * self.dilation_width + 1
        by_row = self.output_height * self.kernel_height * columns * size
        resident_bytes = ((self.kernel_height - 1) * self.dilation_height + 1) * columns * size, reach * size
        once = rows_reached(*self.window_rows()) * columns * size
        return window_reads(self.unit_in(chip).array, once, by_row, self.pixels() * self.taps() * size, resident_bytes)

    def sums(self) -> AccumulatorUse:
        """Return the operation's use of the accumulators: one sum for each output pixel and channel."""
        shape = (self.output_height, self.output_width, self.outputs())
        return AccumulatorUse(shape, self.accumulate, self.emit, getattr(self, "sums_address", 0), getattr(self, "dataflow", 0))

    def get_streamed_bytes(self, chip: Chip) -> tuple[IntOrColumn, IntOrColumn]:
        """Return the bytes that are read of the input and of the weights, repeated reads included."""
        raise NotImplementedError

    def array_ranges(
        self, inputs: IntOrColumn, weights: IntOrColumn, chip: Chip, addend: tuple[Access, ...] = ()
    ) -> tuple[Access, ...]:
        """Return the accesses of an array operation.

        `inputs`: channels read.
        `weights`: bytes.
        `addend`: read during output.
        """
        weight_block = read_of(self.unit_in(chip), "weights", self.weight_address, (), (), weights)
        return (*self.input_accesses(inputs, chip), weight_block, *self._way_out(chip, addend))

    def _way_out(self, chip: Chip, addend: tuple[Access, ...]) -> tuple[Access, ...]:
        """Return the accesses of parameters, table, addend, output and sums."""
        unit, outputs = self.unit_in(chip), self.outputs()
        output_accesses: list[Access] = []
        if is_column(self.emit) or self.emit:
            emitted, looked_up = self._get_output_flags()
            entries = parameter_bytes(emitted * outputs, chip)
            output_accesses.append(read_of(unit, "parameters", self.parameter_address, (), (), entries))
            if is_column(looked_up) or looked_up:
                table = looked_up * table_bytes(self.code_types()[1], chip)
                output_accesses.append(read_of(unit, "parameters", self.table_address, (), (), table))
            output_accesses += (*addend, self.output_access(emitted * outputs, chip))
        return (*output_accesses, *sums_accesses(self.sums(), unit))

    def array_moved(
        self, inputs: IntOrColumn, weights: IntOrColumn, chip: Chip, addend: tuple[Access, ...] = ()
    ) -> Iterator[tuple[Access, IntOrColumn]]:
        """Yield the moved operands as `list_moved_operands` does; the arguments are those of `array_ranges`."""
        weight_block = read_of(self.unit_in(chip), "weights", self.weight_address, (), (), weights)
        yield from zip((self.input_block(inputs, chip), weight_block), self.get_streamed_bytes(chip))
        yield from ((access, access.bytes) for access in self._way_out(chip, addend))

    def _get_output_flags(self) -> tuple[IntOrColumn, IntOrColumn]:
        """Return two flags, 1 or 0: outputs are written; they pass through a table."""
        return where(self.emit, 1, 0), where(self.emit, where(self.use_table, 1, 0), 0)

    def array_demand(
        self, chip: Chip, compute: Compute, input_bytes: IntOrColumn, weights: IntOrColumn, macs: IntOrColumn
    ) -> Demand:
        """Return the demand of an array operation.

        `input_bytes`: read of inputs and addend.
        `weights`: bytes read of them.
        """
        unit, outputs = self.unit_in(chip), self.outputs()
        emitted, looked_up = self._get_output_flags()
        moved = traffic(
            unit,
            ("input", input_bytes, 0),
            ("weights", weights, 0),
            ("parameters", parameter_bytes(emitted * outputs, chip) + looked_up * table_bytes(self.code_types()[1], chip), 0),
            ("output", 0, emitted * self.output_bytes(outputs, chip)),
            *sums_moved(self.sums(), unit),
        )
        latency = array_latency_cycles(self.sums(), unit, chip, ("input", "weights", "parameters"))
        return Demand(compute.cycles, latency, macs, moved, compute.lost)

    def broken(self, chip: Chip) -> Iterator[str]:
        yield from WindowOp.broken(self, chip)
        activation, weight = chip.code_types[int(self.code_types()[0])], chip.weight_types[int(self.weights_number())]
        unit, sums = self.unit_in(chip), self.sums()
        if unit.array.rate_of(activation, weight) is None:
            yield f"{unit.key}.types has no {activation} by {weight}"
        yield from broken_accumulators(sums, unit)
        yield from broken_choice("dataflow", sums.dataflow, "dataflow and more_dataflows", unit.array.dataflows, unit)
        if self.emit and self.use_table and "table" not in unit.array.post:
            yield f"use_table=1, {unit.key}.post has no table"
        if self.emit and self.use_table:
            yield from broken_table("output_type", int(self.code_types()[1]), chip)


def broken_choice(parameter: str, number: int, keys: str, names: Sequence[str], unit: Unit) -> Iterator[str]:
    """Yield a sentence where the array has no dataflow or mode of this number."""
    if not 0 <= number < len(names):
        yield f"{parameter}={number}, {unit.key}.{keys} name {', '.join(names)}"


def broken_table(parameter: str, number: int, chip: Chip) -> Iterator[str]:
    """Yield a sentence where codes of the type that a parameter names have no lookup table."""
    codes = chip.code_types[int(number)]
    if not codes.table_entries:
        yield f"{parameter}={number}, codes of {codes} have no table"
