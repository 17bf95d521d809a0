"""The begin of a block."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import BlockOp
from toolchain.machine.parameters.numbers import block_number


@dataclass(frozen=True, slots=True)
class Block(BlockOp):
    """What follows, to the `return` that belongs to it, is `block` from now on, and runs here a first time. On machines
    with registers these hold nothing behind it.
    """

    NAME = "block"
    block: int = block_number()

    def steer(self, front: FrontEnd) -> None:
        front.open_block(self.block)
