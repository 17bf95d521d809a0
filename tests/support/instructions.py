"""The vectors of a shipped machine's instructions, made once for all tests of a process."""

from __future__ import annotations

from functools import cache

from toolchain.isa import load_machine
from toolchain.vectors import InstructionCase, instruction_cases


@cache
def cases_of(name: str) -> tuple[InstructionCase, ...]:
    return tuple(instruction_cases(load_machine(name)))
