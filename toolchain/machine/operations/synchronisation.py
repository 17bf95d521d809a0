"""The operations that order the engines (signal, wait), and the one that ends a program (end).

They take no time and touch no bytes (`ZeroTimeOp`). `meaning` yields the manual's text. `queue` returns the index in
`chip.units` of the queue in which it stands; None: there is no such engine, or none is needed (end).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.machine.operation import ZeroTimeOp
from toolchain.machine.parameters.numbers import engine_of_sync, semaphore


class OrderingOp(ZeroTimeOp):
    """The base of operations that every machine has: they order its engines."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True

    @classmethod
    def find_required_key(cls, chip: Chip) -> str:
        """Return the reason for which programs use this operation: every machine needs it."""
        return "every machine needs it"


@dataclass(frozen=True, slots=True)
class Signal(OrderingOp):
    """Adds one to a semaphore when all before it in the queue of `engine` has ended and can be read by all.

    `engine`: index in `chip.units`. A count never passes `chip.sync.max_count`.
    """

    NAME = "signal"
    engine: int = engine_of_sync()
    semaphore: int = semaphore()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield (
            "Stands in the queue of `engine` (its number) and, when everything before it there has ended and what that wrote "
            f"can be read by all, adds one to `semaphore`. A program never lets a count pass {chip.sync.max_count}."
        )

    def queue(self, chip: Chip) -> int | None:
        return self.engine if 0 <= self.engine < len(chip.units) else None


@dataclass(frozen=True, slots=True)
class Wait(OrderingOp):
    """Holds the queue of `engine` until a semaphore is at least 1, and takes one from it. `engine`: index in `chip.units`."""

    NAME = "wait"
    engine: int = engine_of_sync()
    semaphore: int = semaphore()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield (
            "Stands in the queue of `engine` (its number): nothing behind it there begins before `semaphore` is at least 1; "
            "then it takes one from it and is over. One engine waits for a semaphore and one signals it, always the same in a "
            "program."
        )

    def queue(self, chip: Chip) -> int | None:
        return self.engine if 0 <= self.engine < len(chip.units) else None


@dataclass(frozen=True, slots=True)
class End(OrderingOp):
    """The end of a program: it is over when every queue is empty and every operation has ended. Every semaphore is 0 then."""

    NAME = "end"

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield (
            "The last operation of every program. The front end dispatches nothing behind it; the program is over when every "
            "queue is empty and every operation has ended, and all that was written is in memory. Every semaphore is at 0 "
            "then. The program may be started again: inputs and constants are as they were."
        )

    def queue(self, chip: Chip) -> None:
        return None
