"""Buffers made ready to be placed: views joined with what they lie in, in-place rights taken or not.

An item is a rigid group of rectangles (time x bytes). Most items are one buffer, hence one rectangle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm

from toolchain.memory.buffer import Buffer, InvalidBuffers

# (start, end, first byte, end byte), bytes from the item's base
Part = tuple[int, int, int, int]


@dataclass(slots=True)
class Allocation:
    """An allocation that is placed as one unit.

    base = remainder modulo alignment; low <= base; base + size <= high. `start`, `end` and `size_bytes` are the
    hull's.
    `members`: (name, offset from the base).
    `parts`: the bytes they cover and when.
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
        """One rectangle that may lie anywhere its alignment allows."""
        return len(self.parts) == 1 and not (self.low or self.fixed or self.bank_bytes) and self.high is None

    def lowest_base(self, address: int) -> int:
        """The lowest address from `address` on that alignment, region and bank allow (its end is not looked at)."""
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
    """Make items in the order of their first buffer. Buffers of no bytes are left out: any legal address will do.

    `take_rights`: in-place rights are taken, each where nothing else would be overlapped.
    `legal`: False: taken everywhere, which gives no plan but a valid lower bound of every choice of rights.
    """
    if not any(b.view_of or b.in_place_of for b in by_name.values()):
        return [_single(b) for b in by_name.values() if b.size_bytes]
    groups = _view_groups(by_name)
    if take_rights:
        _take_rights(groups, by_name, legal)
    distinct = {id(members): members for members in groups.values()}
    sized = ([(n, o) for n, o in members.items() if by_name[n].size_bytes] for members in distinct.values())
    return [_join(members, by_name) for members in sized if members]


def _view_groups(by_name: Mapping[str, Buffer]) -> dict[str, dict[str, int]]:
    """Return for each buffer its (shared) group: name -> offset from the group's root."""
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
    """Return whether nothing of one group overlaps anything of the other, but for `b` and the buffer whose place it
    takes.
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


def _join(members: Sequence[tuple[str, int]], by_name: Mapping[str, Buffer]) -> Allocation:
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
        item.low, item.high, item.fixed = fixed, fixed + item.size_bytes, True
    item.parts = _merge_parts(item)
    return item


def _merge_parts(item: Allocation) -> tuple[Part, ...]:
    """The same bytes at the same steps, without overlaps: at each stretch of time the union of the bytes in use."""
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
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out
