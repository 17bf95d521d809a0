"""Instruction sets: the machine operations, and the codec that a machine's table gives."""

from __future__ import annotations

from toolchain.isa.assembler import Assembled, assemble, assembled, split_listings
from toolchain.isa.codec import Decoded, decode, encode
from toolchain.isa.listing import disassemble
from toolchain.isa.machine import Machine, load_machine, machine_digest, machine_from_json, machine_to_json
from toolchain.isa.plan import Isa
from toolchain.isa.starter import starter_table
from toolchain.isa.table import table_schema

__all__ = [
    "Assembled",
    "Decoded",
    "Isa",
    "Machine",
    "assemble",
    "assembled",
    "decode",
    "disassemble",
    "encode",
    "load_machine",
    "machine_digest",
    "machine_from_json",
    "machine_to_json",
    "split_listings",
    "starter_table",
    "table_schema",
]
