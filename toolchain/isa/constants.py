"""List a machine's instruction set as named numbers, for its C header and its SystemVerilog package.

`npu-hw manual` writes both: `c_header` is here, the package in `isa.verilog`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from toolchain.hw import Chip
from toolchain.isa.encoding import BitField, OperationPlan, slot
from toolchain.isa.instruction_table import Bits, DescriptorTable, RegisterTable
from toolchain.isa.machine import Machine
from toolchain.machine.parameters.spaces import Space


class Constant(NamedTuple):
    """A named number of a machine. `name`: in capitals, without the machine's name. `group`: heading under which it
    stands.

    `value`: a tuple is a list of numbers: the addresses of an operation's registers.
    """

    group: str
    name: str
    value: int | tuple[int, ...]


def identifier(machine: Machine) -> str:
    """Return the machine's name as an identifier of C and SystemVerilog: with `_` in place of each `-`."""
    return machine.chip.name.replace("-", "_")


def constants(machine: Machine) -> Iterator[Constant]:
    """Yield each constant once: widths, codes, forms of words, registers, and each operation's opcode, fields and
    registers.
    """
    chip, table = machine.chip, machine.isa.table
    yield from _widths(machine)
    yield from _codes(chip)
    group = "Forms of words."
    if isinstance(table, DescriptorTable):
        yield from _bits(group, "OPCODE", table.opcode)
        if table.sync:
            for name, bits in table.sync.model_dump().items():
                yield from _bits(group, f"SYNC_{name.upper()}", bits)
    else:
        yield from _register_forms(group, table)
        yield from _registers(table)
    for name, plan in machine.isa.plans.items():
        yield from _operation(name, plan, machine)


def _widths(machine: Machine) -> Iterator[Constant]:
    """Yield the widths of words, registers of the machine and fields of requantization entries."""
    chip, entry = machine.chip, machine.chip.layout.parameters
    widths = {
        "WORD_BITS": machine.isa.table.word_bits,
        "WORD_BYTES": machine.isa.word_bytes,
        "ACCUMULATOR_BITS": chip.numerics.accumulator_bits,
        "SEMAPHORES": chip.sync.semaphores,
        "SEMAPHORE_MAX_COUNT": chip.sync.max_count,
        "PARAMETER_BYTES": entry.size_bytes,
    }
    yield from (Constant("Widths.", name, value) for name, value in widths.items())
    low, signed = 0, chip.numerics.scale.shifts[0] < 0
    fields = (("BIAS", entry.bias_bits, True), ("MULTIPLIER", entry.multiplier_bits, False), ("SHIFT", entry.shift_bits, signed))
    for name, width, sign in fields:
        if width:
            yield from _bits("Widths.", f"PARAMETER_{name}", (low + width - 1, low))
            yield Constant("Widths.", f"PARAMETER_{name}_SIGNED", int(sign))
        low += width


def _codes(chip: Chip) -> Iterator[Constant]:
    """Yield the least and largest code, and the numbers of types, memories and engines."""
    group = "Codes."
    first = chip.numerics.activation
    yield Constant(group, "ACTIVATION_LOW", first.low)
    yield Constant(group, "ACTIVATION_HIGH", first.high)
    for stem, types in (("TYPE", chip.code_types), ("WEIGHT_TYPE", chip.weight_types)):
        if len(types) > 1:
            yield from (Constant(group, f"{stem}_{codes.upper()}", i) for i, codes in enumerate(types))
    yield from (Constant(group, f"MEMORY_{space.name.upper()}", i) for i, space in enumerate(chip.spaces))
    yield from (Constant(group, f"ENGINE_{unit.name.upper()}", unit.queue) for unit in chip.units)


def _register_forms(group: str, table: RegisterTable) -> Iterator[Constant]:
    """Yield the bits and tags of write words and start words."""
    for form, tag in (("WRITE", table.write.tag), ("START", table.start.tag)):
        yield from _bits(group, f"{form}_TAG", tag.bits)
        yield Constant(group, f"{form}_TAG", tag.value)
    yield from _bits(group, "WRITE_REGISTER", table.write.register_)
    yield from _bits(group, "WRITE_VALUE", table.write.value)
    yield from _bits(group, "START_OPCODE", table.start.opcode)


def _registers(table: RegisterTable) -> Iterator[Constant]:
    """Yield the address, number of words and fields of each register, by ascending address."""
    for name, register in sorted(table.registers.items(), key=lambda item: item[1].address):
        group = f"Register {name}."
        yield Constant(group, f"REGISTER_{name}", register.address)
        yield Constant(group, f"REGISTER_{name}_WORDS", register.words)
        for field, bits in register.fields.items():
            yield from _field(group, f"REGISTER_{name}_{field.upper()}", slot(field, bits))


def _operation(name: str, plan: OperationPlan, machine: Machine) -> Iterator[Constant]:
    """Yield an operation's constants.

    With registers, yield the addresses that the operation reads, in order, and each parameter's register address
    beside its bits.
    """
    table, stem, group = machine.isa.table, name.upper(), f"Operation {name}."
    yield Constant(group, f"OPCODE_{stem}", plan.opcode)
    if isinstance(table, RegisterTable) and plan.registers:
        yield Constant(group, f"{stem}_REGISTERS", tuple(table.registers[r].address for r in plan.registers))
    described = plan.operation.get_descriptions()
    for s in plan.slots:
        field = f"{stem}_{s.name.upper()}"
        if s.register is not None and isinstance(table, RegisterTable):
            yield Constant(group, f"{field}_REGISTER", table.registers[s.register].address)
        yield from _field(group, field, s)
        kinds = described[s.name].kinds
        if kinds is not None and kinds is not Space:  # memories have names of their own
            yield from (Constant(group, f"{field}_{kind.name}", int(kind)) for kind in kinds)


def _field(group: str, stem: str, s: BitField) -> Iterator[Constant]:
    """Yield the constants of a field: its bits, SIGNED, STEP and BIAS."""
    yield from _bits(group, stem, (s.low + s.width - 1, s.low))
    yield Constant(group, f"{stem}_SIGNED", int(s.signed))
    yield Constant(group, f"{stem}_STEP", s.step)
    yield Constant(group, f"{stem}_BIAS", s.bias)


def _bits(group: str, stem: str, bits: Bits) -> Iterator[Constant]:
    """Yield the constants SHIFT and WIDTH of bits."""
    high, low = bits
    yield Constant(group, f"{stem}_SHIFT", low)
    yield Constant(group, f"{stem}_WIDTH", high - low + 1)


def c_header(machine: Machine) -> str:
    """Return a C99 header with every constant as a macro that begins with the machine's name.

    A field's value is stored * STEP + BIAS, where stored is two's complement if SIGNED is 1. Lists are initializers of
    arrays.
    """
    prefix = identifier(machine).upper()
    guard = f"{prefix}_H"
    lines = [
        f"/* {machine.chip.name}, instruction table {machine.isa.name}: made from its files.",
        " * Of a field: WIDTH bits from SHIFT on; its value is stored * STEP + BIAS, stored two's complement where SIGNED is 1.",
        " * OPERATION_PARAMETER_REGISTER: address of the register that holds it; without one it is in the operation's own word.",
        " * OPERATION_REGISTERS: addresses of all registers that the operation reads, an initializer of an array. */",
        f"#ifndef {guard}",
        f"#define {guard}",
    ]
    for group, members in groupby(constants(machine), key=lambda c: c.group):
        lines += ["", f"/* {group} */"]
        for _, name, value in members:
            written = "{" + ", ".join(map(str, value)) + "}" if isinstance(value, tuple) else str(value)
            lines.append(f"#define {prefix}_{name} {f'({written})' if written.startswith('-') else written}")
    return "\n".join([*lines, "", f"#endif /* {guard} */", ""])
