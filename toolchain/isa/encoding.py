"""Prepare an instruction table for the codecs: where each parameter of each operation lies, and which values it can
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from toolchain.hw import Chip
from toolchain.isa.instruction_table import FieldBits, RegisterTable, Row, Table
from toolchain.machine import MachineOp
from toolchain.machine.registry import OPERATIONS

WIDEST_FIELD = 48
WIDEST_VALUE = 64  # of a register, in one write word


@dataclass(frozen=True)
class BitField:
    """A field: bits low .. low + width - 1 of the instruction word or, if it is given, of `register`.

    Its value is stored * step + bias; stored is two's complement if `signed`.
    """

    name: str
    low: int
    width: int
    signed: bool = False
    bias: int = 0
    step: int = 1
    register: str | None = None

    @property
    def lowest(self) -> int:
        """The least value that the field holds."""
        return self.bias - (self.step << (self.width - 1) if self.signed else 0)

    @property
    def highest(self) -> int:
        """The largest value that the field holds."""
        return self.bias + self.step * ((1 << (self.width - self.signed)) - 1)

    @property
    def mask(self) -> int:
        """The field's bits, moved down to bit 0."""
        return (1 << self.width) - 1

    def holds(self, value: int) -> bool:
        """Return whether the field can represent the value."""
        return self.lowest <= value <= self.highest and (value - self.bias) % self.step == 0

    def get_stored_bits(self, value: int) -> int:
        """Return the bits that represent `value`, which the field must hold."""
        return ((value - self.bias) // self.step) & self.mask

    def value(self, stored: int) -> int:
        """Return the value of stored bits: the inverse of `get_stored_bits`."""
        if self.signed and stored >> (self.width - 1):
            stored -= 1 << self.width
        return stored * self.step + self.bias


def slot(name: str, field: FieldBits, register: str | None = None) -> BitField:
    """Return the field of a table's entry; `register`: the register that it lies in, None: the instruction word."""
    high, low = field.bits
    return BitField(name, low, high - low + 1, field.signed, field.bias, field.step, register)


@dataclass(frozen=True)
class OperationPlan:
    """The encoding of one operation.

    `slots`: fields of its parameters, in the order of the parameters. `fixed`: (parameter, value) without bits.
    `constants`: (register field, value) that must be set. `registers`: those it uses, by ascending address.
    """

    operation: type[MachineOp]
    opcode: int
    slots: tuple[BitField, ...]
    fixed: tuple[tuple[str, int], ...]
    constants: tuple[tuple[BitField, int], ...]
    registers: tuple[str, ...]

    @cached_property
    def slot_of(self) -> dict[str, BitField]:
        """The field of each parameter that has one."""
        return {slot.name: slot for slot in self.slots}


@dataclass(frozen=True)
class Isa:
    """An instruction set: `table` is the file, all else follows from it.

    `chip`: the chip whose programs these are. None: any chip; then no operation can carry a wait or a signal, since its
    queue is unknown.
    """

    table: Table
    chip: Chip | None = None

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def kind(self) -> str:
        return self.table.kind

    @property
    def word_bytes(self) -> int:
        return self.table.word_bits // 8

    def supports(self, operation: str) -> bool:
        """Return whether the machine has the operation of this `NAME`."""
        return operation in self.table.operations

    def queue_of(self, op: MachineOp) -> int | None:
        """Return the index of the queue that runs an operation; None where none does, or without a chip."""
        return None if self.chip is None else op.queue(self.chip)

    @cached_property
    def plans(self) -> dict[str, OperationPlan]:
        """The encoding of each operation in the table, by name, in the order of `OPERATIONS`."""
        rows = self.table.operations
        return {name: _plan(name, rows[name], self.table) for name in OPERATIONS if name in rows}

    @cached_property
    def by_opcode(self) -> dict[int, OperationPlan]:
        """The encoding of each operation, by opcode."""
        return {plan.opcode: plan for plan in self.plans.values()}


def _plan(name: str, row: Row, table: Table) -> OperationPlan:
    """Return the encoding of an operation by its row in the table."""
    operation = OPERATIONS[name]
    slots = {parameter: slot(parameter, field) for parameter, field in row.fields.items()}
    constants: list[tuple[BitField, int]] = []
    used: set[str] = set()
    if isinstance(table, RegisterTable):
        for parameter, target in getattr(row, "bind", {}).items():
            slots[parameter] = register_slot(table, target, parameter)
        constants = [(register_slot(table, target), value) for target, value in sorted(getattr(row, "constants", {}).items())]
        used = {s.register for s in (*slots.values(), *(c for c, _ in constants)) if s.register}
    described = operation.get_descriptions()
    order = sorted(used, key=lambda r: table.registers[r].address) if isinstance(table, RegisterTable) else []
    return OperationPlan(
        operation,
        row.opcode,
        tuple(slots[p] for p in operation.parameters() if p in slots),
        tuple((p, row.fixed.get(p, described[p].absent)) for p in operation.parameters() if p not in slots),
        tuple(constants),
        tuple(order),
    )


def register_slot(table: RegisterTable, target: str, name: str | None = None) -> BitField:
    """Return the field 'REGISTER.field' of a table. `name`: how to call it; None: by that text."""
    register, _, field = target.partition(".")
    return slot(name or target, table.registers[register].fields[field], register)


def indices_by_name(ops: Sequence[MachineOp]) -> dict[str, list[int]]:
    """Return the indices of the operations of each name."""
    groups: dict[str, list[int]] = {}
    for i, op in enumerate(ops):
        groups.setdefault(op.NAME, []).append(i)
    return groups
