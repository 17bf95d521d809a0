"""Test vectors of a machine's instructions, for those who build the machine (`npu-hw vectors`).

For each operation of its instruction table there are cases over corner values. A case has instruction words, what the
memories hold before and after them, and cycles. `draws` has the cases, the simulator computes what they give, `files`
writes them.
"""

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
