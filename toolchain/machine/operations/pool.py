"""Largest and mean value of a window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from toolchain.hw.chip import Chip
from toolchain.machine.operation import Access, Demand
from toolchain.machine.operations.window import WindowOp
from toolchain.machine.parameter import extent, function, multiplier, shift
from toolchain.machine.units.vector import needed_functions, vector_demand


class PoolKind(IntEnum):
    MAX = 0
    AVERAGE = 1


# By the names of engines.vector.operations.
POOLS = {"max_pool": PoolKind.MAX, "average_pool": PoolKind.AVERAGE}


@dataclass(frozen=True, slots=True)
class Pool(WindowOp):
    """max: out = clamp(max over the window).
    average: out = clamp(requantize(sum(in - input_zero_point), multiplier, shift) + output_zero_point).
    """

    NAME = "pool"
    ENGINE = "vector"
    kind: PoolKind = function(PoolKind, POOLS)
    channels: int = extent()
    multiplier: int = multiplier()
    shift: int = shift()

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return needed_functions(POOLS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return (*self.input_accesses(self.channels, chip), self.output_access(self.channels, chip))

    def demand(self, chip: Chip) -> Demand:
        """A pass for each tap of the window."""
        return vector_demand(chip, self.pixels() * self.channels, self.window_bytes(self.channels, chip), self.taps())

    def broken(self, chip: Chip) -> Iterator[str]:
        yield from WindowOp.broken(self, chip)
        name = next((name for name, kind in POOLS.items() if kind == self.kind), None)
        if name is None:
            yield f"kind={self.kind} is no pool"
        elif name not in chip.engines.vector.operations:
            yield f"engines.vector.operations has no {name}"
