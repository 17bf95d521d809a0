"""Define the operation that signals other engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operations.synchronisation import ZeroTimeOp
from toolchain.machine.parameters.numbers import engine_of_sync, semaphore


@dataclass(frozen=True, slots=True)
class Signal(ZeroTimeOp):
    """Tells another engine that everything before it has ended."""

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
