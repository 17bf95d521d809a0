"""Find bytes that are written and not read before they are overwritten or the program ends, and constants never read.

No rule of the machine forbids them, but an operation that was dropped, or reads too little or elsewhere, leaves them.
`check_program` marks them beside its rules; a build and a run show them as warnings.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.dram_ranges import DramRange, DramRangeKind
from toolchain.errors import format_count
from toolchain.machine import Access, Emit, MachineOp, Space, WeightedWindowOp, byte_view, rebase_access

Range = tuple[int, int]


@dataclass(frozen=True)
class DeadStore:
    """Bytes of one memory that one operation wrote and nothing read.

    `index`: operation that wrote the bytes, -1 for constants.
    `space`: code of the memory. `ranges`: [first, last) each, rising.
    """

    index: int
    space: int
    ranges: tuple[Range, ...]

    @property
    def bytes(self) -> int:
        """The number of bytes, all ranges together."""
        return sum(last - first for first, last in self.ranges)

    @property
    def text(self) -> str:
        """The bytes in words, such as `16 bytes of sram[0x100..0x180)`."""
        span = f"{Space(self.space).name.lower()}[{self.ranges[0][0]:#x}..{self.ranges[-1][1]:#x})"
        return f"{format_count(self.bytes, 'byte')} of {span}"


class DeadStoreMarks:
    """A mark for each byte of the memories, set where it was written, or is a constant, and was not read since.

    `read` and `write` are called for each access, in an order that can run.
    """

    def __init__(
        self,
        ops: Sequence[MachineOp],
        touched: Sequence[Sequence[Access]],
        sizes: Sequence[int],
        parts: Sequence[DramRange],
        step: int,
    ):
        """Set up the marks of all memories; those of constants are set.

        `sizes`: bytes of each memory. `parts`: the DRAM ranges of the program.
        `step`: alignment of the parameters that follow weights, in bytes.
        """
        self._ops, self._touched, self._parts, self._step = ops, touched, parts, step
        self._raw = [bytearray(size) for size in sizes]
        self._marks = [np.frombuffer(raw, np.uint8) for raw in self._raw]
        self._writes: list[list[Access]] = [[] for _ in sizes]
        self._writers = [array("q") for _ in sizes]  # the operation of each
        self._ranges_by_write: dict[tuple[int, int], list[Range]] = {}
        for part in self._of(DramRangeKind.CONSTANT):
            self._marks[Space.DRAM][part.first : part.last] = 1

    def read(self, access: Access) -> None:
        """Clear the marks of the bytes that an access reads."""
        low, high = access.address, access.end
        if self._raw[access.space].find(1, low, high) < 0:
            return
        if access.counts:
            byte_view(self._marks[access.space], access)[...] = 0
        else:
            self._marks[access.space][low:high] = 0

    def write(self, index: int, access: Access) -> None:
        """Set the marks of the bytes that operation `index` writes. Marks that were set already are dead stores."""
        low, high = access.address, access.end
        marks = self._marks[access.space]
        # it does not overlap itself, so that with as many bytes as its span it has no holes
        view = marks[low:high] if access.bytes == high - low else byte_view(marks, access)
        if self._raw[access.space].find(1, low, high) >= 0 and view.any():
            lost = np.zeros(high - low, np.bool_)
            byte_view(lost, rebase_access(access, low))[...] = byte_view(marks, access)
            self._blame(access.space, low, lost)
        view[...] = 1
        self._writes[access.space].append(access)
        self._writers[access.space].append(index)

    def list_dead_stores(self) -> tuple[DeadStore, ...]:
        """Return all dead stores after the last operation, in the order of operations, constants first.

        Outputs and states count as read. The marks are used up: call it once.
        """
        dram = self._marks[Space.DRAM]
        for part in (*self._of(DramRangeKind.OUTPUT), *self._of(DramRangeKind.STATE)):
            dram[part.first : part.last] = 0
        for part in self._of(DramRangeKind.CONSTANT):
            if self._raw[Space.DRAM].find(1, part.first, part.last) >= 0:
                self._add(-1, Space.DRAM, part.first, dram[part.first : part.last] != 0)
                dram[part.first : part.last] = 0
        for space, raw in enumerate(self._raw):
            first = raw.find(1)
            if first >= 0:
                self._blame(space, first, self._marks[space][first : raw.rfind(1) + 1] != 0)
        range_by_write = {key: self._without_tails(key[1], ranges) for key, ranges in self._ranges_by_write.items()}
        return tuple(DeadStore(index, space, ranges) for (index, space), ranges in sorted(range_by_write.items()) if ranges)

    def _of(self, kind: DramRangeKind) -> list[DramRange]:
        """Return the ranges of one kind."""
        return [p for p in self._parts if p.kind is kind]

    def _blame(self, space: int, base: int, lost: np.ndarray) -> None:
        """Add the lost bytes to the last operation that wrote each.

        `lost`: bool for the bytes from `base` on; it is not changed.
        """
        lost, end, lost_count = lost.copy(), base + lost.size, int(lost.sum())
        for index, access in zip(reversed(self._writers[space]), reversed(self._writes[space])):
            low, high = max(base, access.address), min(end, access.end)
            if low >= high or not lost[low - base : high - base].any():
                continue
            written_bytes = np.zeros(access.end - access.address, np.bool_)
            byte_view(written_bytes, rebase_access(access, access.address))[...] = True
            part = lost[low - base : high - base]
            own_bytes = written_bytes[low - access.address : high - access.address] & part
            if own_bytes.any():
                self._add(index, space, low, own_bytes)
                part &= ~own_bytes
                lost_count -= int(own_bytes.sum())
                if not lost_count:
                    return

    def _add(self, index: int, space: int, base: int, lost: np.ndarray) -> None:
        """Add the lost bytes to the ranges of one operation."""
        edges = np.flatnonzero(np.diff(lost.astype(np.int8), prepend=0, append=0)) + base
        self._ranges_by_write.setdefault((index, space), []).extend(zip(edges[::2].tolist(), edges[1::2].tolist()))

    def _without_tails(self, space: int, ranges: list[Range]) -> tuple[Range, ...]:
        """Return the ranges, sorted, without gaps between weights and the aligned parameters after them.

        Outside the DRAM such gaps are loaded with both and never read.
        """
        return tuple(sorted(r for r in ranges if space == Space.DRAM or not self._in_tail(*r)))

    def _in_tail(self, first: int, last: int) -> bool:
        """Return whether a range lies in such a gap."""
        ends, begins = self._tails
        nearest = bisect_right(ends, first)
        return any(last <= begins[i] for i in range(bisect_right(ends, first - self._step), nearest))

    @cached_property
    def _tails(self) -> tuple[list[int], list[int]]:
        """The gaps as (sorted ends of weights, begin of the parameters that follow each by less than their alignment)."""
        arrays = [(op, op_accesses) for op, op_accesses in zip(self._ops, self._touched) if isinstance(op, WeightedWindowOp)]
        emit_addresses = {op.parameter_address for op, _ in arrays if op.emit}
        begins = sorted(emit_addresses | {op.parameter_address for op in self._ops if isinstance(op, Emit)})
        ends = {a.end for op, op_accesses in arrays for a in op_accesses if not a.write and a.address == op.weight_address}
        last = ((end, bisect_left(begins, end + self._step) - 1) for end in sorted(ends))
        gaps = [(end, begins[i]) for end, i in last if i >= 0 and begins[i] > end]
        return [end for end, _ in gaps], [begin for _, begin in gaps]
