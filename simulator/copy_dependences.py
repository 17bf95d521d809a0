"""Find copies that must wait for an earlier copy of the same channel because they read what it writes.

This matters only for channels with several copies in flight. `simulator.timeline` hands the result to the timing model.
"""

from __future__ import annotations

from collections import deque

from simulator.program_order import RunOrder
from simulator.touched_bytes import TouchedBytes
from toolchain.hw.chip import Chip
from toolchain.machine import overlap
from toolchain.machine.timing_model import flights


def find_copy_dependences(chip: Chip, order: RunOrder, touched: TouchedBytes) -> dict[int, int]:
    """Return reader -> writer, by index of the operation, for copies that wait.

    The writer is the latest earlier operation of the same queue that may be in flight with the reader and writes bytes of it.
    """
    most = [min(n, unit.spec.queue_depth + 1) - 1 for n, unit in zip(flights(chip), chip.units)]
    flying = [deque[tuple[int, int]](maxlen=n) for n in most]  # by queue: operations, and the memories that they write
    copy_by_op: dict[int, int] = {}
    for number in range(len(order.legal)):
        queue = order.engine[number]
        if not most[queue]:
            continue
        reads, writes = touched.spaces(number)
        if not reads | writes:
            continue
        for other, written in reversed(flying[queue]):
            if reads & written and _reads_what_is_written(touched, number, other):
                copy_by_op[number] = other
                break
        flying[queue].append((number, writes))
    return copy_by_op


def _reads_what_is_written(touched: TouchedBytes, number: int, other: int) -> bool:
    """Return whether operation `number` reads a byte that `other` writes."""
    if touched.are_apart(number, other):  # so that few copies have their accesses made
        return False
    reads, writes = (a for a in touched[number] if not a.write), [a for a in touched[other] if a.write]
    return any(r.space == w.space and overlap(r, w) for r in reads for w in writes)
