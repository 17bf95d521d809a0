"""Vectors of a machine's instructions: words, memories before and after, cycles, for each operation over its corner cases."""

from toolchain.vectors.case import Held, InstructionCase
from toolchain.vectors.drawn import draws_of, instruction_cases
from toolchain.vectors.files import read_instruction_cases, write_instruction_cases

__all__ = ["Held", "InstructionCase", "draws_of", "instruction_cases", "read_instruction_cases", "write_instruction_cases"]
