"""What the front end does itself: base registers, repeats, blocks that are called. Nothing of it reaches a queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operation import NOTHING, Access, Demand, MachineOp
from toolchain.machine.parameter import base_number, base_offset, block_number, repeat_count


class ControlOp(MachineOp):
    """Base. `steer` is its meaning: what it does to the front end, which then goes on at `front.next`."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    ENGINE = None

    def steer(self, front: FrontEnd) -> None:
        """Raises ValueError with the reason why the front end cannot do it."""
        raise NotImplementedError

    def queue(self, chip: Chip) -> None:
        return None

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return ()

    def demand(self, chip: Chip) -> Demand:
        return NOTHING

    def broken(self, chip: Chip) -> Iterator[str]:
        return iter(())


class _Repeating(ControlOp):
    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    JUMPS: ClassVar[bool] = True

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return "control.repeat" if chip.control.repeat else None


class _Calling(ControlOp):
    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    JUMPS: ClassVar[bool] = True

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return "control.call" if chip.control.call else None


@dataclass(frozen=True, slots=True)
class SetBase(ControlOp):
    """base[base] = base[source] + offset; base[0] is 0 and cannot be set. All bases are 0 where a program starts.

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


@dataclass(frozen=True, slots=True)
class Repeat(_Repeating):
    """What follows, to the `again` that belongs to it, runs `count` times. On machines with registers these hold nothing
    behind it, for an iteration begins with what the one before left.
    """

    NAME = "repeat"
    count: int = repeat_count()

    def steer(self, front: FrontEnd) -> None:
        front.repeat(self.count)


@dataclass(frozen=True, slots=True)
class Again(_Repeating):
    """The end of what the innermost open `repeat` repeats."""

    NAME = "again"

    def steer(self, front: FrontEnd) -> None:
        front.again()


@dataclass(frozen=True, slots=True)
class Block(_Calling):
    """What follows, to the `return` that belongs to it, is `block` from now on, and runs here a first time. On machines
    with registers these hold nothing behind it.
    """

    NAME = "block"
    block: int = block_number()

    def steer(self, front: FrontEnd) -> None:
        front.open_block(self.block)


@dataclass(frozen=True, slots=True)
class Call(_Calling):
    """Runs `block`, which must have been met, and goes on behind this. Registers hold nothing then. What differs
    between two runs of a block are the base registers.
    """

    NAME = "call"
    block: int = block_number()

    def steer(self, front: FrontEnd) -> None:
        front.call(self.block)


@dataclass(frozen=True, slots=True)
class Return(_Calling):
    """The end of the innermost open block: goes on behind the `call` that runs it, or behind this where it was met the
    first time.
    """

    NAME = "return"

    def steer(self, front: FrontEnd) -> None:
        front.leave()
