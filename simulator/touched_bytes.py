"""Say which bytes the operations of a program touch; what operations of one kind and shape share is found once.

The checks, the timeline and the peaks of a run read it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from simulator.program_order import describe
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import (
    Access,
    End,
    InstructionStream,
    MachineOp,
    OperationTable,
    Signal,
    Wait,
    accesses,
    accesses_at,
    tables_by_unit,
)

_ADDRESS_BITS = 44  # source: 4 more than the largest address of a memory; odd numbers above them name addresses


class _Spaces(NamedTuple):
    """The memories that an operation reads and those that it writes, a bit each."""

    reads: int
    writes: int


_NOTHING = _Spaces(0, 0)


class _Extent(NamedTuple):
    """The bytes of an access from the first to the last, counted from an address of its operation.

    `access`: that of one of the operations.
    """

    space: int
    write: bool
    address: str
    first: int
    end: int
    access: Access


class TouchedBytes(Sequence[tuple[Access, ...]]):
    """The accesses of each operation, a sequence by index; they are made when they are looked at and then kept.

    Memories and peaks cost less and are known from the start.
    `peak_bytes`: by the memory's name, one past the highest byte that is touched.
    """

    def __init__(self, chip: Chip, ops: Sequence[MachineOp], tables: Sequence[OperationTable] | None = None):
        """Look at the operations. Raise ProgramError where one names a memory that is none.

        `tables`: `tables_by_unit(ops)`, where the caller has them.
        """
        self._chip, self._ops = chip, ops
        self._accesses: dict[int, tuple[Access, ...]] = {}
        self._shapes = [_NOTHING] * len(ops)
        self._extents: list[tuple[_Extent, ...] | None] = [None] * len(ops)
        self._peaks = [0] * len(chip.spaces)
        indirect: Mapping[int, object] = ops.indirect if isinstance(ops, InstructionStream) else {}
        for index in indirect:
            self._shapes[index] = self._note_ends(self[index])
        for table in tables_by_unit(ops) if tables is None else tables:
            if not isinstance(ops[table.indexes[0]], Signal | Wait | End):
                self._add(table, indirect)
        self.peak_bytes = dict(zip((space.name for space in chip.spaces), self._peaks))

    def __len__(self) -> int:
        return len(self._ops)

    def __getitem__(self, index: Any) -> Any:
        if index not in self._accesses:
            self._accesses[index] = self._make_accesses(index)
        return self._accesses[index]

    def _make_accesses(self, index: int) -> tuple[Access, ...]:
        """Make the accesses of an operation: those of another that differs in addresses alone, at its own, or anew."""
        extents, op = self._extents[index], self._ops[index]
        if extents is not None:
            return tuple([e.access.at(getattr(op, e.address) + e.first) for e in extents])
        try:
            return accesses_at(self._ops, index, self._chip)
        except ValueError as fault:
            raise ProgramError(f"{describe(index, self._ops, self._chip)}: {fault}") from fault

    def spaces(self, index: int) -> _Spaces:
        """Return the memories that an operation reads and writes."""
        return self._shapes[index]

    def are_apart(self, reader: int, writer: int) -> bool:
        """Return whether all that one operation reads lies before or behind all that another writes.

        False: it may not, or their spans are unknown.
        """
        reads, writes = self._extents[reader], self._extents[writer]
        if reads is None or writes is None:
            return False
        for read in reads:
            first = getattr(self._ops[reader], read.address)
            for write in writes:
                if read.write or not write.write or read.space != write.space:
                    continue
                distance = getattr(self._ops[writer], write.address) - first
                if read.first < distance + write.end and distance + write.first < read.end:
                    return False
        return True

    def _add(self, table: OperationTable, indirect: Container[int]) -> None:
        """Find the memories and peaks of a table's operations. `indirect`: operations to leave out, whose addresses vary."""
        kind = type(self._ops[table.indexes[0]])
        names = [name for name in kind.parameters() if name.endswith("address")]
        places = [place for place, name in enumerate(kind.parameters()) if name.endswith("address")]
        shapes = np.ascontiguousarray(np.delete(table.parameters, places, axis=1))
        data, row_bytes = shapes.tobytes(), shapes.shape[1] * shapes.itemsize
        rows_by_shape: dict[bytes, list[int]] = {}
        for row, index in enumerate(table.indexes):
            if index not in indirect:
                rows_by_shape.setdefault(data[row * row_bytes : (row + 1) * row_bytes], []).append(row)
        for rows in rows_by_shape.values():
            op_accesses = self[table.indexes[rows[0]]]
            extents = _find_extents(self._ops[table.indexes[rows[0]]], self._chip, op_accesses)
            if extents is None:
                for row in rows:
                    self._note_ends(self[table.indexes[row]])
            else:
                highest = dict(zip(names, table.parameters[np.ix_(rows, places)].max(axis=0).tolist()))
                for extent in extents:
                    self._peaks[extent.space] = max(self._peaks[extent.space], highest[extent.address] + extent.end)
            spaces = _spaces_of(op_accesses)
            for row in rows:
                self._shapes[table.indexes[row]] = spaces
                self._extents[table.indexes[row]] = extents

    def _note_ends(self, op_accesses: Sequence[Access]) -> _Spaces:
        """Raise the peaks to these accesses. Return the memories that they read and write."""
        for access in op_accesses:
            self._peaks[access.space] = max(self._peaks[access.space], access.end)
        return _spaces_of(op_accesses)


def _spaces_of(op_accesses: Sequence[Access]) -> _Spaces:
    """Return the memories of accesses."""
    reads, writes = ({1 << a.space for a in op_accesses if a.write == write} for write in (False, True))
    return _Spaces(sum(reads), sum(writes))


def _find_extents(op: MachineOp, chip: Chip, op_accesses: Sequence[Access]) -> tuple[_Extent, ...] | None:
    """Return the extents of the accesses of all operations that differ from this one in addresses alone.

    Return None where an access does not begin behind an address.
    """
    names = [name for name in type(op).parameters() if name.endswith("address")]
    # an odd number is no multiple of another place's, should an address count more than bytes
    numbered = replace(op, **{name: 2 * place + 1 << _ADDRESS_BITS for place, name in enumerate(names)})
    extents: list[_Extent] = []
    for access, renumbered in zip(op_accesses, accesses(numbered, chip), strict=True):
        number, first = renumbered.address >> _ADDRESS_BITS, renumbered.address & (1 << _ADDRESS_BITS) - 1
        place = number // 2
        if number % 2 == 0 or place >= len(names) or getattr(op, names[place]) + first != access.address:
            return None
        if renumbered.at(access.address) != access:
            return None
        extents.append(_Extent(access.space, access.write, names[place], first, first + access.end - access.address, access))
    return tuple(extents)
