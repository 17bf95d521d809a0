"""Model the in-order queues of a machine's engines for the timing model: room for waiting operations, and those in
flight.

A `Service` is (memory port, cycles for which the port serves one operation).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Service = tuple[int, int]


class OperationTiming(NamedTuple):
    """The time demands of one operation, in cycles; all are whole but those of the front end.

    `queue`: index in `chip.units`. `fetch_cycles`: the front end's, to read its words. `after`: numbers of the
    operations that must end before this one may do more than be issued. `services`: (memory port, cycles) for each
    port. `stalls`: the front end dispatches nothing after it before it has ended. `entries`: places that it takes in
    its queue, with its signals and waits.
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
    """The state of all queues of a machine.

    `alone`: for each queue, whether the next operation begins only when the one before has ended. `issued`: for each
    queue with several in flight, when its last operation was issued.
    """

    def __init__(self, depths: Sequence[int], flights: Sequence[int]):
        """Set up empty queues.

        `depths`: operations that wait beside the running one. `flights`: operations in flight at most, signals and
        waits not counted.
        """
        self.alone = [n == 1 for n in flights]
        self.issued = [0] * len(depths)
        self._flights, self._back = flights, [depth + 1 for depth in depths]
        self._flying: list[list[int]] = [[] for _ in depths]  # of queues of several: their operations
        self._queued: list[list[int]] = [[] for _ in depths]

    def rooms(self, timings: Sequence[OperationTiming], base: int) -> list[int]:
        """Return for each operation the number of the one whose end makes room for it in its queue; -1: there is room.

        Operations are numbered from `base` on, and are added to the queues.
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
        """Return the numbers of the operations that later ones may wait for, of each queue; -1 where it has fewer."""
        columns = [(entries, back) for entries, back in zip(self._queued, self._back)]
        columns += [(flying, flights) for flying, flights in zip(self._flying, self._flights)]
        return [numbers[-at] if len(numbers) >= at else -1 for numbers, most in columns for at in range(most, 0, -1)]

    def get_next_issue(self, queue: int, end: Sequence[int]) -> int:
        """Return the cycle at which a queue with several in flight can issue another operation. `end`: end of each
        operation by number.
        """
        flights, flying = self._flights[queue], self._flying[queue]
        return max(self.issued[queue], end[flying[-flights]] if len(flying) >= flights else 0)

    def take_off(self, queue: int, number: int, issued: int, asks: bool) -> None:
        """Note that an operation is issued, at cycle `issued`, on a queue with several in flight.

        `asks`: it uses its unit or a memory; others do not count among those in flight.
        """
        self.issued[queue] = issued
        if asks:
            self._flying[queue].append(number)
