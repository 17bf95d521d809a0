"""Find unordered accesses to the same bytes, and reads of bytes never written. Only the program's own
synchronisation orders.

An engine runs its queue in order; a Wait comes after the Signal it takes.
Each engine keeps how much of every other engine's history is known to have happened.
This is a vector clock over its lists of accesses.
A new access is compared with the part of each list that is not yet known.
Every pair of unordered accesses is met once, by the later of the two.
`check_program` uses both classes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from simulator.program_order import RunOrder, describe
from toolchain.errors import ProgramError
from toolchain.machine import Access, MachineOp, Signal, Wait, byte_view, overlap, range_text

_SHORT = 16  # below this many candidates a plain loop is faster than numpy


class Hazards:
    """One pass over a program in an order that can run.

    For each operation call `begin`, then `synchronise` or `touch` for each access, then `stall` where the front end waits for it.
    """

    def __init__(self, ops: Sequence[MachineOp], order: RunOrder, max_count: int, spaces: int):
        """Set up a pass. `max_count`: the largest count of a semaphore. `spaces`: the number of memories."""
        self.ops, self.order, self.max_count = ops, order, max_count
        engines = len(order.names)
        self.lists = 2 * spaces  # of an engine: reads and writes of each memory
        self.others = [list(_others(list_index, self.lists, engines)) for list_index in range(self.lists * engines)]
        self.low = [array("q") for _ in range(self.lists * engines)]
        self.high = [array("q") for _ in range(self.lists * engines)]
        self.access_lists: list[list[Access]] = [[] for _ in range(self.lists * engines)]
        self.makers = [array("q") for _ in range(self.lists * engines)]  # the operation of each
        self.known_counts = [[0] * (self.lists * engines) for _ in range(engines)]
        self.waits_known = [[0] * engines for _ in range(engines)]  # Wait counts known, by engine of the Wait
        self.sent: dict[int, tuple[list[int], list[int]]] = {}
        self.waits_done = [0] * engines
        self.waits: dict[int, list[int]] = {}  # semaphore -> its Waits so far, as counts on their engine
        self.waiter: dict[int, int] = {}
        self.signals: dict[int, int] = {}
        self.stalls: list[tuple[int, list[int], list[int]]] = []  # what is known behind each operation that stalls the front end
        self.stalls_known = [0] * engines

    def begin(self, index: int) -> None:
        """Order an operation after the stalls that precede its dispatch."""
        if not self.stalls:
            return
        queue = self.order.engine[index]
        for stall, clock, waits in self.stalls[self.stalls_known[queue] :]:
            if index < stall:
                break
            self._join(queue, clock, waits)
            self.stalls_known[queue] += 1

    def stall(self, index: int) -> None:
        """Record an operation for which the front end waits: all that is dispatched later comes after it."""
        self.stalls.append((index, *self._clock(self.order.engine[index])))

    def _clock(self, queue: int) -> tuple[list[int], list[int]]:
        """Return the clock of an observer that comes after everything the engine has done.

        That is (accesses known, by list; Waits known, by engine).
        """
        clock, waits = list(self.known_counts[queue]), list(self.waits_known[queue])
        for k in range(self.lists * queue, self.lists * (queue + 1)):
            clock[k] = len(self.access_lists[k])
        waits[queue] = self.waits_done[queue]
        return clock, waits

    def _join(self, queue: int, clock: list[int], waits: list[int]) -> None:
        """Let an engine know what a clock knows, beside what it knows already."""
        self.known_counts[queue] = list(map(max, self.known_counts[queue], clock))
        self.waits_known[queue] = list(map(max, self.waits_known[queue], waits))

    def synchronise(self, index: int) -> None:
        """Take a Signal or a Wait into the order. Raise ProgramError where a semaphore may go above its largest count."""
        op, queue = self.ops[index], self.order.engine[index]
        if isinstance(op, Signal):
            self._count(index, op, queue)
            self.sent[index] = self._clock(queue)
        elif isinstance(op, Wait):
            self._join(queue, *self.sent.pop(self.order.signal_by_wait[index]))
            self.waits_done[queue] += 1
            self.waits.setdefault(op.semaphore, []).append(self.waits_done[queue])
            self.waiter[op.semaphore] = queue

    def _count(self, index: int, op: Signal, queue: int) -> None:
        """Count a Signal. Raise ProgramError unless the Wait that makes room is known to have run."""
        sent = self.signals[op.semaphore] = self.signals.get(op.semaphore, 0) + 1
        required_waits = sent - self.max_count
        if required_waits <= 0:
            return
        waits = self.waits.get(op.semaphore, [])
        waiter = self.waiter.get(op.semaphore, 0)
        known_waits = self.waits_done[queue] if waiter == queue else self.waits_known[queue][waiter]
        if len(waits) < required_waits or waits[required_waits - 1] > known_waits:
            raise ProgramError(
                f"{describe(index, self.ops, self.order.chip)}: the count may reach {self.max_count + 1}, "
                f"above sync.max_count={self.max_count}; nothing orders this Signal after Wait number {required_waits} of "
                "the semaphore"
            )

    def touch(self, index: int, access: Access, low: int, high: int) -> None:
        """Record an access. Raise ProgramError where an unordered one of another engine touches its bytes and one writes.

        `low`, `high`: the access lies in [low, high).
        """
        queue = self.order.engine[index]
        known_counts, access_lists = self.known_counts[queue], self.access_lists
        list_index = self.lists * queue + 2 * access.space + access.write
        for k in self.others[list_index]:
            begin, end = known_counts[k], len(access_lists[k])
            if begin < end:
                self._compare(index, access, low, high, k, begin, end)
        self.low[list_index].append(low)
        self.high[list_index].append(high)
        self.makers[list_index].append(index)
        access_lists[list_index].append(access)

    def _compare(self, index: int, access: Access, low: int, high: int, k: int, begin: int, end: int) -> None:
        """Compare an access with entries begin .. end - 1 of list k. Raise ProgramError where two overlap."""
        lows, highs, access_list = self.low[k], self.high[k], self.access_lists[k]
        if end - begin <= _SHORT:
            near = [i for i in range(begin, end) if lows[i] < high and highs[i] > low]
        else:
            first, last = np.frombuffer(lows, np.int64), np.frombuffer(highs, np.int64)
            near = (np.flatnonzero((first[begin:end] < high) & (last[begin:end] > low)) + begin).tolist()
        for i in near:
            if overlap(access, access_list[i]):
                raise ProgramError(self._describe_race(index, access, self.makers[k][i], access_list[i]))

    def _describe_race(self, index: int, access: Access, other: int, before: Access) -> str:
        chip = self.order.chip
        return (
            f"{describe(index, self.ops, chip)} {_verb(access)} {range_text(access)} and "
            f"{describe(other, self.ops, chip)} {_verb(before)} {range_text(before)}: nothing orders the two; "
            f"put a Signal after the one that comes first and a Wait for it before the other"
        )


def _verb(access: Access) -> str:
    return "writes" if access.write else "reads"


def _others(list_index: int, lists: int, engines: int) -> Iterator[int]:
    """Yield the access lists of other engines that must be ordered with accesses of this list.

    For a write these are all lists of its memory, for a read the writes.
    A list's index is lists x engine + 2 x memory, and 1 more for writes.
    """
    written = list_index % 2
    for base in range(list_index % lists - written, lists * engines, lists):
        if base // lists != list_index // lists:
            yield from (base + 1, base) if written else (base + 1,)


class WrittenBytes:
    """The bytes of one memory that have been written: `map`, bool by byte, and the ranges known to be full."""

    def __init__(self, size_bytes: int, ranges: Sequence[tuple[int, int]] = ()):
        """Set up a memory. `ranges`: [first, last) each, written from the start."""
        self.map = np.zeros(size_bytes, np.bool_)
        self.starts: list[int] = []
        self.ends: list[int] = []
        for first, last in sorted(ranges):
            self.map[first:last] = True
            self._fill(first, last)

    def write(self, access: Access, low: int, high: int) -> None:
        """Record the bytes that an access in [low, high) writes."""
        if self._full(low, high):
            return
        if access.block[2]:
            byte_view(self.map, access)[...] = True
            return
        self.map[low:high] = True
        self._fill(low, high)

    def missing(self, access: Access, low: int, high: int) -> int | None:
        """Return the address of the first byte of an access in [low, high) that was never written, or None."""
        if self._full(low, high):
            return None
        if self.map[low:high].all():
            self._fill(low, high)
            return None
        view = byte_view(self.map, access)
        if view.all():
            return None
        gap = np.unravel_index(int(np.argmin(view)), view.shape)
        return low + int(sum(int(i) * s for i, s in zip(gap, view.strides)))

    def _full(self, low: int, high: int) -> bool:
        """Return whether one full range covers [low, high)."""
        i = bisect_right(self.starts, low) - 1
        return i >= 0 and self.ends[i] >= high

    def _fill(self, low: int, high: int) -> None:
        """Add a full range, joined with those it touches."""
        if high <= low:
            return
        first = bisect_right(self.starts, low)
        if first and self.ends[first - 1] >= low:
            first -= 1
            low = self.starts[first]
        last = bisect_right(self.starts, high)
        if last > first:
            high = max(high, self.ends[last - 1])
        self.starts[first:last] = [low]
        self.ends[first:last] = [high]
