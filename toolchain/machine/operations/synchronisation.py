"""What orders the engines: signal, wait, end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.machine.operation import NOTHING, Access, Demand, MachineOp
from toolchain.machine.parameter import engine_of_sync, semaphore


class _NoWork(MachineOp):
    """Base of what touches no byte and takes no time of its own."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    ENGINE = None

    @classmethod
    def needed(cls, chip: Chip) -> str:
        return "every machine needs it"

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return ()

    def demand(self, chip: Chip) -> Demand:
        return NOTHING

    def broken(self, chip: Chip) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True, slots=True)
class Signal(_NoWork):
    """Runs on `engine` (index in `chip.units`) after everything before it there: adds one to `semaphore`."""

    NAME = "signal"
    engine: int = engine_of_sync()
    semaphore: int = semaphore()

    def queue(self, chip: Chip) -> int | None:
        return self.engine if 0 <= self.engine < len(chip.units) else None


@dataclass(frozen=True, slots=True)
class Wait(_NoWork):
    """Runs on `engine`: blocks its queue until `semaphore` is at least one, then takes one."""

    NAME = "wait"
    engine: int = engine_of_sync()
    semaphore: int = semaphore()

    def queue(self, chip: Chip) -> int | None:
        return self.engine if 0 <= self.engine < len(chip.units) else None


@dataclass(frozen=True, slots=True)
class End(_NoWork):
    """The program is over when every queue has drained."""

    NAME = "end"

    def queue(self, chip: Chip) -> None:
        return None
