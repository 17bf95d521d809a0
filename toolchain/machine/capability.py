"""Why a machine cannot run an operation: sizes, base registers, types and `limits` of any, and what its class says of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from toolchain.hw.chip import Chip
from toolchain.machine.code_types import by_type
from toolchain.machine.columns import Whole
from toolchain.machine.operation import MachineOp, alike, columns_of


def find_unsupported(op: MachineOp, chip: Chip) -> str | None:
    """The reason why this machine cannot run the operation, or None."""
    for name, least in op.sizes():
        if getattr(op, name) < least:
            return f"{name}={getattr(op, name)}, must be at least {least}"
    checks = (_unknown_bases(op, chip), _unknown_types(op, chip), op.broken(chip), _beyond(op, chip))
    return next(chain.from_iterable(checks), None)


def may_be_unsupported(ops: Sequence[MachineOp], chip: Chip) -> NDArray[np.bool_]:
    """bool[op]: whether sizes, base registers, types or `limits` let `find_unsupported` find something. What `broken` finds
    is seen one operation at a time."""
    found = np.zeros(len(ops), bool)
    for members in alike(ops).values():
        found[members] = _outside(columns_of([ops[i] for i in members]), chip)
    return found


def _outside(op: MachineOp, chip: Chip) -> Whole:
    """Where a parameter is outside its size, its base registers, its type or its limit."""
    found: Whole = False
    for name, least in op.sizes():
        found = found | (getattr(op, name) < least)
    for name, _ in op.based():
        value = getattr(op, name)
        found = found | (value < 0) | (value > op.need(name, chip).high)
    for name, types in op.type_numbers():
        value = getattr(op, name)
        found = found | (value < 0) | (value >= len(types.of(chip)))
    for name, kind in op.typed():
        value, number = getattr(op, name), getattr(op, kind)
        low, high = (by_type(number, chip.code_types, end) for end in (attrgetter("low"), attrgetter("high")))
        found = found | (value < low) | (value > high)
    for together in op.limited().values():
        for name, limit in together:
            most = limit.of(type(op), chip)
            if most is not None:
                found = found | (getattr(op, name) > most)
    return found


def _unknown_bases(op: MachineOp, chip: Chip) -> Iterator[str]:
    for name, _ in op.based():
        value = getattr(op, name)
        if value and not 0 < value <= op.need(name, chip).high:
            held = f"control.bases={chip.control.bases}"
            known = op.need(name, chip).high or not chip.control.bases
            yield f"{name}={value}, the machine has {held if known else f'{held}, and no control.operand_bases'}"


def _unknown_types(op: MachineOp, chip: Chip) -> Iterator[str]:
    """Numbers of no type, and codes that their type has not."""
    for name, types in op.type_numbers():
        if not 0 <= getattr(op, name) < len(types.of(chip)):
            yield f"{name}={getattr(op, name)}, {types.keys} name {', '.join(types.of(chip))}"
    for name, kind in op.typed():
        value, codes = getattr(op, name), chip.code_types[int(getattr(op, kind))]
        if not codes.low <= value <= codes.high:
            yield f"{name}={value}, must be {codes.low}..{codes.high} ({codes})"


def _beyond(op: MachineOp, chip: Chip) -> Iterator[str]:
    """Parameters beyond the machine's `limits`; a pair [height, width] is one limit."""
    for key, together in op.limited().items():
        values = [getattr(op, name) for name, _ in together]
        mosts = [limit.of(type(op), chip) for _, limit in together]
        if any(most is not None and value > most for value, most in zip(values, mosts)):
            text = together[0][1].text.format("x".join(map(str, values)))
            yield f"{text}, limits.{op.NAME}.{key}={'x'.join(map(str, mosts))}"
