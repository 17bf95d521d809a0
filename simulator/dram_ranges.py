"""Describe the ranges of DRAM that a program sees.

A program only reads constants and inputs. It writes outputs completely. States are a kind of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from toolchain.errors import format_count
from toolchain.machine import Access, Space, overlap, range_text


class DramRangeKind(Enum):
    """STATE: a tensor that lasts from one run to the next, read, and overwritten by design."""

    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    FOREIGN = "memory that is none of the program's,"


@dataclass(frozen=True)
class DramRange:
    """Bytes first .. last of DRAM, `last` not included. name: the tensor, for messages ("" for a constant)."""

    kind: DramRangeKind
    name: str
    first: int
    last: int

    @property
    def label(self) -> str:
        """`output 'y' dram[0x100..0x180)`."""
        named = f" {self.name!r}" if self.name else ""
        return f"{self.kind.value}{named} dram[{self.first:#x}..{self.last:#x})"


def get_initial_ranges(parts: Iterable[DramRange]) -> list[tuple[int, int]]:
    """The ranges that hold data before the program runs."""
    return [(p.first, p.last) for p in parts if p.kind in (DramRangeKind.CONSTANT, DramRangeKind.INPUT, DramRangeKind.STATE)]


class ReadOnlyGuard:
    """Constants and inputs: a program that overwrites one is right once and wrong when it runs again on the same memory. And what
    belongs to others."""

    def __init__(self, parts: Sequence[DramRange]):
        read_only_parts = [p for p in parts if p.kind not in (DramRangeKind.OUTPUT, DramRangeKind.STATE) and p.first < p.last]
        self._parts = sorted(read_only_parts, key=lambda p: p.first)
        self._starts = [p.first for p in self._parts]
        self._reach: list[int] = []  # the largest end so far: parts may lie over one another
        for part in self._parts:
            self._reach.append(max(part.last, self._reach[-1] if self._reach else 0))

    def overwritten(self, write: Access) -> DramRange | None:
        """The first part with a byte that the access writes, or None."""
        if write.space != Space.DRAM:
            return None
        after = bisect_right(self._starts, write.end - 1)
        if not after or self._reach[after - 1] <= write.address:
            return None
        return next((p for p in self._parts[:after] if overlap(write, _get_full_access(p))), None)


def _get_full_access(part: DramRange) -> Access:
    return Access(Space.DRAM, part.first, (), (), part.last - part.first, False)


def overwrite_text(write: Access, part: DramRange) -> str:
    """Return the error text for an operation that overwrites a read-only range."""
    if part.kind is DramRangeKind.FOREIGN:
        return f"writes {range_text(write)} over {part.label}: its areas lie elsewhere; an address lacks its base register"
    return (
        f"writes {range_text(write)} over {part.label}: the program would be wrong the next time it runs on the same memory; "
        f"give its results a place of their own"
    )


def unwritten(parts: Sequence[DramRange], written_mask: np.ndarray) -> Iterator[str]:
    """Outputs with bytes that nothing wrote. held: bool for each byte of DRAM, whether it was written or held data."""
    for part in (p for p in parts if p.kind is DramRangeKind.OUTPUT):
        missing = np.flatnonzero(~written_mask[part.first : part.last])
        if missing.size:
            yield (
                f"{part.label}: {format_count(missing.size, 'byte')} of {part.last - part.first:,} are never written, "
                f"the first at {part.first + int(missing[0]):#x}"
            )
