"""The begin of what is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import RepeatOp
from toolchain.machine.parameters.numbers import repeat_count


@dataclass(frozen=True, slots=True)
class Repeat(RepeatOp):
    """The begin of what is repeated."""

    NAME = "repeat"
    count: int = repeat_count()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        depth = chip.control.repeat.depth if chip.control.repeat else 1
        yield (
            "What follows, to the `again` that belongs to it, is dispatched `count` times, one iteration behind the other; "
            f"base registers keep what they hold from one to the next. Repeats lie inside one another to a depth of {depth}. "
            "The front end carries it out. Registers that hold parameters hold nothing of use behind it and behind `again`: a "
            "program writes them anew."
        )

    def steer(self, front: FrontEnd) -> None:
        front.repeat(self.count)
