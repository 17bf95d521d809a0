"""Another run of a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import BlockOp
from toolchain.machine.parameters.numbers import block_number


@dataclass(frozen=True, slots=True)
class Call(BlockOp):
    """Another run of a block."""

    NAME = "call"
    block: int = block_number()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        depth = chip.control.call.depth if chip.control.call else 1
        yield (
            "Dispatches the block of number `block`, which was met before, once more, and goes on behind this. What differs "
            f"from run to run are base registers. Blocks lie inside one another, called ones included, to a depth of {depth}. "
            "Registers that hold parameters hold nothing of use behind it."
        )

    def steer(self, front: FrontEnd) -> None:
        front.call(self.block)
