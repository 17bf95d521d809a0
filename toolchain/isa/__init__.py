"""Instruction sets: a machine's instruction table, and the encoder, decoder, assembler, manual and headers that follow
from it.

Input are machine operations (`toolchain.machine`) in program order; output is the program's words, and the way back.
"""

from __future__ import annotations

from toolchain.isa.assembler import AssembledProgram, Decoded, assemble, assemble_words, decode, encode, split_listings
from toolchain.isa.default_table import make_default_table
from toolchain.isa.encoding import Isa
from toolchain.isa.instruction_table import table_schema
from toolchain.isa.listing import disassemble
from toolchain.isa.machine import Machine, load_machine, machine_digest, machine_from_json, machine_to_json

__all__ = [
    "AssembledProgram",
    "Decoded",
    "Isa",
    "Machine",
    "assemble",
    "assemble_words",
    "decode",
    "disassemble",
    "encode",
    "load_machine",
    "machine_digest",
    "machine_from_json",
    "machine_to_json",
    "make_default_table",
    "split_listings",
    "table_schema",
]
