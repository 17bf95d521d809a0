"""What waits for other engines."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operations.synchronisation import NoWork
from toolchain.machine.parameters.numbers import engine_of_sync, semaphore


@dataclass(frozen=True, slots=True)
class Wait(NoWork):
    """Runs on `engine`: blocks its queue until `semaphore` is at least one, then takes one."""

    NAME = "wait"
    engine: int = engine_of_sync()
    semaphore: int = semaphore()

    def queue(self, chip: Chip) -> int | None:
        return self.engine if 0 <= self.engine < len(chip.units) else None
