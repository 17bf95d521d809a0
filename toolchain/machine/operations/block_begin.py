"""The begin of a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import BlockOp
from toolchain.machine.parameters.numbers import block_number


@dataclass(frozen=True, slots=True)
class BlockBegin(BlockOp):
    """The begin of a block."""

    NAME = "block"
    block: int = block_number()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield (
            "What follows, to the `return` that belongs to it, is block number `block` from now on, and runs here a first "
            "time. The front end keeps where it begins. Registers that hold parameters hold nothing of use behind it."
        )

    def steer(self, front: FrontEnd) -> None:
        front.open_block(self.block)
