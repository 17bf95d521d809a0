"""The order in which memories serve the operations of a program: fixed by the program, whatever runs it.

It is the order in which operations would begin on a nominal machine: queues without end, and operations that last as long as
their sizes say, products and bytes, and nothing that a machine has. It is the square roots of these, for what an operation takes
on a real machine grows by less than its size; of the forms tried (sizes at several paces, logarithms, one) they gave the fewest
cycles. As the front end of a real machine stops at full queues, each operation is put off until it could be dispatched with the
least queues on which the program runs at all; machines with deeper ones can run that order, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from simulator.program_order import RunOrder
from toolchain.machine import MachineOp
from toolchain.machine.demand_columns import Demands

_STEPS = 16  # of nominal time, so that rounding weighs little


def service_order(ops: Sequence[MachineOp], order: RunOrder, wanted: Demands) -> list[int]:
    """All operations that have a queue, in an order that can run on every machine on which the program can."""
    units = order.chip.units
    moves = np.array([units[q].kind == "dma" for q in order.engine[: len(order.legal)]], bool)
    return _dispatchable(ops, order, _nominal_begins(ops, order, _nominal_durations(moves, wanted)))


def _nominal_durations(moves: np.ndarray, wanted: Demands) -> list[int]:
    """moves: bool[op], of DMA channels. As many products count as a byte as the program has for each byte that it moves."""
    count = len(moves)
    products, written = wanted.macs[:count], wanted.write_bytes[:, :count].sum(axis=0)
    moved = np.where(moves, np.maximum(written, wanted.read_bytes[:, :count].sum(axis=0)), written)
    pace = int(moved[moves].sum()) / max(1, int(products.sum()))
    sizes = np.where(products > 0, products * pace, moved)
    return (_STEPS * np.sqrt(sizes)).astype(np.int64).tolist()


def _nominal_begins(ops: Sequence[MachineOp], order: RunOrder, durations: Sequence[int]) -> list[int]:
    """When each operation begins that is dispatched as soon as nothing stalls the front end; a Wait when its Signal has run."""
    begun, ends, free = [0] * len(durations), [0] * len(durations), [0] * len(order.names)
    engine, taken = order.engine, order.taken
    stalls: list[int] = []  # those that have run, as they are dispatched
    behind: list[int] = [0]  # when the front end goes on with none of them before it, with one, with two
    for number in order.legal:
        queue = engine[number]
        begin = max(free[queue], behind[bisect_left(stalls, number)]) if stalls else free[queue]
        if number in taken and ends[taken[number]] > begin:
            begin = ends[taken[number]]
        begun[number] = begin
        ends[number] = free[queue] = begin + durations[number]
        if ops[number].STALLS:
            stalls.append(number)
            behind.append(ends[number])
    return begun


def _dispatchable(ops: Sequence[MachineOp], order: RunOrder, begun: Sequence[int]) -> list[int]:
    """The operations by `begun`, each behind all that must be over before it is dispatched, before its queue and its Signal."""
    count, engine, taken, depths = len(begun), order.engine, order.taken, order.least_depths
    found: list[int] = []
    queues: list[deque[int]] = [deque() for _ in depths]
    done = bytearray(count)
    ready: list[tuple[int, int]] = []  # heads of queues that come after nothing more, the next one first
    kept: dict[int, int] = {}  # by Signal the Wait at the head of a queue that takes it
    front, stalled = 0, -1

    def consider(head: int) -> None:
        signal = taken.get(head, -1)
        if signal < 0 or done[signal]:
            heappush(ready, (begun[head], head))
        else:
            kept[signal] = head

    while len(found) < count:
        while front < count and (stalled < 0 or done[stalled]):
            queue = queues[engine[front]]
            if len(queue) > depths[engine[front]]:
                break
            queue.append(front)
            if len(queue) == 1:
                consider(front)
            stalled = front if ops[front].STALLS else -1
            front += 1
        _, best = heappop(ready)
        done[best] = True
        found.append(best)
        queue = queues[engine[best]]
        queue.popleft()
        if queue:
            consider(queue[0])
        if best in kept:
            consider(kept.pop(best))
    return found
