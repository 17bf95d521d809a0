"""The begin of what is repeated."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import RepeatOp
from toolchain.machine.parameters.numbers import repeat_count


@dataclass(frozen=True, slots=True)
class Repeat(RepeatOp):
    """What follows, to the `again` that belongs to it, runs `count` times. On machines with registers these hold nothing
    behind it, for an iteration begins with what the one before left.
    """

    NAME = "repeat"
    count: int = repeat_count()

    def steer(self, front: FrontEnd) -> None:
        front.repeat(self.count)
