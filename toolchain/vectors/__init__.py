"""Vectors of a machine's instructions: words, memories before and after, cycles, for each operation over its corner cases."""

from toolchain.vectors.case import InstructionCase, MemoryBytes
from toolchain.vectors.files import instruction_cases, load_draws, read_instruction_cases, write_instruction_cases

__all__ = [
    "InstructionCase",
    "MemoryBytes",
    "instruction_cases",
    "load_draws",
    "read_instruction_cases",
    "write_instruction_cases",
]
