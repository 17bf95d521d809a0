"""What tells other engines."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operations.synchronisation import NoWork
from toolchain.machine.parameters.numbers import engine_of_sync, semaphore


@dataclass(frozen=True, slots=True)
class Signal(NoWork):
    """Runs on `engine` (index in `chip.units`) after everything before it there: adds one to `semaphore`."""

    NAME = "signal"
    engine: int = engine_of_sync()
    semaphore: int = semaphore()

    def queue(self, chip: Chip) -> int | None:
        return self.engine if 0 <= self.engine < len(chip.units) else None
