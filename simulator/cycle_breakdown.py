"""Attribute the cycles of each unit: every cycle is useful, or lost for one cause.

`attribute_cycles` is the entry; reports and traces show its result.
The breakdown uses the times of a run and the parts of its operations' demands; it changes no time.
A cycle spent waiting for a semaphore takes its cause from what the signalling unit did in that cycle.
The cause is the memory that delayed that unit, the unit it waited for in its turn, or the front end.
Where the signalling unit computed or moved data, the cause is `signal` of that unit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from simulator.program_order import NO_ENGINE, issue_cycles
from simulator.simulation import Simulation
from simulator.timeline import Timeline
from toolchain.hw.chip import Chip
from toolchain.machine.timing_model import COMPUTED, STALLED, Record


class StallCause(StrEnum):
    """A cause to which a cycle of a unit is attributed.

    USEFUL: products or bytes that the network asks for.
    FILL_DRAIN, PARTIAL_FOLDS, OUTPUT_PATH, EDGES: parts of an operation's compute cycles that its demand names as lost.
    REQUESTS: a channel starts requests and addresses runs.
    MEMORY: latency or bandwidth of a memory.
    SIGNAL: another unit computes or moves the data that is waited for.
    QUEUE: the front end stands at a full queue.
    DISPATCH: the front end reads instructions, or the unit issues one.
    NOTHING: before the first operation of the unit and after its last.
    """

    USEFUL = "useful"
    FILL_DRAIN = "fill_drain"
    PARTIAL_FOLDS = "partial_folds"
    OUTPUT_PATH = "output_path"
    EDGES = "edges"
    REQUESTS = "requests"
    MEMORY = "memory"
    SIGNAL = "signal"
    QUEUE = "queue"
    DISPATCH = "dispatch"
    NOTHING = "nothing"


class StallReason(NamedTuple):
    """A cause, and the memory or unit that it names (`of`, "" for causes that name none)."""

    cause: StallCause
    of: str = ""


COMPUTING = (
    StallCause.FILL_DRAIN,
    StallCause.USEFUL,
    StallCause.PARTIAL_FOLDS,
    StallCause.EDGES,
    StallCause.REQUESTS,
    StallCause.OUTPUT_PATH,
)
_PLAIN = (*COMPUTING, StallCause.QUEUE, StallCause.DISPATCH, StallCause.NOTHING)
_REQUESTS = COMPUTING.index(StallCause.REQUESTS)
_QUEUE, _DISPATCH, _NOTHING = range(len(COMPUTING), len(_PLAIN))
_MEMORY = len(_PLAIN)  # of code 0; units follow the memories


@dataclass(frozen=True)
class Spans:
    """A partition of the cycles of a unit, from 0 on, into adjacent spans.

    `first`: int64[n], first cycle of each span.
    `reason`: int16[n], index into `Attribution.reasons`.
    `op`: int64[n], the operation of the flow that takes these cycles or for which the unit is idle (-1: none).
    """

    first: np.ndarray
    reason: np.ndarray
    op: np.ndarray


@dataclass(frozen=True)
class Attribution:
    """The cycle breakdown of one run: for each unit, spans that cover all of its `cycles`.

    `reasons`: what the spans' `reason` indexes.
    `units`: spans by unit name, in the order of `chip.units`.
    """

    cycles: int
    reasons: tuple[StallReason, ...]
    units: dict[str, Spans]

    def totals(self, ends: Sequence[int] | None = None) -> dict[str, np.ndarray]:
        """Return cycles, int64[window, reason], of each unit.

        `ends`: ends of the windows, one past their last cycle, rising, the last one `cycles`. None: one window of all.
        """
        borders = np.array([self.cycles] if ends is None else ends, np.int64)
        return {name: self._count_by_window(spans, borders) for name, spans in self.units.items()}

    def _count_by_window(self, spans: Spans, ends: np.ndarray) -> np.ndarray:
        """Return int64[window, reason] of one unit."""
        edges = np.unique(np.concatenate((spans.first, ends, [0, self.cycles])))
        at, lengths = edges[:-1], np.diff(edges)
        reason = spans.reason[np.searchsorted(spans.first, at, "right") - 1]
        window = np.searchsorted(ends, at, "right")
        cycle_counts = np.zeros((len(ends), len(self.reasons)), np.int64)
        np.add.at(cycle_counts, (window, reason), lengths)
        return cycle_counts


def attribute_cycles(chip: Chip, run: Simulation, shares: np.ndarray | None = None) -> Attribution | None:
    """Return the breakdown of a run's cycles, or None.

    `shares`: float64[op], the share of each operation's products that the network asks for (None: all).
    The remaining products, by zeros, count as PARTIAL_FOLDS.
    None is returned for times that were measured elsewhere or not at all: the causes of delays are not known
    then.
    """
    if run.times is None or run.times.record is None or run.times.issue_starts is None or run.times.request_starts is None:
        return None
    units = _Units(chip, run, run.times, run.times.record, run.times.issue_starts, run.times.request_starts, shares)
    return Attribution(run.cycles, reasons(chip), dict(zip(run.engines, units.spans())))


def reasons(chip: Chip) -> tuple[StallReason, ...]:
    """Return all reasons that there are on a machine, in the order of their codes."""
    memories = (StallReason(StallCause.MEMORY, space.name) for space in chip.spaces)
    return (*map(StallReason, _PLAIN), *memories, *(StallReason(StallCause.SIGNAL, unit.name) for unit in chip.units))


@dataclass(frozen=True)
class _Track:
    """The spans of a unit so far, as columns: first cycle, code of the reason, operation. A span ends where the next begins."""

    first: list[int]
    reason: list[int]
    op: list[int]

    def add(self, first: int, reason: int, op: int) -> None:
        self.first.append(first)
        self.reason.append(reason)
        self.op.append(op)

    def until(self, first: int, end: int, reason: int, op: int) -> int:
        """Add a span like `add` that lasts up to `end`, where that is later. Return the first cycle of the next span."""
        if end <= first:
            return first
        self.add(first, reason, op)
        return end

    def go_on(self, first: int, reason: int, op: int) -> None:
        """Add a span like `add`, or extend the last span."""
        if not self.first or (self.reason[-1], self.op[-1]) != (reason, op):
            self.add(first, reason, op)


class _Units:
    """The spans of all units, which `spans` fills operation by operation, in an order in which the program can run.

    So what a Wait waits for has its spans by then.
    """

    def __init__(
        self,
        chip: Chip,
        run: Simulation,
        times: Timeline,
        record: Record,
        issue_starts: np.ndarray,
        request_starts: np.ndarray,
        shares: np.ndarray | None,
    ):
        self._run, self._signal = run, _MEMORY + len(chip.spaces)
        self._tracks = [_Track([], [], []) for _ in chip.units]
        self._free = [0] * len(chip.units)
        self._start, self._end = times.start.tolist(), times.end.tolist()
        engine = np.array(run.order.engine[: len(record.read)], np.int64)
        self._issued = (issue_starts + np.array(issue_cycles(chip), np.int64)[engine]).tolist()
        self._request_starts = request_starts.tolist()
        self._latency, self._slowest = run.op_demands.latency_cycles.tolist(), _slowest_memories(chip, run)
        self._request = [unit.dma.request_cycles if unit.kind == "dma" else 0 for unit in chip.units]
        fill, partial, output, edge, request = run.op_demands.lost
        full = run.op_demands.compute_cycles - run.op_demands.lost.sum(axis=0)
        # rounded first: 100 cycles by a share of 0.07 are 7.000000000000001, which is no eighth cycle
        useful = full if shares is None else np.ceil((full * shares).round(6)).astype(np.int64)
        self._parts = list(zip(*(part.tolist() for part in (fill, useful, partial + full - useful, edge, request, output))))
        self._ended_by: list[int] = [] if times.ended_by is None else times.ended_by.tolist()
        self._read, self._dispatched = ([ceil(cycle) for cycle in column] for column in (record.read, record.dispatched))
        self._held_by = record.held_by.tolist()
        self._stalls = _stalls(run)

    def spans(self) -> Iterator[Spans]:
        """Yield the spans of each unit, in the order of `chip.units`. Call it once."""
        for op in self._run.order.legal:
            self._operation(op, self._run.order.engine[op])
        firsts: dict[int, int] = {}
        for op, queue in enumerate(self._run.order.engine):
            if queue != NO_ENGINE:
                firsts.setdefault(queue, self._start[op])
        for queue, track in enumerate(self._tracks):
            yield _close_track(track, firsts.get(queue, self._run.cycles), self._free[queue], self._run.cycles)

    def _operation(self, op: int, queue: int) -> None:
        """Add the spans of one operation, and of the idle cycles before it, to its unit's track."""
        track, at = self._tracks[queue], self._free[queue]
        self._idle(track, at, op)
        at = track.until(self._start[op], self._issued[op], _DISPATCH, op)
        signal = self._run.order.signal_by_wait.get(op)
        if signal is not None and self._end[signal] > at:
            self._other(track, at, self._end[signal], op, self._run.order.engine[signal])
            at = self._end[signal]
        request_start = self._request_starts[op]
        at = track.until(at, request_start + min(self._request[queue], self._latency[op]), _REQUESTS, op)
        at = track.until(at, request_start + self._latency[op], _MEMORY + self._slowest[op], op)
        if self._end[op] > at:
            for reason, cycles in enumerate(self._parts[op]):
                at = track.until(at, at + cycles, reason, op)
        if self._ended_by[op] != COMPUTED:
            at = track.until(at, self._end[op], _MEMORY + self._ended_by[op] // 2, op)
        self._free[queue] = at

    def _idle(self, track: _Track, free: int, op: int) -> None:
        """Add spans for the cycles in which the unit had nothing to do before `op`, by what the front end did then."""
        front_spans: list[tuple[int, int, int]] = []  # first, last, operation with which the front end was held up, -1: it read
        front, last = op, self._start[op]
        while last > free:
            for since, holder in ((self._read[front], front), (self._dispatched[front - 1] if front else 0, -1)):
                if max(since, free) < last:
                    front_spans.append((max(since, free), last, holder))
                    last = max(since, free)
            front -= 1
        for first, last, holder in reversed(front_spans):
            if holder < 0:
                track.go_on(first, _DISPATCH, op)
            elif self._held_by[holder] == STALLED:
                self._other(track, first, last, op, self._run.order.engine[self._stalls[holder]])
            else:
                track.go_on(first, _QUEUE, op)

    def _other(self, track: _Track, first: int, last: int, op: int, queue: int) -> None:
        """Add spans for the cycles first .. last - 1, in which the unit waits for another, by what that one did then."""
        other = self._tracks[queue]
        for i in range(bisect_right(other.first, first) - 1, bisect_right(other.first, last - 1)):
            reason = other.reason[i]
            track.go_on(max(first, other.first[i]), self._signal + queue if reason < len(COMPUTING) else reason, op)


def _close_track(track: _Track, begin: int, ended: int, cycles: int) -> Spans:
    """Close the track, with NOTHING before the first operation begins and after the last has ended."""
    if begin == ended:  # operations that took no time
        begin = cycles
    inside = bisect_right(track.first, begin)
    first, reason, op = track.first[inside:], track.reason[inside:], track.op[inside:]
    if begin < cycles:
        first, reason, op = [begin, *first], [track.reason[inside - 1], *reason], [track.op[inside - 1], *op]
    if begin:
        first, reason, op = [0, *first], [_NOTHING, *reason], [-1, *op]
    if begin < cycles and ended < cycles:
        first, reason, op = [*first, ended], [*reason, _NOTHING], [*op, -1]
    return Spans(np.array(first, np.int64), np.array(reason, np.int16), np.array(op, np.int64))


def _slowest_memories(chip: Chip, run: Simulation) -> list[int]:
    """Return for each operation the memory, of those it reads or writes, whose latency it waits for most."""
    op_demands = run.op_demands
    read = np.array([space.memory.latency_cycles for space in chip.spaces], np.int64)[:, None]
    written = np.array([space.memory.write_latency_cycles for space in chip.spaces], np.int64)[:, None]
    waited = np.where(op_demands.read_bytes > 0, read, 0) + np.where(op_demands.write_bytes > 0, written, 0)
    return waited.argmax(axis=0).tolist()


def _stalls(run: Simulation) -> list[int]:
    """Return for each operation the last earlier operation that stalled the front end; -1: none."""
    stalls: list[int] = []
    last = -1
    for index, op in enumerate(run.flow):
        stalls.append(last)
        if op.STALLS:
            last = index
    return stalls


def by_reason(chip: Chip, counted: Iterable[int]) -> dict[str, Any]:
    """Return cycles by cause, as `by_cause` does.

    `counted`: cycles of each of `reasons`.
    """
    return by_cause((reason, int(cycles)) for reason, cycles in zip(reasons(chip), counted))


def by_cause(spans: Iterable[tuple[StallReason, int]]) -> dict[str, Any]:
    """Return cycles by the cause's value; those of memories and units are a dict by name. What is 0 is left out.

    `spans`: each reason once, with all of its cycles.
    """
    cycles_by_cause: dict[str, Any] = {}
    for reason, cycles in spans:
        if cycles and reason.of:
            cycles_by_cause.setdefault(reason.cause.value, {})[reason.of] = cycles
        elif cycles:
            cycles_by_cause[reason.cause.value] = cycles
    return cycles_by_cause
