"""Machine operations to the program's bytes and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.isa import descriptors, registers
from toolchain.isa.encoding import Isa
from toolchain.isa.instruction_table import DescriptorTable
from toolchain.machine import MachineOp


@dataclass(frozen=True)
class Decoded:
    """`words[i]` instruction words are read before ops[i] can start: its register writes and itself.

    0 for an operation that another's descriptor carries.
    """

    ops: tuple[MachineOp, ...]
    words: tuple[int, ...]


def encode(ops: Sequence[MachineOp], isa: Isa) -> bytes:
    """The program of `ops`. Raises CompileError naming operation, field, value and limit when a value does not fit."""
    if isinstance(isa.table, DescriptorTable):
        return descriptors.pack(descriptors.fold(ops, isa), isa)
    return registers.pack(ops, isa)


def decode(program: bytes, isa: Isa) -> Decoded:
    """The operations of a program; decode(encode(ops)).ops == ops. Raises ProgramError for anything it does not accept."""
    if not isinstance(isa.table, DescriptorTable):
        ops, words = registers.unpack(program, isa)
        return Decoded(tuple(ops), tuple(words))
    decoded_ops: list[MachineOp] = []
    counts: list[int] = []
    for descriptor in descriptors.unpack(program, isa):
        carried = descriptor.unfold(isa)
        decoded_ops += carried
        counts += [1] + [0] * (len(carried) - 1)
    return Decoded(tuple(decoded_ops), tuple(counts))
