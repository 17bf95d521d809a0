"""Strided copies between and inside memories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.codes import code_bytes
from toolchain.machine.columns import Whole, is_column, where
from toolchain.machine.operations.move import Move
from toolchain.machine.parameters.addresses import OUTER, base_of, memory_address, move_stride
from toolchain.machine.parameters.codes import code_type
from toolchain.machine.parameters.extents import extent, move_count
from toolchain.machine.parameters.modes import turned
from toolchain.machine.parameters.numbers import dma_channel
from toolchain.machine.parameters.spaces import Space, memory_space, space_of
from toolchain.machine.traffic import Demand
from toolchain.machine.units.dma import End, move_demand


@dataclass(frozen=True, slots=True)
class Copy(Move):
    """dst[o, i0, i1, i2, :inner] = src[o, i0, i1, i2, :inner] for o < count_outer, i0 < count0, i1 < count1, i2 < count2; runs on
    DMA queue `channel`. Machines of fewer DMA dimensions use count_outer = 1 (3-D), count0 = 1 too (2-D), count1 = 1 too (1-D).

    transpose: the matrix of count2 rows of inner_bytes / element size columns is turned: element (row, column), at
    row source_stride2 + column elements of the source, goes to column destination_stride2 + row elements of the destination.
    On machines with base registers `source_base` and `destination_base`, where not 0, name those that are added to the
    addresses.
    """

    NAME = "copy"
    channel: int = dma_channel()
    source_space: Space = memory_space()
    source_address: int = memory_address()
    destination_space: Space = memory_space()
    destination_address: int = memory_address()
    inner_bytes: int = extent(unit="bytes")
    count0: int = move_count(0)
    count1: int = move_count(1)
    count2: int = move_count(2)
    source_stride0: int = move_stride(0)
    source_stride1: int = move_stride(1)
    source_stride2: int = move_stride(2)
    destination_stride0: int = move_stride(0)
    destination_stride1: int = move_stride(1)
    destination_stride2: int = move_stride(2)
    source_base: int = base_of("source_address")
    destination_base: int = base_of("destination_address")
    count_outer: int = move_count(OUTER)
    source_stride_outer: int = move_stride(OUTER)
    destination_stride_outer: int = move_stride(OUTER)
    transpose: int = turned()
    element_type: int = code_type()

    def spaces(self) -> tuple[int, ...]:
        return self.source_space, self.destination_space

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        """Both in one order: element by element where something is turned."""
        source, target = space_of(self.source_space, chip), space_of(self.destination_space, chip)
        counts, run = self.counts(), self.inner_bytes
        source_strides, target_strides = self._source_strides(), self.destination_strides()
        if self._any_turned():
            size = code_bytes(self.element_type, chip)
            counts, run = (*counts, where(self.transpose, run // size, 1)), where(self.transpose, size, run)
            row = where(self.transpose, size, self.destination_stride2)
            source_strides, target_strides = (*source_strides, size), (*target_strides[:3], row, self.destination_stride2)
        return (
            Access(source, self.source_address, counts, source_strides, run, False),
            Access(target, self.destination_address, counts, target_strides, run, True),
        )

    def _source_strides(self) -> tuple[Whole, ...]:
        return self.source_stride_outer, self.source_stride0, self.source_stride1, self.source_stride2

    def _any_turned(self) -> bool:
        return bool(np.any(self.transpose)) if is_column(self.transpose) else bool(self.transpose)

    def demand(self, chip: Chip) -> Demand:
        unit, counts = self.unit_in(chip), self.counts()
        read = End(self.source_space, self.source_address, self.inner_bytes, counts, self._source_strides())
        strides = self.destination_strides()
        write = End(self.destination_space, self.destination_address, self.inner_bytes, counts, strides)
        if self._any_turned():
            size, turn = code_bytes(self.element_type, chip), self.transpose
            columns = where(turn, self.inner_bytes // size, self.count2)
            run = where(turn, self.count2 * size, self.inner_bytes)
            write = End(self.destination_space, self.destination_address, run, (*counts[:3], columns), strides)
            block_bytes = size * max(1, unit.dma.transpose_block)  # a program that turns on others is refused
            read, write = (end.in_pieces(where(turn, block_bytes, end.inner_bytes)) for end in (read, write))
        return move_demand(unit, chip, read, write)

    def broken(self, chip: Chip) -> Iterator[str]:
        yield from Move.broken(self, chip)
        if self.transpose and not self.unit_in(chip).dma.transpose_block:
            yield f"transpose=1, the machine has {self.unit_in(chip).key}.transpose_block=0"
        size = code_bytes(self.element_type, chip)
        if self.transpose and self.inner_bytes % size:
            yield f"transpose=1 of {self.inner_bytes} bytes, no whole elements of {size}"
