"""A case of an instruction: words, what the memories hold before and after them, and the cycles that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import simulate
from toolchain.errors import InternalError
from toolchain.isa import Machine, decode, encode
from toolchain.machine import End, MachineOp, Space, accesses_at, byte_view, find_unsupported, range_text
from toolchain.vectors.case_builder import CaseBuilder, NotApplicable

Array = NDArray[Any]
Draw = Callable[[CaseBuilder], None]


@dataclass(frozen=True, eq=False)
class MemoryBytes:
    """Bytes of one memory. ranges: int64[n, 2], address and bytes of each; before, after: uint8 of all of them, one behind the
    other. Bytes of the memory that are in no range are neither read nor written."""

    ranges: Array
    before: Array
    after: Array


@dataclass(frozen=True, eq=False)
class InstructionCase:
    """A case of an instruction.

    `operation`: what the case is for.
    `ops`: operations of the program, with addresses as the words have them.
    `words`: the same as bytes.
    `memory`: by the memory's name.
    `cycles`: of the program.
    `start`, `end`: int64[op], of each operation as it is dispatched.
    """

    name: str
    operation: str
    about: str
    ops: tuple[MachineOp, ...]
    words: bytes
    memory: Mapping[str, MemoryBytes]
    cycles: int
    start: Array
    end: Array


def run_case(machine: Machine, operation: str, name: str, draw: Draw) -> InstructionCase | None:
    """Draws a case and runs it; None where the machine cannot do what it is about."""
    try:
        bench = CaseBuilder(machine, f"{operation} {name}", name.endswith("at_end"), name.endswith("in_granules"))
        draw(bench)
    except NotApplicable:
        return None
    ops = (*bench.ops, bench.add(End))
    if any(find_unsupported(op, machine.chip) for op in bench.ops):
        return None
    encoded = tuple(_far(op, bench.far_bytes) for op in ops)
    words = encode(encoded, machine.isa)
    dram, *others = bench.memory
    names = [space.name for space in machine.chip.spaces]
    counts = decode(words, machine.isa).words
    contents, word_bytes = dict(zip(names[1:], others)), machine.isa.word_bytes
    run = simulate(machine.chip, ops, counts, dram, [(0, dram.size)], word_bytes=word_bytes, initial_memory=contents)
    for index in range(len(run.flow)):
        for access in accesses_at(run.flow, index, machine.chip):
            if access.exact and not byte_view(bench.byte_mask[access.space], access).all():
                raise InternalError(f"case {name} touches {range_text(access)}, which it does not give in whole")
    memory: dict[str, MemoryBytes] = {}
    for at, memory_name in enumerate(names):
        contents = _make_memory_bytes(
            bench.memory[at], run.memory[memory_name], bench.byte_mask[at], bench.far_bytes if at == Space.DRAM else 0
        )
        if contents.before.size:
            memory[memory_name] = contents
    about = " ".join((getattr(draw, "func", draw).__doc__ or "").split())
    return InstructionCase(name, operation, about, encoded, words, memory, run.cycles, run.start, run.end)


def _far(op: MachineOp, far_bytes: int) -> MachineOp:
    """The same operation where the DRAM of the case begins so many bytes later."""
    if not far_bytes:
        return op
    moved: dict[str, int] = {}
    for name in op.parameters():
        space = getattr(op, name.replace("address", "space"), None)
        if name.endswith("address") and space == Space.DRAM:
            moved[name] = getattr(op, name) + far_bytes
    return replace(op, **moved)


def _make_memory_bytes(before: Array, after: Array, byte_mask: Array, far_bytes: int) -> MemoryBytes:
    offsets = np.flatnonzero(byte_mask)
    first = np.flatnonzero(np.diff(offsets, prepend=-2) > 1)  # of each range, its place among the given bytes
    ranges = np.stack([offsets[first] + far_bytes, np.diff(first, append=offsets.size)], 1).astype(np.int64)
    return MemoryBytes(ranges, before[offsets], after[offsets])
