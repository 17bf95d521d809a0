"""The operation convolution: a window over all input channels, requantized and perhaps summed with an addend; also
fully connected.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine.access import Access
from toolchain.machine.columns import IntOrColumn, where
from toolchain.machine.layout import dense_bytes
from toolchain.machine.manual_text import chosen, describe_base_registers, formula
from toolchain.machine.operations.addend import WithAddend, broken_post
from toolchain.machine.operations.window import WeightedWindowOp
from toolchain.machine.parameters.addresses import operand_base_of, sums_address, surface_stride
from toolchain.machine.parameters.codes import code_type, weight_type
from toolchain.machine.parameters.description import Limit
from toolchain.machine.parameters.extents import extent, weight_group
from toolchain.machine.parameters.modes import dataflow, on_the_way_out, only_with
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Compute, Demand
from toolchain.machine.units.array import Operands, operand_reads, product_cycles


@dataclass(frozen=True, slots=True)
class _Channels(WeightedWindowOp):
    """A base with the numbers of channels, which come before the addend in the constructor."""

    ABSTRACT: ClassVar[bool] = True
    input_channels: int = extent(Limit("max_input_channels", "{} input channels"))
    output_channels: int = extent(Limit("max_output_channels", "{} output channels"))


@dataclass(frozen=True, slots=True)
class Convolution(WithAddend, _Channels):
    """A convolution of all input channels (not grouped or depthwise), with table and addend in its epilogue."""

    NAME = "convolution"
    unit: int = unit_number()
    input_base: int = operand_base_of("input_address")
    weight_base: int = operand_base_of("weight_address")
    parameter_base: int = operand_base_of("parameter_address")
    table_base: int = operand_base_of("table_address")
    addend_base: int = operand_base_of("addend_address")
    output_base: int = operand_base_of("output_address")
    sums_address: int = sums_address()
    dataflow: int = dataflow()
    group: int = weight_group()
    input_type: int = code_type()
    output_type: int = code_type()
    addend_type: int = code_type()
    weight_type: int = weight_type()
    input_surface_stride: int = surface_stride("input")
    output_surface_stride: int = on_the_way_out(surface_stride("output"))
    addend_surface_stride: int = only_with("add", surface_stride("input"))

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield (
            "A convolution of all input channels with each output channel's weights; also a fully connected layer, of one pixel."
        )
        yield from cls.describe_window("input_channels", "its product is 0, as if it held the input's zero point", chip)
        yield "Sums, for each output pixel and 0 <= o < output_channels:"
        factor = "w[o, ky, kx, i]" if chip.numerics.groups is None else "W[o, ky, kx, i]"
        yield formula(f"sum[y, x, o] (+)= sum over ky, kx, i of (in[iy, ix, i] - input_zero_point) {factor}")
        yield "The weights w begin at weight_address; how they lie is in [Layout of constants](#layout-of-constants)."
        if chip.numerics.groups is not None:
            yield (
                "`group` = 0: W = w. `group` = G: of each output channel's weights, in the order ky, kx, i, each G neighbours "
                "(the last ones may be fewer) have a scale m, and a minimum n on machines that have those: W = m w + n (n = 0 "
                "without)."
            )
        yield from cls.describe_results(chip)
        yield from chosen(False, chip)
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=True)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str:
        return "every machine needs it"

    def code_types(self) -> tuple[IntOrColumn, IntOrColumn]:
        return self.input_type, self.output_type

    def surfaces(self) -> tuple[IntOrColumn, IntOrColumn]:
        return self.input_surface_stride, self.output_surface_stride

    def addend(self) -> tuple[IntOrColumn, IntOrColumn]:
        return self.addend_type, self.addend_surface_stride

    def weights_number(self) -> IntOrColumn:
        return self.weight_type

    def outputs(self) -> int:
        return self.output_channels

    def weight_bytes(self, chip: Chip) -> IntOrColumn:
        """Return the bytes of its weights, with the scales and minima of their groups."""
        inner, array = self.taps() * self.input_channels, self.unit_in(chip).array
        return dense_bytes(self.output_channels, inner, self.weight_type, chip, self.group, array.groups)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return self.array_ranges(self.input_channels, self.weight_bytes(chip), chip, self._addend(chip))

    def list_moved_operands(self, chip: Chip) -> Iterator[tuple[Access, IntOrColumn]]:
        return self.array_moved(self.input_channels, self.weight_bytes(chip), chip, self._addend(chip))

    def _addend(self, chip: Chip) -> tuple[Access, ...]:
        """Return the reads of the addend; none where it does not emit."""
        added, pixels = where(self.emit, self.output_channels, 0), (self.output_height, self.output_width)
        return self.addend_accesses(self.unit_in(chip), pixels, added, chip)

    def get_streamed_bytes(self, chip: Chip) -> tuple[IntOrColumn, IntOrColumn]:
        mac, pixels = self.unit_in(chip).array, self.pixels()
        input_reads, weight_reads = operand_reads(mac, pixels, self.output_channels, self.dataflow)
        return input_reads * self.get_buffered_bytes(self.input_channels, chip), weight_reads * self.weight_bytes(chip)

    def demand(self, chip: Chip) -> Demand:
        mac, pixels, outputs = self.unit_in(chip).array, self.pixels(), self.output_channels
        inner = self.taps() * self.input_channels
        read, weights = self.get_streamed_bytes(chip)
        read = read + where(self.emit, pixels * self.addend_bytes(outputs, chip), 0)

        def cycles(operands: Operands) -> Compute:
            flow, group, taps = self.dataflow, self.group, self.taps()
            return product_cycles(mac, pixels, inner, outputs, operands, dataflow=flow, group=group, taps=taps)

        return self.array_demand(chip, self.add_output_time(chip, cycles, self.use_add), read, weights, pixels * inner * outputs)

    def broken(self, chip: Chip) -> Iterator[str]:
        yield from WeightedWindowOp.broken(self, chip)
        unit = self.unit_in(chip)
        yield from _broken_group(self.group, unit)
        yield from broken_post(unit.key, [("add", self.emit and self.use_add)], unit.array.post)


def _broken_group(group: int, unit: Unit) -> Iterator[str]:
    """Yield a sentence where the array has no weight groups of this size."""
    groups = unit.array.groups
    if group and groups is None:
        yield f"group={group}, {unit.key}.groups is not given"
    elif groups is not None and group not in (0, *groups.sizes):
        yield f"group={group}, {unit.key}.groups.sizes are {', '.join(map(str, groups.sizes))}"
