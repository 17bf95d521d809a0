"""Model in-order queues: room for waiting operations, and operations in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Service = tuple[int, int]  # a memory port, and cycles for which it serves one operation


class OperationTiming(NamedTuple):
    """A set of one operation's time demands, in whole cycles but for those of the front end.

    `queue`: index in `chip.units`.
    `fetch_cycles`: of the front end.
    `after`: operations, by their numbers, that must be over before this one may do more than be issued.
    `stalls`: the front end dispatches nothing behind it before it is over.
    """

    queue: int
    fetch_cycles: float
    after: tuple[int, ...]
    latency_cycles: int
    compute_cycles: int
    services: tuple[Service, ...]
    stalls: bool = False
    entries: int = 1


class Queues:
    """A model of all queues.

    `alone`: for each queue, whether one operation is in flight and the next one begins when that is over.
    `issued`: for each queue with several in flight, when its last operation was issued.
    """

    def __init__(self, depths: Sequence[int], flights: Sequence[int]):
        """Set up the queues.

        `depths`: operations that wait beside the running one.
        `flights`: in flight at most, signals and waits not counted.
        """
        self.alone = [n == 1 for n in flights]
        self.issued = [0] * len(depths)
        self._flights, self._back = flights, [depth + 1 for depth in depths]
        self._flying: list[list[int]] = [[] for _ in depths]  # of queues of several: their operations
        self._queued: list[list[int]] = [[] for _ in depths]

    def rooms(self, timings: Sequence[OperationTiming], base: int) -> list[int]:
        """Return for each operation, numbered from base on, the one whose end makes room for it in its queue; -1: none.

        That operation is `depth` + 1 places before it.
        """
        predecessors: list[int] = []
        for number, entry in enumerate(timings, base):
            entries, back = self._queued[entry.queue], self._back[entry.queue]
            if entry.entries > 1:
                entries.extend([number] * min(entry.entries - 1, back - 1))
            predecessors.append(entries[-back] if len(entries) >= back else -1)
            entries.append(number)
        return predecessors

    def recent(self) -> list[int]:
        """Return the operations that later ones may wait for, of each queue; -1 where it has fewer."""
        columns = [(entries, back) for entries, back in zip(self._queued, self._back)]
        columns += [(flying, flights) for flying, flights in zip(self._flying, self._flights)]
        return [numbers[-at] if len(numbers) >= at else -1 for numbers, most in columns for at in range(most, 0, -1)]

    def get_next_issue(self, queue: int, end: Sequence[int]) -> int:
        """Return when a queue with several in flight can issue another operation.

        `end`: end of each operation.
        """
        flights, flying = self._flights[queue], self._flying[queue]
        return max(self.issued[queue], end[flying[-flights]] if len(flying) >= flights else 0)

    def take_off(self, queue: int, number: int, issued: int, asks: bool) -> None:
        """An operation of a queue of several is issued. asks: of a memory; others are not counted among those in flight."""
        self.issued[queue] = issued
        if asks:
            self._flying[queue].append(number)
