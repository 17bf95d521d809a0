"""Another run of a block."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import BlockOp
from toolchain.machine.parameters.numbers import block_number


@dataclass(frozen=True, slots=True)
class Call(BlockOp):
    """Runs `block`, which must have been met, and goes on behind this. Registers hold nothing then. What differs
    between two runs of a block are the base registers.
    """

    NAME = "call"
    block: int = block_number()

    def steer(self, front: FrontEnd) -> None:
        front.call(self.block)
