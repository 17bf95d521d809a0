"""Describe the ranges of DRAM that a program sees, and what it may do with each.

A program only reads constants and inputs. It writes outputs completely. States are a kind of their own.
`check_program` holds programs to this.
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
    """The kinds of DRAM ranges; a value is the kind's name in messages.

    STATE: a tensor that lasts from one run to the next, read, and overwritten by design.
    FOREIGN: memory of others, to which the program may not write. It holds no data that the program knows.
    """

    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    FOREIGN = "memory that is none of the program's,"


@dataclass(frozen=True)
class DramRange:
    """The bytes first .. last - 1 of DRAM. `name`: the tensor, for messages ("" where there is none, as of a constant)."""

    kind: DramRangeKind
    name: str
    first: int
    last: int

    @property
    def label(self) -> str:
        """The range in words, such as `output 'y' dram[0x100..0x180)`."""
        named = f" {self.name!r}" if self.name else ""
        return f"{self.kind.value}{named} dram[{self.first:#x}..{self.last:#x})"


def get_initial_ranges(parts: Iterable[DramRange]) -> list[tuple[int, int]]:
    """Return the ranges [first, last) that hold data before the program runs: constants, inputs and states, in order."""
    return [(p.first, p.last) for p in parts if p.kind in (DramRangeKind.CONSTANT, DramRangeKind.INPUT, DramRangeKind.STATE)]


class ReadOnlyGuard:
    """Finds writes to constants, inputs and foreign memory.

    A program that overwrites one is right once and wrong when it runs again on the same memory.
    """

    def __init__(self, parts: Sequence[DramRange]):
        """Take all ranges, which may overlap; outputs and states are not guarded."""
        read_only_parts = [p for p in parts if p.kind not in (DramRangeKind.OUTPUT, DramRangeKind.STATE) and p.first < p.last]
        self._parts = sorted(read_only_parts, key=lambda p: p.first)
        self._starts = [p.first for p in self._parts]
        self._reach: list[int] = []  # the largest end so far: parts may lie over one another
        for part in self._parts:
            self._reach.append(max(part.last, self._reach[-1] if self._reach else 0))

    def overwritten(self, write: Access) -> DramRange | None:
        """Return the read-only range of lowest address that shares a byte with a write, or None.

        `write`: its bytes count as written, also those of an inexact access and of a read.
        """
        if write.space != Space.DRAM:
            return None
        after = bisect_right(self._starts, write.end - 1)
        if not after or self._reach[after - 1] <= write.address:
            return None
        return next((p for p in self._parts[:after] if overlap(write, _get_full_access(p))), None)


def _get_full_access(part: DramRange) -> Access:
    """Return the access that reads a whole range."""
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
    """Yield a sentence for each output with bytes that nothing wrote.

    `written_mask`: bool for each byte of DRAM, whether it was written or held data.
    """
    for part in (p for p in parts if p.kind is DramRangeKind.OUTPUT):
        missing = np.flatnonzero(~written_mask[part.first : part.last])
        if missing.size:
            yield (
                f"{part.label}: {format_count(missing.size, 'byte')} of {part.last - part.first:,} are never written, "
                f"the first at {part.first + int(missing[0]):#x}"
            )
