"""Arithmetic that is written once for one operation and for columns of many: integers, or int64[n] arrays of them.

Types of codes are looked up here too. An operation names each by its number in `chip.code_types`, and the type of its
weights by its number in `chip.weight_types`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip

# int, or int64[n]; an IntEnum or a flag counts as int
IntOrColumn = Any
Column = NDArray[np.int64]
_MOST_KEYS = 2**62
_FEW_ROWS = 64


def is_column(value: object) -> TypeGuard[Column]:
    """Return whether the value is a column of many operations."""
    return isinstance(value, np.ndarray)


def distinct_rows(*columns: IntOrColumn) -> tuple[list[tuple[int, ...]], Column]:
    """Return the different rows of a table, in no particular order, and for each row its index among them.

    `columns`: the table's columns; numbers are broadcast. Rows are compared by one number of mixed radix, or one by one
    where they are few.
    """
    table = np.broadcast_arrays(*columns)
    if len(table[0]) <= _FEW_ROWS:
        number_by_row: dict[tuple[int, ...], int] = {}
        rows = zip(*(column.tolist() for column in table))
        numbers = [number_by_row.setdefault(row, len(number_by_row)) for row in rows]
        return list(number_by_row), np.array(numbers, np.int64)
    keys, span = np.zeros(len(table[0]), np.int64), 1
    for column in table:
        low = int(column.min(initial=0))
        codes, width = column - low, int(column.max(initial=0)) - low + 1
        if span * width > _MOST_KEYS:
            keys, codes = (np.unique(values, return_inverse=True)[1] for values in (keys, codes))
            span, width = (int(values.max(initial=0)) + 1 for values in (keys, codes))
        keys, span = keys * width + codes, span * width
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    return list(zip(*(column[first].tolist() for column in table))), back


def ceil_div(a: IntOrColumn, b: IntOrColumn) -> IntOrColumn:
    """Return ceil(a / b), element by element; b must be positive."""
    return -(-a // b)


def least(a: IntOrColumn, b: IntOrColumn) -> IntOrColumn:
    """Return the smaller of the two, element by element."""
    return np.minimum(a, b) if is_column(a) or is_column(b) else min(a, b)


def most(a: IntOrColumn, b: IntOrColumn) -> IntOrColumn:
    """Return the larger of the two, element by element."""
    return np.maximum(a, b) if is_column(a) or is_column(b) else max(a, b)


def where(condition: IntOrColumn, a: IntOrColumn, b: IntOrColumn) -> IntOrColumn:
    """Return a where the condition holds, else b, element by element; of named tuples, field by field."""
    if is_column(condition):
        if isinstance(a, tuple):
            named, fields = cast(Callable[..., IntOrColumn], type(cast(object, a))), cast(tuple[IntOrColumn, ...], a)
            return named(*(where(condition, x, y) for x, y in zip(fields, b)))
        return cast(IntOrColumn, np.where(condition, a, b))
    return a if condition else b


def by_name(names: Sequence[str], number: IntOrColumn, value: Callable[[str], IntOrColumn]) -> IntOrColumn:
    """Return value(names[number]), element by element; a number out of range counts as 0."""
    if not is_column(number):
        return value(names[number if 0 <= number < len(names) else 0])
    values = value(names[0])
    for i, name in enumerate(names[1:], 1):
        values = where(number == i, value(name), values)
    return values


def at_rate(steps: IntOrColumn, rate: float) -> IntOrColumn:
    """Return ceil(steps / rate) as integers, element by element."""
    if rate == 1.0:
        return steps
    if is_column(steps):
        return (-(-steps // rate)).astype(np.int64)
    return -int(-steps // rate)


def by_type(number: IntOrColumn, types: Sequence[CodeType], value: Callable[[CodeType], IntOrColumn]) -> IntOrColumn:
    """Return value(types[number]), element by element; a number out of range counts as 0."""
    first, *others = types
    if not is_column(number):
        index = int(number)
        return value(types[index] if 0 <= index < len(types) else first)
    values = value(first)
    for i, codes in enumerate(others, 1):
        values = where(number == i, value(codes), values)
    return values


def code_bytes(number: IntOrColumn, chip: Chip) -> IntOrColumn:
    """Return the bytes of one element of the type with this number in `chip.code_types`."""
    return by_type(number, chip.code_types, lambda codes: codes.size_bytes)


def table_bytes(number: IntOrColumn, chip: Chip) -> IntOrColumn:
    """Return the bytes of a function's lookup table for codes of the type with this number; entries are of the same
    type.
    """
    return by_type(number, chip.code_types, lambda codes: codes.table_entries * codes.size_bytes)
