"""The types of the codes that operations read and write. An operation names each by its number in `chip.code_types`, that of its
weights in `chip.weight_types`, where a machine has several; the functions here hold for one number and for columns of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.machine.columns import Whole, is_column, where


def by_type(number: Whole, types: Sequence[CodeType], value: Callable[[CodeType], Whole]) -> Whole:
    """What `value` gives for the type of that number, element by element; of a number beyond them, for the first."""
    first, *others = types
    if not is_column(number):
        index = int(number)
        return value(types[index] if 0 <= index < len(types) else first)
    found = value(first)
    for i, codes in enumerate(others, 1):
        found = where(number == i, value(codes), found)
    return found


def code_bytes(number: Whole, chip: Chip) -> Whole:
    """Of one element."""
    return by_type(number, chip.code_types, lambda codes: codes.size_bytes)


def table_bytes(number: Whole, chip: Chip) -> Whole:
    """Of the table of a function of these codes: entries of their type."""
    return by_type(number, chip.code_types, lambda codes: codes.table_entries * codes.size_bytes)
