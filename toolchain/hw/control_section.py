"""Define what a front end does besides reading words in order, and what keeps its queues apart."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolchain.hw.section import NonNegative, Positive, Section


class Sync(Section):
    semaphores: Positive
    max_count: Positive = 255


class Repeats(Section):
    """Operations between `repeat` and `again` run several times."""

    depth: Annotated[int, Field(ge=1, le=16)] = 1  # repeats inside one another
    max_count: Annotated[int, Field(ge=1, le=(1 << 32) - 1)] = (1 << 16) - 1
    buffer_words: NonNegative = 0  # a body of at most so many words is read once, not for each iteration


class Calls(Section):
    """Operations between `block` and `return` run again at each `call`."""

    blocks: Annotated[int, Field(ge=1, le=1 << 16)]  # addresses that the front end keeps
    depth: Annotated[int, Field(ge=1, le=16)] = 1  # blocks inside one another, those that are called included


class Indirect(Section):
    """`load_base` adds a number that lies in a memory, from 0 to `max_index`, times a size to a base register."""

    max_index: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] = (1 << 16) - 1


class Control(Section):
    """A section on what the front end does besides reading words in order."""

    bases: Annotated[int, Field(ge=0, le=255)] = 0  # registers that moves may add to an address, from 1 on
    host_bases: Annotated[int, Field(ge=0, le=255)] = (
        0  # the first of them: set before a start, each to where an area of dram lies
    )
    operand_bases: bool = False  # arrays and vector engines add them to the addresses of their operands, as moves do
    repeat: Repeats | None = None
    call: Calls | None = None
    indirect: Indirect | None = None
