"""Compute the order in which memories serve the operations of a program: fixed by the program, whatever runs it.

`service_order` is the entry, for `simulator.timeline`. A fixed order keeps a faster machine from running a program slower.
Operations are served in the order in which they would begin on a nominal machine with unlimited queues.
There an operation lasts as long as the square root of its products, or of its bytes where it has none.
No property of a machine enters.
On a real machine the time of an operation grows by less than its size.
Of the forms tried (sizes at several paces, logarithms, one) square roots gave the fewest cycles.
The front end of a real machine stops at full queues.
Each operation is therefore delayed until it could be dispatched with the least queues on which the program
runs.
Machines with deeper queues can run that order, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.program_order import RunOrder
from toolchain.machine import MachineOp
from toolchain.machine.demand_columns import Demands

Array = NDArray[Any]
_STEPS = 16  # of nominal time, so that rounding weighs little


def service_order(ops: Sequence[MachineOp], order: RunOrder, op_demands: Demands) -> list[int]:
    """Return the indices of all operations that have a queue, in the order of service; every machine that runs the program can
    run it.

    `ops`: the dispatched operations in program order, of which only the last, End, has no queue. `order`: of
    `program_order`. `op_demands`: bytes and products of each operation.
    """
    units = order.chip.units
    moves = np.array([units[q].kind == "dma" for q in order.engine[: len(order.legal)]], bool)
    return _dispatchable(ops, order, _nominal_begins(ops, order, _nominal_durations(moves, op_demands)))


def _nominal_durations(moves: np.ndarray, op_demands: Demands) -> list[int]:
    """Return the nominal duration of each operation, in nominal steps.

    Products are converted to bytes by the program's ratio of moved bytes to products.
    `moves`: bool[op], whether the operation is of a DMA channel.
    """
    count = len(moves)
    products = op_demands.macs[:count]
    written: Array = op_demands.write_bytes[:, :count].sum(axis=0)
    read: Array = op_demands.read_bytes[:, :count].sum(axis=0)
    moved = np.where(moves, np.maximum(written, read), written)
    pace = int(moved[moves].sum()) / max(1, int(products.sum()))
    sizes = np.where(products > 0, products * pace, moved)
    return (_STEPS * np.sqrt(sizes)).astype(np.int64).tolist()


def _nominal_begins(ops: Sequence[MachineOp], order: RunOrder, durations: Sequence[int]) -> list[int]:
    """Return when each operation begins if it is dispatched as soon as nothing stalls the front end.

    A Wait begins when its Signal has run.
    """
    begins, ends, free = [0] * len(durations), [0] * len(durations), [0] * len(order.names)
    engine, signal_by_wait = order.engine, order.signal_by_wait
    stalls: list[int] = []  # those that have run, as they are dispatched
    resume_times: list[int] = [0]  # when the front end goes on with none of them before it, with one, with two
    for number in order.legal:
        queue = engine[number]
        begin = max(free[queue], resume_times[bisect_left(stalls, number)]) if stalls else free[queue]
        if number in signal_by_wait and ends[signal_by_wait[number]] > begin:
            begin = ends[signal_by_wait[number]]
        begins[number] = begin
        ends[number] = free[queue] = begin + durations[number]
        if ops[number].STALLS:
            stalls.append(number)
            resume_times.append(ends[number])
    return begins


def _dispatchable(ops: Sequence[MachineOp], order: RunOrder, begins: Sequence[int]) -> list[int]:
    """Return the operations by rising `begins`, each behind all that must come before it.

    That is what must be over before it is dispatched, the one before it in its queue, and its Signal.
    """
    count, engine, signal_by_wait, depths = len(begins), order.engine, order.signal_by_wait, order.least_depths
    service_sequence: list[int] = []
    queues: list[deque[int]] = [deque() for _ in depths]
    done = bytearray(count)
    ready: list[tuple[int, int]] = []  # heads of queues that come after nothing more, the next one first
    wait_by_signal: dict[int, int] = {}  # by Signal the Wait at the head of a queue that takes it
    front, stalled = 0, -1

    def consider(head: int) -> None:
        signal = signal_by_wait.get(head, -1)
        if signal < 0 or done[signal]:
            heappush(ready, (begins[head], head))
        else:
            wait_by_signal[signal] = head

    for _ in range(count):
        while front < count and (stalled < 0 or done[stalled]):
            number = engine[front]
            queue = queues[number]
            if len(queue) > depths[number]:
                break
            queue.append(front)
            if len(queue) == 1:
                consider(front)
            stalled = front if ops[front].STALLS else -1
            front += 1
        _, best = heappop(ready)
        done[best] = True
        service_sequence.append(best)
        queue = queues[engine[best]]
        queue.popleft()
        if queue:
            consider(queue[0])
        if best in wait_by_signal:
            consider(wait_by_signal.pop(best))
    return service_sequence
