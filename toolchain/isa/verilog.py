"""The instruction set as a SystemVerilog package: its constants, and a packed struct for each word and register."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from toolchain.isa.constants import Constant, constants, identifier
from toolchain.isa.keywords import SYSTEMVERILOG
from toolchain.isa.machine import Machine
from toolchain.isa.table import Bits, DescriptorTable, FieldBits, RegisterTable

Member = tuple[int, int, str, bool]  # high, low, name, signed


def verilog_package(machine: Machine) -> str:
    """A package `MACHINE_pkg`; in each struct the highest bits come first. value = stored * STEP + BIAS, as the constants say."""
    isa, name = machine.isa, machine.chip.name
    lines = [f"// {name}, instruction table {isa.name}: made from its files.", f"package {identifier(machine)}_pkg;"]
    for group, members in groupby(constants(machine), key=lambda c: c.group):
        lines += ["", f"  // {group}", *(f"  {_parameter(constant)}" for constant in members)]
    lines.append("")
    if isinstance(isa.table, RegisterTable):
        lines += _registers(isa.table)
    for operation in isa.plans:
        row = isa.table.operations[operation]
        lines += _struct(f"{operation}_word", isa.table.word_bits, [*_header(isa.table), *_members(row.fields)], row.fields)
    return "\n".join([*lines, "endpackage", ""])


def _parameter(constant: Constant) -> str:
    if isinstance(constant.value, tuple):
        values = ", ".join(map(str, constant.value))
        return f"localparam int {constant.name} [{len(constant.value)}] = '{{{values}}};"
    return f"localparam int {constant.name} = {constant.value};"


def _header(table: RegisterTable | DescriptorTable) -> Iterator[Member]:
    if isinstance(table, RegisterTable):
        yield _member(table.start.tag.bits, "word_tag")
        yield _member(table.start.opcode, "opcode")
        return
    yield _member(table.opcode, "opcode")
    if table.sync:
        yield _member(table.sync.wait, "sync_wait")
        yield _member(table.sync.wait_semaphore, "sync_wait_semaphore")
        yield _member(table.sync.signal, "sync_signal")
        yield _member(table.sync.signal_semaphore, "sync_signal_semaphore")


def _registers(table: RegisterTable) -> Iterator[str]:
    write = table.write
    forms = [_member(write.tag.bits, "word_tag"), _member(write.register_, "address"), _member(write.value, "data")]
    yield from _struct("write_word", table.word_bits, forms, {})
    part_bits = write.value[0] - write.value[1] + 1
    for name, register in table.registers.items():
        yield from _struct(f"{name.lower()}_register", part_bits * register.words, _members(register.fields), register.fields)


def _member(bits: Bits, name: str, signed: bool = False) -> Member:
    return bits[0], bits[1], name, signed


def _members(fields: Mapping[str, FieldBits]) -> Iterator[Member]:
    for name, field in fields.items():
        yield _member(field.bits, _escape_keyword(name), field.signed)


def _escape_keyword(field: str) -> str:
    return f"{field}_" if field in SYSTEMVERILOG else field


def _struct(name: str, width: int, members: Iterable[Member], fields: Mapping[str, FieldBits]) -> Iterator[str]:
    yield "  typedef struct packed {"
    top = width
    notes = {_escape_keyword(n): _note(f) for n, f in fields.items()}
    for high, low, member, signed in [*sorted(members, reverse=True), (-1, -1, "", False)]:
        if high < top - 1:
            yield f"    logic [{top - 1 - high - 1}:0] reserved_{high + 1};"
        if member:
            yield f"    logic {'signed ' if signed else ''}[{high - low}:0] {member};{notes.get(member, '')}"
        top = low
    yield f"  }} {name}_t;"


def _note(field: FieldBits) -> str:
    if field.bias == 0 and field.step == 1:
        return ""
    return f"  // value = stored * {field.step} + {field.bias}"
