"""When each operation of a program runs (`toolchain.machine.recurrence`), and what its end waited for.

More bandwidth, less latency or a faster front end never makes a program slower. That needs the order in which a memory
serves the engines to be fixed by the program and not by the race: fair sharing among whoever is active at a moment does not
have this property (`docs/simulator.md` shows a program that it slows down). The order is the one in which the operations
would start on a machine whose DMA keeps pace with its arithmetic, and depends on no bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.order import NO_ENGINE, RunOrder, issue_cycles, queue_depths
from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp, Signal, Space, Wait
from toolchain.machine.columns import Column
from toolchain.machine.demands import Demands
from toolchain.machine.recurrence import COMPUTED, Asked, Record, Recurrence, recurrence, services

BOUNDS = ("compute", "dispatch", "wait", "unknown")  # besides the memories, which follow
_COMPUTE, _DISPATCH, _WAIT, UNKNOWN_BOUND = range(len(BOUNDS))  # unknown: of times that were measured elsewhere


@dataclass(frozen=True)
class Timeline:
    """start, end: int64[op] cycles; bound: int8[op], index into `bounds`. End operations start and end at `cycles`.

    ended_by: int64[op], End operations not among them, the port or COMPUTED; record: what held them (neither of times that were
    measured elsewhere).
    """

    start: np.ndarray
    end: np.ndarray
    bound: np.ndarray
    cycles: int
    busy_cycles: dict[str, int]
    bounds: tuple[str, ...]
    ended_by: np.ndarray | None = None
    record: Record | None = None


def bound_names(chip: Chip) -> tuple[str, ...]:
    """What an operation's end can have waited for."""
    return (*BOUNDS, *(space.name for space in chip.spaces))


def timeline(chip: Chip, ops: Sequence[MachineOp], order: RunOrder, wanted: Demands, words: Sequence[int] | None) -> Timeline:
    """Times of every operation. words: instruction words of each operation, which the front end reads (None: one each)."""
    count = len(order.legal)  # an End is the last of all operations
    after = [(order.taken[i],) if i in order.taken else () for i in range(count)]
    costs = [chip.isa.word_cycles * n for n in words] if words is not None else [chip.isa.word_cycles] * len(ops)
    record = Record()
    run, columns = (
        recurrence(chip, record),
        (wanted.latency_cycles.tolist(), wanted.compute_cycles.tolist(), services(chip, wanted)),
    )
    stalls = [op.STALLS for op in ops[:count]]
    asked = [Asked(*row) for row in zip(order.engine[:count], costs, after, *columns, stalls)]
    run.run(asked, _sequence(chip, ops, order, _balanced_cycles(chip, order, wanted), after))
    return _finished(chip, ops, order, run, record)


def _sequence(
    chip: Chip, ops: Sequence[MachineOp], order: RunOrder, durations: Sequence[int], after: Sequence[tuple[int, ...]]
) -> list[int]:
    """The operations as they would start with memories of no limit and a front end that takes no time but stops at a full
    queue. A Wait counts from its end: that is when its Signal has run."""
    run = Recurrence([0] * len(issue_cycles(chip)), queue_depths(chip), 0)
    asked = [Asked(q, 0, after[i], 0, durations[i], (), ops[i].STALLS) for i, q in enumerate(order.engine[: len(after)])]
    run.run(asked, order.legal)
    keys = [end if isinstance(op, Wait) else start for op, start, end in zip(ops, run.start, run.end)]
    return sorted(order.legal, key=keys.__getitem__)  # stable: ties stay in legal order


def _balanced_cycles(chip: Chip, order: RunOrder, wanted: Demands) -> list[int]:
    """Durations on a machine of unlimited memories, its DMA as fast as its busiest other unit needs over the whole program."""
    engine = np.array(order.engine, np.int64)
    moves = np.array([unit.kind == "dma" for unit in chip.units])[engine] | (engine == NO_ENGINE)
    moved = _moved(wanted)
    arithmetic = np.bincount(engine[~moves], wanted.compute_cycles[~moves], len(chip.units))
    total = int(moved[moves].sum())
    pace = int(arithmetic.max()) / total if total else 0.0
    return np.where(moves, np.ceil(moved * pace), wanted.compute_cycles).astype(np.int64).tolist()


def _moved(wanted: Demands) -> Column:
    """Bytes at the memory that sees most of them: on the chip in whole bursts, as scattered runs cost them."""
    there = wanted.read_burst_bytes + wanted.write_burst_bytes
    there[Space.DRAM] = wanted.read_bytes[Space.DRAM] + wanted.write_bytes[Space.DRAM]
    return there.max(axis=0)


def _finished(chip: Chip, ops: Sequence[MachineOp], order: RunOrder, run: Recurrence, record: Record) -> Timeline:
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
        record,
    )
