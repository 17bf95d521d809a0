"""The instruction set as a C header."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.isa.machine import Machine
from toolchain.isa.plan import BitField, slot
from toolchain.isa.table import RegisterTable


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
