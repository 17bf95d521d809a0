"""Who is served when several operations want one port of a memory: an arbiter a port, simulated cycle by cycle.

Only machines that name an `arbitration` other than `fixed` are timed so (`simulator.contention`): here the order hangs on when
operations become ready, so that more of a thing can make a program slower.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Request(NamedTuple):
    """What an operation asks of one port. ready_cycle: from which it can be served; unit: its queue."""

    op: int
    unit: int
    ready_cycle: int
    cycles: int


class PortService(NamedTuple):
    """Cycles first .. last - 1 of a port, for an operation."""

    op: int
    first: int
    last: int


class Arbiter(Protocol):
    """Of one port. Times never fall from call to call."""

    def ask(self, request: Request) -> None:
        """At its ready cycle."""
        ...

    def over(self, now: int) -> list[int]:
        """The operations whose service is over at `now` and was not before."""
        ...

    def decide(self, now: int) -> int | None:
        """Called behind all that was asked for and is over at `now`. When a service will be over next, if nobody asks until then;
        None: nobody is served."""
        ...

    @property
    def served(self) -> list[PortService]:
        """All services so far; those of turns between two decisions stand one behind the other."""
        ...


class _Whole:
    """Serves one operation after another, each in one piece; a class says which is next."""

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
        raise NotImplementedError


class FirstCome(_Whole):
    """`fcfs`: in the order in which they become ready, those of one cycle in program order."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[int, int, Request]] = []

    def ask(self, request: Request) -> None:
        heapq.heappush(self._waiting, (request.ready_cycle, request.op, request))

    def _next(self) -> Request | None:
        return heapq.heappop(self._waiting)[2] if self._waiting else None


class InOrder(_Whole):
    """`fixed`: in the order of service of the program. order: all operations that will ask."""

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
    """`round_robin`: units by number in turn, of each its first operation for a turn of `turn_cycles` at most."""

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
        left = [self._lines[unit][0][1] for unit in self._round()]
        rounds = min((cycles - 1) // self._turn for cycles in left)
        at = self._now + rounds * self._turn * len(left)
        for cycles in left:
            at += min(self._turn, cycles - rounds * self._turn)
            if cycles <= (rounds + 1) * self._turn:
                break
        return at

    def _following(self, unit: int) -> int:
        return min(self._lines, key=lambda other: (other <= unit, other))

    def _round(self) -> list[int]:
        """The units that wait, from the one whose turn it is."""
        return sorted(self._lines, key=lambda other: (other < self._unit, other))

    def _advance(self, now: int) -> None:
        """Takes the turns that are over by then; what comes at `now` has a say in whose turn begins there."""
        taken: dict[int, int] = {}
        began = self._now
        while self._lines and self._now < now:
            if self._unit < 0:
                self._unit = self._following(self._last)
            if not self._rounds(now, taken) and not self._one_turn(now, taken):
                break
        for op, cycles in taken.items():
            self.served.append(PortService(op, began, began + cycles))
            began += cycles

    def _rounds(self, now: int, taken: dict[int, int]) -> bool:
        """Whole rounds in which no operation ends, all at once."""
        units = self._round()
        least = min((self._lines[unit][0][1] - 1) // self._turn for unit in units)
        rounds = min(least, (now - self._now) // (self._turn * len(units)))
        for unit in units if rounds else ():
            self._take(unit, rounds * self._turn, taken)
        if rounds:
            self._unit, self._last = -1, units[-1]
        return rounds > 0

    def _one_turn(self, now: int, taken: dict[int, int]) -> bool:
        cycles = min(self._turn, self._lines[self._unit][0][1])
        if self._now + cycles > now:
            return False
        unit, self._last, self._unit = self._unit, self._unit, -1
        self._take(unit, cycles, taken)
        return True

    def _take(self, unit: int, cycles: int, taken: dict[int, int]) -> None:
        line = self._lines[unit]
        op = line[0][0]
        line[0][1] -= cycles
        taken[op] = taken.get(op, 0) + cycles
        self._now += cycles
        if not line[0][1]:
            self._over.append(op)
            line.popleft()
            if not line:
                del self._lines[unit]
