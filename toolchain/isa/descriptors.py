"""Encode and decode programs of `descriptors` machines: one wide word for each operation.

A word may carry a wait before its operation and a signal after it, both in the operation's own queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
from toolchain.isa.instruction_table import Bits, DescriptorTable, width_of
from toolchain.machine import MachineOp, Signal, Wait


@dataclass(frozen=True)
class Descriptor:
    """One word: an operation with the numbers of the semaphores that it waits for first and signals last; None: no such one."""

    op: MachineOp
    wait: int | None = None
    signal: int | None = None

    def unfold(self, isa: Isa) -> tuple[MachineOp, ...]:
        """Return the operations of the word: the wait, the operation, the signal, as far as it carries them.

        An operation without a queue carries neither.
        """
        engine = isa.queue_of(self.op)
        if engine is None:
            return (self.op,)
        before = () if self.wait is None else (Wait(engine, self.wait),)
        after = () if self.signal is None else (Signal(engine, self.signal),)
        return (*before, self.op, *after)


def fold(ops: Sequence[MachineOp], isa: Isa) -> list[Descriptor]:
    """Return the operations as descriptors. Waits just before an operation and signals just after it, in its queue,
    become part of it.
    """
    table = isa.table
    assert isinstance(table, DescriptorTable)
    if table.sync is None:
        return [Descriptor(op) for op in ops]
    folded_descriptors: list[Descriptor] = []
    at = 0
    while at < len(ops):
        op, wait, signal = ops[at], None, None
        if isinstance(op, Wait) and at + 1 < len(ops) and _hosts(isa, ops[at + 1], op, table.sync.wait_semaphore):
            wait, op, at = op.semaphore, ops[at + 1], at + 1
        after = ops[at + 1] if at + 1 < len(ops) else None
        if isinstance(after, Signal) and _hosts(isa, op, after, table.sync.signal_semaphore):
            signal, at = after.semaphore, at + 1
        folded_descriptors.append(Descriptor(op, wait, signal))
        at += 1
    return folded_descriptors


def _hosts(isa: Isa, op: MachineOp, sync: Wait | Signal, bits: Bits) -> bool:
    """Return whether an operation's descriptor can carry this wait or signal."""
    fits = 0 <= sync.semaphore < 1 << width_of(bits)
    return fits and not isinstance(op, Wait | Signal) and isa.queue_of(op) == sync.engine


def pack(descriptors: Sequence[Descriptor], isa: Isa) -> bytes:
    """Return the bytes of descriptors. Raise CompileError for an operation or value that the table lacks."""
    table = isa.table
    assert isinstance(table, DescriptorTable)
    words = np.zeros((len(descriptors), limbs_of(table.word_bits)), np.uint64)
    ops = [d.op for d in descriptors]
    for name, indices in indices_by_name(ops).items():
        plan = isa.plans.get(name)
        if plan is None:
            raise CompileError(f"instruction {indices[0]}: this machine has no {name} (instruction set {isa.name})")
        columns = gather(ops, indices, plan)
        part = np.zeros((len(indices), words.shape[1]), np.uint64)
        put_bits(part, table.opcode[1], width_of(table.opcode), np.full(len(indices), plan.opcode, np.uint64))
        for slot in plan.slots:
            put(part, slot, columns[slot.name])
        words[indices] = part
    if table.sync:
        for flag, bits, values in (
            (table.sync.wait, table.sync.wait_semaphore, [d.wait for d in descriptors]),
            (table.sync.signal, table.sync.signal_semaphore, [d.signal for d in descriptors]),
        ):
            put_bits(words, flag[1], 1, np.array([v is not None for v in values], np.uint64))
            put_bits(words, bits[1], width_of(bits), np.array([v or 0 for v in values], np.uint64))
    return words_to_bytes(words, isa.word_bytes)


def unpack(program: bytes, isa: Isa) -> list[Descriptor]:
    """Return the descriptors of a program's bytes. Raise ProgramError for a word that the table does not allow."""
    table = isa.table
    assert isinstance(table, DescriptorTable)
    if len(program) % isa.word_bytes:
        raise ProgramError(f"program of {len(program)} bytes is not whole words of {isa.word_bytes} bytes")
    words = words_from_bytes(program, isa.word_bytes)
    opcodes = get_bits(words, table.opcode[1], width_of(table.opcode))
    ops: list[MachineOp | None] = [None] * len(words)
    for opcode in sorted(set(opcodes.tolist())):
        places = np.flatnonzero(opcodes == opcode)
        plan = isa.by_opcode.get(opcode)
        if plan is None:
            raise ProgramError(f"instruction word {places[0]}: opcode {opcode} is unknown (instruction set {isa.name})")
        part = words[places]
        _refuse_reserved(part, places.tolist(), plan, table)
        columns = {slot.name: get(part, slot) for slot in plan.slots}
        for place, op in zip(places.tolist(), build(plan, columns, len(places), places.tolist())):
            ops[place] = op
    decoded = [op for op in ops if op is not None]
    if table.sync is None:
        return [Descriptor(op) for op in decoded]
    waits = _semaphores(words, table.sync.wait, table.sync.wait_semaphore, "wait")
    signals = _semaphores(words, table.sync.signal, table.sync.signal_semaphore, "signal")
    for place, op in enumerate(decoded):
        hostless = isinstance(op, Wait | Signal) or isa.queue_of(op) is None
        if hostless and op.ENGINE is not None and isa.chip is not None:
            units = [unit.name for unit in isa.chip.of_kind(op.ENGINE)]
            raise ProgramError(f"instruction word {place}: {op.NAME} on unit {op.number()}; the machine has {', '.join(units)}")
        if hostless and not (waits[place] is None and signals[place] is None):
            raise ProgramError(f"instruction word {place}: {op.NAME} cannot carry a wait or a signal of its own")
    return [Descriptor(*row) for row in zip(decoded, waits, signals)]


def _semaphores(words: Words, flag: Bits, bits: Bits, name: str) -> list[int | None]:
    """Return the semaphore of each word, None where its flag is 0. Raise ProgramError for a number without a flag."""
    used = get_bits(words, flag[1], 1).astype(bool)
    values = get_bits(words, bits[1], width_of(bits))
    stray = ~used & (values != 0)
    if stray.any():
        place = int(np.argmax(stray))
        raise ProgramError(f"instruction word {place}: {name}_semaphore is {int(values[place])} without {name}")
    return [v if on else None for v, on in zip(values.tolist(), used.tolist())]


def _refuse_reserved(words: Words, places: Sequence[int], plan: OperationPlan, table: DescriptorTable) -> None:
    """Raise ProgramError where a reserved bit is set. `places`: number of each word in the program, for the message."""
    for high, low in table.operations[plan.operation.NAME].reserved:
        bad = any_set(words, low, high)
        if bad.any():
            place = places[int(np.argmax(bad))]
            raise ProgramError(f"instruction word {place}: {plan.operation.NAME} has reserved bits [{high}, {low}] set")
