"""The end of a block."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import BlockOp


@dataclass(frozen=True, slots=True)
class Return(BlockOp):
    """The end of the innermost open block: goes on behind the `call` that runs it, or behind this where it was met the
    first time.
    """

    NAME = "return"

    def steer(self, front: FrontEnd) -> None:
        front.leave()
