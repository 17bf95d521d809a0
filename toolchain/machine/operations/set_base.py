"""Base registers that operations add to addresses."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operations.control import ControlOp
from toolchain.machine.parameters.addresses import base_number, base_offset


@dataclass(frozen=True, slots=True)
class SetBase(ControlOp):
    """base[base] = base[source] + offset; base[0] is 0 and cannot be set. All bases are 0 where a program starts, but for
    those that the host has set (`control.host_bases`).

    An operation that names a base takes the value of the moment at which the front end dispatches it.
    """

    NAME = "set_base"
    base: int = base_number(1)
    source: int = base_number(0)
    offset: int = base_offset()

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return f"control.bases={chip.control.bases}" if chip.control.bases else None

    def steer(self, front: FrontEnd) -> None:
        front.set_base(self.base, self.source, self.offset)
