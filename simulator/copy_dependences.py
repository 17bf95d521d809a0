"""Find the copies that must wait for an earlier copy of the same channel because they read what it writes.

This matters only for channels with several copies in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.program_order import RunOrder
from toolchain.hw.chip import Chip
from toolchain.machine import Access, overlap
from toolchain.machine.timing_model import flights


def find_copy_dependences(chip: Chip, order: RunOrder, touched: Sequence[tuple[Access, ...]]) -> dict[int, int]:
    """Return by operation the latest earlier operation on its queue that may be in flight with it and writes bytes
    that it reads.

    `touched`: accesses of each operation.
    """
    most = [min(n, unit.spec.queue_depth + 1) - 1 for n, unit in zip(flights(chip), chip.units)]
    flying: list[list[tuple[int, list[Access]]]] = [[] for _ in most]  # by queue: operations and what they write
    copy_by_op: dict[int, int] = {}
    for number in range(len(order.legal)):
        queue = order.engine[number]
        if not most[queue]:
            continue
        mine = touched[number]
        if not mine:
            continue
        reads = [access for access in mine if not access.write]
        for other, written in reversed(flying[queue]):
            if any(r.space == w.space and overlap(r, w) for r in reads for w in written):
                copy_by_op[number] = other
                break
        flying[queue] = [*flying[queue], (number, [access for access in mine if access.write])][-most[queue] :]
    return copy_by_op
