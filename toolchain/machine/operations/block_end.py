"""The end of a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import BlockOp


@dataclass(frozen=True, slots=True)
class BlockEnd(BlockOp):
    """The end of a block."""

    NAME = "return"

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield (
            "The end of the innermost open block: goes on behind the `call` that runs it, or behind this where the block was "
            "met for the first time."
        )

    def steer(self, front: FrontEnd) -> None:
        front.leave()
