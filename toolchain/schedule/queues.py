"""Queue the operations of a plan on the engines of a machine, before any code exists; the timing model gives start and
end.

`schedule.plan_timer` issues operations here, each as a `QueueCost` with the operations that it waits for. The timing
model is that of the simulator (`machine.timing_model`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp, demand
from toolchain.machine.queues import OperationTiming, Service
from toolchain.machine.timing_model import (
    SharedTasks,
    TimingMark,
    TimingModel,
    flights,
    flights_of,
    make_timing_model,
    services_of,
)


class QueueCost(NamedTuple):
    """The cost of operations that follow one another on one queue, in cycles.

    `operations`: how many. `latency_cycles`: latency of memories that no transfer hides. `compute_cycles`: of the unit.
    `services`: (port, cycles) for each memory port. `alone_cycles`: all of it on an idle machine.
    """

    operations: int
    latency_cycles: int
    compute_cycles: int
    services: tuple[Service, ...]
    alone_cycles: int


def sum_queue_cost(ops: Iterable[MachineOp], chip: Chip) -> QueueCost:
    """Return the cost of operations on one queue. With several in flight, the latency of one overlaps earlier
    transfers.
    """
    count, latency, compute, served = 0, 0, 0, dict[int, int]()
    for op in ops:
        demanded = demand(op, chip)
        moved = int(demanded.compute_cycles)
        for port, cycles in services_of(chip, demanded.traffic):
            served[port] = served.get(port, 0) + cycles
            moved = max(moved, cycles)
        waited, queue = int(demanded.latency_cycles), op.queue(chip)
        flying = 1 if queue is None or not count else flights_of(chip.units[queue])
        latency += waited if flying == 1 else max(0, (waited + moved) // flying - moved)
        count, compute = count + 1, compute + int(demanded.compute_cycles)
    return QueueCost(count, latency, compute, tuple(served.items()), latency + max((compute, *served.values())))


def mean(same: Sequence[QueueCost]) -> QueueCost:
    """Return the mean of costs of the same operations at different addresses. It needs one cost at least."""
    if len(same) == 1:
        return same[0]
    ports = dict.fromkeys(port for one in same for port, _ in one.services)
    served = tuple((port, round(fmean(dict(one.services).get(port, 0) for one in same))) for port in ports)
    latency, compute, alone = (
        round(fmean(values)) for values in zip(*((w.latency_cycles, w.compute_cycles, w.alone_cycles) for w in same))
    )
    return QueueCost(same[0].operations, latency, compute, served, alone)


class Now(NamedTuple):
    """A moment of all queues, from which `PlannedQueues.repeat` counts."""

    mark: TimingMark
    unlimited: TimingMark
    busy: tuple[float, ...]


class PlannedQueues:
    """The queues of a machine. Operations are numbered in program order, across all queues.

    Each takes one instruction word, each signal and wait between queues another. Operations are collected and run on
    the timing model when a time is asked for.
    """

    def __init__(self, chip: Chip, looks_ahead: bool):
        """Begin with idle queues.

        `looks_ahead`: memories serve in the order in which operations would be ready if nothing waited for memory. Else
        they serve in program order, which is the same where one channel loads and stores.
        """
        self._recurrence = make_timing_model(chip)
        self._issue = [unit.spec.issue_cycles for unit in chip.units]
        self._word_cycles = chip.isa.word_cycles
        self._looks_ahead = looks_ahead
        self._flights = flights(chip)
        self._unlimited = TimingModel([0] * len(chip.units), [unit.spec.queue_depth for unit in chip.units], 0)
        self._ready: list[int] = []  # of those that wait, with memories that serve all at once
        self._waiting: list[OperationTiming] = []  # asked for, but not run yet
        self._queues: list[int] = []  # of each operation
        self._busy = [0.0] * len(chip.units)  # cycles that operations take alone, by queue
        self._waited = [[-1] * len(chip.units) for _ in chip.units]  # [e][p]: the last operation of p that e has waited for

    def ask(self, queue: int, cost: QueueCost, after: Iterable[int]) -> int:
        """Append an operation, or several that follow one another, and return its number.

        `after`: numbers of the operations that touched the same bytes. Those on other queues get a signal and a wait,
        unless an earlier wait covers them. Those on the same queue matter only where it may have several in flight.
        """
        waited, queues = self._waited[queue], self._queues
        sources: dict[int, int] = {}  # by queue, the latest
        same_queue = -1  # that this one comes behind where several of its queue are in flight
        for number in after:
            source = queues[number]
            if source == queue:
                same_queue = max(same_queue, number)
            elif number > waited[source]:
                waited[source] = sources[source] = number
        operations, latency, compute, services, alone = cost
        count = operations + 2 * len(sources)  # each wait has its signal
        if sources:
            latency += self._issue[queue]  # the wait was issued before, the operation is now
            self._signal(sources)
        earlier = (*sources.values(), same_queue) if self._flights[queue] > 1 and same_queue >= 0 else tuple(sources.values())
        self._waiting.append(
            OperationTiming(queue, count * self._word_cycles, earlier, latency, compute, services, False, 1 + len(sources))
        )
        queues.append(queue)
        self._busy[queue] += alone
        return len(queues) - 1

    def _signal(self, sources: Mapping[int, int]) -> None:
        """Add a signal behind each of these operations, by queue, that has not been run yet."""
        run = len(self._queues) - len(self._waiting)
        for queue, number in sources.items():
            if number >= run:
                queue, fetch, after, latency, compute, services, stalls, entries = self._waiting[number - run]
                latency += self._issue[queue]
                self._waiting[number - run] = OperationTiming(
                    queue, fetch, after, latency, compute, services, stalls, entries + 1
                )

    @property
    def state(self) -> list[object]:
        """The objects whose attributes change."""
        return [self, *self._recurrence.state]

    @property
    def is_in_program_order(self) -> bool:
        """True where memories serve in the order of the program, and the front end's cycles are sums without rounding."""
        return not self._looks_ahead and (self._word_cycles * 2**16).is_integer()

    @property
    def fetched(self) -> float:
        """The cycle at which the front end has read and dispatched the last operation that was run on the timing model."""
        return self._recurrence.fetched

    def settle(self, relevant: Collection[int]) -> None:
        """Run the operations before the first of `relevant` on the timing model; all of them where `relevant` is empty."""
        count = min(relevant, default=len(self._queues)) - len(self._queues) + len(self._waiting)
        if count > 0:
            self._recurrence.run(self._waiting[:count])
            self._waiting = self._waiting[count:]

    def times(self) -> Hashable:
        """Return a key of all times that later operations see, counted from the front end's cycle."""
        waiting = [timing._replace(after=tuple(map(self.remaining, timing.after))) for timing in self._waiting]
        return self._recurrence.times(), tuple(waiting)

    def remaining(self, number: int) -> Hashable:
        """Return the cycles that an operation still takes, from the front end's cycle on; ("not run", place) where it
        was not run yet.
        """
        run = len(self._queues) - len(self._waiting)
        return ("not run", number - run) if number >= run else max(0, self._recurrence.end[number] - self.fetched)

    def find_needed(self, numbers: Iterable[int], later: Collection[int]) -> list[int]:
        """Return those of the operations, in order, for which operations on the queues of `later` may wait."""
        queues = self._queues
        waited = [
            min(
                (row[source] for queue, row in enumerate(self._waited) if queue != source and queue in later), default=len(queues)
            )
            for source in range(len(self._waited))
        ]
        flying = [flights > 1 for flights in self._flights]
        return sorted(n for n in set(numbers) if n > waited[queues[n]] or (flying[queues[n]] and self.remaining(n)))

    def waiters(self, number: int, later: Collection[int]) -> list[int]:
        """Return those of the queues of `later` operations in which some may wait for this one."""
        source = self._queues[number]
        waiters = [queue for queue in later if queue != source and self._waited[queue][source] < number]
        return [*waiters, source] if self._flights[source] > 1 and self.remaining(number) else waiters

    def describe(self, number: int, later: Collection[int]) -> Hashable:
        """Return a key of all that operations on the queues of `later` see of one operation, but for its number."""
        return self._queues[number], tuple(self.waiters(number, later)), self.remaining(number)

    def mark(self) -> Now:
        """Run everything and return this moment."""
        self._run()
        return Now(self._recurrence.mark(), self._unlimited.mark(), tuple(self._busy))

    def sum_busy_cycles(self, since: Now, queues: Sequence[int]) -> float:
        """Return the cycles that these queues have worked since a moment, without waits, added up."""
        return sum(self._busy[queue] - since.busy[queue] for queue in queues)

    def repeat(self, since: Now, times: float, shared: SharedTasks | None = None, backlog: bool = False) -> None:
        """Repeat what was queued since the mark `times` more times, a fraction too, without queueing it again.

        `shared`: the part that goes to whichever of several queues is free first. `backlog`: some of it is for later
        layers, so that one queue may be far ahead.
        """
        self._run()
        queues = self._queues if backlog else None
        self._recurrence.repeat(since.mark, times, shared, queues)
        if self._looks_ahead:
            self._unlimited.repeat(since.unlimited, times, shared, queues)
        self._busy = [now + times * (now - then) for now, then in zip(self._busy, since.busy)]

    def free(self, queue: int) -> int:
        """Return the cycle at which the queue has run everything, if nothing waited for memory."""
        self._look_ahead()
        return self._unlimited.free[queue]

    def end(self, numbers: Iterable[int]) -> int:
        """Return the end of the last of these operations, if nothing waited for memory; 0 for none."""
        self._look_ahead()
        return max((self._unlimited.end[n] for n in numbers), default=0)

    @property
    def cycles(self) -> int:
        """The cycle at which the last operation ends."""
        self._run()
        return max(self._recurrence.free)

    @property
    def busy_cycles(self) -> float:
        """The cycles of the busiest queue, without waits."""
        return max(self._busy)

    def own_cycles(self, queue: int) -> float:
        """Return the cycles of one queue, without waits."""
        return self._busy[queue]

    def _run(self) -> None:
        """Run all waiting operations on the timing model."""
        if not self._waiting:
            return
        sequence = None
        if self._looks_ahead:
            self._look_ahead()
            sequence = sorted(range(len(self._ready)), key=self._ready.__getitem__)
            self._ready = []
        self._recurrence.run(self._waiting, sequence)
        self._waiting = []

    def _look_ahead(self) -> None:
        """Run new operations on a model without waits for memory, for the order in which memories serve."""
        if len(self._ready) == len(self._waiting):
            return
        new = self._waiting[len(self._ready) :]
        first = len(self._unlimited.end)
        durations = [max([timing.compute_cycles, *[cycles for _, cycles in timing.services]]) for timing in new]
        self._unlimited.run(
            [OperationTiming(a.queue, 0, a.after, 0, cycles, (), a.stalls, a.entries) for a, cycles in zip(new, durations)]
        )
        self._ready += [end - cycles for end, cycles in zip(self._unlimited.end[first:], durations)]


class FutureKey:
    """A collector of all that later operations depend on. Two walks with equal keys go on with the same cycles.

    Operations count by their order and by what is seen of them, not by number. Those that nothing will wait for are
    left out.
    """

    def __init__(self, queues: PlannedQueues, later: Collection[int]):
        """Begin a key. `later`: the queues of later operations."""
        self._queues, self._later = queues, later
        self._shapes: list[tuple[Hashable, Sequence[int]]] = []

    def note(self, shape: Hashable) -> None:
        """Add a value that must be equal in both walks."""
        self._shapes.append((shape, ()))

    def add(self, shape: Hashable, numbers: Sequence[int]) -> None:
        """Add operations for which something of this shape waits. No operations add nothing."""
        if numbers:
            self._shapes.append((shape, numbers))

    def key(self) -> object:
        """Return a value that equals that of another walk with the same future. It runs operations that nothing will
        wait for.
        """
        relevant = self._queues.find_needed((n for _, numbers in self._shapes for n in numbers), self._later)
        ranks = {number: rank for rank, number in enumerate(relevant)}
        self._queues.settle(relevant)
        shapes = [(shape, sorted({ranks[n] for n in numbers if n in ranks})) for shape, numbers in self._shapes]
        described = [self._queues.describe(number, self._later) for number in relevant]
        return (
            [(shape, r) for (shape, r), (_, numbers) in zip(shapes, self._shapes) if r or not numbers],
            described,
            self._queues.times(),
        )
