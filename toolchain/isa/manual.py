"""The instruction set manual and the C header: both follow from the table alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from quant.fixed_point.core.codes import CodeType
from toolchain.hw import Chip, write_bytes, write_hertz
from toolchain.isa.machine import Machine
from toolchain.isa.manual_maps import feature_maps
from toolchain.isa.plan import BitField, Isa, OperationPlan, slot
from toolchain.isa.table import DescriptorTable, RegisterTable
from toolchain.machine.registry import OPERATIONS

_HEADER = "| parameter | bits | value | range | unit |\n|---|---|---|---|---|"


def manual(machine: Machine) -> str:
    """Markdown: the forms of a word, the registers, each operation's meaning and where each of its parameters lies."""
    chip, isa = machine.chip, machine.isa
    lines = [
        f"# {chip.name}: instruction set",
        "",
        f"{chip.description}. Clock {write_hertz(chip.clock.frequency)}, SRAM {write_bytes(chip.sram.size)}, "
        f"DRAM {write_bytes(chip.dram.size)}{_buffers(chip)}.",
        "",
        f"Instruction table `{isa.name}`, kind {isa.kind}: {isa.table.description}.",
        "",
        f"Words have {isa.table.word_bits} bits and are stored least significant byte first. The front end reads one in "
        f"{chip.isa.word_cycles:g} cycles. Bits are counted from 0, the least significant.",
        "",
        *_memories(chip),
        *_engines(machine),
        *_codes(chip),
        *_layout(chip),
        *feature_maps(chip),
        *(_descriptor_forms(isa.table) if isinstance(isa.table, DescriptorTable) else _register_forms(isa.table)),
        "## Operations",
        "",
    ]
    for name, plan in isa.plans.items():
        lines += _operation(name, plan, isa)
    absent = [name for name in OPERATIONS if not isa.supports(name)]
    if absent:
        lines += ["## Absent", "", f"This machine has no {', '.join(absent)}.", ""]
    return "\n".join(lines)


def _buffers(chip: Chip) -> str:
    """The other memories."""
    return "".join(f", {space.name} {write_bytes(space.memory.size)}" for space in chip.spaces[2:])


def _memories(chip: Chip) -> Iterator[str]:
    """Codes of the memories and what engines have where, of machines with more than two."""
    if len(chip.spaces) <= 2:
        return
    yield "## Memories"
    yield ""
    yield f"Codes: {', '.join(f'{i} {space.name}' for i, space in enumerate(chip.spaces))}."
    for unit in chip.units:
        if unit.roles:
            held = ", ".join(f"{role} in {chip.spaces[code].name}" for role, code in unit.roles.items())
            yield f"Operations on {unit.name} have {held}."
    yield ""


def _engines(machine: Machine) -> Iterator[str]:
    chip = machine.chip
    queues = [unit.name for unit in chip.units]
    yield "## Engines and semaphores"
    yield ""
    yield f"Each engine runs its operations in order: {', '.join(f'{i} {name}' for i, name in enumerate(queues))}."
    yield (
        f"Engines wait for each other with {chip.sync.semaphores} counting semaphores (0 to {chip.sync.max_count} each, "
        "0 at the start); nothing else orders them."
    )
    yield ""


def _codes(chip: Chip) -> Iterator[str]:
    first, *others = chip.code_types
    yield "## Codes"
    yield ""
    yield (
        f"Activations are {first}, {first.low} to {first.high}: so are zero points, clamps and values of fills. "
        f"Weights are {chip.numerics.weight}. {_table_of(first)}"
    )
    if len(chip.weight_types) > 1:
        known = ", ".join(f"{i} {codes}" for i, codes in enumerate(chip.weight_types))
        yield f"Where an operation says so, its weights are of another type. Types of weights by their numbers: {known}."
    if others:
        yield f"Where an operation says so, an operand's codes are of another type. Types by their numbers: 0 {first}; and"
        yield from (f"- {i} {codes}, {codes.low} to {codes.high}. {_table_of(codes)}" for i, codes in enumerate(others, 1))
    yield ""


def _layout(chip: Chip) -> Iterator[str]:
    entry = chip.layout.parameters
    sign = ", two's complement" if chip.numerics.scale.shifts[0] < 0 else ""
    fields = (
        ("bias, two's complement", entry.bias_bits),
        ("multiplier", entry.multiplier_bits),
        (f"shift{sign}", entry.shift_bits),
    )
    said: list[str] = []
    low = 0
    for name, width in fields:
        said += [f"in bits {_range((low + width - 1, low))} the {name}"] if width else []
        low += width
    yield "## Layout of constants"
    yield ""
    yield f"An entry of requantization parameters, one an output channel, has {entry.size_bytes} bytes: {'; '.join(said)}."
    yield f"The first of several is on a multiple of {entry.alignment_bytes}."
    if chip.layout.weight_tile is not None:
        rows, columns = chip.layout.weight_tile
        yield f"Weights of convolutions are in tiles of {columns} output channels by {rows} of the weights ky, kx, i of each."
        yield "Tiles follow one another along ky, kx, i, then along output channels. In a tile the weights of all channels for"
        yield "one ky, kx, i lie together; zeros fill the last tiles."
    yield ""


def _table_of(codes: CodeType) -> str:
    if not codes.table_entries:
        return f"Functions have no table of {codes}."
    entries = "the least code's first" if not codes.interpolates else "the ends of its segments from the least code on"
    return f"A function's table has {codes.table_entries} entries of {codes}, {entries}."


def _descriptor_forms(table: DescriptorTable) -> Iterator[str]:
    yield "## Word"
    yield ""
    yield f"The opcode is in bits {_range(table.opcode)}. Reserved bits are zero; a word that has them set is refused."
    if table.sync:
        yield (
            f"An operation can carry a wait in bits {_range(table.sync.wait)} and {_range(table.sync.wait_semaphore)} "
            f"(its engine waits for the semaphore first) and a signal in bits {_range(table.sync.signal)} and "
            f"{_range(table.sync.signal_semaphore)} (its engine signals the semaphore when it has ended)."
        )
    yield ""


def _register_forms(table: RegisterTable) -> Iterator[str]:
    write, start = table.write, table.start
    yield "## Words"
    yield ""
    yield (
        f"A write word has {write.tag.value} in bits {_range(write.tag.bits)}, the register's address in bits "
        f"{_range(write.register_)} and its value in bits {_range(write.value)}. Registers keep their values and hold nothing "
        "of use before their first write."
    )
    yield (
        f"A start word has {start.tag.value} in bits {_range(start.tag.bits)} and the opcode in bits {_range(start.opcode)}; "
        "the operation takes its parameters from its own word and from the registers as they are then."
    )
    yield ""
    yield "## Registers"
    yield ""
    yield "| address | register | bits | field | value |"
    yield "|---|---|---|---|---|"
    for name, register in sorted(table.registers.items(), key=lambda item: item[1].address):
        last = register.address + register.words - 1
        address = f"{register.address:#04x}" if register.words == 1 else f"{register.address:#04x} to {last:#04x}"
        for field, bits in register.fields.items():
            yield f"| {address} | {name} | {_range(bits.bits)} | {field} | {_formula(slot(field, bits))} |"
            address = ""
    yield ""


def _operation(name: str, plan: OperationPlan, isa: Isa) -> Iterator[str]:
    yield f"### {name} (opcode {plan.opcode})"
    yield ""
    yield "\n".join(f"    {line}".rstrip() for line in inspect.cleandoc(plan.operation.__doc__ or "").splitlines())
    yield ""
    if not plan.slots and not plan.fixed:
        return
    described = plan.operation.described()
    yield _HEADER
    for s in plan.slots:
        place = _range((s.low + s.width - 1, s.low)) + (f" of {s.register}" if s.register else "")
        yield f"| {s.name} | {place} | {_formula(s)} | {s.lowest} to {s.highest} | {described[s.name].unit} |"
    for parameter, value in plan.fixed:
        yield f"| {parameter} | - | always {value} | {value} | {described[parameter].unit} |"
    for s, value in plan.constants:
        yield f"| - | {s.name} | must be {value} | {value} | |"
    yield ""


def _range(bits: tuple[int, int]) -> str:
    return f"{bits[0]}:{bits[1]}" if bits[0] != bits[1] else f"{bits[0]}"


def _formula(s: BitField) -> str:
    text = "signed" if s.signed else "stored"
    text += f" * {s.step}" if s.step != 1 else ""
    return f"{text} {'+' if s.bias > 0 else '-'} {abs(s.bias)}" if s.bias else text


def c_header(machine: Machine) -> str:
    """A C99 header of opcodes, register addresses, ends of codes and, for each field, its shift, mask, bias and step."""
    isa = machine.isa
    guard = f"NPU_{isa.name.upper()}_H"
    lines = [f"/* Instruction set {isa.name}. Made from its table; value = stored * STEP + BIAS. */", f"#ifndef {guard}"]
    lines += [f"#define {guard}", "", f"#define NPU_WORD_BITS {isa.table.word_bits}"]
    codes = machine.chip.numerics.activation
    if len(machine.chip.code_types) > 1:
        lines += [f"#define NPU_TYPE_{codes.upper()} {i}" for i, codes in enumerate(machine.chip.code_types)]
    if len(machine.chip.weight_types) > 1:
        lines += [f"#define NPU_WEIGHT_TYPE_{codes.upper()} {i}" for i, codes in enumerate(machine.chip.weight_types)]
    lines += [f"#define NPU_ACTIVATION_LOW ({codes.low})", f"#define NPU_ACTIVATION_HIGH {codes.high}"]
    if isinstance(isa.table, RegisterTable):
        lines += _register_header(isa.table)
    else:
        lines += [f"#define NPU_OPCODE_SHIFT {isa.table.opcode[1]}"]
    for name, plan in isa.plans.items():
        prefix = f"NPU_{name.upper()}"
        lines += ["", f"#define {prefix}_OPCODE {plan.opcode}"]
        for s in plan.slots:
            if s.register is None:
                lines += _field_header(f"{prefix}_{s.name.upper()}", s)
    return "\n".join([*lines, "", f"#endif /* {guard} */", ""])


def _register_header(table: RegisterTable) -> Iterator[str]:
    forms = (
        ("WRITE_TAG", table.write.tag.bits, table.write.tag.value),
        ("WRITE_REGISTER", table.write.register_, None),
        ("WRITE_VALUE", table.write.value, None),
        ("START_TAG", table.start.tag.bits, table.start.tag.value),
        ("START_OPCODE", table.start.opcode, None),
    )
    for name, (high, low), value in forms:
        yield f"#define NPU_{name}_SHIFT {low}"
        yield f"#define NPU_{name}_WIDTH {high - low + 1}"
        if value is not None:
            yield f"#define NPU_{name} {value}"
    for name, register in table.registers.items():
        yield ""
        yield f"#define NPU_{name} {register.address:#04x}"
        for field, bits in register.fields.items():
            yield from _field_header(f"NPU_{name}_{field.upper()}", slot(field, bits))


def _field_header(prefix: str, s: BitField) -> Iterator[str]:
    yield f"#define {prefix}_SHIFT {s.low}"
    yield f"#define {prefix}_WIDTH {s.width}"
    if s.bias:
        yield f"#define {prefix}_BIAS {s.bias}"
    if s.step != 1:
        yield f"#define {prefix}_STEP {s.step}"
