"""The types of the codes that operations read and write. An operation names each by its number in `chip.code_types`, where a
machine has several; the functions here hold for one number and for columns of them."""

from __future__ import annotations

from collections.abc import Callable

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.machine.columns import Whole, where


def type_of(number: int, chip: Chip) -> CodeType:
    """Raises IndexError where the machine has no such type."""
    return chip.code_types[number]


def by_type(number: Whole, chip: Chip, value: Callable[[CodeType], Whole]) -> Whole:
    """What `value` gives for the type of that number, element by element; of a number beyond them, for the first."""
    first, *others = chip.code_types
    found = value(first)
    for i, codes in enumerate(others, 1):
        found = where(number == i, value(codes), found)
    return found


def code_bytes(number: Whole, chip: Chip) -> Whole:
    """Of one element."""
    return by_type(number, chip, lambda codes: codes.size_bytes)


def table_bytes(number: Whole, chip: Chip) -> Whole:
    """Of the table of a function of these codes: entries of their type."""
    return by_type(number, chip, lambda codes: codes.table_entries * codes.size_bytes)
