"""Move parameters of many operations between columns of integers and bits of words, with numpy: the fast part of both
codecs, `isa.descriptors` and `isa.registers`.

A word is uint64[limbs], the least significant limb first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from operator import index as whole_number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import CompileError, ProgramError
from toolchain.isa.encoding import BitField, OperationPlan
from toolchain.machine import MachineOp

Words = NDArray[np.uint64]
Column = NDArray[np.int64]
LIMB_BITS = 64


def gather(ops: Sequence[MachineOp], indices: Sequence[int], plan: OperationPlan) -> dict[str, Column]:
    """Return int64[n] of each parameter of ops[indices], which are of one class, every value checked against its field.

    A parameter without bits must have the only value that the machine has of it.

    Raise CompileError, which names operation, field, value and limit.
    """
    names = plan.operation.parameters()
    if not names:
        return {}
    pick = attrgetter(*names)
    rows = [pick(ops[i]) for i in indices]
    table = np.array(rows if len(names) > 1 else [(row,) for row in rows])
    if table.dtype != np.int64:
        _refuse_odd(rows if len(names) > 1 else [(row,) for row in rows], names, indices, plan)
        table = table.astype(np.int64)
    columns = {name: table[:, i] for i, name in enumerate(names)}
    for slot in plan.slots:
        column = columns[slot.name]
        bad = (column < slot.lowest) | (column > slot.highest)
        if slot.step > 1:
            bad |= (column - slot.bias) % slot.step != 0
        if bad.any():
            at = int(np.argmax(bad))
            raise CompileError(_misfit(indices[at], plan, slot, int(column[at])))
    for name, value in plan.fixed:
        bad = columns[name] != value
        if bad.any():
            at = int(np.argmax(bad))
            wrong = int(columns[name][at])
            raise CompileError(
                f"instruction {indices[at]} ({plan.operation.NAME}): {name}={wrong}, but this machine has only {value}"
            )
    return columns


def _misfit(index: int, plan: OperationPlan, slot: BitField, value: int) -> str:
    """Return the message about a value that does not fit its field."""
    text = f"instruction {index} ({plan.operation.NAME}): {slot.name}={value} does not fit its {slot.width} bits"
    steps = f", in steps of {slot.step}" if slot.step > 1 else ""
    return f"{text} ({slot.lowest} to {slot.highest}{steps})"


def _refuse_odd(rows: Iterable[Any], names: tuple[str, ...], indices: Sequence[int], plan: OperationPlan) -> None:
    """Raise CompileError for the first value that is no integer, does not fit its field, or exceeds 64 bits."""
    for index, row in zip(indices, rows):
        for name, value in zip(names, row):
            try:
                number = whole_number(value)
            except TypeError:
                text = f"instruction {index} ({plan.operation.NAME}): {name}={value!r} is not a whole number"
                raise CompileError(text) from None
            slot = plan.slot_of.get(name)
            if slot and not slot.holds(number):
                raise CompileError(_misfit(index, plan, slot, number))
            if not slot and not -(1 << 63) <= number < 1 << 63:
                raise CompileError(f"instruction {index} ({plan.operation.NAME}): {name}={value} does not fit 64 bits")


def put(words: Words, slot: BitField, column: Column) -> None:
    """Set the field's bits in words, uint64[n, limbs], to the values of the column. They must fit, and the bits must be
    0 before.
    """
    stored = (((column - slot.bias) // slot.step).astype(np.uint64)) & np.uint64(slot.mask)
    put_bits(words, slot.low, slot.width, stored)


def put_bits(words: Words, low: int, width: int, stored: Words) -> None:
    """Set `width` bits from bit `low` on in words, uint64[n, limbs], to uint64[n]. The bits must be 0 before."""
    limb, offset = divmod(low, LIMB_BITS)
    words[:, limb] |= stored << np.uint64(offset)
    if offset + width > LIMB_BITS:
        words[:, limb + 1] |= stored >> np.uint64(LIMB_BITS - offset)


def get_bits(words: Words, low: int, width: int) -> Words:
    """Return `width` bits from bit `low` on of words, uint64[n, limbs], as uint64[n]."""
    limb, offset = divmod(low, LIMB_BITS)
    stored = words[:, limb] >> np.uint64(offset)
    if offset + width > LIMB_BITS:
        stored = stored | (words[:, limb + 1] << np.uint64(LIMB_BITS - offset))
    return stored & np.uint64((1 << width) - 1)


def limbs_of(bits: int) -> int:
    """Return the number of 64-bit limbs that hold so many bits."""
    return -(-bits // LIMB_BITS)


def words_to_bytes(words: Words, word_bytes: int) -> bytes:
    """Return the bytes of n words, uint64[n, limbs], `word_bytes` each, the least significant byte first."""
    return words.astype("<u8").view(np.uint8).reshape(len(words), 8 * words.shape[1])[:, :word_bytes].tobytes()


def words_from_bytes(data: bytes, word_bytes: int) -> Words:
    """Return whole words as uint64[n, limbs]: the inverse of `words_to_bytes`."""
    limbs = limbs_of(8 * word_bytes)
    padded = np.zeros((len(data) // word_bytes, 8 * limbs), np.uint8)
    padded[:, :word_bytes] = np.frombuffer(data, np.uint8).reshape(-1, word_bytes)
    return padded.view("<u8").astype(np.uint64, copy=False)


def any_set(words: Words, low: int, high: int) -> NDArray[np.bool_]:
    """Return bool[n]: whether a word has any of bits low..high set, both ends included."""
    is_set = np.zeros(len(words), bool)
    for at in range(low, high + 1, LIMB_BITS):
        is_set |= get_bits(words, at, min(LIMB_BITS, high + 1 - at)) != 0
    return is_set


def get(words: Words, slot: BitField) -> Column:
    """Return the field's values in words, uint64[n, limbs], as int64[n]."""
    stored = get_bits(words, slot.low, slot.width).astype(np.int64)
    if slot.signed:
        stored = np.where(stored >> (slot.width - 1), stored - (1 << slot.width), stored)
    return stored * slot.step + slot.bias


def build(plan: OperationPlan, columns: dict[str, Column], count: int, places: Sequence[int]) -> list[MachineOp]:
    """Return `count` operations from their columns. A parameter with one possible value needs no column.

    `columns`: int64[count] by parameter name.
    `places`: word indices for messages. Raise ProgramError for a number that an enumeration lacks.
    """
    operation = plan.operation
    names = operation.parameters()
    if not names:
        return [operation() for _ in range(count)]
    lists: list[list[Any]] = []
    fixed, described = dict(plan.fixed), operation.get_descriptions()
    for name in names:
        values = [fixed[name]] * count if name in fixed else columns[name].tolist()
        enum = described[name].kinds
        lists.append(
            values if enum is None else [_member(enum, v, operation.NAME, name, places[i]) for i, v in enumerate(values)]
        )
    return [operation(*row) for row in zip(*lists)]


def _member(enum: Any, value: int, operation: str, name: str, place: int) -> Any:
    """Return the enumeration's member. Raise ProgramError where it has none of this value."""
    if value in enum._value2member_map_:
        return enum(value)
    members = ", ".join(f"{m.value} {m.name.lower()}" for m in enum)
    raise ProgramError(f"instruction word {place}: {operation} {name}={value} is unknown ({members})")
