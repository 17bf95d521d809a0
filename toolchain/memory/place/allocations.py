"""Turn checked buffers into allocations, the units that the placement search moves.

A view is joined with the buffer it lies in, and a buffer that takes another's place with that one, where that is legal.
An allocation is therefore a rigid group of rectangles (time x bytes). Most are one buffer, hence one rectangle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm

from toolchain.memory.buffer import Buffer, InvalidBuffers, clear_banks

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
        return clear_banks(at, self.size_bytes, self.alignment_bytes, self.bank_bytes) if self.bank_bytes else at


def make_allocations(by_name: Mapping[str, Buffer], rights: Sequence[Buffer] = (), legal: bool = True) -> list[Allocation]:
    """Return the allocations, in the order of their first buffer.

    One of no bytes has no parts: any legal address will do, which the caller gives it. It is not for the search.
    `by_name`: buffers that `check_buffers` has passed.
    `rights`: buffers whose `in_place_of` is taken, in this order, each where nothing else would be overlapped.
    `legal`: False takes all of them, and forgets the addresses that joined buffers are bound to.
    No plan comes of that, but at no step are fewer bytes in use, whatever rights a plan takes.
    Raise InvalidBuffers where a view and its buffer contradict one another in alignment, bank, region or fixed address.
    """
    if not rights and not any(b.view_of for b in by_name.values()):
        return [_single(b) for b in by_name.values()]
    groups = _view_groups(by_name)
    _take_rights(groups, rights, by_name, legal)
    distinct = {id(members): members for members in groups.values()}
    return [_join(list(members.items()), by_name, legal) for members in distinct.values()]


def list_rights(by_name: Mapping[str, Buffer]) -> list[Buffer]:
    """Return the buffers that may take another's place, in the order of their starts."""
    return sorted((b for b in by_name.values() if b.in_place_of), key=lambda b: (b.start, b.name))


def rights_to_try(by_name: Mapping[str, Buffer]) -> list[list[Buffer]]:
    """Return choices of buffers whose `in_place_of` is taken, for `make_allocations`, the best first as a rule.

    A right may exclude another, and one that is taken may cost bytes. So three further choices are for buffers of which
    the first leaves no plan. They take rights of bound buffers too, then the largest first, then none.
    """
    rights = list_rights(by_name)
    groups = _view_groups(by_name) if rights else {}
    free = [b for b in rights if not any(map(_is_bound, (by_name[n] for g in (b.name, b.in_place_of or "") for n in groups[g])))]
    largest = sorted(rights, key=lambda b: -min(b.size_bytes, by_name[b.in_place_of or ""].size_bytes))
    choices = [free, rights, largest, []]
    return [choice for i, choice in enumerate(choices) if choice not in choices[:i]]


def _is_bound(b: Buffer) -> bool:
    """Return whether a buffer's address is bound by more than its alignment."""
    return b.fixed_address is not None or b.region is not None or bool(b.bank_bytes)


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


def _take_rights(groups: dict[str, dict[str, int]], rights: Sequence[Buffer], by_name: Mapping[str, Buffer], legal: bool) -> None:
    """Join groups in place, in the order of `rights`: `groups` is changed."""
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

    `shift`: bytes added to the offsets of `ours`. Groups that have no address together are not joined.
    """
    joined = [*((n, offset + shift) for n, offset in ours.items()), *theirs.items()]
    if any(map(_is_bound, (by_name[n] for n, _ in joined))):
        try:
            _join(joined, by_name, legal=True)
        except InvalidBuffers:
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
        ((b.start, b.end, 0, b.size_bytes),) if b.size_bytes else (),
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
    if len(members) == 1:
        return _single(by_name[members[0][0]])
    lowest = min(offset for _, offset in members)
    shifted = tuple((name, offset - lowest) for name, offset in members)
    parts = tuple((by_name[n].start, by_name[n].end, o, o + by_name[n].size_bytes) for n, o in shifted if by_name[n].size_bytes)
    item = Allocation(
        min((p[0] for p in parts), default=0),
        max((p[1] for p in parts), default=0),
        max((p[3] for p in parts), default=0),
        1,
        shifted,
        parts,
    )
    if legal:
        _bind(item, by_name)
    else:
        item.alignment_bytes = gcd(*(by_name[name].alignment_bytes for name, _ in shifted))
    item.parts = _merge_parts(item)
    return item


def _bind(item: Allocation, by_name: Mapping[str, Buffer]) -> None:
    """Bind the base of joined buffers, in place, to what binds the address of each. Raise InvalidBuffers where none is left."""
    low, high, fixed = 0, None, None
    for name, offset in item.members:
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
    if fixed is not None and fixed % item.alignment_bytes:
        raise InvalidBuffers(
            f"buffer {item.members[0][0]}: the fixed address of a view puts it at {fixed + item.members[0][1]}, "
            f"against the alignment {item.alignment_bytes} of the buffers joined with it"
        )
    base = item.lowest_base(0) if fixed is None else fixed
    if base < low or (high is not None and base + item.size_bytes > high):
        aligned = f" with alignment {item.alignment_bytes}" if item.alignment_bytes > 1 else ""
        bound = [f"{n} at offset {o} has {_binding(by_name[n])}" for n, o in item.members if _is_bound(by_name[n])]
        raise InvalidBuffers(
            f"buffer {item.members[0][0]}: no address{aligned} suits it and the buffers that lie in it "
            f"({'; '.join(bound)}); move or widen one of these"
        )
    if fixed is not None:
        item.low, item.high, item.fixed = fixed, fixed + item.size_bytes, True


def _binding(b: Buffer) -> str:
    """Return the words for what binds a buffer's address."""
    region = "" if b.region is None else f"region [{b.region[0]}, {b.region[1]})"
    fixed = "" if b.fixed_address is None else f"fixed address {b.fixed_address}"
    return " and ".join(filter(None, (region, fixed)))


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
