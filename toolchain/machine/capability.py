"""Find out why a machine cannot run an operation: sizes, base registers, types, `limits`, and the operation's own
rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from toolchain.hw.chip import Chip
from toolchain.machine.columns import IntOrColumn, by_type, least, most
from toolchain.machine.operation import MachineOp, columns_of, group_by_unit


def find_unsupported(op: MachineOp, chip: Chip) -> str | None:
    """Return the first reason why this machine cannot run the operation, as a sentence; None where it can."""
    for name, smallest in op.sizes():
        if getattr(op, name) < smallest:
            return f"{name}={getattr(op, name)}, must be at least {smallest}"
    checks = (_unknown_bases(op, chip), _unknown_types(op, chip), op.broken(chip), _beyond(op, chip))
    return next(chain.from_iterable(checks), None)


def may_be_unsupported(ops: Sequence[MachineOp], chip: Chip) -> NDArray[np.bool_]:
    """Return bool[op], True where sizes, base registers, types or `limits` forbid an operation.

    It is a fast test for many operations. True is certain. The operations' own rules (`MachineOp.broken`) are not asked, so
    False is no promise.
    """
    is_unsupported = np.zeros(len(ops), bool)
    for members in group_by_unit(ops).values():
        is_unsupported[members] = _outside(columns_of([ops[i] for i in members]), chip)
    return is_unsupported


def _outside(op: MachineOp, chip: Chip) -> IntOrColumn:
    """Return whether a parameter is outside its size, base registers, type or limit, for columns element by element."""
    is_outside: IntOrColumn = False
    for name, smallest in op.sizes():
        is_outside = is_outside | (getattr(op, name) < smallest)
    for name, _ in op.pair_bases_with_addresses():
        value = getattr(op, name)
        is_outside = is_outside | (value < 0) | (value > op.need(name, chip).high)
    for name, types in op.type_numbers():
        value = getattr(op, name)
        is_outside = is_outside | (value < 0) | (value >= len(types.of(chip)))
    for name, kind in op.pair_codes_with_types():
        value, number, need = getattr(op, name), getattr(op, kind), op.need(name, chip)
        low, high = (by_type(number, chip.code_types, end) for end in (attrgetter("low"), attrgetter("high")))
        is_outside = is_outside | (value < most(low, need.low)) | (value > least(high, need.high))
    for together in op.group_by_limit().values():
        for name, limit in together:
            bound = limit.of(type(op), chip)
            if bound is not None:
                is_outside = is_outside | (getattr(op, name) > bound)
    return is_outside


def _unknown_bases(op: MachineOp, chip: Chip) -> Iterator[str]:
    """Yield base registers that the machine, or this operation, does not have."""
    for name, _ in op.pair_bases_with_addresses():
        value = getattr(op, name)
        if value and not 0 < value <= op.need(name, chip).high:
            base_limit = f"control.bases={chip.control.bases}"
            knows_register = op.need(name, chip).high or not chip.control.bases
            yield (
                f"{name}={value}, the machine has "
                f"{base_limit if knows_register else f'{base_limit}, and no control.operand_bases'}"
            )


def _unknown_types(op: MachineOp, chip: Chip) -> Iterator[str]:
    """Yield numbers of no type, and codes that their type or the machine does not have."""
    for name, types in op.type_numbers():
        if not 0 <= getattr(op, name) < len(types.of(chip)):
            yield f"{name}={getattr(op, name)}, {types.keys} name {', '.join(types.of(chip))}"
    for name, kind in op.pair_codes_with_types():
        value, codes, need = getattr(op, name), chip.code_types[int(getattr(op, kind))], op.need(name, chip)
        if not codes.low <= value <= codes.high:
            yield f"{name}={value}, must be {codes.low}..{codes.high} ({codes})"
        elif not need.low <= value <= need.high:
            yield f"{name}={value}, must be {need.low}..{need.high} ({need.reason})"


def _beyond(op: MachineOp, chip: Chip) -> Iterator[str]:
    """Yield the parameters beyond the machine's `limits`; a pair [height, width] is one limit."""
    for key, together in op.group_by_limit().items():
        values = [getattr(op, name) for name, _ in together]
        bounds = [limit.of(type(op), chip) for _, limit in together]
        if any(bound is not None and value > bound for value, bound in zip(values, bounds)):
            text = together[0][1].text.format("x".join(map(str, values)))
            yield f"{text}, limits.{op.NAME}.{key}={'x'.join(map(str, bounds))}"
