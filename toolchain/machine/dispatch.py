"""Expand a program as its front end dispatches it: repeats and calls are written out, base registers are added to
addresses.

Everything after the front end (order, checks, timing, values, reports) works on this sequence, and an operation's index
is its index here. `InstructionStream.name` says which operation of the program that is, and of which iteration.
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
    """The dispatched operations in order, with plain addresses.

    `words`: instruction words that the front end reads before each can start. `sources`: index of each in the program.
    `iterations`: for each, (iteration, count) of the open repeats, the outermost first. `indirect`: by index, the
    address parameters to which numbers from memory are added. The addresses here count as if these numbers were 0.
    `calls`: for each, (call, begin of its block) of the open calls, as indices in the program.
    """

    words: Sequence[int]
    sources: Sequence[int]
    iterations: Sequence[Iterations]
    indirect: Mapping[int, Mapping[str, tuple[MemoryIndex, ...]]]
    calls: Sequence[Calls]

    def name(self, index: int) -> str:
        """Return the text for messages, such as `op 12`, `op 12, iteration 3 of 8` or `op 12, called by op 80`."""
        return _name(self.sources[index], self.iterations[index], self.calls[index])

    def round(self, index: int) -> int:
        """Return the iteration of the outermost open repeat, counted from 0; 0 outside of repeats."""
        open_iterations = self.iterations[index]
        return open_iterations[0][0] if open_iterations else 0


def op_number(ops: Sequence[MachineOp], index: int) -> str:
    """Return the text that names an operation in messages. A sequence that is no InstructionStream gives `op INDEX`."""
    return ops.name(index) if isinstance(ops, InstructionStream) else f"op {index}"


def accesses_at(ops: Sequence[MachineOp], index: int, chip: Chip) -> tuple[Access, ...]:
    """Return every byte range that the operation at `index` may touch, reads first.

    A range whose address is read from memory becomes one range of all its possible places (`anywhere`).
    """
    op = ops[index]
    op_accesses = accesses(op, chip)
    indirect = ops.indirect.get(index) if isinstance(ops, InstructionStream) else None
    if not indirect:
        return op_accesses
    for address, numbers in indirect.items():
        shifted_accesses = accesses(replace(op, **{address: getattr(op, address) + 1}), chip)
        op_accesses = tuple(anywhere(a, numbers) if a.address != b.address else a for a, b in zip(op_accesses, shifted_accesses))
    return op_accesses


def anywhere(access: Access, numbers: Sequence[MemoryIndex]) -> Access:
    """Return an access to all bytes that this one may touch, whatever the numbers from memory are.

    Where its possible places may overlap, it is all bytes from the first to the last. Without such numbers it is
    unchanged.
    """
    several = [n for n in numbers if n.limit and n.scale]
    if not several:
        return access
    counts, strides = tuple(n.limit + 1 for n in several), tuple(n.scale for n in several)
    box = replace(access, counts=(*counts, *access.counts), strides=(*strides, *access.strides), exact=False)
    span = box.end - box.address
    return box if box.bytes <= span else replace(box, counts=(), strides=(), inner_bytes=span)


def resolve_addresses(flow: InstructionStream, index: int, numbers: Mapping[int, int]) -> MachineOp:
    """Return the operation at `index` with the addresses that it has in one run.

    `numbers`: the number read in this run, clamped to its limit, by index of the operation that reads it.
    """
    op, indirect = flow[index], flow.indirect.get(index)
    if not indirect:
        return op
    return replace(
        op,
        **{
            address: getattr(op, address) + sum(n.scale * numbers[n.load] for n in numbers_read)
            for address, numbers_read in indirect.items()
        },
    )


def dispatch_program(
    chip: Chip, ops: Sequence[MachineOp], words: Sequence[int] | None = None, bases: Mapping[int, int] | None = None
) -> InstructionStream:
    """Return the operations of a program in the order of dispatch. An InstructionStream is returned as it is.

    `words`: instruction words of each operation of the program; None: one each. `bases`: values of base registers at
    its start, by number; None: 0.

    Raise ProgramError where the front end cannot carry an operation out, where a repeat or block stays open, and for
    more than DISPATCHED_OPERATIONS.
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
    """Return the operations as a stream with these columns."""
    stream = InstructionStream(ops)
    stream.words, stream.sources, stream.iterations, stream.indirect, stream.calls = words, sources, iterations, indirect, calls
    return stream


class _Dispatch:
    """A run of a program's front end."""

    def __init__(self, chip: Chip, ops: Sequence[MachineOp], words: Sequence[int], bases: Mapping[int, int]):
        self.program, self.words = ops, words
        before = [0]
        for n in words:
            before.append(before[-1] + n)
        self.front = FrontEnd(chip.control, before, set_by_host=bases)
        self.resolved: dict[tuple[int, ...], MachineOp] = {}

    def run(self) -> InstructionStream:
        """Return the dispatched operations. Raise ProgramError where the front end cannot go on."""
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
                self._steer(op, lambda op=op: op.steer(front), inside)
                inside, called = front.iterations(), front.calls()
                continue
            numbers = self._numbers(op)
            if numbers:
                indirect[len(ops)] = numbers
            ops.append(self._resolve_bases(at, op))
            if isinstance(op, LoadBase):
                self._steer(op, lambda op=op: op.steer(front, len(ops) - 1), inside)
            words.append(fetched)
            sources.append(at)
            iterations.append(inside)
            calls.append(called)
            fetched = 0
        if front.open:
            frame = front.open[-1]
            raise ProgramError(f"op {frame.first - 1}: the {frame.opened_by} is not ended before the program is")
        return _flow(ops, words, sources, iterations, indirect, calls)

    def _steer(self, op: MachineOp, steer: Callable[[], None], inside: Iterations) -> None:
        """Carry a control operation out. Raise ProgramError that names it where the front end refuses."""
        try:
            steer()
        except ValueError as fault:
            raise ProgramError(f"{_name(self.front.at, inside)} {op.NAME}: {fault}") from None

    def _numbers(self, op: MachineOp) -> dict[str, tuple[MemoryIndex, ...]]:
        """Return the numbers from memory that are added to each address of the operation."""
        indices = self.front.indices
        named = ((address, getattr(op, base)) for base, address in op.pair_bases_with_addresses())
        return {address: indices[n] for address, n in named if 0 <= n < len(indices) and indices[n]}

    def _resolve_bases(self, at: int, op: MachineOp) -> MachineOp:
        """Return the operation with bases added to its addresses. The names of the bases stay visible."""
        bases = self.front.bases
        named = [(getattr(op, base), address) for base, address in op.pair_bases_with_addresses()]
        values: list[int] = [bases[n] if 0 <= n < len(bases) else 0 for n, _ in named]
        if not any(values):
            return op
        key = (at, *values)
        if key not in self.resolved:
            moved = {address: getattr(op, address) + value for (_, address), value in zip(named, values)}
            self.resolved[key] = replace(op, **moved)
        return self.resolved[key]


def _name(at: int, inside: Iterations, called: Calls = ()) -> str:
    """Return the text that names an operation of the program, with its iterations and calls."""
    rounds = (f", iteration {i + 1} of {n}" for i, n in inside)
    return "".join((f"op {at}", *rounds, *(f", called by op {call}" for call, _ in called)))
