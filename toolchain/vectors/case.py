"""Run one case of an instruction: draw its operations and memories, encode them, and simulate them.

The results of the simulator are the expected ones. `toolchain.vectors` writes the cases to files, by which a hardware
team tests a machine.
"""

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
    """The bytes of one memory that a case uses, before and after its program.

    `ranges`: int64[n, 2], (address, number of bytes) of each range, by ascending address. `before`, `after`: uint8 of
    all ranges, one after the other. Bytes in no range are neither read nor written.
    """

    ranges: Array
    before: Array
    after: Array


@dataclass(frozen=True, eq=False)
class InstructionCase:
    """A case of an instruction, complete with its expected results.

    `operation`: name of the operation that it is for. `about`: what it covers, for people. `ops`: operations of the
    program, the end last. `words`: the same, encoded. `memory`: by the memory's name; memories without used bytes are
    left out. `cycles`: of the program. `start`, `end`: int64[op], cycles of each operation as it is dispatched.
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
    """Return the case that `draw` makes, run on the simulator; None where the machine cannot do what the case is about.

    A name that ends in "at_end" or "in_granules" sets those options of `CaseBuilder`. The draw's docstring becomes the
    case's `about`. Raise InternalError where the program touches a byte that the case does not define.
    """
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
    """Return the operation with all DRAM addresses moved up by so many bytes."""
    if not far_bytes:
        return op
    moved: dict[str, int] = {}
    for name in op.parameters():
        space = getattr(op, name.replace("address", "space"), None)
        if name.endswith("address") and space == Space.DRAM:
            moved[name] = getattr(op, name) + far_bytes
    return replace(op, **moved)


def _make_memory_bytes(before: Array, after: Array, byte_mask: Array, far_bytes: int) -> MemoryBytes:
    """Return the defined bytes of a memory before and after the program, with addresses moved up by `far_bytes`."""
    offsets = np.flatnonzero(byte_mask)
    first = np.flatnonzero(np.diff(offsets, prepend=-2) > 1)  # of each range, its place among the given bytes
    ranges = np.stack([offsets[first] + far_bytes, np.diff(first, append=offsets.size)], 1).astype(np.int64)
    return MemoryBytes(ranges, before[offsets], after[offsets])
