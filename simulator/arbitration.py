"""Decide which operation is served when several want one port of a memory: one arbiter for each port.

This applies only to machines that name an `arbitration` other than `fixed`; `simulator.contention` asks the arbiters.
The order depends on when operations become ready, so more of a resource can make a program slower.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Request(NamedTuple):
    """A request of one operation to one port.

    `op`: the operation's index. `unit`: its queue.
    `ready_cycle`: first cycle in which it can be served.
    `cycles`: for how long it keeps the port.
    """

    op: int
    unit: int
    ready_cycle: int
    cycles: int


class PortService(NamedTuple):
    """The cycles first .. last - 1 of a port, in which it serves an operation."""

    op: int
    first: int
    last: int


class Arbiter(Protocol):
    """An arbiter of one port. The times passed to it never decrease from call to call.

    In each cycle the caller first takes what is over, then asks, then lets the arbiter decide.
    """

    def ask(self, request: Request) -> None:
        """Add a request at its ready cycle."""
        ...

    def over(self, now: int) -> list[int]:
        """Return the operations whose service is over at `now` and was not at the call before."""
        ...

    def decide(self, now: int) -> int | None:
        """Choose whom the port serves from `now` on. Return when a service will next be over, if nobody asks until then.

        None: nobody is served. It is called behind all that was asked for and is over at `now`.
        """
        ...

    @property
    def served(self) -> list[PortService]:
        """All services so far. Under `round_robin` an operation's turns between two decisions are one service."""
        ...


class _NonPreemptiveArbiter:
    """An arbiter that serves one operation after another, each in one piece. A subclass says by `_next` which."""

    def __init__(self) -> None:
        self.served: list[PortService] = []
        self._end = 0
        self._op = -1

    def over(self, now: int) -> list[int]:
        if self._op < 0 or self._end > now:
            return []
        op, self._op = self._op, -1
        return [op]

    def decide(self, now: int) -> int | None:
        if self._op >= 0:
            return self._end
        request = self._next()
        if request is None:
            return None
        self._op, self._end = request.op, now + request.cycles
        self.served.append(PortService(request.op, now, self._end))
        return self._end

    def _next(self) -> Request | None:
        """Return the waiting request to be served next and forget it; None: the port stays free."""
        raise NotImplementedError


class FirstCome(_NonPreemptiveArbiter):
    """An arbiter for `fcfs`.

    Operations are served in the order in which they become ready, those of one cycle in program order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[int, int, Request]] = []

    def ask(self, request: Request) -> None:
        heapq.heappush(self._waiting, (request.ready_cycle, request.op, request))

    def _next(self) -> Request | None:
        return heapq.heappop(self._waiting)[2] if self._waiting else None


class InOrder(_NonPreemptiveArbiter):
    """An arbiter for `fixed`, which serves in the program's order of service, however long the next one lets it wait.

    `order`: all operations that will ask.
    """

    def __init__(self, order: Sequence[int]):
        super().__init__()
        self._order = deque(order)
        self._waiting: dict[int, Request] = {}

    def ask(self, request: Request) -> None:
        self._waiting[request.op] = request

    def _next(self) -> Request | None:
        if not self._order or self._order[0] not in self._waiting:
            return None
        return self._waiting.pop(self._order.popleft())


class RoundRobin:
    """An arbiter for `round_robin`. Units take turns by number.

    Each turn serves the unit's first operation for at most `turn_cycles`; a unit without requests has no turn.
    """

    def __init__(self, turn_cycles: int):
        self.served: list[PortService] = []
        self._turn = turn_cycles
        self._lines: dict[int, deque[list[int]]] = {}  # by unit: operation and cycles left
        self._over: list[int] = []
        self._now = 0  # behind all turns that are over
        self._unit, self._last = -1, -1  # whose turn it is, -1: not decided; whose it was

    def ask(self, request: Request) -> None:
        self._advance(request.ready_cycle)
        if not self._lines:
            self._now = request.ready_cycle
        self._lines.setdefault(request.unit, deque()).append([request.op, request.cycles])

    def over(self, now: int) -> list[int]:
        self._advance(now)
        over, self._over = self._over, []
        return over

    def decide(self, now: int) -> int | None:
        if not self._lines:
            return None
        if self._unit < 0:
            self._unit = self._following(self._last)
        remaining_cycles = [self._lines[unit][0][1] for unit in self._round()]
        rounds = min((cycles - 1) // self._turn for cycles in remaining_cycles)
        at = self._now + rounds * self._turn * len(remaining_cycles)
        for cycles in remaining_cycles:
            at += min(self._turn, cycles - rounds * self._turn)
            if cycles <= (rounds + 1) * self._turn:
                break
        return at

    def _following(self, unit: int) -> int:
        """Return the unit whose turn comes after one of `unit`."""
        return min(self._lines, key=lambda other: (other <= unit, other))

    def _round(self) -> list[int]:
        """Return the units that wait, from the one whose turn it is."""
        return sorted(self._lines, key=lambda other: (other < self._unit, other))

    def _advance(self, now: int) -> None:
        """Take the turns that are over at `now`. What is asked for at `now` has a say in whose turn begins there."""
        cycles_by_op: dict[int, int] = {}
        began = self._now
        while self._lines and self._now < now:
            if self._unit < 0:
                self._unit = self._following(self._last)
            if not self._rounds(now, cycles_by_op) and not self._one_turn(now, cycles_by_op):
                break
        for op, cycles in cycles_by_op.items():
            self.served.append(PortService(op, began, began + cycles))
            began += cycles

    def _rounds(self, now: int, cycles_by_op: dict[int, int]) -> bool:
        """Take whole rounds in which no operation ends, all at once. Return whether there was one.

        `cycles_by_op`: the cycles taken are added to it.
        """
        units = self._round()
        least = min((self._lines[unit][0][1] - 1) // self._turn for unit in units)
        rounds = min(least, (now - self._now) // (self._turn * len(units)))
        for unit in units if rounds else ():
            self._take(unit, rounds * self._turn, cycles_by_op)
        if rounds:
            self._unit, self._last = -1, units[-1]
        return rounds > 0

    def _one_turn(self, now: int, cycles_by_op: dict[int, int]) -> bool:
        """Take the present turn where it is over at `now`, and return whether it is."""
        cycles = min(self._turn, self._lines[self._unit][0][1])
        if self._now + cycles > now:
            return False
        unit, self._last, self._unit = self._unit, self._unit, -1
        self._take(unit, cycles, cycles_by_op)
        return True

    def _take(self, unit: int, cycles: int, cycles_by_op: dict[int, int]) -> None:
        """Take cycles of the unit's first operation, which leaves its line when none are left."""
        line = self._lines[unit]
        op = line[0][0]
        line[0][1] -= cycles
        cycles_by_op[op] = cycles_by_op.get(op, 0) + cycles
        self._now += cycles
        if not line[0][1]:
            self._over.append(op)
            line.popleft()
            if not line:
                del self._lines[unit]
