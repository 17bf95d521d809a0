"""The end of what is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import RepeatOp


@dataclass(frozen=True, slots=True)
class RepeatEnd(RepeatOp):
    """The end of what the innermost open `repeat` repeats."""

    NAME = "again"

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield "The end of what the innermost open `repeat` repeats: goes back behind that, or on, when its count has run."

    def steer(self, front: FrontEnd) -> None:
        front.again()
