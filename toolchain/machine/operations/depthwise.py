"""Depthwise convolution: one weight plane a channel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operation import Access, Demand
from toolchain.machine.operations.window import WeightedWindowOp, weight_bytes
from toolchain.machine.parameter import Limit, extent
from toolchain.machine.units.array import depthwise_cycles, operand_rate


@dataclass(frozen=True, slots=True)
class Depthwise(WeightedWindowOp):
    """As Convolution with one weight plane a channel: w[ky, kx, c] (order ky, kx, c; int4: each ky, kx row on a byte);
    input_channels = output_channels = `channels`. No addend."""

    NAME = "depthwise"
    channels: int = extent(Limit("max_output_channels", "{} channels"))

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        mode = chip.engines.mac.depthwise
        return None if mode == "none" else f"engines.mac.depthwise is {mode}"

    def outputs(self) -> int:
        return self.channels

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return self.array_ranges(self.channels, self.taps() * weight_bytes(self.channels, chip), chip)

    def demand(self, chip: Chip) -> Demand:
        pixels, taps = self.pixels(), self.taps()
        read = self.window_bytes(self.channels, chip) + taps * weight_bytes(self.channels, chip)
        rate = operand_rate(chip, chip.numerics.weight)
        cycles = depthwise_cycles(chip.engines.mac, pixels, taps, self.channels, rate)
        return self.array_demand(chip, cycles, read, pixels * taps * self.channels)

    def broken(self, chip: Chip) -> Iterator[str]:
        if chip.engines.mac.depthwise == "none":
            yield "engines.mac.depthwise is none"
        yield from WeightedWindowOp.broken(self, chip)
