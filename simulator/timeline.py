"""Compute when each operation of a program runs (`toolchain.machine.timing_model`), and what its end waited for.

`timeline` is the entry; `prepare_program` calls it once for a program, since times do not depend on values.
More bandwidth, lanes or queue entries and less latency never make a program slower.
That requires a service order of memories that is fixed by the program and not by the race
(`simulator.service_order`).
Fair sharing among the engines active at a moment lacks this property; `docs/simulator.md` shows a program
that it slows down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.contention import Contention, arbitrates
from simulator.copy_dependences import find_copy_dependences
from simulator.program_order import RunOrder, issue_cycles
from simulator.program_reads import with_program, word_cycles
from simulator.service_order import service_order
from simulator.touched_bytes import TouchedBytes
from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp, Signal, Wait
from toolchain.machine.demand_columns import Demands
from toolchain.machine.queues import OperationTiming
from toolchain.machine.timing_model import COMPUTED, Record, TimingModel, make_timing_model, services

BOUNDS = ("compute", "dispatch", "wait", "unknown")  # besides the memories, which follow
_COMPUTE, _DISPATCH, _WAIT, UNKNOWN_BOUND = range(len(BOUNDS))  # unknown: of times that were measured elsewhere


@dataclass(frozen=True)
class Timeline:
    """The times of one run, in cycles. End operations start and end at `cycles`.

    The fields with default None are None for times that were measured elsewhere.

    `start`, `end`: int64[op] cycles.
    `bound`: int8[op], index into `bounds`: what the end waited for.
    `cycles`: when the last operation ends.
    `busy_cycles`: by queue, without signals and waits.
    `ended_by`: int64[op] without End operations: the port that served it last, COMPUTED where computing took longer.
    `issue_starts`: int64[op], when each was taken up; before `start` where several are in flight.
    `request_starts`: int64[op], when its latency began; before `start` where several are in flight.
    `record`: services of ports, and what held up the front end.
    """

    start: np.ndarray
    end: np.ndarray
    bound: np.ndarray
    cycles: int
    busy_cycles: dict[str, int]
    bounds: tuple[str, ...]
    ended_by: np.ndarray | None = None
    issue_starts: np.ndarray | None = None
    request_starts: np.ndarray | None = None
    record: Record | None = None


def bound_names(chip: Chip) -> tuple[str, ...]:
    """Return the names of everything that an operation's end can have waited for."""
    return (*BOUNDS, *(space.name for space in chip.spaces))


def timeline(
    chip: Chip,
    ops: Sequence[MachineOp],
    order: RunOrder,
    op_demands: Demands,
    touched: TouchedBytes,
    words: Sequence[int] | None,
    word_bytes: int = 0,
) -> Timeline:
    """Compute the times of every operation. Where memories arbitrate, `Contention` simulates them.

    `ops`: with repeats and calls written out. `order`, `op_demands`, `touched`: their order, their work, and the bytes that
    they touch, by which copies in flight wait for each other.
    `words`: instruction words of each operation that the front end reads (None: one each).
    `word_bytes`: bytes of a word, 0: reading words loads no memory.
    """
    count = len(order.legal)  # an End is the last of all operations
    signals_before = [(order.signal_by_wait[i],) if i in order.signal_by_wait else () for i in range(count)]
    copy_by_op = find_copy_dependences(chip, order, touched)
    after = [(*signals, copy_by_op[i]) if i in copy_by_op else signals for i, signals in enumerate(signals_before)]
    words = [1] * len(ops) if words is None else words
    cycles_of_word = word_cycles(chip, word_bytes)
    costs = [cycles_of_word * n for n in words]
    record = Record()
    columns = (
        op_demands.latency_cycles.tolist(),
        op_demands.compute_cycles.tolist(),
        services(chip, with_program(chip, op_demands, words, word_bytes)),
    )
    stalls = [op.STALLS for op in ops[:count]]
    timings = [OperationTiming(*row) for row in zip(order.engine[:count], costs, after, *columns, stalls)]
    run = Contention(chip, record) if arbitrates(chip) else make_timing_model(chip, record)
    run.run(timings, service_order(ops, order, op_demands))
    return _make_timeline(chip, ops, order, run, record)


def _make_timeline(
    chip: Chip, ops: Sequence[MachineOp], order: RunOrder, run: TimingModel | Contention, record: Record
) -> Timeline:
    """Return the timeline of a finished run, with a bound for each operation.

    An operation is bound by `dispatch` where its queue was idle before it for longer than it ran.
    """
    count = len(run.end)
    start, end = np.array(run.start, np.int64), np.array(run.end, np.int64)
    engine, ended_by = np.array(order.engine[:count], np.int64), np.array(run.ended_by, np.int64)
    sync = np.fromiter((isinstance(op, Wait | Signal) for op in ops), bool, len(ops))[:count]
    idle = np.zeros(count, np.int64)  # since when the queue had nothing to do
    for queue in range(len(order.names)):
        at = np.flatnonzero(engine == queue)
        idle[at[1:]] = end[at[:-1]]
    bound = np.where(ended_by == COMPUTED, _COMPUTE, len(BOUNDS) + ended_by // 2)
    bound[start - idle > end - start] = _DISPATCH
    waited = end > start + np.array(issue_cycles(chip), np.int64)[engine]
    bound[sync] = np.where(waited, _WAIT, _DISPATCH)[sync]
    cycles, ends = int(end.max(initial=0)), len(ops) - count
    busy = np.bincount(engine[~sync], (end - start)[~sync], len(order.names))
    return Timeline(
        np.append(start, [cycles] * ends).astype(np.int64),
        np.append(end, [cycles] * ends).astype(np.int64),
        np.append(bound, [_COMPUTE] * ends).astype(np.int8),
        cycles,
        {name: int(n) for name, n in zip(order.names, busy)},
        bound_names(chip),
        ended_by,
        np.array(run.issue_starts, np.int64),
        np.array(run.request_starts, np.int64),
        record,
    )
