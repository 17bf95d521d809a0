"""The operation pool of a vector engine: the largest or the mean value of a window, channel by channel.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.columns import IntOrColumn
from toolchain.machine.manual_text import describe_base_registers, formula, kinds_text
from toolchain.machine.operations.window import WindowOp
from toolchain.machine.parameters.addresses import operand_base_of, surface_stride
from toolchain.machine.parameters.codes import code_type, multiplier, shift
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.modes import function
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import find_function_key, rate_of, vector_demand


class PoolKind(IntEnum):
    MAX = 0
    AVERAGE = 1


# By the names of a vector engine's functions.
POOLS = {"max_pool": PoolKind.MAX, "average_pool": PoolKind.AVERAGE}


@dataclass(frozen=True, slots=True)
class Pool(WindowOp):
    """A pool by `kind`, MAX or AVERAGE. A mean is a sum times multiplier and shift, which hold 1 / elements."""

    NAME = "pool"
    ENGINE = "vector"
    FUNCTIONS = tuple(POOLS)
    kind: PoolKind = function(PoolKind, POOLS)
    channels: int = extent()
    multiplier: int = multiplier()
    shift: int = shift()
    unit: int = unit_number()
    input_base: int = operand_base_of("input_address")
    output_base: int = operand_base_of("output_address")
    input_type: int = code_type()
    output_type: int = code_type()
    input_surface_stride: int = surface_stride("input")
    output_surface_stride: int = surface_stride("output")

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        least = chip.code_types[0].low if len(chip.code_types) == 1 else "the least code of its type"
        yield f"The largest or the mean value of a window, channel by channel, by `kind` ({kinds_text(POOLS, chip)})."
        yield from cls.describe_window("channels", f"of MAX it counts as {least}, of AVERAGE as 0 in the sum", chip)
        yield "For each output pixel and channel c, 0 <= c < channels:"
        yield formula(
            "MAX:      out[y, x, c] = clamp(largest of in[iy, ix, c] over ky, kx, clamp_low, clamp_high)",
            "AVERAGE:  s = sum over ky, kx of (in[iy, ix, c] - input_zero_point)",
            "          out[y, x, c] = requantize(s, multiplier, shift, output_zero_point, clamp_low, clamp_high)",
        )
        yield (
            "AVERAGE divides by nothing of its own: multiplier and shift hold 1 / elements. The sum is exact. MAX uses neither "
            "multiplier and shift nor zero points; its clamp takes codes as they are."
        )
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=True)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return find_function_key(cls.FUNCTIONS, chip)

    def code_types(self) -> tuple[IntOrColumn, IntOrColumn]:
        return self.input_type, self.output_type

    def surfaces(self) -> tuple[IntOrColumn, IntOrColumn]:
        return self.input_surface_stride, self.output_surface_stride

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return (*self.input_accesses(self.channels, chip), self.output_access(self.channels, chip))

    def list_moved_operands(self, chip: Chip) -> Iterator[tuple[Access, IntOrColumn]]:
        for access in (self.input_block(self.channels, chip), self.output_access(self.channels, chip)):
            yield access, access.bytes

    def demand(self, chip: Chip) -> Demand:
        """Return its demand: a pass over the output for each tap of the window."""
        unit, elements = self.unit_in(chip), self.pixels() * self.channels
        read, written = self.window_bytes(self.channels, chip), self.output_bytes(self.channels, chip)
        moved = traffic(unit, ("input", read, 0), ("output", 0, written))
        return vector_demand(
            unit, chip, rate_of(unit, chip, self.FUNCTIONS, self.kind, types=self.code_types()), elements, moved, self.taps()
        )

    def broken(self, chip: Chip) -> Iterator[str]:
        yield from WindowOp.broken(self, chip)
        name = next((name for name, kind in POOLS.items() if kind == self.kind), None)
        if name is None:
            yield f"kind={self.kind} is no pool"
        elif name not in self.unit_in(chip).vector.functions:
            yield f"{self.unit_in(chip).key}.functions has no {name}"
