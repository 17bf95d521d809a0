"""Operations are queued on the machine's engines before they are emitted; the timing model gives their start and end."""

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
    """The cost of operations that follow one another on a queue.

    `operations`: how many. `latency_cycles`: of memories. `compute_cycles`: of the unit. `services`: cycles of each port.
    `alone_cycles`: in all on an idle machine.
    """

    operations: int
    latency_cycles: int
    compute_cycles: int
    services: tuple[Service, ...]
    alone_cycles: int


def sum_queue_cost(ops: Iterable[MachineOp], chip: Chip) -> QueueCost:
    """The cost of operations on one queue. Where several may be in flight, the latency of one overlaps the transfers of those
    before it."""
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
    """The mean of costs of equally many operations that differ in their addresses."""
    if len(same) == 1:
        return same[0]
    ports = dict.fromkeys(port for one in same for port, _ in one.services)
    served = tuple((port, round(fmean(dict(one.services).get(port, 0) for one in same))) for port in ports)
    latency, compute, alone = (
        round(fmean(values)) for values in zip(*((w.latency_cycles, w.compute_cycles, w.alone_cycles) for w in same))
    )
    return QueueCost(same[0].operations, latency, compute, served, alone)


class Now(NamedTuple):
    """A moment to repeat from."""

    mark: TimingMark
    unlimited: TimingMark
    busy: tuple[float, ...]


class PlannedQueues:
    """Operations get numbers in the order of the program. Words: one of each operation, signal and wait.

    `looks_ahead`: memories serve in the order in which operations would be ready if all were served at once; else in that of the
    program, which is the same where one channel loads and stores.
    """

    def __init__(self, chip: Chip, looks_ahead: bool):
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
        """The number of an operation, or of several that follow one another, which touches what `after` touch."""
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
        """The objects that operations change."""
        return [self, *self._recurrence.state]

    @property
    def is_in_program_order(self) -> bool:
        """True where memories serve in the order of the program, and the front end's cycles are sums without rounding."""
        return not self._looks_ahead and (self._word_cycles * 2**16).is_integer()

    @property
    def fetched(self) -> float:
        """The cycle at which the front end has read the last operation that was run."""
        return self._recurrence.fetched

    def settle(self, relevant: Collection[int]) -> None:
        """Run the operations before the first of these, of which nothing later waits for any."""
        count = min(relevant, default=len(self._queues)) - len(self._queues) + len(self._waiting)
        if count > 0:
            self._recurrence.run(self._waiting[:count])
            self._waiting = self._waiting[count:]

    def times(self) -> Hashable:
        """The operations that were not run yet, and what is busy for how long, from the front end's cycle on."""
        waiting = [timing._replace(after=tuple(map(self.remaining, timing.after))) for timing in self._waiting]
        return self._recurrence.times(), tuple(waiting)

    def remaining(self, number: int) -> Hashable:
        """Return how long an operation still takes from the front end's cycle on; its place where it was not run yet."""
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
        """All that those of these queues see of an operation, but for its number."""
        return self._queues[number], tuple(self.waiters(number, later)), self.remaining(number)

    def mark(self) -> Now:
        self._run()
        return Now(self._recurrence.mark(), self._unlimited.mark(), tuple(self._busy))

    def sum_busy_cycles(self, since: Now, queues: Sequence[int]) -> float:
        """Cycles that these have worked since then, all together."""
        return sum(self._busy[queue] - since.busy[queue] for queue in queues)

    def repeat(self, since: Now, times: float, shared: SharedTasks | None = None, backlog: bool = False) -> None:
        """Repeat what was queued since the mark so many more times.

        `shared`: the part that goes to whichever of several queues is free first. `backlog`: some of it is for later layers, so
        that one queue may be far ahead.
        """
        self._run()
        queues = self._queues if backlog else None
        self._recurrence.repeat(since.mark, times, shared, queues)
        if self._looks_ahead:
            self._unlimited.repeat(since.unlimited, times, shared, queues)
        self._busy = [now + times * (now - then) for now, then in zip(self._busy, since.busy)]

    def free(self, queue: int) -> int:
        """The cycle at which the queue has run everything, if memories serve all at once."""
        self._look_ahead()
        return self._unlimited.free[queue]

    def end(self, numbers: Iterable[int]) -> int:
        """The end of the last of these operations, if memories serve all at once."""
        self._look_ahead()
        return max((self._unlimited.end[n] for n in numbers), default=0)

    @property
    def cycles(self) -> int:
        """The end of the last operation."""
        self._run()
        return max(self._recurrence.free)

    @property
    def busy_cycles(self) -> float:
        """The cycles of the busiest queue, without waits."""
        return max(self._busy)

    def own_cycles(self, queue: int) -> float:
        """The cycles of one queue, without waits."""
        return self._busy[queue]

    def _run(self) -> None:
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
    """A key of all that later operations depend on. Where two walks have the same, all that follows takes the same cycles.

    Operations count by their order and by what is seen of them, not by their numbers; those that nothing will wait for do not.
    """

    def __init__(self, queues: PlannedQueues, later: Collection[int]):
        """The key compares equal where all that operations on the queues of `later` see is equal."""
        self._queues, self._later = queues, later
        self._shapes: list[tuple[Hashable, Sequence[int]]] = []

    def note(self, shape: Hashable) -> None:
        """Add something that is the same in both walks."""
        self._shapes.append((shape, ()))

    def add(self, shape: Hashable, numbers: Sequence[int]) -> None:
        """Add operations for which something of this shape waits."""
        if numbers:
            self._shapes.append((shape, numbers))

    def key(self) -> object:
        """Return what compares equal to the key of another walk, and runs what nothing waits for."""
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
