"""Convolution, dense over its input channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.columns import where
from toolchain.machine.operation import Access, Demand
from toolchain.machine.operations.window import WeightedWindowOp, weight_bytes
from toolchain.machine.parameter import (
    Limit,
    code,
    extent,
    left_shift,
    multiplier,
    only_with,
    operand_address,
    operand_base_of,
    operand_stride,
    post_flag,
    shift,
    sums_address,
    unit_number,
    zero_point,
)
from toolchain.machine.units.array import operand_rate, operand_reads, product_cycles


@dataclass(frozen=True, slots=True)
class Convolution(WeightedWindowOp):
    """acc[y, x, o] (+)= sum over ky, kx, i of (in[iy, ix, i] - input_zero_point) w[o, ky, kx, i],
    iy = y sh + ky dh - pad_top, ix = x sw + kx dw - pad_left.

    Weights in order o, ky, kx, i (int4: each output channel starts on a byte). On emit, after the table, when `use_add`,
    the output is Elementwise ADD of a = q and b = what lies at addend_address, with the `add_*` parameters (input: a).
    """

    NAME = "convolution"
    input_channels: int = extent(Limit("max_input_channels", "{} input channels"))
    output_channels: int = extent(Limit("max_output_channels", "{} output channels"))
    use_add: int = post_flag("add")
    addend_address: int = only_with("add", operand_address("input"))
    addend_row_stride: int = only_with("add", operand_stride("input"))
    addend_column_stride: int = only_with("add", operand_stride("input"))
    add_input_zero_point: int = only_with("add", zero_point())
    add_addend_zero_point: int = only_with("add", zero_point())
    add_output_zero_point: int = only_with("add", zero_point())
    add_left_shift: int = only_with("add", left_shift())
    add_input_multiplier: int = only_with("add", multiplier())
    add_input_shift: int = only_with("add", shift())
    add_addend_multiplier: int = only_with("add", multiplier())
    add_addend_shift: int = only_with("add", shift())
    add_output_multiplier: int = only_with("add", multiplier())
    add_output_shift: int = only_with("add", shift())
    add_clamp_low: int = only_with("add", code())
    add_clamp_high: int = only_with("add", code())
    unit: int = unit_number()
    input_base: int = operand_base_of("input_address")
    weight_base: int = operand_base_of("weight_address")
    parameter_base: int = operand_base_of("parameter_address")
    table_base: int = operand_base_of("table_address")
    addend_base: int = operand_base_of("addend_address")
    output_base: int = operand_base_of("output_address")
    sums_address: int = sums_address()

    @classmethod
    def needed(cls, chip: Chip) -> str:
        return "every machine needs it"

    def outputs(self) -> int:
        return self.output_channels

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        weights = self.output_channels * weight_bytes(self.taps() * self.input_channels, chip)
        counts, strides = (self.output_height, self.output_width), (self.addend_row_stride, self.addend_column_stride)
        added = where(self.emit, where(self.use_add, self.output_channels * chip.activation_bytes, 0), 0)
        addend = Access(self.unit_in(chip).roles["input"], self.addend_address, counts, strides, added, False, in_step=True)
        return self.array_ranges(self.input_channels, weights, chip, (addend,))

    def demand(self, chip: Chip) -> Demand:
        mac, pixels, outputs = self.unit_in(chip).array, self.pixels(), self.output_channels
        inner = self.taps() * self.input_channels
        input_reads, weight_reads = operand_reads(mac, pixels, outputs)
        read = input_reads * self.window_bytes(self.input_channels, chip)
        read = read + where(self.emit, where(self.use_add, pixels * outputs * chip.activation_bytes, 0), 0)
        weights = weight_reads * outputs * weight_bytes(inner, chip)
        cycles = product_cycles(mac, pixels, inner, outputs, operand_rate(mac, chip, chip.numerics.weight))
        return self.array_demand(chip, cycles, read, weights, pixels * inner * outputs)

    def broken(self, chip: Chip) -> Iterator[str]:
        yield from WeightedWindowOp.broken(self, chip)
        unit = self.unit_in(chip)
        if self.emit and self.use_add and "add" not in unit.array.post:
            yield f"use_add=1, {unit.key}.post has no add"
