"""A program as its front end dispatches it: repeats and calls written out, base registers added to addresses.

Everything behind the front end (order, checks, timeline, values, reports) works on this sequence; its index is the index of
an operation there. `name` says which operation of the program that is, and which iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.input_limits import DISPATCHED_OPERATIONS
from toolchain.machine.access import Access
from toolchain.machine.front_end import FrontEnd, MemoryIndex
from toolchain.machine.operation import MachineOp, accesses
from toolchain.machine.operations.control import ControlOp
from toolchain.machine.operations.load_base import LoadBase

Iterations = tuple[tuple[int, int], ...]
Calls = tuple[tuple[int, int], ...]


class InstructionStream(tuple[MachineOp, ...]):
    """The operations in the order of their dispatch, with plain addresses.

    words: that the front end reads before each can start. sources: the index in the program of each. iterations: (iteration,
    count) of each open repeat, the outermost first. indirect: by operation its addresses, parameters, to which numbers from
    memory are added; the operations here have 0 in their place. calls: (call, begin of its block) of each open call, as
    operations of the program.
    """

    words: Sequence[int]
    sources: Sequence[int]
    iterations: Sequence[Iterations]
    indirect: Mapping[int, Mapping[str, tuple[MemoryIndex, ...]]]
    calls: Sequence[Calls]

    def name(self, index: int) -> str:
        """`op 12`; `op 12, iteration 3 of 8` (the outermost repeat first); `op 12, called by op 80`."""
        return _name(self.sources[index], self.iterations[index], self.calls[index])

    def round(self, index: int) -> int:
        """The iteration of the outermost repeat, from 0; 0 outside of repeats."""
        found = self.iterations[index]
        return found[0][0] if found else 0


def op_number(ops: Sequence[MachineOp], index: int) -> str:
    """How messages number an operation: of a program that is no Flow `op INDEX`."""
    return ops.name(index) if isinstance(ops, InstructionStream) else f"op {index}"


def accesses_at(ops: Sequence[MachineOp], index: int, chip: Chip) -> tuple[Access, ...]:
    """Every byte range that an operation may touch, reads first. An address read from memory makes a range a box of all that
    it can be."""
    op = ops[index]
    found = accesses(op, chip)
    indirect = ops.indirect.get(index) if isinstance(ops, InstructionStream) else None
    if not indirect:
        return found
    for address, numbers in indirect.items():
        beside = accesses(replace(op, **{address: getattr(op, address) + 1}), chip)
        found = tuple(anywhere(a, numbers) if a.address != b.address else a for a, b in zip(found, beside))
    return found


def anywhere(access: Access, numbers: Sequence[MemoryIndex]) -> Access:
    """The bytes that it may touch whatever these numbers are: where its places meet, all that lies between the first byte and the
    last."""
    several = [n for n in numbers if n.limit and n.scale]
    if not several:
        return access
    counts, strides = tuple(n.limit + 1 for n in several), tuple(n.scale for n in several)
    box = replace(access, counts=(*counts, *access.counts), strides=(*strides, *access.strides), exact=False)
    span = box.end - box.address
    return box if box.bytes <= span else replace(box, counts=(), strides=(), inner_bytes=span)


def resolve_addresses(flow: InstructionStream, index: int, numbers: Mapping[int, int]) -> MachineOp:
    """The operation with the addresses of one run. numbers: what each operation that read one has read, within its limit."""
    op, indirect = flow[index], flow.indirect.get(index)
    if not indirect:
        return op
    return replace(
        op,
        **{address: getattr(op, address) + sum(n.scale * numbers[n.load] for n in found) for address, found in indirect.items()},
    )


def dispatch_program(
    chip: Chip, ops: Sequence[MachineOp], words: Sequence[int] | None = None, bases: Mapping[int, int] | None = None
) -> InstructionStream:
    """words: of each operation of the program (None: one each). bases: what base registers hold at its start (None: 0).
    Raises ProgramError for a front end that cannot go on, a repeat or block that stays open, and more operations than
    `DISPATCHED_OPERATIONS`.
    """
    if isinstance(ops, InstructionStream):
        return ops
    words = [1] * len(ops) if words is None else words
    if not bases and not any(isinstance(op, ControlOp | LoadBase) for op in ops):
        return _flow(ops, words, range(len(ops)), [()] * len(ops), {}, [()] * len(ops))
    return _Dispatch(chip, ops, words, bases or {}).run()


def _flow(
    ops: Sequence[MachineOp],
    words: Sequence[int],
    sources: Sequence[int],
    iterations: Sequence[Iterations],
    indirect: Mapping[int, Mapping[str, tuple[MemoryIndex, ...]]],
    calls: Sequence[Calls],
) -> InstructionStream:
    found = InstructionStream(ops)
    found.words, found.sources, found.iterations, found.indirect, found.calls = words, sources, iterations, indirect, calls
    return found


class _Dispatch:
    def __init__(self, chip: Chip, ops: Sequence[MachineOp], words: Sequence[int], bases: Mapping[int, int]):
        self.program, self.words = ops, words
        before = [0]
        for n in words:
            before.append(before[-1] + n)
        self.front = FrontEnd(chip.control, before, set_by_host=bases)
        self.resolved: dict[tuple[int, ...], MachineOp] = {}

    def run(self) -> InstructionStream:
        front, program = self.front, self.program
        ops: list[MachineOp] = []
        words: list[int] = []
        sources: list[int] = []
        iterations: list[Iterations] = []
        indirect: dict[int, Mapping[str, tuple[MemoryIndex, ...]]] = {}
        calls: list[Calls] = []
        fetched = steps = 0
        inside: Iterations = ()
        called: Calls = ()
        while front.next < len(program):
            front.at = at = front.next
            front.next, steps = at + 1, steps + 1
            if steps > DISPATCHED_OPERATIONS:
                raise ProgramError(f"op {at} {program[at].NAME}: the program runs more than {DISPATCHED_OPERATIONS:,} operations")
            op = program[at]
            fetched += 0 if front.buffered else self.words[at]
            if isinstance(op, ControlOp):
                self._steered(op, lambda op=op: op.steer(front), inside)
                inside, called = front.iterations(), front.calls()
                continue
            numbers = self._numbers(op)
            if numbers:
                indirect[len(ops)] = numbers
            ops.append(self._resolved(at, op))
            if isinstance(op, LoadBase):
                self._steered(op, lambda op=op: op.steer(front, len(ops) - 1), inside)
            words.append(fetched)
            sources.append(at)
            iterations.append(inside)
            calls.append(called)
            fetched = 0
        if front.open:
            frame = front.open[-1]
            raise ProgramError(f"op {frame.first - 1}: the {frame.opened_by} is not ended before the program is")
        return _flow(ops, words, sources, iterations, indirect, calls)

    def _steered(self, op: MachineOp, steer: Callable[[], None], inside: Iterations) -> None:
        try:
            steer()
        except ValueError as fault:
            raise ProgramError(f"{_name(self.front.at, inside)} {op.NAME}: {fault}") from None

    def _numbers(self, op: MachineOp) -> dict[str, tuple[MemoryIndex, ...]]:
        """What is added to its addresses that is read from memory."""
        known = self.front.indices
        named = ((address, getattr(op, base)) for base, address in op.based())
        return {address: known[n] for address, n in named if 0 <= n < len(known) and known[n]}

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


def _name(at: int, inside: Iterations, called: Calls = ()) -> str:
    rounds = (f", iteration {i + 1} of {n}" for i, n in inside)
    return "".join((f"op {at}", *rounds, *(f", called by op {call}" for call, _ in called)))
