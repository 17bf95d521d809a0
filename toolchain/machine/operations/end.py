"""The end of a program."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operations.synchronisation import NoWork


@dataclass(frozen=True, slots=True)
class End(NoWork):
    """The program is over when every queue has drained."""

    NAME = "end"

    def queue(self, chip: Chip) -> None:
        return None
