"""Define the demand of an operation on the machine: cycles of its unit, and bytes at each memory.

Operations compute it (`MachineOp.demand`), and the timing model turns it into times. All values may be columns of many
operations. A fold is one pass of an array over as much work as it holds. BYTES names the fields of `Traffic` that are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine.columns import IntOrColumn


class Traffic(NamedTuple):
    """The traffic of one operation at one memory, whose number is `space`.

    Burst bytes are the bytes rounded up to whole bursts and words; the memory's ports are charged for these. Bank
    cycles are those of the busiest bank; 0 for a memory without banks.
    """

    space: int
    read_bytes: IntOrColumn = 0
    write_bytes: IntOrColumn = 0
    read_burst_bytes: IntOrColumn = 0
    write_burst_bytes: IntOrColumn = 0
    read_bank_cycles: IntOrColumn = 0
    write_bank_cycles: IntOrColumn = 0


BYTES = Traffic._fields[1:5]


class Lost(NamedTuple):
    """The cycles of a unit that do no useful work, by cause.

    `fill_cycles`: fill and drain of its pipeline, startup, operands that load before a fold can begin.
    `partial_cycles`: rows, columns, depth or lanes without work, as the cycles that full ones would not need.
    `output_cycles`: processing of sums during output.
    `edge_cycles`: waits for operands that enter the array more slowly than it multiplies them.
    `request_cycles`: cycles in which a DMA channel sends addresses and moves nothing.
    """

    fill_cycles: IntOrColumn = 0
    partial_cycles: IntOrColumn = 0
    output_cycles: IntOrColumn = 0
    edge_cycles: IntOrColumn = 0
    request_cycles: IntOrColumn = 0


class Compute(NamedTuple):
    """The cycles of a unit if memories never kept it waiting, and the part of them that is lost."""

    cycles: IntOrColumn
    lost: Lost = Lost()


class Demand(NamedTuple):
    """The demand of one operation on an idle machine. Bytes are totals, cycles are whole numbers.

    `compute_cycles`: cycles of its unit if memories never kept it waiting (DMA: bytes over the channel's rate).
    `latency_cycles`: from its start to the first byte: a channel's request, and read and write latency of the memories
    touched. `macs`: products, those with padding included. `traffic`: one entry for each memory that it touches, by
    ascending number; entries of 0 bytes may be among them. `lost`: the part of compute_cycles that does no useful work.
    """

    compute_cycles: IntOrColumn = 0
    latency_cycles: IntOrColumn = 0
    macs: IntOrColumn = 0
    traffic: tuple[Traffic, ...] = ()
    lost: Lost = Lost()

    def at(self, space: int) -> Traffic:
        """Return its traffic at the memory of this number, all 0 where it has none there."""
        return next((t for t in self.traffic if t.space == space), Traffic(space))


NO_DEMAND = Demand()


def traffic(unit: Unit, *operands: tuple[str, IntOrColumn, IntOrColumn]) -> tuple[Traffic, ...]:
    """Return the traffic of a unit other than a DMA channel: one entry for each memory, by ascending number.

    `operands`: (role, bytes read, bytes written). Burst bytes equal the bytes; bank cycles are 0.
    """
    bytes_by_space: dict[int, list[IntOrColumn]] = {}
    for role, read, write in operands:
        total = bytes_by_space.setdefault(unit.roles[role], [0, 0])
        total[0], total[1] = total[0] + read, total[1] + write
    return tuple(Traffic(space, read, write, read, write) for space, (read, write) in sorted(bytes_by_space.items()))


def latency_cycles(unit: Unit, chip: Chip, written: IntOrColumn = 1, roles: Sequence[str] = ("input",)) -> IntOrColumn:
    """Return the latency of the slowest memory read, plus `written` times that of the memory of role `output`.

    `written`: 1 where the operation writes, else 0.
    `roles`: roles of the operands that are read.
    """
    read = max(chip.spaces[unit.roles[role]].memory.latency_cycles for role in roles)
    return read + written * chip.spaces[unit.roles["output"]].memory.write_latency_cycles
