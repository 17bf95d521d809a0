"""Base registers that operations add to addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.manual_text import formula
from toolchain.machine.operations.control import ControlOp
from toolchain.machine.parameters.addresses import base_number, base_offset


@dataclass(frozen=True, slots=True)
class SetBase(ControlOp):
    """Sets a base register."""

    NAME = "set_base"
    base: int = base_number(1)
    source: int = base_number(0)
    offset: int = base_offset()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        host = chip.control.host_bases
        begin = (
            f"Registers 1 to {host} hold what the host has set where a program starts, the others 0."
            if host
            else "All bases are 0 where a program starts."
        )
        yield formula("base[base] = base[source] + offset")
        yield (
            f"base[0] is 0 and cannot be set. {begin} The front end carries it out; it takes no place in a queue. An operation "
            "that names a base register takes the value of the moment at which the front end dispatches it."
        )

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return f"control.bases={chip.control.bases}" if chip.control.bases else None

    def steer(self, front: FrontEnd) -> None:
        front.set_base(self.base, self.source, self.offset)
