"""Compute when operations run: in-order queues, a front end, waits between queues, and memory ports that serve one at a
time.

This is the only place that turns demands into times, in cycles. The simulator runs it over a decoded program, the cost
model over a plan's operations. Every time is a maximum of sums of durations, so nothing gets slower when anything gets
faster (a max-plus system). That holds while the order in which ports serve does not depend on times.

COMPUTED stands in the place of a port where the operation ended when its unit had computed. READ and STALLED stand in the place
of an operation that held the front end (`Record.held_by`). Queues that take more than _WAIT_RATIO times the cycles of their
shared tasks wait for something else.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.hw.engines import Dma, Memory
from toolchain.hw.unit_map import Unit
from toolchain.machine.columns import Column
from toolchain.machine.demand_columns import Demands
from toolchain.machine.queues import OperationTiming, Queues, Service
from toolchain.machine.traffic import Traffic

COMPUTED = -1
_WAIT_RATIO = 1.02
READ, STALLED = -1, -2


def _cycles_list() -> array[float]:
    return array("d")


def _numbers_list() -> array[int]:
    return array("q")


@dataclass(frozen=True)
class Record:
    """A record of the front end and the ports, to find out why an operation ran when it did. The model appends to it.

    `read`, `dispatched`: for each operation, the cycle when the front end had read it, and when its queue had it.
    `held_by`: what delayed it between them: READ (nothing), STALLED (a stalling operation), or the number of the
    operation whose end made room in its queue. `served`: operation, port, first and last cycle of each service, flat,
    one service after another.
    """

    read: array[float] = field(default_factory=_cycles_list)
    dispatched: array[float] = field(default_factory=_cycles_list)
    held_by: array[int] = field(default_factory=_numbers_list)
    served: array[int] = field(default_factory=_numbers_list)


class TimingMark(NamedTuple):
    """The state of a timing model at a moment: operations run so far, and when queues, ports and the front end were
    free.
    """

    operations: int
    free: tuple[int, ...]
    ports: tuple[int, ...]
    issued: tuple[int, ...]
    fetched: float


class SharedTasks(NamedTuple):
    """Tile tasks of which each goes to whichever of several queues is free first.

    `task_count`, `cycles`: number of tasks, and their total cycles. `pending`: the queue that will run one more task,
    which is assigned already.
    """

    queues: Sequence[int]
    task_count: float
    cycles: float
    pending: int

    def ends(self, free: Sequence[int], times: float) -> list[int]:
        """Return when each queue is free after `times` as many tasks of the mean length. `free`: when each is free now."""
        each = self.cycles / self.task_count
        queue_ends = [cycle + each * (queue == self.pending) for queue, cycle in zip(self.queues, free)]
        for _ in range(round(times * self.task_count)):
            queue_ends[queue_ends.index(min(queue_ends))] += each
        return [round(cycle - each * (queue == self.pending)) for queue, cycle in zip(self.queues, queue_ends)]


class TimingModel:
    """The queues and ports of a machine, and the times of all operations run so far, which are numbered in order.

    `start`, `end`: cycles of each operation. `ended_by`: the port that served it last, or COMPUTED. `free`: when each
    queue may begin its next operation. `issue_starts`: when the issue of each began, `request_starts`: when its latency
    began.

    An operation begins when its queue is free and the front end has dispatched it; the front end stops at a full queue.
    It is issued, waits for its predecessors, and is ready after its latency. Then its unit computes while each of its
    ports serves it, as soon as the port has served the operation before.

    A queue with several operations in flight issues one when the one before is issued and has all its predecessors, so
    latencies overlap. Operations still compute and are served in order, and `start` is not before the end of the one
    before.
    """

    def __init__(
        self,
        issue_cycles: Sequence[int],
        depths: Sequence[int],
        ports: int,
        record: Record | None = None,
        flights: Sequence[int] | None = None,
    ):
        """Set up idle queues and ports at cycle 0.

        `issue_cycles`, `depths`: for each queue; a depth counts operations that wait beside the running one. `ports`:
        number of memory ports. `record`: is appended to, where given. `flights`: operations of each queue that may be
        in flight, signals and waits not counted; None: one each.
        """
        self._record = record
        self._queues = Queues(depths, [1] * len(depths) if flights is None else flights)
        self._issue, self._ports, self._fetched, self._stalled = issue_cycles, [0] * ports, 0.0, -1
        self.free = [0] * len(depths)
        self.start: list[int] = []
        self.end: list[int] = []
        self.ended_by: list[int] = []
        self.issue_starts: list[int] = []
        self.request_starts: list[int] = []

    def run(self, timings: Sequence[OperationTiming], sequence: Iterable[int] | None = None) -> None:
        """Run operations after all earlier ones, and append their times.

        `timings`: in the order of dispatch. `sequence`: indices of `timings` in the order in which ports serve them,
        which must respect queues and waits. None: their order.
        """
        base, count = len(self.end), len(timings)
        start, end, ended_by, issue_starts, asked_at = self.start, self.end, self.ended_by, self.issue_starts, self.request_starts
        for column in (start, end, ended_by, issue_starts, asked_at):
            column.extend([0] * count)
        queues, dispatched = self._queues, [0] * count
        free, ports, issue, alone, room = self.free, self._ports, self._issue, queues.alone, queues.rooms(timings, base)
        fetched, stalled, front, record = self._fetched, self._stalled, 0, self._record
        read_cycles, dispatch_cycles, causes = list[float](), list[float](), list[int]()
        for i in range(count) if sequence is None else sequence:
            while front <= i:
                fetched += timings[front].fetch_cycles
                read, held_by, full = fetched, READ, room[front]
                if stalled >= 0 and end[stalled] > fetched:
                    fetched, held_by = end[stalled], STALLED
                if full >= 0 and end[full] > fetched:
                    fetched, held_by = end[full], full
                dispatched[front] = ceil(fetched)
                if record is not None:
                    read_cycles.append(read)
                    dispatch_cycles.append(fetched)
                    causes.append(held_by)
                if timings[front].stalls:
                    stalled = base + front
                front += 1
            queue, _, after, latency, compute, services, _, _ = timings[i]
            number, over = base + i, free[queue]
            begin, taken_up = dispatched[i], over if alone[queue] else queues.get_next_issue(queue, end)
            if taken_up > begin:
                begin = taken_up
            ready = begin + issue[queue]
            for other in after:
                if end[other] > ready:
                    ready = end[other]
            issue_starts[number] = start[number] = begin
            asked_at[number] = ready
            if alone[queue]:
                ready += latency
            else:
                queues.take_off(queue, number, ready, bool(compute or services))
                if over > begin:
                    start[number] = over
                ready = max(ready + latency, over)
            done, last = ready + compute, COMPUTED
            for port, cycles in services:
                served = (ports[port] if ports[port] > ready else ready) + cycles
                ports[port] = served
                if record is not None:
                    record.served.extend((number, port, served - cycles, served))
                if served > done:
                    done, last = served, port
            end[number], ended_by[number], free[queue] = done, last, done
        self._fetched, self._stalled = fetched, stalled
        if record is not None:
            record.read.extend(read_cycles)
            record.dispatched.extend(dispatch_cycles)
            record.held_by.extend(causes)

    @property
    def state(self) -> list[object]:
        """The objects whose attributes change as operations run."""
        return [self, self._queues]

    @property
    def fetched(self) -> float:
        """The cycle at which the front end has read and dispatched the last operation."""
        return self._fetched

    def times(self) -> tuple[float, ...]:
        """Return the cycles for which queues, ports and recent operations are still busy, counted from the front end's
        cycle on.
        """
        ends = [self.end[number] if number >= 0 else 0 for number in (*self._queues.recent(), self._stalled)]
        busy = (max(0, cycle - self._fetched) for cycle in (*self.free, *self._ports, *self._queues.issued, *ends))
        return max(self.free) - self._fetched, *busy  # the last of all is the measure of what is repeated

    def mark(self) -> TimingMark:
        """Return a mark of the present state, from which `repeat` repeats."""
        return TimingMark(len(self.end), tuple(self.free), tuple(self._ports), tuple(self._queues.issued), self._fetched)

    def repeat(
        self, mark: TimingMark, times: float, shared: SharedTasks | None = None, backlog: Sequence[int] | None = None
    ) -> None:
        """Repeat everything run since the mark `times` more times, without new operations: those run stand for the last
        repetition.

        `shared`: the part that goes to whichever of some queues is free first. `backlog`: the queue of each operation.
        One queue may be ahead of the others and gain less than they do; at the end it is no longer ahead. Queues that
        run none of the repeated operations do not count.
        """
        gains = [now - then for now, then in zip(self.free, mark.free)]
        working = [queue for queue, gain in enumerate(gains) if gain > 0 or (shared is not None and queue in shared.queues)]
        added = max((self.free[q] for q in working), default=0) - max((mark.free[q] for q in working), default=0)
        later, ends = round(times * added), list[int]()
        if shared is not None and added * len(shared.queues) < _WAIT_RATIO * shared.cycles:
            ends = shared.ends([self.free[queue] for queue in shared.queues], times)
            later = max(ends) - max(self.free[queue] for queue in shared.queues)
        shifts = [later if gain > 0 else 0 for gain in gains]
        first, slowest = self.free.index(max(self.free)), gains.index(max(gains))
        if backlog is not None and not ends and gains[first] < gains[slowest]:
            later = round(times * gains[slowest])
            shifts = [later if gain > 0 else 0 for gain in gains]
            shifts[first] = max(round(times * gains[first]), self.free[slowest] + later - self.free[first])
        for number in range(mark.operations, len(self.end)):
            shift = later if backlog is None else shifts[backlog[number]]
            self.start[number] += shift
            self.end[number] += shift
        self.free = [now + shift for now, shift in zip(self.free, shifts)]
        for queue, end in zip(shared.queues if shared is not None else (), ends):
            self.free[queue] = end
        self._queues.issued = [now + later if now > then else now for now, then in zip(self._queues.issued, mark.issued)]
        self._ports = [now + later if now > then else now for now, then in zip(self._ports, mark.ports)]
        self._fetched += later


def make_timing_model(chip: Chip, record: Record | None = None) -> TimingModel:
    """Return the timing model of a machine, idle at cycle 0. `record`: takes the times of every step, where given."""
    specs = [unit.spec for unit in chip.units]
    depths = [s.queue_depth for s in specs]
    return TimingModel([s.issue_cycles for s in specs], depths, 2 * len(chip.spaces), record, flights(chip))


def flights(chip: Chip) -> list[int]:
    """Return how many operations of each queue may be in flight."""
    return [flights_of(unit) for unit in chip.units]


def flights_of(unit: Unit) -> int:
    """Return how many operations of the unit's queue may be in flight."""
    return unit.spec.outstanding if isinstance(unit.spec, Dma) else 1


def read_rate(memory: Memory) -> float:
    """Return the bytes a cycle of the port that reads. A port that reads and writes has the larger of both rates."""
    return max(memory.read_bytes_per_cycle, memory.write_bytes_per_cycle if memory.shared_ports else 0.0)


def write_rate(memory: Memory) -> float:
    """Return the bytes a cycle of the port that writes. A port that reads and writes has the larger of both rates."""
    return max(memory.write_bytes_per_cycle, memory.read_bytes_per_cycle if memory.shared_ports else 0.0)


def services(chip: Chip, op_demands: Demands) -> Iterator[tuple[Service, ...]]:
    """Yield the services of each operation: (port, cycles) of each port that it occupies.

    Memory m has ports 2 m, which reads, and 2 m + 1, which writes; if they are shared, only port 2 m.
    """
    columns = [cycles for space in range(len(chip.spaces)) for cycles in _count_port_cycles(chip, op_demands, space)]
    services_by_row: dict[tuple[int, ...], tuple[Service, ...]] = {}
    for row in zip(*(column.tolist() for column in columns)):
        if row not in services_by_row:
            services_by_row[row] = tuple((port, cycles) for port, cycles in enumerate(row) if cycles)
        yield services_by_row[row]


def services_of(chip: Chip, traffic: Iterable[Traffic]) -> tuple[Service, ...]:
    """Return (port, cycles) of each port of a memory that one operation's traffic occupies."""
    port_services: list[Service] = []
    for t in traffic:
        memory = chip.spaces[t.space].memory
        read, written = ceil(t.read_burst_bytes / read_rate(memory)), ceil(t.write_burst_bytes / write_rate(memory))
        cycles = max(read, t.read_bank_cycles), max(written, t.write_bank_cycles)
        if memory.shared_ports:
            cycles = sum(cycles), 0
        port_services += [(2 * t.space + i, n) for i, n in enumerate(cycles) if n]
    return tuple(port_services)


def _count_port_cycles(chip: Chip, op_demands: Demands, space: int) -> tuple[Column, Column]:
    """Return the cycles of each operation at the two ports of a memory: int64[op] each, all of shared ports in the first."""
    memory = chip.spaces[space].memory
    read = np.maximum(_cycles(op_demands.read_burst_bytes[space], read_rate(memory)), op_demands.read_bank_cycles[space])
    written = np.maximum(_cycles(op_demands.write_burst_bytes[space], write_rate(memory)), op_demands.write_bank_cycles[space])
    return (read + written, np.zeros_like(read)) if memory.shared_ports else (read, written)


def _cycles(size_bytes: Column, rate: float) -> Column:
    return np.ceil(size_bytes / rate).astype(np.int64)
