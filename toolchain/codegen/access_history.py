"""Remember what each engine has read and written, and find the latest conflicting operations for a new one.

`codegen.synchronise` asks it for each operation of a program. A table of the last writer and reader of each 16 bytes
(of DRAM, 64) shows quickly that there is no conflict. The table takes an access for everything between its first and
last byte. So a hit is looked up among the accesses themselves, strides included. The _FEW latest are compared one by one.
Earlier ones are sifted first, by _COLUMNS numbers of each: first byte, end, run, pitch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from toolchain.machine import Access, Residues, Space, overlap, residues

_DRAM_GRANULE_BYTES, _GRANULE_BYTES = 64, 16
_COLUMNS = 4
_FEW = 8


class AccessHistory:
    """The reads and writes of all engines so far. Each operation is an event; later events have greater numbers."""

    def __init__(self, sizes_bytes: Sequence[int], engines: int):
        """Set up empty tables.

        `sizes_bytes`: size of each memory, by `Space`. Of DRAM it is the part that is ever written; bytes behind it
        never conflict.
        """
        self._memories = [
            (_Touched(size, granule, engines), _Touched(size, granule, engines))
            for size, granule in zip(sizes_bytes, (_DRAM_GRANULE_BYTES, *[_GRANULE_BYTES] * (len(sizes_bytes) - 1)))
        ]
        self._constants_from = sizes_bytes[Space.DRAM]

    def latest(self, touched: Sequence[Access], known_events: Sequence[int]) -> list[int]:
        """Return for each engine the latest event that conflicts with the accesses, or its known event where that is no
        earlier.

        Two accesses conflict that share a byte, one of them a write. The history is not changed. `known_events`: by
        engine, an event that the operation follows anyway (-1: none).
        """
        latest_events = list(known_events)
        for access in touched:
            if self._constant(access):
                continue
            reads, writes = self._memories[access.space]
            writes.latest(access, latest_events)
            if access.write:
                reads.latest(access, latest_events)
        return latest_events

    def record(self, touched: Sequence[Access], engine: int, event: int) -> None:
        """Record the accesses of an event of this engine. Events of an engine must come in rising order."""
        for access in touched:
            if not self._constant(access):
                self._memories[access.space][access.write].record(access, engine, event)

    def _constant(self, access: Access) -> bool:
        """Return whether the access is to DRAM that is never written."""
        return access.space == Space.DRAM and access.address >= self._constants_from


class _Touched:
    """The reads, or the writes, of one memory: the last event at each granule by engine, and all accesses."""

    def __init__(self, size_bytes: int, granule: int, engines: int):
        self._granule = granule
        self._last = np.full((engines, size_bytes // granule + 2), -1, np.int32)
        self._engine_accesses = [_EngineAccesses() for _ in range(engines)]

    def record(self, access: Access, engine: int, event: int) -> None:
        """Record the access of an event of this engine, in the table and in the list."""
        self._last[engine, self._span(access)] = event
        self._engine_accesses[engine].add(access, event)

    def latest(self, access: Access, latest_events: list[int]) -> None:
        """Raise the entries of `latest_events`, one for each engine, to the latest events that touch a byte of the access."""
        for engine, bound in enumerate(np.maximum.reduce(self._last[:, self._span(access)], 1).tolist()):
            if bound > latest_events[engine]:
                latest_events[engine] = self._engine_accesses[engine].latest(access, latest_events[engine], bound)

    def _span(self, access: Access) -> slice:
        """Return the granules that the access touches, as a slice of the table."""
        return slice(access.address // self._granule, (access.end - 1) // self._granule + 1)


class _EngineAccesses:
    """The reads, or the writes, of one engine in one memory, in the order of their events."""

    def __init__(self) -> None:
        self._events: list[int] = []
        self._accesses: list[Access] = []
        self._columns = np.empty((_COLUMNS, 0), np.int64)  # of the first of them

    def add(self, access: Access, event: int) -> None:
        """Append an access; events must come in rising order."""
        self._events.append(event)
        self._accesses.append(access)

    def latest(self, access: Access, above: int, bound: int) -> int:
        """Return the latest event in (above, bound] that touches a byte of the access; `above` where none does."""
        first, last = bisect_right(self._events, above), bisect_right(self._events, bound)
        few = max(first, last - _FEW)
        match_index = next((i for i in range(last - 1, few - 1, -1) if overlap(access, self._accesses[i])), None)
        if match_index is None and first < few:
            match_index = next((i for i in self._near(access, first, few) if overlap(access, self._accesses[i])), None)
        return above if match_index is None else self._events[match_index]

    def _near(self, access: Access, first: int, last: int) -> list[int]:
        """List the accesses in [first, last) that may touch a byte of the access, the latest first."""
        indexed_count = self._columns.shape[1]
        if indexed_count < last:
            more = [(a.address, a.end, r.run, r.pitch) for a in self._accesses[indexed_count:] for r in [residues(a)]]
            self._columns = np.concatenate([self._columns, np.array(more, np.int64).T], 1)
        low, high, run, pitch = self._columns[:, first:last]
        is_disjoint = Residues(low, run, pitch).is_disjoint(residues(access))
        return (np.flatnonzero((low < access.end) & (high > access.address) & ~is_disjoint)[::-1] + first).tolist()
