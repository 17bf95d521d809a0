"""Compare the accesses that an operation claims with the bytes that the simulator touches when it runs the operation.

At most PROBED_BYTES bytes of an access are probed, each on its own, which takes 0.5 CPU s a plug-in (measured). A probed byte
takes the values of PROBES, the largest and the least code among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.execute import execute
from simulator.machine_state import MachineState
from simulator.semantics.context import Context
from toolchain.hw.chip import Chip
from toolchain.machine import Access, MachineOp, Space, byte_view

Memories = dict[Space, NDArray[np.uint8]]
PROBED_BYTES = 24
PROBES = (0x7F, 0x80, 0x00, 0x55)


def state_of(chip: Chip, memories: Memories) -> MachineState:
    """Return the state of a machine whose memories hold copies of these bytes. `memories` has every memory of the chip."""
    state = MachineState(chip, memories[Space.DRAM].copy())
    state.memory = (state.memory[Space.DRAM], *(memory.copy() for space, memory in sorted(memories.items()) if space > 0))
    return state


def executor_fault(
    op: MachineOp, op_accesses: Sequence[Access], chip: Chip, state: MachineState, rng: np.random.Generator
) -> str | None:
    """Return what the operation does beyond the accesses that it claims, as the end of a sentence; None where it keeps to them.

    It runs on `state`, and on a copy in which every byte that it does not claim to read is different. It is a fault to write
    unclaimed bytes, and one where the claimed writes or the accumulators of the two runs differ. `state` is changed. Errors of
    the simulator propagate.
    """
    before = {Space(code): memory.copy() for code, memory in enumerate(state.memory)}
    other = state_of(chip, before)
    other.accumulators = dict(state.accumulators)
    for space in before:
        foreign = ~mark_claimed_bytes(op_accesses, space, before[space].size, False)
        other.memory[space][foreign] ^= rng.integers(1, 256, int(foreign.sum()), dtype=np.uint8)
    execute(op, Context(chip, state))
    execute(op, Context(chip, other))
    for space in before:
        target = mark_claimed_bytes(op_accesses, space, before[space].size, True)
        if (state.memory[space] != before[space])[~target].any():
            return "writes bytes that it does not claim"
        if (state.memory[space] != other.memory[space])[target].any():
            return "depends on bytes that it does not claim, or leaves claimed ones as they were"
    if any(not np.array_equal(sums, other.accumulators[unit]) for unit, sums in state.accumulators.items()):
        return "accumulates bytes that it does not claim"
    return None


def mark_claimed_bytes(op_accesses: Sequence[Access], space: Space, size_bytes: int, write: bool) -> NDArray[np.bool_]:
    """Return bool[size_bytes], True where the accesses claim to read this memory or, with `write`, to write it."""
    touched = np.zeros(size_bytes, np.bool_)
    for access in op_accesses:
        if access.space == space and access.write == write:
            byte_view(touched, access)[...] = True
    return touched


def spare_share(op: MachineOp, access: Access, chip: Chip, memories: Memories, rng: np.random.Generator) -> float:
    """Return the share (0 to 1) of the bytes of a claimed read that change no other byte of memory.

    Up to PROBED_BYTES bytes of the read are drawn. Each takes every value of PROBES, one run of the operation for each.
    A read of no bytes has a share of 0.
    """
    claimed = np.flatnonzero(mark_claimed_bytes([access], Space(access.space), memories[Space(access.space)].size, False))
    tried = rng.choice(claimed, min(PROBED_BYTES, claimed.size), replace=False)

    def run(changed: Memories) -> tuple[NDArray[np.uint8], ...]:
        state = state_of(chip, changed)
        execute(op, Context(chip, state))
        return tuple(state.memory)

    def matters(byte: int) -> bool:
        usual = run(memories)
        for value in PROBES:
            changed = {space: memory.copy() for space, memory in memories.items()}
            changed[Space(access.space)][byte] = value
            unequal = [a != b for a, b in zip(run(changed), usual)]
            unequal[access.space][byte] = False
            if any(u.any() for u in unequal):
                return True
        return False

    return sum(not matters(int(byte)) for byte in tried) / max(1, len(tried))
