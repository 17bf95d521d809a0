"""Strided copies between and inside memories."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.columns import Whole
from toolchain.machine.operation import Access, Demand
from toolchain.machine.operations.move import Move
from toolchain.machine.parameter import (
    Space,
    base_of,
    dma_channel,
    extent,
    memory_address,
    memory_space,
    move_count,
    move_stride,
    space_of,
)
from toolchain.machine.units.dma import End, move_demand


@dataclass(frozen=True, slots=True)
class Copy(Move):
    """dst[i0, i1, i2, :inner] = src[i0, i1, i2, :inner] for i0 < count0, i1 < count1, i2 < count2; runs on DMA queue `channel`.

    On machines with base registers `source_base` and `destination_base`, where not 0, name those that are added to the
    addresses. Machines of fewer DMA dimensions use count0 = 1 (2-D) or count0 = count1 = 1 (1-D).
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

    def spaces(self) -> tuple[int, ...]:
        return self.source_space, self.destination_space

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        source, target, counts = space_of(self.source_space, chip), space_of(self.destination_space, chip), self.counts()
        return (
            Access(source, self.source_address, counts, self._source_strides(), self.inner_bytes, False),
            Access(target, self.destination_address, counts, self.destination_strides(), self.inner_bytes, True),
        )

    def _source_strides(self) -> tuple[Whole, Whole, Whole]:
        return self.source_stride0, self.source_stride1, self.source_stride2

    def demand(self, chip: Chip) -> Demand:
        read = End(self.source_space, self.source_address, self._source_strides())
        write = End(self.destination_space, self.destination_address, self.destination_strides())
        return move_demand(self.unit_in(chip), chip, self.inner_bytes, self.counts(), read, write)
