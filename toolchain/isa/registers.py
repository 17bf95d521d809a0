"""Encode and decode programs of `registers` machines.

A write word sets one register, which keeps its value. A start word starts an operation with the values that the
registers hold then. Only registers whose value changed are written again.

Words are uint64[n, limbs], the least significant limb of 64 bits first. Addresses, and values of one write word, are
uint64[n].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import CompileError, ProgramError
from toolchain.isa.columns import (
    Words,
    any_set,
    build,
    gather,
    get,
    get_bits,
    limbs_of,
    put,
    put_bits,
    words_from_bytes,
    words_to_bytes,
)
from toolchain.isa.encoding import Isa, OperationPlan, indices_by_name
from toolchain.isa.instruction_table import RegisterTable, width_of
from toolchain.machine import MachineOp

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class RegisterPart:
    """The part of a register that one write word sets: `index` of the parts, whose lowest bit is bit `low` of the
    register.

    `reserved_mask`: bits of the part that must be 0.
    """

    register: str
    index: int
    address: int
    low: int
    reserved_mask: int


@dataclass(frozen=True)
class RegisterWords:
    """The write and start words of a program, by columns. Places are indices of words.

    Write columns and start columns have their own lengths. `addresses`, `values`: uint64[writes]. `starts`:
    uint64[starts, limbs].
    """

    write_places: Indices
    addresses: Words
    values: Words
    start_places: Indices
    starts: Words


def parts_of(table: RegisterTable, register: str) -> tuple[RegisterPart, ...]:
    """Return the register's parts, the lowest bits first."""
    width = width_of(table.write.value)
    register_entry = table.registers[register]
    reserved = sum(((1 << (h - lo + 1)) - 1) << lo for h, lo in register_entry.reserved)
    mask = (1 << width) - 1
    return tuple(
        RegisterPart(register, i, register_entry.address + i, i * width, reserved >> (i * width) & mask)
        for i in range(register_entry.words)
    )


def all_parts(isa: Isa) -> dict[int, RegisterPart]:
    """Return every part of every register by its address."""
    table = register_table(isa)
    return {part.address: part for name in table.registers for part in parts_of(table, name)}


def register_table(isa: Isa) -> RegisterTable:
    """Return the instruction table, which must be one of registers."""
    assert isinstance(isa.table, RegisterTable)
    return isa.table


def pack(ops: Sequence[MachineOp], isa: Isa) -> bytes:
    """Return the words of a program: before each start word, writes of the registers whose values changed.

    All of an operation's registers are written at their first use, and at their first use after an operation that
    jumps, which loses them. Raise CompileError for an operation or value that the table lacks.
    """
    table = register_table(isa)
    starts = np.zeros((len(ops), limbs_of(table.word_bits)), np.uint64)
    jumped = np.cumsum([0, *(op.JUMPS for op in ops)])[: len(ops)]
    used: dict[int, list[tuple[Indices, Words]]] = {}
    for name, indices in indices_by_name(ops).items():
        plan = isa.plans.get(name)
        if plan is None:
            raise CompileError(f"instruction {indices[0]}: this machine has no {name} (instruction set {isa.name})")
        columns = gather(ops, indices, plan)
        where = np.array(indices, np.int64)
        starts[where] = _start_words(plan, columns, len(indices), table)
        for register in plan.registers:
            values = _register_values(register, plan, columns, len(indices), table)
            for part in parts_of(table, register):
                used.setdefault(part.address, []).append((where, get_bits(values, part.low, width_of(table.write.value))))
    owners, orders, words = [np.arange(len(ops))], [np.full(len(ops), 1 << 40, np.int64)], [starts]
    for address, pieces in sorted(used.items()):
        where, values = _changes(pieces, jumped)
        owners.append(where)
        orders.append(np.full(len(where), address, np.int64))
        words.append(write_words(np.full(len(where), address, np.uint64), values, table))
    order = np.lexsort((np.concatenate(orders), np.concatenate(owners)))
    return words_to_bytes(np.concatenate(words)[order], isa.word_bytes)


def _changes(pieces: list[tuple[Indices, Words]], jumped: Indices) -> tuple[Indices, Words]:
    """Return (operations, values) of one part in program order, where it must be written: its value changes, or a jump
    lost it.

    `pieces`: (operations, values) for each kind of operation. `jumped`: number of jumps before each operation.
    """
    where = np.concatenate([w for w, _ in pieces])
    values = np.concatenate([v for _, v in pieces])
    order = np.argsort(where, kind="stable")
    where, values = where[order], values[order]
    changed = np.ones(len(where), bool)
    changed[1:] = (values[1:] != values[:-1]) | (jumped[where[1:]] != jumped[where[:-1]])
    return where[changed], values[changed]


def write_words(addresses: Words, values: Words, table: RegisterTable) -> Words:
    """Return the words that set these addresses to these values: uint64[n, limbs]."""
    words = np.zeros((len(addresses), limbs_of(table.word_bits)), np.uint64)
    tag = table.write.tag
    put_bits(words, tag.bits[1], width_of(tag.bits), np.full(len(words), tag.value, np.uint64))
    put_bits(words, table.write.register_[1], width_of(table.write.register_), addresses)
    put_bits(words, table.write.value[1], width_of(table.write.value), values)
    return words


def _start_words(plan: OperationPlan, columns: dict[str, NDArray[np.int64]], count: int, table: RegisterTable) -> Words:
    """Return the start words of `count` operations of one kind, with the fields that lie in no register."""
    words = np.zeros((count, limbs_of(table.word_bits)), np.uint64)
    tag = table.start.tag
    put_bits(words, tag.bits[1], width_of(tag.bits), np.full(count, tag.value, np.uint64))
    put_bits(words, table.start.opcode[1], width_of(table.start.opcode), np.full(count, plan.opcode, np.uint64))
    for slot in plan.slots:
        if slot.register is None:
            put(words, slot, columns[slot.name])
    return words


def _register_values(
    register: str, plan: OperationPlan, columns: dict[str, NDArray[np.int64]], count: int, table: RegisterTable
) -> Words:
    """Return what `register` must hold for each operation: uint64[count, limbs]."""
    bits = width_of(table.write.value) * table.registers[register].words
    words = np.zeros((count, bits // 64 + 2), np.uint64)
    for slot in plan.slots:
        if slot.register == register:
            put(words, slot, columns[slot.name])
    for slot, value in plan.constants:
        if slot.register == register:
            put(words, slot, np.full(count, value, np.int64))
    return words


def classify_words(program: bytes, isa: Isa) -> RegisterWords:
    """Return a program's words as write and start words, each checked: tags, register addresses, reserved bits of
    writes.

    Raise ProgramError that names a wrong word, or where the bytes are no whole words.
    """
    table = register_table(isa)
    if len(program) % isa.word_bytes:
        raise ProgramError(f"program of {len(program)} bytes is not whole words of {isa.word_bytes} bytes")
    words = words_from_bytes(program, isa.word_bytes)
    tags = get_bits(words, table.write.tag.bits[1], width_of(table.write.tag.bits))
    unknown = (tags != table.write.tag.value) & (tags != table.start.tag.value)
    if unknown.any():
        place = int(np.argmax(unknown))
        raise ProgramError(f"instruction word {place}: tag {int(tags[place])} is unknown (instruction set {isa.name})")
    write_places = np.flatnonzero(tags == table.write.tag.value)
    start_places = np.flatnonzero(tags == table.start.tag.value)
    writes = words[write_places]
    for high, low in table.write.reserved:
        bad = any_set(writes, low, high)
        if bad.any():
            raise ProgramError(f"instruction word {write_places[np.argmax(bad)]}: write has reserved bits [{high}, {low}] set")
    addresses = get_bits(writes, table.write.register_[1], width_of(table.write.register_))
    values = get_bits(writes, table.write.value[1], width_of(table.write.value))
    _check_writes(write_places, addresses, values, isa)
    return RegisterWords(write_places, addresses, values, start_places, words[start_places])


def _check_writes(places: Indices, addresses: Words, values: Words, isa: Isa) -> None:
    """Raise ProgramError for a write to an unknown register, or of its reserved bits."""
    parts = all_parts(isa)
    for address in sorted(set(addresses.tolist())):
        at = addresses == address
        if address not in parts:
            raise ProgramError(f"instruction word {places[np.argmax(at)]}: there is no register at address {address:#x}")
        part = parts[address]
        bad = at & ((values & np.uint64(part.reserved_mask)) != 0)
        if bad.any():
            raise ProgramError(f"instruction word {places[np.argmax(bad)]}: reserved bits of {part.register} are set")


def unpack(program: bytes, isa: Isa) -> tuple[list[MachineOp], list[int]]:
    """Return (operations, words of each with the writes before it). Raise ProgramError for whatever the machine does
    not accept.

    That includes reading a register that was not written, or not since a jump.
    """
    table = register_table(isa)
    written = classify_words(program, isa)
    total = len(written.write_places) + len(written.start_places)
    ends = written.start_places + 1
    if total and (not len(ends) or ends[-1] != total):
        raise ProgramError(f"instruction word {total - 1}: the program ends in register writes that no operation uses")
    opcodes = get_bits(written.starts, table.start.opcode[1], width_of(table.start.opcode))
    ops: list[MachineOp | None] = [None] * len(ends)
    jumps = written.start_places[np.isin(opcodes, [plan.opcode for plan in isa.plans.values() if plan.operation.JUMPS])]
    for opcode in sorted(set(opcodes.tolist())):
        chosen = np.flatnonzero(opcodes == opcode)
        plan = isa.by_opcode.get(opcode)
        if plan is None:
            place = written.start_places[chosen[0]]
            raise ProgramError(f"instruction word {place}: opcode {opcode} is unknown (instruction set {isa.name})")
        for index, op in zip(chosen.tolist(), _operations(plan, chosen, written, jumps, table)):
            ops[index] = op
    return [op for op in ops if op is not None], np.diff(ends, prepend=0).tolist()


def _operations(
    plan: OperationPlan, chosen: Indices, written: RegisterWords, jumps: Indices, table: RegisterTable
) -> list[MachineOp]:
    """Return the operations of one kind. Raise ProgramError for reserved bits, wrong constants, or registers that hold
    nothing.
    """
    name = plan.operation.NAME
    places = written.start_places[chosen]
    starts = written.starts[chosen]
    for high, low in table.operations[name].reserved:
        bad = any_set(starts, low, high)
        if bad.any():
            raise ProgramError(f"instruction word {places[np.argmax(bad)]}: {name} has reserved bits [{high}, {low}] set")
    words_by_register = {
        register: _read_register_values(register, places, written, jumps, table, name) for register in plan.registers
    }
    for slot, value in plan.constants:
        bad = get(words_by_register[slot.register or ""], slot) != value
        if bad.any():
            raise ProgramError(f"instruction word {places[np.argmax(bad)]}: {name} needs {slot.name} = {value}")
    columns = {s.name: get(starts if s.register is None else words_by_register[s.register], s) for s in plan.slots}
    return build(plan, columns, len(chosen), places.tolist())


def _read_register_values(
    register: str, places: Indices, written: RegisterWords, jumps: Indices, table: RegisterTable, name: str
) -> Words:
    """Return what `register` holds at each of the words `places`, by the latest writes before them: uint64[n, limbs].

    Raise ProgramError where there are none, or none since a jump. `jumps`: places of words that jump.
    """
    width = width_of(table.write.value)
    words = np.zeros((len(places), width * table.registers[register].words // 64 + 2), np.uint64)
    last_jumps = np.concatenate([[-1], jumps])[np.searchsorted(jumps, places)]
    for part in parts_of(table, register):
        mine = written.addresses == part.address
        before = np.searchsorted(written.write_places[mine], places) - 1
        if (before < 0).any():
            place = places[np.argmax(before < 0)]
            raise ProgramError(f"instruction word {place}: {name} uses {part_name(part, table)}, which nothing has written")
        lost = written.write_places[mine][before] < last_jumps
        if lost.any():
            place, jump = places[np.argmax(lost)], last_jumps[np.argmax(lost)]
            reason = f"which nothing has written behind word {jump}, where registers hold nothing (control)"
            raise ProgramError(f"instruction word {place}: {name} uses {part_name(part, table)}, {reason}")
        put_bits(words, part.low, width, written.values[mine][before])
    return words


def part_name(part: RegisterPart, table: RegisterTable) -> str:
    """Return the name of a part in listings: REGISTER, or REGISTER.1 for a part of a register that has several."""
    return part.register if table.registers[part.register].words == 1 else f"{part.register}.{part.index}"
