"""A program as its front end dispatches it: repeats and calls written out, base registers added to addresses.

Everything behind the front end (order, checks, timeline, values, reports) works on this sequence; its index is the index of
an operation there. `name` says which operation of the program that is, and which iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolchain.bounds import DISPATCHED_OPERATIONS
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.operation import MachineOp
from toolchain.machine.operations.control import ControlOp

Iterations = tuple[tuple[int, int], ...]


class Flow(tuple[MachineOp, ...]):
    """The operations in the order of their dispatch, with plain addresses.

    words: that the front end reads before each can start. sources: the index in the program of each. iterations: (iteration,
    count) of each open repeat, the outermost first.
    """

    words: Sequence[int]
    sources: Sequence[int]
    iterations: Sequence[Iterations]

    def name(self, index: int) -> str:
        """`op 12`, or `op 12, iteration 3 of 8` (the outermost repeat first)."""
        return _name(self.sources[index], self.iterations[index])

    def round(self, index: int) -> int:
        """The iteration of the outermost repeat, from 0; 0 outside of repeats."""
        found = self.iterations[index]
        return found[0][0] if found else 0


def op_number(ops: Sequence[MachineOp], index: int) -> str:
    """How messages number an operation: of a program that is no Flow `op INDEX`."""
    return ops.name(index) if isinstance(ops, Flow) else f"op {index}"


def dispatched(
    chip: Chip, ops: Sequence[MachineOp], words: Sequence[int] | None = None, bases: Mapping[int, int] | None = None
) -> Flow:
    """words: of each operation of the program (None: one each). bases: what base registers hold at its start (None: 0).
    Raises ProgramError for a front end that cannot go on, a repeat or block that stays open, and more operations than
    `DISPATCHED_OPERATIONS`.
    """
    if isinstance(ops, Flow):
        return ops
    words = [1] * len(ops) if words is None else words
    if not bases and not any(isinstance(op, ControlOp) for op in ops):
        return _flow(ops, words, range(len(ops)), [()] * len(ops))
    return _Dispatch(chip, ops, words, bases or {}).run()


def _flow(ops: Sequence[MachineOp], words: Sequence[int], sources: Sequence[int], iterations: Sequence[Iterations]) -> Flow:
    found = Flow(ops)
    found.words, found.sources, found.iterations = words, sources, iterations
    return found


class _Dispatch:
    def __init__(self, chip: Chip, ops: Sequence[MachineOp], words: Sequence[int], bases: Mapping[int, int]):
        self.program, self.words = ops, words
        before = [0]
        for n in words:
            before.append(before[-1] + n)
        self.front = FrontEnd(chip.control, before, set_by_host=bases)
        self.resolved: dict[tuple[int, ...], MachineOp] = {}

    def run(self) -> Flow:
        front, program = self.front, self.program
        ops: list[MachineOp] = []
        words: list[int] = []
        sources: list[int] = []
        iterations: list[Iterations] = []
        fetched = steps = 0
        inside: Iterations = ()
        while front.next < len(program):
            front.at = at = front.next
            front.next, steps = at + 1, steps + 1
            if steps > DISPATCHED_OPERATIONS:
                raise ProgramError(f"op {at} {program[at].NAME}: the program runs more than {DISPATCHED_OPERATIONS:,} operations")
            op = program[at]
            fetched += 0 if front.buffered else self.words[at]
            if isinstance(op, ControlOp):
                try:
                    op.steer(front)
                except ValueError as fault:
                    raise ProgramError(f"{_name(at, inside)} {op.NAME}: {fault}") from None
                inside = front.iterations()
                continue
            ops.append(self._resolved(at, op))
            words.append(fetched)
            sources.append(at)
            iterations.append(inside)
            fetched = 0
        if front.open:
            frame = front.open[-1]
            raise ProgramError(f"op {frame.first - 1}: the {frame.opened_by} is not ended before the program is")
        return _flow(ops, words, sources, iterations)

    def _resolved(self, at: int, op: MachineOp) -> MachineOp:
        """With bases added to its addresses; which bases it named stays to be seen."""
        bases = self.front.bases
        named = [(getattr(op, base), address) for base, address in op.based()]
        values: list[int] = [bases[n] if 0 <= n < len(bases) else 0 for n, _ in named]
        if not any(values):
            return op
        key = (at, *values)
        if key not in self.resolved:
            moved = {address: getattr(op, address) + value for (_, address), value in zip(named, values)}
            self.resolved[key] = replace(op, **moved)
        return self.resolved[key]


def _name(at: int, inside: Iterations) -> str:
    return "".join((f"op {at}", *(f", iteration {i + 1} of {n}" for i, n in inside)))
