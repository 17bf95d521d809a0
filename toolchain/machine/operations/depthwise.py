"""Depthwise convolution: one weight plane a channel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.layout import weight_bytes
from toolchain.machine.operation import Access, Demand
from toolchain.machine.operations.window import WeightedWindowOp, broken_choice
from toolchain.machine.parameter import Limit, dataflow, depthwise_mode, extent, operand_base_of, sums_address, unit_number
from toolchain.machine.units.array import depthwise_cycles, operand_rate


@dataclass(frozen=True, slots=True)
class Depthwise(WeightedWindowOp):
    """As Convolution with one weight plane a channel: w[ky, kx, c] (order ky, kx, c; int4: each ky, kx row on a byte);
    input_channels = output_channels = `channels`. No addend."""

    NAME = "depthwise"
    channels: int = extent(Limit("max_output_channels", "{} channels"))
    unit: int = unit_number()
    input_base: int = operand_base_of("input_address")
    weight_base: int = operand_base_of("weight_address")
    parameter_base: int = operand_base_of("parameter_address")
    table_base: int = operand_base_of("table_address")
    output_base: int = operand_base_of("output_address")
    sums_address: int = sums_address()
    dataflow: int = dataflow()
    mode: int = depthwise_mode()

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        modes = [(u.key, u.array.depthwise) for u in chip.of_kind("mac_array")]
        return next((f"{key}.depthwise is {mode}" for key, mode in modes if mode != "none"), None)

    def outputs(self) -> int:
        return self.channels

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return self.array_ranges(self.channels, self.taps() * weight_bytes(self.channels, chip), chip)

    def demand(self, chip: Chip) -> Demand:
        pixels, taps = self.pixels(), self.taps()
        mac, weights = self.unit_in(chip).array, taps * weight_bytes(self.channels, chip)
        rate = operand_rate(mac, chip, chip.numerics.weight)
        cycles = depthwise_cycles(mac, pixels, taps, self.channels, rate, self.dataflow, self.mode)
        return self.array_demand(chip, cycles, self.window_bytes(self.channels, chip), weights, pixels * taps * self.channels)

    def broken(self, chip: Chip) -> Iterator[str]:
        unit = self.unit_in(chip)
        if unit.array.depthwise == "none":
            yield f"{unit.key}.depthwise is none"
        yield from broken_choice("mode", self.mode, "depthwise and more_depthwise", unit.array.depthwise_modes, unit)
        yield from WeightedWindowOp.broken(self, chip)
