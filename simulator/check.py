"""Refuses a program that breaks a rule of the machine: every fault is a ProgramError that names the operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.capability import AccumulatorState, broken_capability
from simulator.hazards import Hazards, Written
from simulator.order import Order, describe
from simulator.overlap import dense_block, overlap, range_text, repeats_itself
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.isa.accesses import Access
from toolchain.isa.operations import MachineOp, Signal, Space, Wait

Progress = Callable[[str, int, int], None]  # stage, done, total
PROGRESS_EVERY = 512


def check_semaphores(ops: Sequence[MachineOp], order: Order) -> None:
    """Each semaphore has one signalling and one waiting engine, and ends at zero: the next run starts from it."""
    signalled: dict[int, list[int]] = {}
    waited: dict[int, list[int]] = {}
    for index, op in enumerate(ops):
        if isinstance(op, Signal):
            _one_engine(signalled.setdefault(op.semaphore, []), index, "signalled", ops, order)
        elif isinstance(op, Wait):
            _one_engine(waited.setdefault(op.semaphore, []), index, "waited for", ops, order)
    for semaphore, indexes in sorted(signalled.items()):
        left = len(indexes) - len(waited.get(semaphore, ()))
        if left > 0:
            raise ProgramError(
                f"{describe(indexes[-1], ops[indexes[-1]], order.names)}: the semaphore is signalled {len(indexes)} times and "
                f"waited for {len(indexes) - left} times; it must end at 0, the next run starts from it"
            )


def _one_engine(indexes: list[int], index: int, what: str, ops: Sequence[MachineOp], order: Order) -> None:
    if indexes and order.engine[indexes[0]] != order.engine[index]:
        raise ProgramError(
            f"{describe(index, ops[index], order.names)}: the semaphore is {what} on {order.names[order.engine[indexes[0]]]} too "
            f"(op {indexes[0]}), so which Wait takes which Signal depends on timing; use a semaphore for each pair of engines"
        )
    indexes.append(index)


def check_addresses(index: int, op: MachineOp, found: Sequence[Access], sizes: Sequence[int], names: Sequence[str]) -> None:
    """Accesses inside their memory; what an operation writes neither overlaps itself nor what the operation reads.

    In place is allowed: a write of exactly the bytes, in exactly the shape, of a read that goes element by element.
    """
    for access in found:
        if access.address < 0 or min(access.strides, default=0) < 0:
            raise ProgramError(
                f"{describe(index, op, names)}: address {access.address} with strides {access.strides}; none may be negative"
            )
        size = sizes[access.space]
        if access.end > size:
            raise ProgramError(
                f"{describe(index, op, names)} {'writes' if access.write else 'reads'} {range_text(access)}, "
                f"outside {access.space.name.lower()} of {size:#x} bytes"
            )
    if not found or not found[-1].write:
        return
    write = found[-1]
    if repeats_itself(write):
        raise ProgramError(f"{describe(index, op, names)} writes {range_text(write)}: its elements overlap one another")
    for read in found[:-1]:
        if read.space != write.space or read.end <= write.address or write.end <= read.address:
            continue
        if not _in_place(op, read, write) and overlap(read, write):
            raise ProgramError(f"{describe(index, op, names)} writes {range_text(write)} over {range_text(read)}, which it reads")


def _in_place(op: MachineOp, read: Access, write: Access) -> bool:
    if dense_block(read) != dense_block(write):
        return False
    if op.NAME == "convolution":  # the addend is read where the output is written; the input is read by windows
        return getattr(op, "use_add", 0) == 1 and read.address == getattr(op, "addend_address", -1)
    return op.NAME in ("elementwise", "table")


def check_program(
    chip: Chip,
    ops: Sequence[MachineOp],
    order: Order,
    touched: Sequence[Sequence[Access]],
    sizes: Sequence[int],
    written: Sequence[tuple[int, int]],
    progress: Progress | None = None,
) -> None:
    """Every rule. touched: `accesses` of each operation; sizes: bytes of dram and sram; written: initialised dram ranges."""
    check_semaphores(ops, order)
    names = order.names
    hazards = Hazards(ops, order, chip.sync.max_count)
    memories = (Written(sizes[Space.DRAM], written), Written(sizes[Space.SRAM]))
    accumulators = AccumulatorState()
    for done, index in enumerate(order.legal):
        op = ops[index]
        if isinstance(op, Signal | Wait):
            hazards.synchronise(index)
            continue
        fault = broken_capability(op, chip) or accumulators.broken(op)
        if fault:
            raise ProgramError(f"{describe(index, op, names)}: {fault}")
        found = touched[index]
        check_addresses(index, op, found, sizes, names)
        for access in found:
            if not access.bytes:
                continue
            low, high = access.address, access.end
            hazards.touch(index, access, low, high)
            if access.write:
                memories[access.space].write(access, low, high)
                continue
            gap = memories[access.space].missing(access, low, high)
            if gap is not None:
                raise ProgramError(
                    f"{describe(index, op, names)} reads {range_text(access)}, but byte {gap:#x} was never written"
                )
        if progress and not done % PROGRESS_EVERY:
            progress("check", done, len(order.legal))
