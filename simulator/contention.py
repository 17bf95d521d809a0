"""Compute the times of a program on a machine whose memories arbitrate, event by event.

The rules are those of `toolchain.machine.timing_model`, but for who is served when. `simulator.timeline` takes this model
where `arbitrates` says so.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil

from simulator.arbitration import Arbiter, FirstCome, InOrder, Request, RoundRobin
from toolchain.hw.chip import Chip
from toolchain.machine.queues import OperationTiming, Queues
from toolchain.machine.timing_model import COMPUTED, READ, STALLED, Record, flights, read_rate, write_rate

_READY, _OVER, _PORT = range(3)  # events: an operation asks the ports, an operation is over, a port has served


def arbitrates(chip: Chip) -> bool:
    """Return whether some memory serves in another order than that of the program."""
    return any(space.memory.arbitration != "fixed" for space in chip.spaces)


class Contention:
    """A timing simulation with port arbitration.

    After `run` the lists `start`, `end`, `ended_by`, `issue_starts` and `request_starts` are as in `TimingModel`, by operation.
    """

    def __init__(self, chip: Chip, record: Record):
        """Set up a machine. `record`: is extended by what `run` finds of services and of the front end."""
        self._chip, self._record = chip, record
        self._issue = [unit.spec.issue_cycles for unit in chip.units]
        self._queues = Queues([unit.spec.queue_depth for unit in chip.units], flights(chip))
        self.start: list[int] = []
        self.end: list[int] = []
        self.ended_by: list[int] = []
        self.issue_starts: list[int] = []
        self.request_starts: list[int] = []

    def run(self, timings: Sequence[OperationTiming], sequence: Sequence[int]) -> None:
        """Simulate the whole program and fill the lists of times.

        `timings`: of the whole program, in the order of dispatch.
        `sequence`: indices of all operations that use a port, in the order in which ports that do not arbitrate serve them.
        """
        count = len(timings)
        self._timings, self._arbiters = timings, _arbiters(self._chip, timings, sequence)
        self.start, self.issue_starts, self.request_starts, self.ended_by = (
            [0] * count,
            [0] * count,
            [0] * count,
            [COMPUTED] * count,
        )
        self.end = [-1] * count  # not known yet
        self._done, self._open = [0] * count, [len(entry.services) for entry in timings]
        self._rooms = self._queues.rooms(timings, 0)
        queues: list[list[int]] = [[] for _ in self._issue]
        for number, entry in enumerate(timings):
            queues[entry.queue].append(number)
        self._waiters = _list_waiters(timings, queues)
        self._unmet_counts = [
            len(entry.after) + 1 for entry in timings
        ]  # what is not known: its dispatch and what it comes after
        for queue in queues:
            for number in queue[1:]:
                self._unmet_counts[number] += 1  # and the one before it
        self._dispatched, self._free = [0] * count, [0] * len(self._issue)
        self._front, self._fetched, self._stalled, self._read = 0, 0.0, -1, False
        self._events: list[tuple[int, int, int]] = []
        self._decided: dict[int, int] = {}  # by port, when it will have served
        self._dispatch()
        while self._events:
            self._step()
        for port, arbiter in self._arbiters.items():
            for served in arbiter.served:
                self._record.served.extend((served.op, port, served.first, served.last))

    def _step(self) -> None:
        """Do all that happens in the next cycle with an event, then let its ports decide whom they serve from there on."""
        now = self._events[0][0]
        ports: set[int] = set()
        while self._events and self._events[0][0] == now:
            _, kind, number = heapq.heappop(self._events)
            if kind == _READY:
                self._ask(number, now, ports)
            elif kind == _OVER:
                self._finish(number, now)
            elif self._decided.get(number) == now:
                ports.add(number)
                for op in self._arbiters[number].over(now):
                    self._end_service(op, number, now)
        for port in sorted(ports):
            then = self._arbiters[port].decide(now)
            if then is not None and self._decided.get(port) != then:
                heapq.heappush(self._events, (then, _PORT, port))
            self._decided[port] = -1 if then is None else then

    def _ask(self, number: int, now: int, ports: set[int]) -> None:
        """Ask every port that an operation needs; they are added to `ports`."""
        entry = self._timings[number]
        for port, cycles in entry.services:
            self._arbiters[port].ask(Request(number, entry.queue, now, cycles))
            ports.add(port)

    def _end_service(self, number: int, port: int, now: int) -> None:
        """Note that a port has served an operation. With its last port, when the operation is over becomes an event."""
        if now > self._done[number]:
            self._done[number], self.ended_by[number] = now, port
        elif now == self._done[number] and self.ended_by[number] > port:
            self.ended_by[number] = port
        self._open[number] -= 1
        if not self._open[number]:
            heapq.heappush(self._events, (self._done[number], _OVER, number))

    def _finish(self, number: int, now: int) -> None:
        """Note an operation's end, and let all that waited for it go on."""
        self.end[number] = self._free[self._timings[number].queue] = now
        for other in self._waiters[number]:
            self._release(other)
        self._dispatch()

    def _release(self, number: int) -> None:
        """Count one unmet condition of an operation less. With the last one, its ready time becomes known and an event."""
        self._unmet_counts[number] -= 1
        if self._unmet_counts[number]:
            return
        queue, _, after, latency, compute, services, _, _ = self._timings[number]
        over, queues = self._free[queue], self._queues
        begin = max(self._dispatched[number], over if queues.alone[queue] else queues.get_next_issue(queue, self.end))
        issued = max(begin + self._issue[queue], *(self.end[other] for other in after), 0)
        if not queues.alone[queue]:
            queues.take_off(queue, number, issued, bool(compute or services))
        ready = max(issued + latency, over)
        self.request_starts[number] = issued
        self.issue_starts[number], self.start[number], self._done[number] = begin, max(begin, over), ready + compute
        event = (ready, _READY, number) if services else (ready + compute, _OVER, number)
        heapq.heappush(self._events, event)

    def _dispatch(self) -> None:
        """Dispatch as many operations as the times known so far allow."""
        while self._front < len(self._timings):
            front = self._front
            entry = self._timings[front]
            room = self._rooms[front]
            if any(other >= 0 and self.end[other] < 0 for other in (self._stalled, room)):
                return
            self._fetched += entry.fetch_cycles
            self._record.read.append(self._fetched)
            held_by = READ
            for other, name in ((self._stalled, STALLED), (room, room)):
                if other >= 0 and self.end[other] > self._fetched:
                    self._fetched, held_by = self.end[other], name
            self._record.dispatched.append(self._fetched)
            self._record.held_by.append(held_by)
            self._dispatched[front] = ceil(self._fetched)
            self._stalled = front if entry.stalls else self._stalled
            self._front += 1
            self._release(front)


def _list_waiters(timings: Sequence[OperationTiming], queues: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each operation those that wait for its end: by dependence, and the next of its queue."""
    waiters_by_op: list[list[int]] = [[] for _ in timings]
    for number, entry in enumerate(timings):
        for other in entry.after:
            waiters_by_op[other].append(number)
    for queue in queues:
        for number, following in pairwise(queue):
            waiters_by_op[number].append(following)
    return waiters_by_op


def _arbiters(chip: Chip, timings: Sequence[OperationTiming], sequence: Sequence[int]) -> Mapping[int, Arbiter]:
    """Return an arbiter for each port that serves anything, by port: 2 x memory, 1 more for its writes."""
    orders: dict[int, list[int]] = {}
    for number in sequence:
        for port, _ in timings[number].services:
            orders.setdefault(port, []).append(number)
    return {port: _arbiter(chip, port, orders[port]) for port in sorted(orders)}


def _arbiter(chip: Chip, port: int, order: Sequence[int]) -> Arbiter:
    """Return the arbiter that a port's memory names. `order`: order of service, for `fixed`."""
    memory = chip.spaces[port // 2].memory
    if memory.arbitration == "fixed":
        return InOrder(order)
    if memory.arbitration == "fcfs":
        return FirstCome()
    return RoundRobin(ceil(memory.burst_bytes / (write_rate if port % 2 else read_rate)(memory)))
