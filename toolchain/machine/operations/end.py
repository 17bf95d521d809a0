"""The end of a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operations.synchronisation import ZeroTimeOp


@dataclass(frozen=True, slots=True)
class End(ZeroTimeOp):
    """The end of a program."""

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
