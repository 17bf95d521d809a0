"""Compute what a trace shows beside the operations: causes of idle units, arrows of signals, bandwidth of ports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from simulator.cycle_breakdown import COMPUTING, Attribution, Spans, StallCause, StallReason, by_cause
from simulator.simulation import Simulation
from toolchain.hw.chip import Chip
from toolchain.machine import Signal, Wait


class Gap(NamedTuple):
    """The cycles first .. last - 1 in which a unit waits.

    `queue`: the unit's. `op`: in the flow, the operation for which it waits (-1: for none).
    `title`, `details`: the cause, in words and as arguments of the event.
    """

    queue: int
    first: int
    last: int
    op: int
    title: str
    details: dict[str, str]


class Moment(NamedTuple):
    """A cycle on the track of a unit's queue."""

    queue: int
    cycle: int


def gaps(run: Simulation, causes: Attribution) -> Iterator[Gap]:
    """Yield the gaps unit by unit, by rising cycles: between the operations, and inside waits where they do not compute.

    `causes`: of the same run.
    """
    for queue, spans in enumerate(causes.units.values()):
        for first, last, code, op in _list_intervals(spans, causes.cycles):
            reason = causes.reasons[code]
            if op < 0 or first < run.start[op] or (isinstance(run.flow[op], Wait) and reason.cause not in COMPUTING):
                details = {"cause": reason.cause.value, **({"of": reason.of} if reason.of else {})}
                yield Gap(queue, first, last, op, _title(reason), details)


def sum_stalls_by_operation(run: Simulation, causes: Attribution) -> dict[int, dict[str, Any]]:
    """Return for each operation, by its index in the flow, its cycles by cause from its start to its end.

    The inner form is that of `by_cause`. Operations that take no time are left out.
    """
    cycles_by_op: dict[int, dict[StallReason, int]] = {}
    for spans in causes.units.values():
        for first, last, code, op in _list_intervals(spans, causes.cycles):
            if op >= 0 and first >= run.start[op]:
                mine, reason = cycles_by_op.setdefault(op, {}), causes.reasons[code]
                mine[reason] = mine.get(reason, 0) + last - first
    return {op: by_cause(mine.items()) for op, mine in cycles_by_op.items()}


def _list_intervals(spans: Spans, cycles: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first cycle, first cycle after it, index of the reason, operation) of each span; the last ends at `cycles`."""
    ends = np.append(spans.first[1:], cycles)
    yield from zip(spans.first.tolist(), ends.tolist(), spans.reason.tolist(), spans.op.tolist())


def _title(reason: StallReason) -> str:
    """Return a cause in few words."""
    if reason.cause is StallCause.SIGNAL:
        return f"signal of {reason.of}"
    return reason.of or reason.cause.value.replace("nothing", "nothing to do")


def make_signal_arrows(run: Simulation) -> Iterator[tuple[Moment, Moment]]:
    """Yield (from, to), an arrow from each signal to the wait that takes it, where the wait took time.

    A signal that took no time is drawn at the last cycle of its unit's previous activity.
    """
    before: dict[int, int] = {}  # by queue, the end of what took time last
    ends: dict[int, int] = {}
    for op, queue in enumerate(run.order.engine):
        if isinstance(run.flow[op], Signal):
            ends[op] = before.get(queue, 0)
        if run.end[op] > run.start[op]:
            before[queue] = int(run.end[op])
    for wait, signal in sorted(run.order.signal_by_wait.items()):
        took = run.end[signal] > run.start[signal]
        since = int(run.start[signal]) if took else ends[signal] - 1
        if since >= 0 and run.end[wait] > run.start[wait]:
            yield Moment(run.order.engine[signal], since), Moment(run.order.engine[wait], int(run.end[wait]) - 1)


def port_rates(chip: Chip, run: Simulation) -> Iterator[tuple[str, int, float]]:
    """Yield (port, cycle, bytes a cycle from there on), bytes as charged to the port; ports come one after the other.

    A port is named `MEMORY read` or `MEMORY write`, one for both `MEMORY`.
    Nothing is yielded for times that were measured elsewhere.
    """
    if run.times is None or run.times.record is None:
        return
    served = np.array(run.times.record.served, np.int64).reshape(-1, 4)
    ports: set[int] = set(served[:, 1].tolist())
    for port in sorted(ports):
        space = chip.spaces[port // 2]
        read, written = run.op_demands.read_burst_bytes[port // 2], run.op_demands.write_burst_bytes[port // 2]
        moved = read + written if space.memory.shared_ports else written if port % 2 else read
        name = space.name if space.memory.shared_ports else f"{space.name} {'write' if port % 2 else 'read'}"
        free, rate = -1, 0.0
        mine = served[served[:, 1] == port]
        cycles = np.bincount(mine[:, 0], mine[:, 3] - mine[:, 2], len(moved))
        for op, first, last in mine[np.argsort(mine[:, 2], kind="stable")][:, [0, 2, 3]].tolist():
            before, rate = rate if free == first else 0.0, int(moved[op]) / int(cycles[op])
            if 0 <= free < first:
                yield name, free, 0.0
            if rate != before:
                yield name, first, rate
            free = last
        yield name, free, 0.0
