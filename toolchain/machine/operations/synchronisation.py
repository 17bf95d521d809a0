"""Define the common base of the operations that order the engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.operation import MachineOp
from toolchain.machine.traffic import NO_DEMAND, Demand


class ZeroTimeOp(MachineOp):
    """Base of what touches no byte and takes no time of its own."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    ENGINE = None

    @classmethod
    def find_required_key(cls, chip: Chip) -> str:
        return "every machine needs it"

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return ()

    def demand(self, chip: Chip) -> Demand:
        return NO_DEMAND

    def broken(self, chip: Chip) -> Iterator[str]:
        return iter(())
