"""Describe how operations use the sums of an array whose accumulators are a memory: accesses, traffic, latency, faults.

Sums lie there as [pixels, channels] or [rows, columns] without gaps, one word each. An array that keeps its sums to
itself touches no memory with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS, Unit
from toolchain.machine.access import Access, AccumulatorUse
from toolchain.machine.columns import IntOrColumn, most, where
from toolchain.machine.traffic import latency_cycles


def sums_role(unit: Unit) -> str:
    """Return the role of the sums among a unit's operands. A unit without a memory of accumulators gives its input.

    Programs of such a unit are refused elsewhere.
    """
    return SUMS if SUMS in unit.roles else "input"


def sums_accesses(sums: AccumulatorUse, unit: Unit) -> tuple[Access, ...]:
    """Return the accesses of the sums: a read of as many as the operation accumulates on, and a write of all.

    There are none where the array keeps its sums to itself.
    """
    if SUMS not in unit.roles:
        return ()
    space, size_bytes = unit.roles[SUMS], sums.total * unit.array.accumulators.sum_bytes
    read_bytes = where(sums.accumulate, size_bytes, 0)
    return (
        Access(space, sums.address, (), (), read_bytes, False, in_step=True),
        Access(space, sums.address, (), (), size_bytes, True),
    )


def sums_moved(sums: AccumulatorUse, unit: Unit) -> tuple[tuple[str, IntOrColumn, IntOrColumn], ...]:
    """Return the sums as operands of `traffic`: (role, bytes read, bytes written); empty where the array keeps them to itself.

    An operation writes each sum once, and reads it once where it accumulates.
    """
    if SUMS not in unit.roles:
        return ()
    size_bytes = sums.total * unit.array.accumulators.sum_bytes
    return ((SUMS, where(sums.accumulate, size_bytes, 0), size_bytes),)


def array_latency_cycles(sums: AccumulatorUse, unit: Unit, chip: Chip, roles: Sequence[str]) -> IntOrColumn:
    """Return the latency of an array operation: the slowest memory it reads, plus the write of its output or sums.

    `roles`: roles of the operands that it reads.
    """
    if SUMS not in unit.roles:
        return latency_cycles(unit, chip, where(sums.emit, 1, 0), roles)
    memory = chip.spaces[unit.roles[SUMS]].memory
    read = most(latency_cycles(unit, chip, 0, roles), where(sums.accumulate, memory.latency_cycles, 0))
    return read + memory.write_latency_cycles


def broken_accumulators(sums: AccumulatorUse, unit: Unit) -> Iterator[str]:
    """Yield a sentence for each use of the accumulators that the machine does not have."""
    accumulators, key = unit.array.accumulators, f"{unit.key}.accumulators"
    if sums.total > accumulators.entries:
        yield f"needs {sums.total} accumulators, the machine has {key}.entries={accumulators.entries}"
    if SUMS not in unit.roles:
        if sums.address:
            yield f"sums_address={sums.address}, {key} names no memory"
        return
    if sums.emit:
        yield f"emit=1, {key}.memory is {accumulators.memory}: sums leave it by the operation emit"
    yield from broken_sums_address(sums.address, accumulators.sum_bytes)


def broken_sums_address(address: int, sum_bytes: int) -> Iterator[str]:
    """Yield a fault where the address of sums is no multiple of the bytes of a sum."""
    if address % sum_bytes:
        yield f"sums_address={address}, must be a multiple of the {sum_bytes} bytes of a sum"
