"""Define the operations that the front end carries out, which never reach a queue: repeats, blocks, base registers.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it. `find_required_key`
returns the machine file's key because of which programs use the operation, None where they do not. `queue` is always None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.manual_text import formula
from toolchain.machine.operation import ZeroTimeOp
from toolchain.machine.parameters.addresses import base_number, base_offset
from toolchain.machine.parameters.numbers import block_number, repeat_count


class ControlOp(ZeroTimeOp):
    """The base of operations of the front end. `steer` carries one out on the front end's state."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True

    def steer(self, front: FrontEnd) -> None:
        """Carry the operation out on the front end. Raise ValueError with the reason where the front end cannot do it."""
        raise NotImplementedError

    def queue(self, chip: Chip) -> None:
        return None


class RepeatOp(ControlOp):
    """The base of the operations that begin and end a repeat."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    JUMPS: ClassVar[bool] = True

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return "control.repeat" if chip.control.repeat else None


class BlockOp(ControlOp):
    """The base of the operations that begin, end and call a block."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    JUMPS: ClassVar[bool] = True

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return "control.call" if chip.control.call else None


@dataclass(frozen=True, slots=True)
class Repeat(RepeatOp):
    """The beginning of a repeat: what follows, up to its `again`, is dispatched `count` times."""

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


@dataclass(frozen=True, slots=True)
class RepeatEnd(RepeatOp):
    """The end of the innermost repeat's body (`again`)."""

    NAME = "again"

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield "The end of what the innermost open `repeat` repeats: goes back behind that, or on, when its count has run."

    def steer(self, front: FrontEnd) -> None:
        front.again()


@dataclass(frozen=True, slots=True)
class BlockBegin(BlockOp):
    """The beginning of a block, which runs here a first time and can be called later."""

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


@dataclass(frozen=True, slots=True)
class BlockEnd(BlockOp):
    """The end of a block (`return`)."""

    NAME = "return"

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield (
            "The end of the innermost open block: goes on behind the `call` that runs it, or behind this where the block was "
            "met for the first time."
        )

    def steer(self, front: FrontEnd) -> None:
        front.leave()


@dataclass(frozen=True, slots=True)
class Call(BlockOp):
    """A further run of a block that was met before."""

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


@dataclass(frozen=True, slots=True)
class SetBase(ControlOp):
    """Sets base register `base` to base register `source` plus `offset`."""

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
