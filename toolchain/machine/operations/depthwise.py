"""The operation depthwise: a convolution in which each channel has its own window of weights.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.columns import IntOrColumn
from toolchain.machine.layout import weight_bytes
from toolchain.machine.manual_text import chosen, describe_base_registers, formula
from toolchain.machine.operations.window import WeightedWindowOp, broken_choice
from toolchain.machine.parameters.addresses import operand_base_of, sums_address, surface_stride
from toolchain.machine.parameters.codes import code_type, weight_type
from toolchain.machine.parameters.description import Limit
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.modes import dataflow, depthwise_mode, on_the_way_out
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Compute, Demand
from toolchain.machine.units.array import Operands, depthwise_cycles


@dataclass(frozen=True, slots=True)
class Depthwise(WeightedWindowOp):
    """A depthwise convolution: as many output channels as input channels, each of one input channel."""

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
    input_type: int = code_type()
    output_type: int = code_type()
    weight_type: int = weight_type()
    input_surface_stride: int = surface_stride("input")
    output_surface_stride: int = on_the_way_out(surface_stride("output"))

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield "Each channel with its own window of weights: as many output channels as input channels, `channels`."
        yield from cls.describe_window("channels", "its product is 0, as if it held the input's zero point", chip)
        yield "Sums, for each output pixel and 0 <= o < channels:"
        yield formula("sum[y, x, o] (+)= sum over ky, kx of (in[iy, ix, o] - input_zero_point) w[ky, kx, o]")
        yield "The weights w begin at weight_address; how they lie is in [Layout of constants](#layout-of-constants)."
        yield from cls.describe_results(chip)
        yield from chosen(True, chip)
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=True)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        modes = [(u.key, u.array.depthwise) for u in chip.of_kind("mac_array")]
        return next((f"{key}.depthwise is {mode}" for key, mode in modes if mode != "none"), None)

    def code_types(self) -> tuple[IntOrColumn, IntOrColumn]:
        return self.input_type, self.output_type

    def surfaces(self) -> tuple[IntOrColumn, IntOrColumn]:
        return self.input_surface_stride, self.output_surface_stride

    def weights_number(self) -> IntOrColumn:
        return self.weight_type

    def outputs(self) -> int:
        return self.channels

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return self.array_ranges(self.channels, self._weight_bytes(chip), chip)

    def list_moved_operands(self, chip: Chip) -> Iterator[tuple[Access, IntOrColumn]]:
        return self.array_moved(self.channels, self._weight_bytes(chip), chip)

    def get_streamed_bytes(self, chip: Chip) -> tuple[IntOrColumn, IntOrColumn]:
        return self.get_buffered_bytes(self.channels, chip), self._weight_bytes(chip)

    def _weight_bytes(self, chip: Chip) -> IntOrColumn:
        return self.taps() * weight_bytes(self.channels, self.weight_type, chip)

    def demand(self, chip: Chip) -> Demand:
        pixels, taps = self.pixels(), self.taps()
        mac = self.unit_in(chip).array

        def cycles(operands: Operands) -> Compute:
            return depthwise_cycles(mac, pixels, taps, self.channels, operands, self.dataflow, self.mode)

        return self.array_demand(
            chip, self.add_output_time(chip, cycles), *self.get_streamed_bytes(chip), pixels * taps * self.channels
        )

    def broken(self, chip: Chip) -> Iterator[str]:
        unit = self.unit_in(chip)
        if unit.array.depthwise == "none":
            yield f"{unit.key}.depthwise is none"
        yield from broken_choice("mode", self.mode, "depthwise and more_depthwise", unit.array.depthwise_modes, unit)
        yield from WeightedWindowOp.broken(self, chip)
