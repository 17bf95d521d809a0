"""The numbers of a chip's memories, and the maker of parameters that name one.

`memory_space` returns a dataclass field for an operation's class.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from toolchain.hw.chip import Chip
from toolchain.machine.columns import is_column
from toolchain.machine.parameters.description import Need, parameter


class Space(IntEnum):
    """The numbers of memories, as in `chip.spaces`. Beyond DRAM and SRAM, a memory's number is its place in the
    machine's file.
    """

    DRAM = 0
    SRAM = 1
    MEMORY2 = 2
    MEMORY3 = 3
    MEMORY4 = 4
    MEMORY5 = 5
    MEMORY6 = 6
    MEMORY7 = 7
    MEMORY8 = 8
    MEMORY9 = 9
    MEMORY10 = 10
    MEMORY11 = 11
    MEMORY12 = 12
    MEMORY13 = 13
    MEMORY14 = 14
    MEMORY15 = 15


def space_of(value: Any, chip: Chip) -> Any:
    """Return the memory of a number as `Space`; a column of numbers is returned as it is.

    Raise ValueError where the machine has no such memory.
    """
    if is_column(value):
        return value
    if not 0 <= value < len(chip.spaces):
        raise ValueError(f"{value} is no memory; the machine has {_spaces(chip)}")
    return Space(value)


def _spaces(chip: Chip) -> str:
    return ", ".join(f"{s.name} {i}" for i, s in enumerate(chip.spaces))


def memory_space() -> Any:
    """Make the number of a memory."""
    return parameter("", lambda operation, chip: Need(0, len(chip.spaces) - 1, _spaces(chip)), kinds=Space)
