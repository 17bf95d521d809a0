"""Define what the placement search takes and gives: buffers, plans, and the two refusals.

A buffer's lifetime is its live range: the steps from the first that writes it to the last that reads it. Liveness itself is
found by the caller (`toolchain/schedule/allocation.py`). Steps are whole numbers on the caller's scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MOST = 1 << 60  # of steps, and of the sum of all bytes: sums of a few of them are 64-bit integers


class InvalidBuffers(ValueError):
    """The buffers contradict themselves or each other: a fault of the caller, told of the first such buffer by name."""


class DoesNotFit(Exception):
    """No plan within the capacity was found, or none exists.

    `capacity_bytes`: None: no capacity was given, and fixed addresses, regions or banks leave no plan of any peak.
    `bound_bytes`: proved lower bound of the peak.
    `best_peak_bytes`: the smallest peak found, above the capacity; None where the search found no plan at all.
    `step`, `live`: the step with most live bytes, and the buffers live at it.
    `proved`: no plan within the capacity exists; otherwise the effort of `nodes` search nodes ran out.
    """

    def __init__(
        self,
        capacity_bytes: int | None,
        bound_bytes: int,
        best_peak_bytes: int | None,
        step: int,
        live: Sequence[Buffer],
        proved: bool,
        nodes: int = 0,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.bound_bytes = bound_bytes
        self.best_peak_bytes = best_peak_bytes
        self.step = step
        self.live = tuple(live)
        self.proved = proved
        self.nodes = nodes
        super().__init__(self._message())

    def _message(self) -> str:
        live_bytes = sum(buffer.size_bytes for buffer in self.live)
        largest = sorted(self.live, key=lambda buffer: (-buffer.size_bytes, buffer.name))[:5]
        names = ", ".join(f"{buffer.name} {buffer.size_bytes}" for buffer in largest)
        more = f" and {len(self.live) - 5} more" if len(self.live) > 5 else ""
        best_peak = "none" if self.best_peak_bytes is None else self.best_peak_bytes
        reason = "no plan exists" if self.proved else f"none found in {self.nodes} nodes"
        limit = "any capacity" if self.capacity_bytes is None else f"capacity {self.capacity_bytes} bytes"
        return (
            f"{limit}: {reason}; at step {self.step} {live_bytes} bytes are live "
            f"({names}{more}); lower bound {self.bound_bytes}, smallest peak found {best_peak}"
        )


@dataclass(frozen=True)
class Buffer:
    """A request for `size_bytes` bytes during the steps [start, end).

    `alignment_bytes`: the address is a multiple of it.
    `fixed_address`: the address, where the caller fixes it; None: the search chooses.
    `region`: (low, high): all of its bytes lie in [low, high); high None: no upper end.
    `bank_bytes`: it does not cross a multiple of this (0: it may); required by `apart_from`.
    `apart_from`: names of buffers with which it shares no bank of `bank_bytes` while both are live.
    `view_of`, `offset_bytes`: it lies exactly `offset_bytes` into that buffer, and both may overlap.
    `in_place_of`: it may take the address of that buffer and overlap it: a right, not a duty.
    Where one of the two, or a view of one, has a fixed address or a region, `place` tries plans without the right first. With
    banks it is not used.
    """

    name: str
    start: int
    end: int
    size_bytes: int
    alignment_bytes: int = 1
    fixed_address: int | None = None
    region: tuple[int, int | None] | None = None
    bank_bytes: int = 0
    apart_from: tuple[str, ...] = ()
    view_of: str | None = None
    offset_bytes: int = 0
    in_place_of: str | None = None


@dataclass(frozen=True)
class Placement:
    """A plan: the address of each buffer by name, and a certificate of its peak.

    `peak_bytes`: the highest end of a buffer, over all steps.
    `bound_bytes`: no plan has a smaller peak.
    `proved`: peak_bytes == bound_bytes, so the plan is optimal.
    `nodes`: search nodes used; equal input gives an equal number on every machine.
    """

    addresses: Mapping[str, int]
    peak_bytes: int
    bound_bytes: int
    proved: bool
    nodes: int

    @property
    def gap(self) -> float:
        """Return how far the peak may be from the optimum, as a share of the bound: peak / bound - 1."""
        return self.peak_bytes / self.bound_bytes - 1 if self.bound_bytes else 0.0


def check_buffers(buffers: Iterable[Buffer]) -> dict[str, Buffer]:
    """Return the buffers by name, in the given order. Raise InvalidBuffers at the first that contradicts itself or others.

    Faults are repeated names, empty live ranges, negative sizes and impossible alignments, regions, banks or views.
    Live ranges and the sum of all bytes must stay within MOST, so that 64-bit sums of them cannot overflow.
    """
    by_name: dict[str, Buffer] = {}
    linked: list[Buffer] = []
    reach = 0
    for b in buffers:
        if b.name in by_name:
            raise InvalidBuffers(f"buffer {b.name}: the name is given twice")
        by_name[b.name] = b
        reach += b.size_bytes + b.alignment_bytes + (b.fixed_address or 0)
        if b.size_bytes < 0 or b.end <= b.start or b.alignment_bytes != 1 or b.fixed_address is not None:
            _check_numbers(b)
        if b.start < -MOST or b.end > MOST:
            raise InvalidBuffers(f"buffer {b.name}: live range [{b.start}, {b.end}) leaves [{-MOST}, {MOST})")
        if b.region is not None or b.bank_bytes or b.view_of or b.in_place_of or b.apart_from or b.offset_bytes:
            linked.append(b)
    for b in linked:
        _check_links(b, by_name)
        reach += b.region[0] if b.region else 0
    if reach > MOST:
        raise InvalidBuffers(f"the buffers take {reach} bytes together; addresses end at {MOST}")
    return by_name


def _check_numbers(b: Buffer) -> None:
    if b.size_bytes < 0:
        raise InvalidBuffers(f"buffer {b.name}: size {b.size_bytes} is negative")
    if b.end <= b.start:
        raise InvalidBuffers(f"buffer {b.name}: live range [{b.start}, {b.end}) is empty")
    if b.alignment_bytes < 1:
        raise InvalidBuffers(f"buffer {b.name}: alignment {b.alignment_bytes} is not positive")
    if b.fixed_address is None:
        return
    if b.fixed_address < 0:
        raise InvalidBuffers(f"buffer {b.name}: fixed address {b.fixed_address} is negative")
    if b.fixed_address % b.alignment_bytes:
        raise InvalidBuffers(
            f"buffer {b.name}: fixed address {b.fixed_address} is no multiple of its alignment {b.alignment_bytes}"
        )


def clear_banks(at: int, size_bytes: int, alignment_bytes: int, bank_bytes: int) -> int:
    """Return the lowest multiple of the alignment from `at` on, itself one, at which so many bytes lie in one bank.

    `bank_bytes`: 0: no banks, so `at` is returned.
    """
    while bank_bytes and size_bytes and at // bank_bytes != (at + size_bytes - 1) // bank_bytes:
        at += -at % bank_bytes
        at += -at % alignment_bytes
    return at


def _check_address(b: Buffer) -> None:
    """Raise InvalidBuffers where a fixed address, or each multiple of the alignment in a region, breaks region or bank."""
    low, high = b.region or (0, None)
    fixed, size = b.fixed_address, b.size_bytes
    if fixed is not None and (fixed < low or (high is not None and fixed + size > high)):
        raise InvalidBuffers(
            f"buffer {b.name}: {size} bytes at its fixed address {fixed} leave its region [{low}, {high}); change one of both"
        )
    at = low + -low % b.alignment_bytes if fixed is None else fixed
    legal = clear_banks(at, size, b.alignment_bytes, b.bank_bytes)
    if fixed is not None and legal != fixed:
        raise InvalidBuffers(
            f"buffer {b.name}: {size} bytes at its fixed address {fixed} cross a bank of {b.bank_bytes} bytes; "
            f"the next address that does not is {legal}"
        )
    if high is not None and legal + size > high:
        bank = f" and no crossing of a bank of {b.bank_bytes} bytes" if b.bank_bytes else ""
        raise InvalidBuffers(
            f"buffer {b.name}: {size} bytes with alignment {b.alignment_bytes}{bank} have no address "
            f"in its region [{low}, {high}); let it end at {legal + size} or later"
        )


def _check_links(b: Buffer, by_name: Mapping[str, Buffer]) -> None:
    """Raise InvalidBuffers where a region, a bank or a reference to another buffer is impossible."""
    if b.bank_bytes < 0 or (b.bank_bytes and b.size_bytes > b.bank_bytes):
        raise InvalidBuffers(f"buffer {b.name}: size {b.size_bytes} is larger than its bank of {b.bank_bytes} bytes")
    if b.apart_from and not b.bank_bytes:
        raise InvalidBuffers(f"buffer {b.name}: apart_from needs bank_bytes")
    if b.region is not None:
        low, high = b.region
        if low < 0 or (high is not None and high - low < b.size_bytes):
            raise InvalidBuffers(f"buffer {b.name}: size {b.size_bytes} does not fit its region [{low}, {high})")
    if b.region is not None or b.bank_bytes:
        _check_address(b)
    for other in (*b.apart_from, b.view_of, b.in_place_of):
        if other is not None and other not in by_name:
            raise InvalidBuffers(f"buffer {b.name}: refers to {other}, which is not among the buffers")
        if other == b.name:
            raise InvalidBuffers(f"buffer {b.name}: refers to itself")
    if b.view_of is None:
        if b.offset_bytes:
            raise InvalidBuffers(f"buffer {b.name}: offset {b.offset_bytes} without view_of")
        return
    if b.in_place_of is not None:
        raise InvalidBuffers(f"buffer {b.name}: view_of and in_place_of exclude each other")
    parent = by_name[b.view_of]
    if b.offset_bytes < 0 or b.offset_bytes + b.size_bytes > parent.size_bytes:
        raise InvalidBuffers(
            f"buffer {b.name}: {b.size_bytes} bytes at offset {b.offset_bytes} leave {parent.name}, which has {parent.size_bytes}"
        )
    visited, at = {b.name}, b.view_of
    while at is not None:
        if at in visited:
            raise InvalidBuffers(f"buffer {b.name}: view_of goes round in a circle")
        visited.add(at)
        at = by_name[at].view_of if at in by_name else None
