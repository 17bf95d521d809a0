"""Define the operation that waits for other engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operations.synchronisation import ZeroTimeOp
from toolchain.machine.parameters.numbers import engine_of_sync, semaphore


@dataclass(frozen=True, slots=True)
class Wait(ZeroTimeOp):
    """Holds an engine until another has signalled."""

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
