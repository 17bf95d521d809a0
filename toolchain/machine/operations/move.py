"""The base of the DMA's strided moves, copy and fill: their common parameters and limits.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine.columns import IntOrColumn
from toolchain.machine.operation import MachineOp
from toolchain.machine.parameters.spaces import space_of

MOST_DIMENSIONS = 4  # strided counts of a move


def list_unreachable_memories(unit: Unit, spaces: Iterable[int], chip: Chip) -> Iterator[str]:
    """Yield a fault for each of these memories that the channel cannot reach."""
    for space in spaces:
        if space not in unit.reach:
            yield f"{unit.name} does not reach {chip.spaces[int(space_of(space, chip))].name} ({unit.key}.memories)"


def dimension_names(chip: Chip) -> tuple[str, ...]:
    """Return the parameter suffixes of the dimensions that some channel has, the outermost first."""
    return ("_outer", "0", "1", "2")[MOST_DIMENSIONS - max(u.dma.dimensions for u in chip.of_kind("dma")) :]


class Move(MachineOp):
    """The base of copy and fill: contiguous runs with up to four counts around them, on a DMA channel."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    ENGINE = "dma"
    channel: int
    count_outer: int
    count0: int
    count1: int
    count2: int
    destination_stride_outer: int
    destination_stride0: int
    destination_stride1: int
    destination_stride2: int

    def number(self) -> IntOrColumn:
        return self.channel

    @classmethod
    def find_required_key(cls, chip: Chip) -> str:
        return "every machine needs it"

    def broken(self, chip: Chip) -> Iterator[str]:
        unit = self.unit_in(chip)
        if any(n > 1 for n in self.counts()[: MOST_DIMENSIONS - unit.dma.dimensions]):
            counts = "x".join(str(n) for i, n in enumerate(self.counts()) if i or n > 1)
            yield f"counts {counts}, the machine has {unit.key}.dimensions={unit.dma.dimensions}"
        yield from list_unreachable_memories(unit, self.spaces(), chip)

    def spaces(self) -> tuple[int, ...]:
        """Return the numbers of the memories that it reads and writes. It is abstract."""
        raise NotImplementedError

    def counts(self) -> tuple[IntOrColumn, IntOrColumn, IntOrColumn, IntOrColumn]:
        """Return the number of runs along each dimension, the outermost first."""
        return self.count_outer, self.count0, self.count1, self.count2

    def destination_strides(self) -> tuple[IntOrColumn, IntOrColumn, IntOrColumn, IntOrColumn]:
        """Return the bytes from one written run to the next along each dimension, the outermost first."""
        return self.destination_stride_outer, self.destination_stride0, self.destination_stride1, self.destination_stride2
