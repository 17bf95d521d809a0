"""Put the next value of each state where this run read the state, if no byte there is read after it is overwritten.

A state is a tensor that one run leaves in DRAM for the next. While a region is lowered, the next value lies at a
stand-in address behind all memories (`ELSEWHERE`). Then the operations in their final order show whether it can be
written in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from toolchain.codegen.lower import PlacedOp, conflict, place_op
from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.machine import Access, Copy, Fill, MachineOp, Space

ELSEWHERE = 1 << 44  # beyond the DRAM of any machine, and a multiple of every alignment


@dataclass(frozen=True)
class StatePlace:
    """The two addresses of one state's next value, in DRAM.

    `present_tensor`: the chip's tensor that is the next value. `elsewhere`: its stand-in address while the region is
    lowered. `address`: the address of the old value, where it belongs.
    """

    present_tensor: str
    elsewhere: int
    address: int
    size_bytes: int


class StillRead(Exception):
    """Raised where the next values of `present_tensors` would overwrite bytes that are read later.

    The compiler answers it: it makes these values elsewhere and copies them at the end.
    """

    def __init__(self, present_tensors: Sequence[str]):
        super().__init__(", ".join(present_tensors))
        self.present_tensors = tuple(present_tensors)


def write_states_in_place(placed: Sequence[PlacedOp], states: Sequence[StatePlace], chip: Chip) -> Sequence[PlacedOp]:
    """Return the operations with the stand-in addresses replaced by those of the states.

    `placed`: operations in program order. Raise StillRead with every state whose old bytes are read once they are
    overwritten. Raise InternalError where an operation other than a copy or fill reaches a state.
    """
    failing = [state.present_tensor for state in states if _still_read(placed, state)]
    if failing:
        raise StillRead(failing)
    return [_move_to_place(p, states, chip) for p in placed] if states else placed


def _still_read(placed: Sequence[PlacedOp], state: StatePlace) -> bool:
    """Return whether an operation reads bytes of the old value that it or an earlier one overwrites."""
    shift = state.address - state.elsewhere
    reads: list[tuple[int, Access]] = []
    writes: list[tuple[int, Access]] = []
    for index, access in ((i, a) for i, p in enumerate(placed) for a in p.accesses if a.space == Space.DRAM):
        if access.write and _meets(access, state.elsewhere, state.size_bytes):
            writes.append((index, replace(access, address=access.address + shift)))
        elif not access.write and _meets(access, state.address, state.size_bytes):
            reads.append((index, access))
    first = writes[0][0] if writes else len(placed)
    late = [(i, read) for i, read in reads if i >= first]
    return any(conflict(write, read) for i, read in late for j, write in writes if j <= i)


def _meets(access: Access, first: int, size_bytes: int) -> bool:
    """Return whether the access may touch bytes [first, first + size_bytes)."""
    return access.address < first + size_bytes and first < access.end


def _move_to_place(placed: PlacedOp, states: Iterable[StatePlace], chip: Chip) -> PlacedOp:
    """Return the operation with stand-in addresses replaced. Raise InternalError for one that is no copy or fill."""
    if all(a.space != Space.DRAM or a.end <= ELSEWHERE for a in placed.accesses):
        return placed
    op = placed.op
    if not isinstance(op, Copy | Fill):
        raise InternalError(f"{op.NAME} reaches a state in DRAM, which only moves do")

    def place(space: Space, address: int) -> int:
        state = next((s for s in states if s.elsewhere <= address < s.elsewhere + s.size_bytes), None)
        return address if state is None or space != Space.DRAM else address + state.address - state.elsewhere

    changed = {"destination_address": place(op.destination_space, op.destination_address)}
    if isinstance(op, Copy):
        changed["source_address"] = place(op.source_space, op.source_address)
    moved: MachineOp = replace(op, **changed)
    return place_op(moved, placed.layer, placed.row, chip)
