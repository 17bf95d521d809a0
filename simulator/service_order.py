"""The order in which memories serve the operations of a program: fixed by the program, whatever runs it.

It is the order in which operations would begin on a nominal machine: queues without end, and operations that last as long as
their sizes say, products and bytes, and nothing that a machine has. It is the square roots of these, for what an operation takes
on a real machine grows by less than its size; of the forms tried (sizes at several paces, logarithms, one) they gave the fewest
cycles. As the front end of a real machine stops at full queues, each operation is put off until it could be dispatched with the
least queues on which the program runs at all; machines with deeper ones can run that order, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from simulator.order import RunOrder
from toolchain.machine import MachineOp, Wait
from toolchain.machine.demands import Demands
from toolchain.machine.recurrence import Asked, Recurrence

_STEPS = 16  # of nominal time, so that rounding weighs little


def service_order(ops: Sequence[MachineOp], order: RunOrder, wanted: Demands, after: Sequence[tuple[int, ...]]) -> list[int]:
    """All operations that have a queue, in an order that can run on every machine on which the program can.

    after: of each operation the Signal that it takes.
    """
    kinds, count = order.chip.units, len(after)
    durations = _nominal_durations(np.array([kinds[q].kind == "dma" for q in order.engine[:count]], bool), wanted)
    run = Recurrence([0] * len(kinds), [count] * len(kinds), 0)
    asked = [Asked(q, 0, after[i], 0, durations[i], (), ops[i].STALLS) for i, q in enumerate(order.engine[:count])]
    run.run(asked, order.legal)
    # a Wait counts from its end: that is when its Signal has run
    begun = [end if isinstance(op, Wait) else start for op, start, end in zip(ops, run.start, run.end)]
    return _dispatchable(ops, order, begun, after)


def _nominal_durations(moves: np.ndarray, wanted: Demands) -> list[int]:
    """moves: bool[op], of DMA channels. As many products count as a byte as the program has for each byte that it moves."""
    count = len(moves)
    products, written = wanted.macs[:count], wanted.write_bytes[:, :count].sum(axis=0)
    moved = np.where(moves, np.maximum(written, wanted.read_bytes[:, :count].sum(axis=0)), written)
    pace = int(moved[moves].sum()) / max(1, int(products.sum()))
    sizes = np.where(products > 0, products * pace, moved)
    return (_STEPS * np.sqrt(sizes)).astype(np.int64).tolist()


def _dispatchable(ops: Sequence[MachineOp], order: RunOrder, begun: Sequence[int], after: Sequence[tuple[int, ...]]) -> list[int]:
    """The operations by `begun`, each behind all that must be over before it is dispatched, before its queue and its Signal."""
    count = len(after)
    found: list[int] = []
    queues: list[list[int]] = [[] for _ in order.least_depths]
    taken, done = [0] * len(queues), [False] * count
    ready: list[tuple[int, int]] = []  # heads of queues that come after nothing more, the next one first
    kept: dict[int, list[int]] = {}  # by operation the heads that come after it
    front, stalled = 0, -1

    def consider(head: int) -> None:
        before = next((i for i in after[head] if not done[i]), -1)
        if before < 0:
            heappush(ready, (begun[head], head))
        else:
            kept.setdefault(before, []).append(head)

    while len(found) < count:
        while front < count and (stalled < 0 or done[stalled]):
            queue = order.engine[front]
            if len(queues[queue]) - taken[queue] > order.least_depths[queue]:
                break
            queues[queue].append(front)
            if len(queues[queue]) - taken[queue] == 1:
                consider(front)
            stalled = front if ops[front].STALLS else -1
            front += 1
        _, best = heappop(ready)
        queue = order.engine[best]
        taken[queue] += 1
        done[best] = True
        found.append(best)
        if taken[queue] < len(queues[queue]):
            consider(queues[queue][taken[queue]])
        for head in kept.pop(best, ()):
            consider(head)
    return found
