"""Find the structure of a program without times: its queues, the Signal that each Wait takes, an order in which it can run.

`prepare_program` and the checks begin with it. A queue is one engine's or one DMA channel's; operations in it run in order.
An End, which no queue runs, has NO_ENGINE in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import End, MachineOp, Signal, Wait, op_number

NO_ENGINE = -1


@dataclass(frozen=True)
class RunOrder:
    """The structure of one program; operations are indices into it, repeats and calls written out.

    `names`: of the queues, in the order of `chip.units`, for messages.
    `engine`: queue of each operation (NO_ENGINE: End).
    `legal`: every operation but Ends, in an order that can run.
    `signal_by_wait`: the Signal that each Wait takes: the k-th Wait of a semaphore takes its k-th Signal.
    A semaphore has one signalling and one waiting queue, as `check_semaphores` checks; else they count in the order of this run.
    `least_depths`: for each queue the entries without which the program deadlocks, at least 1.
    The depths depend on the program alone.
    """

    chip: Chip
    names: tuple[str, ...]
    engine: list[int]
    legal: list[int]
    signal_by_wait: dict[int, int]
    least_depths: tuple[int, ...]


def issue_cycles(chip: Chip) -> list[int]:
    """Return the cycles each engine takes to begin any operation, in the order of `chip.units`."""
    return [unit.spec.issue_cycles for unit in chip.units]


def describe(index: int, ops: Sequence[MachineOp], chip: Chip) -> str:
    """Return an operation's name for messages: `op 12 convolution (mac)`, in a repeat `op 12, iteration 3 of 8 ...`."""
    op = ops[index]
    engine = op.queue(chip)
    where = "" if engine is None else f" ({chip.units[engine].name})"
    detail = f" semaphore {op.semaphore}" if isinstance(op, Signal | Wait) else ""
    return f"{op_number(ops, index)} {op.NAME}{detail}{where}"


def program_order(chip: Chip, ops: Sequence[MachineOp]) -> RunOrder:
    """Run the queues without times: in-order engines, a front end, counting semaphores.

    The front end stops at a full queue, and at an operation that STALLS until that has ended.
    Whether a program can finish does not depend on times: each Wait takes a fixed Signal, each queue a fixed
    order.
    Raise ProgramError on a deadlock, naming the blocked operations.
    Raise it on engines and semaphores that the machine lacks, and on an End that is not the last operation, too.
    """
    names = tuple(unit.name for unit in chip.units)
    engine = engines_of(chip, ops, names)
    run = _Queues(ops, engine, [unit.spec.queue_depth for unit in chip.units])
    for index, queue in enumerate(engine):
        if queue != NO_ENGINE and not run.dispatch(index, queue):
            raise ProgramError(_deadlock(ops, chip, run.blocked, index))
    if any(head >= 0 for head in run.blocked):
        raise ProgramError(_deadlock(ops, chip, run.blocked, None))
    return RunOrder(chip, names, engine, run.legal, run.signal_by_wait, tuple(run.least))


def engines_of(chip: Chip, ops: Sequence[MachineOp], names: Sequence[str]) -> list[int]:
    """Return the queue of each operation, NO_ENGINE for End. Raise ProgramError as `program_order`, deadlocks aside.

    `names`: of the queues, for messages.
    """
    engine: list[int] = []
    semaphores = chip.sync.semaphores
    for index, op in enumerate(ops):
        if isinstance(op, Signal | Wait) and not 0 <= op.semaphore < semaphores:
            raise ProgramError(
                f"{describe(index, ops, chip)}: the machine has semaphores 0..{semaphores - 1} (sync.semaphores={semaphores})"
            )
        if isinstance(op, End):
            if index != len(ops) - 1:
                raise ProgramError(
                    f"{describe(index, ops, chip)}: {len(ops) - 1 - index} operations follow it; end must be the last"
                )
            engine.append(NO_ENGINE)
            continue
        queue = op.queue(chip)
        if queue is None:
            engine_number = op.engine if isinstance(op, Signal | Wait) else op.number()
            raise ProgramError(
                f"{op_number(ops, index)} {op.NAME}: names engine or channel {engine_number}; the machine has {', '.join(names)}"
            )
        engine.append(queue)
    return engine


class _Queues:
    """A run of the queues without times: `dispatch` each operation in program order.

    Everything that can run has run when an operation is dispatched, so no machine has more waiting entries.
    `blocked`: by queue, the Wait at which it stands, or -1.
    `least`: by queue, the largest number of entries that waited behind one.
    `legal`, `signal_by_wait`: as in `RunOrder`, so far.
    """

    def __init__(self, ops: Sequence[MachineOp], engine: Sequence[int], depths: Sequence[int]):
        self.ops, self.engine, self.depths = ops, engine, depths
        self.queues: list[deque[int]] = [deque() for _ in depths]
        self.blocked, self.least = [-1] * len(depths), [1] * len(depths)
        self.signals: dict[int, deque[int]] = {}
        self.waiting: dict[int, deque[int]] = {}
        self.legal: list[int] = []
        self.signal_by_wait: dict[int, int] = {}

    def dispatch(self, index: int, queue: int) -> bool:
        """Run the operation and all that this frees, or let it wait in its queue.

        Return False for a deadlock: the queue is full for good, or the front end waits for an operation that is blocked.
        """
        if self.blocked[queue] < 0:
            self._run(index, queue)
            return True
        if len(self.queues[queue]) >= self.depths[queue] or self.ops[index].STALLS:
            return False
        self.queues[queue].append(index)
        self.least[queue] = max(self.least[queue], len(self.queues[queue]))
        return True

    def _run(self, index: int, queue: int) -> None:
        """Run an operation on a free queue, and all that this frees."""
        woken = [self._step(index, queue)]
        while woken:
            engine = woken.pop()
            if engine < 0:
                continue
            entries = self.queues[engine]
            while entries and self.blocked[engine] < 0:
                woken.append(self._step(entries.popleft(), engine))

    def _step(self, index: int, queue: int) -> int:
        """Run one operation, or block its queue at a Wait without a Signal. Return the queue that a Signal frees, or -1."""
        op = self.ops[index]
        if isinstance(op, Wait):
            available = self.signals.get(op.semaphore)
            if not available:
                self.blocked[queue] = index
                self.waiting.setdefault(op.semaphore, deque()).append(index)
                return -1
            self.signal_by_wait[index] = available.popleft()
            self.legal.append(index)
            return -1
        self.legal.append(index)
        if not isinstance(op, Signal):
            return -1
        waiters = self.waiting.get(op.semaphore)
        if not waiters:
            self.signals.setdefault(op.semaphore, deque()).append(index)
            return -1
        woken = waiters.popleft()
        self.signal_by_wait[woken] = index
        self.legal.append(woken)
        self.blocked[self.engine[woken]] = -1
        return self.engine[woken]


def _deadlock(ops: Sequence[MachineOp], chip: Chip, blocked: Sequence[int], front: int | None) -> str:
    """Return the message of a deadlock. `front`: the operation that cannot be dispatched; None: all are dispatched."""
    stuck = [describe(i, ops, chip) for i in blocked if i >= 0]
    if front is not None:
        reason = "the front end waits for it" if ops[front].STALLS else "not dispatched: its queue is full"
        stuck.append(f"{describe(front, ops, chip)} ({reason})")
    message = f"deadlock: {'; '.join(stuck)} can never go on; each Wait needs a Signal that runs without it"
    return message + next(
        _find_missing_signal(ops, chip, {op.semaphore for op in (ops[i] for i in blocked if i >= 0) if isinstance(op, Wait)}), ""
    )


def _find_missing_signal(ops: Sequence[MachineOp], chip: Chip, semaphores: set[int]) -> Iterator[str]:
    """Yield sentences that name the place where a Signal may have been left out.

    All Waits after that place take the next one's Signal, and only the last is stuck.
    """
    for semaphore in sorted(semaphores):
        signals = [i for i, op in enumerate(ops) if isinstance(op, Signal) and op.semaphore == semaphore]
        waits = [i for i, op in enumerate(ops) if isinstance(op, Wait) and op.semaphore == semaphore]
        if len(waits) <= len(signals):
            continue
        first = next(w for w, s in zip(waits, [*signals, *waits[len(signals) :]]) if s >= w)
        yield (
            f"; semaphore {semaphore} is signalled {len(signals)} times and waited for {len(waits)} times: "
            f"{describe(first, ops, chip)} is the first without a Signal of its own before it"
        )
