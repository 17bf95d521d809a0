"""Look up the types of the codes that operations read and write.

An operation names each by its number in `chip.code_types`.
It names the type of its weights by the number in `chip.weight_types`, where a machine has several.
The functions here work for one number and for columns of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.machine.columns import IntOrColumn, is_column, where


def by_type(number: IntOrColumn, types: Sequence[CodeType], value: Callable[[CodeType], IntOrColumn]) -> IntOrColumn:
    """Return `value` of the type with that number, element by element; a number out of range gives the first type."""
    first, *others = types
    if not is_column(number):
        index = int(number)
        return value(types[index] if 0 <= index < len(types) else first)
    values = value(first)
    for i, codes in enumerate(others, 1):
        values = where(number == i, value(codes), values)
    return values


def code_bytes(number: IntOrColumn, chip: Chip) -> IntOrColumn:
    """Return the bytes of one element."""
    return by_type(number, chip.code_types, lambda codes: codes.size_bytes)


def table_bytes(number: IntOrColumn, chip: Chip) -> IntOrColumn:
    """Return the bytes of a function's table for these codes: its entries are of their type."""
    return by_type(number, chip.code_types, lambda codes: codes.table_entries * codes.size_bytes)
