"""Define the common base of front-end operations, which never reach a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operation import MachineOp
from toolchain.machine.traffic import NO_DEMAND, Demand


class ControlOp(MachineOp):
    """Base. `steer` is its meaning: what it does to the front end, which then goes on at `front.next`."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    ENGINE = None

    def steer(self, front: FrontEnd) -> None:
        """Raises ValueError with the reason why the front end cannot do it."""
        raise NotImplementedError

    def queue(self, chip: Chip) -> None:
        return None

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return ()

    def demand(self, chip: Chip) -> Demand:
        return NO_DEMAND

    def broken(self, chip: Chip) -> Iterator[str]:
        return iter(())


class RepeatOp(ControlOp):
    """Base of what borders a repeat."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    JUMPS: ClassVar[bool] = True

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return "control.repeat" if chip.control.repeat else None


class BlockOp(ControlOp):
    """Base of what borders or runs a block."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    JUMPS: ClassVar[bool] = True

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return "control.call" if chip.control.call else None
