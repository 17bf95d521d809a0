"""What an operation asks of the machine: cycles of its unit, and bytes at each memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine.columns import Whole


class Traffic(NamedTuple):
    """What an operation moves at one memory; burst bytes: the same in whole bursts and words, which its ports are charged; bank
    cycles: that the busiest bank takes for it."""

    space: int
    read_bytes: Whole = 0
    write_bytes: Whole = 0
    read_burst_bytes: Whole = 0
    write_burst_bytes: Whole = 0
    read_bank_cycles: Whole = 0
    write_bank_cycles: Whole = 0


BYTES = Traffic._fields[1:5]  # names of those that are bytes


class Lost(NamedTuple):
    """Cycles of a unit that computes in which it does nothing of use.

    fill: fill and drain of its pipeline, startup, operands that load before a fold can begin. partial: rows, columns, depth or
    lanes that have nothing to do, as the cycles that full ones would not need. output: what is done to sums on their way out.
    edge: operands that enter more slowly than they are multiplied. request: addresses of a channel's runs.
    """

    fill_cycles: Whole = 0
    partial_cycles: Whole = 0
    output_cycles: Whole = 0
    edge_cycles: Whole = 0
    request_cycles: Whole = 0


class Compute(NamedTuple):
    """Cycles of a unit with memories of no limit, and those of them that are lost."""

    cycles: Whole
    lost: Lost = Lost()


class Demand(NamedTuple):
    """One operation alone on an idle machine. Bytes are totals, cycles are whole.

    compute_cycles: what its unit needs with memories of no limit (DMA: bytes over the channel's rate).
    latency_cycles: from start to the first byte, a channel's request and the read and write latency of the memories touched.
    macs: products, those with padding included.
    traffic: one entry a memory, in order of their codes; memories of no bytes may be among them.
    lost: of compute_cycles.
    """

    compute_cycles: Whole = 0
    latency_cycles: Whole = 0
    macs: Whole = 0
    traffic: tuple[Traffic, ...] = ()
    lost: Lost = Lost()

    def at(self, space: int) -> Traffic:
        """What it moves at one memory."""
        return next((t for t in self.traffic if t.space == space), Traffic(space))


NOTHING = Demand()


def traffic(unit: Unit, *operands: tuple[str, Whole, Whole]) -> tuple[Traffic, ...]:
    """What a unit other than a DMA channel moves. operands: role, bytes read, bytes written."""
    found: dict[int, list[Whole]] = {}
    for role, read, write in operands:
        total = found.setdefault(unit.roles[role], [0, 0])
        total[0], total[1] = total[0] + read, total[1] + write
    return tuple(Traffic(space, read, write, read, write) for space, (read, write) in sorted(found.items()))


def latency_cycles(unit: Unit, chip: Chip, written: Whole = 1, roles: Sequence[str] = ("input",)) -> Whole:
    """Of the slowest memory read, and of the one written where `written` is 1."""
    read = max(chip.spaces[unit.roles[role]].memory.latency_cycles for role in roles)
    return read + written * chip.spaces[unit.roles["output"]].memory.write_latency_cycles
