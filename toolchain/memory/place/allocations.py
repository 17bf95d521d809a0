"""Turn checked buffers into allocations, the units that the placement search moves.

A view is joined with the buffer it lies in, and a buffer that takes another's place with that one, where that is legal.
An allocation is therefore a rigid group of rectangles (time x bytes). Most are one buffer, hence one rectangle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm

from toolchain.memory.buffer import Buffer, InvalidBuffers

# (start, end, first byte, end byte), bytes from the item's base
Part = tuple[int, int, int, int]


@dataclass(slots=True)
class Allocation:
    """A group of buffers that is placed as one unit, by its base: the address of its lowest byte.

    `start`, `end`, `size_bytes`: the hull of all its bytes, during the steps [start, end).
    `alignment_bytes`: the base is a multiple of it, unless `fixed`.
    `members`: (buffer, offset of its first byte from the base).
    `parts`: (start, end, first byte, end byte), bytes from the base: rectangles in use, disjoint, none of them empty.
    `low`, `high`: low <= base, base + size_bytes <= high; high None: no upper end.
    `fixed`: the base is `low`.
    `bank_bytes`: it does not cross a multiple of this (0: it may).
    `must_not_share`: names of buffers with which it shares no bank while both are live. Joined buffers have none.
    """

    start: int
    end: int
    size_bytes: int
    alignment_bytes: int
    members: tuple[tuple[str, int], ...]
    parts: tuple[Part, ...]
    low: int = 0
    high: int | None = None
    fixed: bool = False
    bank_bytes: int = 0
    must_not_share: frozenset[str] = field(default_factory=frozenset[str])

    @property
    def plain(self) -> bool:
        """Return whether it is one rectangle that may lie anywhere its alignment allows. Only those are stacked fast."""
        return len(self.parts) == 1 and not (self.low or self.fixed or self.bank_bytes) and self.high is None

    def lowest_base(self, address: int) -> int:
        """Return the lowest base from `address` on that alignment, region and bank allow. `high` is not looked at.

        A fixed item has one legal base, `low`. Beyond it `address` is returned, which `high` forbids.
        """
        if self.fixed:
            return max(address, self.low)
        at = max(address, self.low)
        if self.alignment_bytes > 1:
            at += -at % self.alignment_bytes
        while self.bank_bytes and at // self.bank_bytes != (at + self.size_bytes - 1) // self.bank_bytes:
            at += -at % self.bank_bytes
            at += -at % self.alignment_bytes
        return at


def make_allocations(by_name: Mapping[str, Buffer], take_rights: bool, legal: bool = True) -> list[Allocation]:
    """Return the allocations, in the order of their first buffer.

    Buffers of no bytes are left out: any legal address will do, which the caller gives them.
    `by_name`: buffers that `check_buffers` has passed.
    `take_rights`: each `in_place_of` is taken where nothing else would be overlapped.
    `legal`: False takes all of them, and forgets the addresses that joined buffers are bound to.
    No plan comes of that, but at no step are fewer bytes in use, whatever rights a plan takes.
    Raise InvalidBuffers where joined buffers contradict one another in alignment, bank or fixed address.
    """
    if not any(b.view_of or b.in_place_of for b in by_name.values()):
        return [_single(b) for b in by_name.values() if b.size_bytes]
    groups = _view_groups(by_name)
    if take_rights:
        _take_rights(groups, by_name, legal)
    distinct = {id(members): members for members in groups.values()}
    sized = ([(n, o) for n, o in members.items() if by_name[n].size_bytes] for members in distinct.values())
    return [_join(members, by_name, legal) for members in sized if members]


def _view_groups(by_name: Mapping[str, Buffer]) -> dict[str, dict[str, int]]:
    """Return each buffer's group: name -> offset in bytes from the root. Buffers of one group share one dict."""
    groups: dict[str, dict[str, int]] = {}
    for name in by_name:
        path: list[str] = []
        at = name
        while at not in groups:
            path.append(at)
            up = by_name[at].view_of
            if up is None:
                groups[at] = {at: 0}
                break
            at = up
        group = groups[at]
        for member in reversed(path):
            b = by_name[member]
            if b.view_of is not None:
                group[member] = group[b.view_of] + b.offset_bytes
                groups[member] = group
    return groups


def _take_rights(groups: dict[str, dict[str, int]], by_name: Mapping[str, Buffer], legal: bool) -> None:
    """Join groups in place, in the order of the buffers' starts: `groups` is changed."""
    rights = sorted((b for b in by_name.values() if b.in_place_of), key=lambda b: (b.start, b.name))
    for b in rights:
        old = by_name[b.in_place_of or ""]
        ours, theirs = groups[b.name], groups[old.name]
        if ours is theirs or b.start >= old.end or old.start >= b.end:
            continue
        shift = theirs[old.name] - ours[b.name]
        if legal and not _may_join(ours, theirs, shift, b, by_name):
            continue
        for name, offset in ours.items():
            theirs[name] = offset + shift
            groups[name] = theirs


def _may_join(ours: Mapping[str, int], theirs: Mapping[str, int], shift: int, b: Buffer, by_name: Mapping[str, Buffer]) -> bool:
    """Return whether one group may move onto the other: only `b` and the buffer whose place it takes overlap.

    `shift`: bytes added to the offsets of `ours`. Groups with fixed addresses, regions or banks are never joined.
    """
    members = [by_name[n] for n in (*ours, *theirs)]
    if any(m.fixed_address is not None or m.region is not None or m.bank_bytes for m in members):
        return False
    for name, offset in ours.items():
        m, low = by_name[name], offset + shift
        for other_name, at in theirs.items():
            other = by_name[other_name]
            is_disjoint = m.end <= other.start or other.end <= m.start
            is_disjoint = is_disjoint or low + m.size_bytes <= at or at + other.size_bytes <= low
            if not is_disjoint and not (name == b.name and other_name == b.in_place_of):
                return False
        if low % m.alignment_bytes:
            return False
    return True


def _single(b: Buffer) -> Allocation:
    """Return the allocation of one buffer by itself."""
    item = Allocation(
        b.start,
        b.end,
        b.size_bytes,
        b.alignment_bytes,
        ((b.name, 0),),
        ((b.start, b.end, 0, b.size_bytes),),
    )
    if b.fixed_address is None and b.region is None and not b.bank_bytes:
        return item
    item.bank_bytes, item.must_not_share = b.bank_bytes, frozenset(b.apart_from)
    if b.region is not None:
        item.low, item.high = b.region
    if b.fixed_address is not None:
        item.low, item.high, item.fixed = b.fixed_address, b.fixed_address + b.size_bytes, True
    return item


def _join(members: Sequence[tuple[str, int]], by_name: Mapping[str, Buffer], legal: bool) -> Allocation:
    """Return the allocation of several buffers. `members`: (name, offset), from any zero. `legal`: as in `make_allocations`."""
    if len(members) == 1 and members[0][1] == 0:
        return _single(by_name[members[0][0]])
    lowest = min(offset for _, offset in members)
    shifted = tuple((name, offset - lowest) for name, offset in members)
    parts = tuple((by_name[n].start, by_name[n].end, o, o + by_name[n].size_bytes) for n, o in shifted)
    item = Allocation(
        min(p[0] for p in parts),
        max(p[1] for p in parts),
        max(p[3] for p in parts),
        1,
        shifted,
        parts,
    )
    if not legal:
        item.alignment_bytes = gcd(*(by_name[name].alignment_bytes for name, _ in shifted))
        item.parts = _merge_parts(item)
        return item
    low, high, fixed = 0, None, None
    for name, offset in shifted:
        b = by_name[name]
        item.alignment_bytes = lcm(item.alignment_bytes, b.alignment_bytes)
        if offset % b.alignment_bytes:
            raise InvalidBuffers(f"buffer {name}: offset {offset} breaks its alignment {b.alignment_bytes}")
        if b.bank_bytes:
            raise InvalidBuffers(f"buffer {name}: a buffer in a view or in place cannot have bank_bytes")
        if b.region is not None:
            low = max(low, b.region[0] - offset)
            top = None if b.region[1] is None else b.region[1] - offset - b.size_bytes + item.size_bytes
            high = top if high is None else high if top is None else min(high, top)
        if b.fixed_address is not None:
            if fixed is not None and fixed != b.fixed_address - offset:
                raise InvalidBuffers(f"buffer {name}: fixed address {b.fixed_address} contradicts that of its view")
            fixed = b.fixed_address - offset
    item.low, item.high = low, high
    if fixed is not None:
        if fixed % item.alignment_bytes:
            raise InvalidBuffers(
                f"buffer {shifted[0][0]}: the fixed address of a view puts it at {fixed + shifted[0][1]}, "
                f"against the alignment {item.alignment_bytes} of the buffers joined with it"
            )
        item.low, item.high, item.fixed = fixed, fixed + item.size_bytes, True
    item.parts = _merge_parts(item)
    return item


def _merge_parts(item: Allocation) -> tuple[Part, ...]:
    """Return disjoint rectangles that cover the same bytes at the same steps."""
    times = sorted({t for p in item.parts for t in p[:2]})
    merged: list[Part] = []
    open_parts: dict[tuple[int, int], int] = {}  # (first byte, end byte) -> position in merged, while it lasts
    for start, end in itertools.pairwise(times):
        still_open: dict[tuple[int, int], int] = {}
        for low, high in _union([p[2:] for p in item.parts if p[0] <= start and end <= p[1]]):
            at = open_parts.get((low, high))
            if at is None:
                at = len(merged)
                merged.append((start, end, low, high))
            merged[at] = (merged[at][0], end, low, high)
            still_open[low, high] = at
        open_parts = still_open
    return tuple(merged)


def _union(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of byte ranges as disjoint ranges, by rising address."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out
