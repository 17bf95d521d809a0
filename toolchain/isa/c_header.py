"""The instruction set as a C header."""

from __future__ import annotations

from itertools import groupby

from toolchain.isa.constants import constants, identifier
from toolchain.isa.machine import Machine


def c_header(machine: Machine) -> str:
    """C99: every constant as a macro that begins with the machine's name. A field's value is stored * STEP + BIAS, stored taken
    as two's complement where SIGNED is 1; lists are initializers of arrays."""
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
