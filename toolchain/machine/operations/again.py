"""The end of what is repeated."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import RepeatOp


@dataclass(frozen=True, slots=True)
class Again(RepeatOp):
    """The end of what the innermost open `repeat` repeats."""

    NAME = "again"

    def steer(self, front: FrontEnd) -> None:
        front.again()
