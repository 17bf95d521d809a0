"""When each operation of a program runs (`toolchain.machine.timing_model`), and what its end waited for.

More of anything (bandwidth, lanes, entries of queues) and less latency never make a program slower. That needs the order in which
a memory serves the engines to be fixed by the program and not by the race (`simulator.service_order`): fair sharing among whoever
is active at a moment does not have this property (`docs/simulator.md` shows a program that it slows down).
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
from toolchain.hw.chip import Chip
from toolchain.machine import Access, MachineOp, Signal, Wait
from toolchain.machine.demand_columns import Demands
from toolchain.machine.queues import OperationTiming
from toolchain.machine.timing_model import COMPUTED, Record, TimingModel, make_timing_model, services

BOUNDS = ("compute", "dispatch", "wait", "unknown")  # besides the memories, which follow
_COMPUTE, _DISPATCH, _WAIT, UNKNOWN_BOUND = range(len(BOUNDS))  # unknown: of times that were measured elsewhere


@dataclass(frozen=True)
class Timeline:
    """start, end: int64[op] cycles; bound: int8[op], index into `bounds`. End operations start and end at `cycles`.

    ended_by: int64[op], End operations not among them, the port or COMPUTED. begun, asked: int64[op], when each was taken up and
    when its latency began, before `start` where several are in flight. record: what held them. None of these of times that were
    measured elsewhere.
    """

    start: np.ndarray
    end: np.ndarray
    bound: np.ndarray
    cycles: int
    busy_cycles: dict[str, int]
    bounds: tuple[str, ...]
    ended_by: np.ndarray | None = None
    begun: np.ndarray | None = None
    asked: np.ndarray | None = None
    record: Record | None = None


def bound_names(chip: Chip) -> tuple[str, ...]:
    """What an operation's end can have waited for."""
    return (*BOUNDS, *(space.name for space in chip.spaces))


def timeline(
    chip: Chip,
    ops: Sequence[MachineOp],
    order: RunOrder,
    wanted: Demands,
    touched: Sequence[tuple[Access, ...]],
    words: Sequence[int] | None,
    word_bytes: int = 0,
) -> Timeline:
    """Times of every operation. touched: `accesses` of each. words: of instructions, of each, which the front end reads (None:
    one each). word_bytes: of one, 0: they load no memory."""
    count = len(order.legal)  # an End is the last of all operations
    taken = [(order.taken[i],) if i in order.taken else () for i in range(count)]
    behind = find_copy_dependences(chip, order, touched)
    after = [(*signals, behind[i]) if i in behind else signals for i, signals in enumerate(taken)]
    words = [1] * len(ops) if words is None else words
    costs = [word_cycles(chip, word_bytes) * n for n in words]
    record = Record()
    columns = (
        wanted.latency_cycles.tolist(),
        wanted.compute_cycles.tolist(),
        services(chip, with_program(chip, wanted, words, word_bytes)),
    )
    stalls = [op.STALLS for op in ops[:count]]
    asked = [OperationTiming(*row) for row in zip(order.engine[:count], costs, after, *columns, stalls)]
    run = Contention(chip, record) if arbitrates(chip) else make_timing_model(chip, record)
    run.run(asked, service_order(ops, order, wanted))
    return _finished(chip, ops, order, run, record)


def _finished(chip: Chip, ops: Sequence[MachineOp], order: RunOrder, run: TimingModel | Contention, record: Record) -> Timeline:
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
        np.array(run.begun, np.int64),
        np.array(run.asked, np.int64),
        record,
    )
