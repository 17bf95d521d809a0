"""Refuse a program that breaks a rule of the machine: every fault is a ProgramError that names the operations.

`check_program` is the entry; `prepare_program` calls it once for a program, before any values. docs/simulator.md lists the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from simulator.accumulators import AccumulatorState
from simulator.dead_stores import DeadStore, DeadStoreMarks
from simulator.dram_ranges import DramRange, ReadOnlyGuard, get_initial_ranges, overwrite_text, unwritten
from simulator.hazards import Hazards, WrittenBytes
from simulator.program_order import RunOrder, describe
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine import (
    Access,
    InstructionStream,
    MachineOp,
    MemoryIndex,
    Signal,
    Space,
    Wait,
    accesses,
    find_unsupported,
    may_be_unsupported,
    op_number,
    overlap,
    overlaps_itself,
    range_text,
)

Progress = Callable[[str, int, int], None]  # stage, done, total
PROGRESS_EVERY = 512


def check_semaphores(ops: Sequence[MachineOp], order: RunOrder) -> None:
    """Check that at most one engine signals each semaphore and at most one waits for it. Raise ProgramError otherwise."""
    signalled: dict[int, list[int]] = {}
    waited: dict[int, list[int]] = {}
    for index, op in enumerate(ops):
        if isinstance(op, Signal):
            _one_engine(signalled.setdefault(op.semaphore, []), index, "signalled", ops, order)
        elif isinstance(op, Wait):
            _one_engine(waited.setdefault(op.semaphore, []), index, "waited for", ops, order)


def check_counts(ops: Sequence[MachineOp], order: RunOrder) -> None:
    """Check that no semaphore is signalled more often than waited for. Raise ProgramError otherwise.

    So each ends at zero, from which the next run starts: a Wait without a Signal never ends.
    This check runs last: a dropped Wait is reported as a race first.
    """
    signalled: dict[int, list[int]] = {}
    for index, op in enumerate(ops):
        if isinstance(op, Signal):
            signalled.setdefault(op.semaphore, []).append(index)
    waits = Counter(op.semaphore for op in ops if isinstance(op, Wait))
    for semaphore, indexes in sorted(signalled.items()):
        waited = waits[semaphore]
        if len(indexes) > waited:
            raise ProgramError(
                f"{describe(indexes[-1], ops, order.chip)}: the semaphore is signalled {len(indexes)} times and "
                f"waited for {waited} times; it must end at 0, the next run starts from it"
            )


def _one_engine(indexes: list[int], index: int, what: str, ops: Sequence[MachineOp], order: RunOrder) -> None:
    """Append `index` to the operations of a semaphore. Raise ProgramError where it is on another engine than they.

    `what`: signalled or waited for, for the message.
    """
    if indexes and order.engine[indexes[0]] != order.engine[index]:
        raise ProgramError(
            f"{describe(index, ops, order.chip)}: the semaphore is {what} on {order.names[order.engine[indexes[0]]]} too "
            f"({op_number(ops, indexes[0])}), so which Wait takes which Signal depends on timing; use a semaphore for each "
            f"pair of engines"
        )
    indexes.append(index)


def check_addresses(
    index: int, ops: Sequence[MachineOp], op_accesses: Sequence[Access], sizes: Sequence[int], chip: Chip
) -> None:
    """Check that an operation's accesses lie inside their memories and do not collide. Raise ProgramError otherwise.

    What it writes may neither overlap itself nor what the operation reads.
    In place is allowed: a write of exactly the bytes, in exactly the shape, of a read that goes element by element.
    `op_accesses`: the operation's reads, then at most one write. `sizes`: bytes of each memory.
    """
    for access in op_accesses:
        if access.address < 0 or (access.strides and min(access.strides) < 0):
            raise ProgramError(
                f"{describe(index, ops, chip)}: address {access.address} with strides {access.strides}; none may be negative"
            )
        size = sizes[access.space]
        if access.end > size:
            raise ProgramError(
                f"{describe(index, ops, chip)} {'writes' if access.write else 'reads'} {range_text(access)}, "
                f"outside {Space(access.space).name.lower()} of {size:#x} bytes{_explain_loaded_addresses(index, ops)}"
            )
    if not op_accesses or not op_accesses[-1].write:
        return
    write = op_accesses[-1]
    exact_write = write if write.exact else accesses(ops[index], chip)[-1]
    if overlaps_itself(exact_write):
        raise ProgramError(f"{describe(index, ops, chip)} writes {range_text(write)}: its elements overlap one another")
    for read in op_accesses[:-1]:
        if read.space != write.space or read.end <= write.address or write.end <= read.address:
            continue
        in_place = read.in_step and read.block == write.block
        if not in_place and overlap(read, write):
            raise ProgramError(f"{describe(index, ops, chip)} writes {range_text(write)} over {range_text(read)}, which it reads")


def _explain_loaded_addresses(index: int, ops: Sequence[MachineOp]) -> str:
    """Return which operations read this one's address from memory, for a message; "" where none does.

    The ranges that are checked cover every address that may be read.
    """
    numbers: Mapping[str, tuple[MemoryIndex, ...]] = ops.indirect.get(index, {}) if isinstance(ops, InstructionStream) else {}
    loads = sorted({n.load: n.limit for number_lists in numbers.values() for n in number_lists}.items())
    read_ops = " and ".join(f"{op_number(ops, load)} ({ops[load].NAME}) reads, 0 to {limit}," for load, limit in loads)
    return f", with the number that {read_ops} at its largest or smallest" if loads else ""


def check_program(
    chip: Chip,
    ops: Sequence[MachineOp],
    order: RunOrder,
    touched: Sequence[Sequence[Access]],
    dram_bytes: int,
    written: Sequence[tuple[int, int]],
    parts: Sequence[DramRange] = (),
    initialized_memories: Collection[str] = (),
    progress: Progress | None = None,
) -> tuple[DeadStore, ...]:
    """Check every rule and return the dead stores, which are none of them. Raise ProgramError at the first broken rule.

    `ops`: with repeats and calls written out. `order`: of `program_order`.
    `touched`: `accesses` of each operation.
    `written`: DRAM ranges [first, last) that hold data and may be overwritten. `parts`: those of the program's tensors.
    Outputs among them must be written completely; constants, inputs and foreign memory may not be written.
    `initialized_memories`: names of other memories that hold data at the start.
    `progress`: called as (stage, done, total); None: nobody is told.
    """
    check_semaphores(ops, order)
    sizes = [dram_bytes, *(s.memory.size for s in chip.spaces[1:])]
    checks = _Checks(chip, ops, order, touched, sizes, written, parts, initialized_memories)
    for done, index in enumerate(order.legal):
        checks.step(index)
        if progress and not done % PROGRESS_EVERY:
            progress("check", done, len(order.legal))
    check_counts(ops, order)
    for fault in unwritten(parts, checks.memories[Space.DRAM].map):
        raise ProgramError(fault)
    return checks.unread.list_dead_stores()


class _Checks:
    """The rules that hold for each operation, checked one operation after another in an order that can run."""

    def __init__(
        self,
        chip: Chip,
        ops: Sequence[MachineOp],
        order: RunOrder,
        touched: Sequence[Sequence[Access]],
        sizes: Sequence[int],
        written: Sequence[tuple[int, int]],
        parts: Sequence[DramRange],
        initialized_memories: Collection[str],
    ):
        self.chip, self.ops, self.order, self.touched, self.sizes = chip, ops, order, touched, sizes
        self.hazards = Hazards(ops, order, chip.sync.max_count, len(sizes))
        initial_ranges = [[(0, s.memory.size)] if s.name in initialized_memories else [] for s in chip.spaces[1:]]
        others = (WrittenBytes(size, ranges) for size, ranges in zip(sizes[1:], initial_ranges))
        self.memories = (WrittenBytes(sizes[Space.DRAM], [*written, *get_initial_ranges(parts)]), *others)
        self.read_only_guard, self.unread = (
            ReadOnlyGuard(parts),
            DeadStoreMarks(ops, touched, sizes, parts, chip.layout.parameters.alignment_bytes),
        )
        working = [i for i, op in enumerate(ops) if not isinstance(op, Signal | Wait)]
        self.suspects = dict(zip(working, may_be_unsupported([ops[i] for i in working], chip).tolist()))
        self.accumulators = {u.queue: AccumulatorState() for u in chip.of_kind("mac_array") if SUMS not in u.roles}

    def step(self, index: int) -> None:
        """Check one operation and record what it does. Raise ProgramError where it breaks a rule."""
        op = self.ops[index]
        self.hazards.begin(index)
        if isinstance(op, Signal | Wait):
            self.hazards.synchronise(index)
            return
        broken = find_unsupported(op, self.chip) if self.suspects[index] else next(op.broken(self.chip), None)
        fault = broken or self._accumulators(index, op)
        if fault:
            raise ProgramError(f"{self._name(index)}: {fault}")
        op_accesses = self.touched[index]
        check_addresses(index, self.ops, op_accesses, self.sizes, self.chip)
        for access in op_accesses:
            self.hazards.touch(index, access, access.address, access.end)
            if access.write:
                self._write(index, access)
            else:
                self._read(index, access)
        if op.STALLS:
            self.hazards.stall(index)

    def _write(self, index: int, access: Access) -> None:
        """Record a write. Raise ProgramError where it overwrites what the program only reads."""
        part = self.read_only_guard.overwritten(access)
        if part is not None:
            raise ProgramError(f"{self._name(index)} {overwrite_text(access, part)}")
        if access.exact:  # of a box nobody knows which bytes are written
            self.memories[access.space].write(access, access.address, access.end)
            self.unread.write(index, access)

    def _read(self, index: int, access: Access) -> None:
        """Record a read. Raise ProgramError where a byte of it was never written."""
        gap = self.memories[access.space].missing(access, access.address, access.end)
        if gap is None:
            self.unread.read(access)
            return
        fault = (
            f"{self._name(index)} reads {range_text(access)}, but byte {gap:#x} was never "
            f"written{_explain_loaded_addresses(index, self.ops)}"
        )
        byte = Access(access.space, gap, (), (), 1, False)
        for other, other_accesses in enumerate(self.touched[:index]):
            if any(a.write and a.space == byte.space and overlap(a, byte) for a in other_accesses):
                fault += f"; {self._name(other)} writes it and is not ordered before: it needs a Signal behind it, this a Wait"
                break
        raise ProgramError(fault)

    def _accumulators(self, index: int, op: MachineOp) -> str | None:
        """Return why an array that keeps its sums to itself cannot add to them, or None."""
        accumulator_state = self.accumulators.get(self.order.engine[index])
        return None if accumulator_state is None else accumulator_state.broken(op)

    def _name(self, index: int) -> str:
        return describe(index, self.ops, self.order.chip)
