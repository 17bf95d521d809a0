"""The operation copy: a DMA channel moves bytes in strided runs between or inside memories, and may transpose.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.columns import IntOrColumn, code_bytes, is_column, where
from toolchain.machine.manual_text import describe_base_registers, formula
from toolchain.machine.operations.move import Move, dimension_names
from toolchain.machine.parameters.addresses import OUTER, base_of, memory_address, move_stride
from toolchain.machine.parameters.codes import code_type
from toolchain.machine.parameters.extents import extent, move_count
from toolchain.machine.parameters.modes import transpose_flag
from toolchain.machine.parameters.numbers import dma_channel
from toolchain.machine.parameters.spaces import Space, memory_space, space_of
from toolchain.machine.traffic import Demand
from toolchain.machine.units.dma import TransferSide, move_demand


@dataclass(frozen=True, slots=True)
class Copy(Move):
    """A copy of runs of `inner_bytes` bytes, with up to four counts and strides on each side.

    `transpose`: the matrix of count2 rows and inner_bytes bytes is transposed, element by element.
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
    transpose: int = transpose_flag()
    element_type: int = code_type()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        names = dimension_names(chip)
        indices = [f"i{name.strip('_')}" for name in names]
        loops = ", ".join(f"{i} < count{name}" for i, name in zip(indices, names))
        sides = [
            " + ".join([f"{side}_address", *(f"{i} {side}_stride{name}" for i, name in zip(indices, names))])
            for side in ("source", "destination")
        ]
        yield f"Moves runs of `inner_bytes` bytes, for all {loops}, each index from 0:"
        yield formula(
            "byte D + b of memory destination_space = byte S + b of memory source_space   for 0 <= b < inner_bytes",
            (f"S = {sides[0]}"),
            f"D = {sides[1]}",
        )
        yield (
            "Bytes are moved as they are. A source stride of 0 moves the same run again. No byte is written twice, and none "
            "that is written is also read: programs in which one is are refused. `channel`: the DMA queue that runs it, from "
            "0."
        )
        if any(unit.dma.transpose_block for unit in chip.of_kind("dma")):
            yield (
                "`transpose` = 1 turns the matrix of count2 rows and inner_bytes / E columns, E the bytes of an element "
                "(`element_type`); the other indices stay:"
            )
            yield formula("destination element (row c, column r) at D0 + c destination_stride2 + r E   is",
                          "source element (row r, column c) at S0 + r source_stride2 + c E",
                          "S0, D0 as S, D with i2 = 0")  # fmt: skip
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=False)

    def spaces(self) -> tuple[int, ...]:
        return self.source_space, self.destination_space

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        """Return the read and the write, both in the order in which the bytes move, element by element where a copy
        transposes.
        """
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

    def _source_strides(self) -> tuple[IntOrColumn, ...]:
        return self.source_stride_outer, self.source_stride0, self.source_stride1, self.source_stride2

    def _any_turned(self) -> bool:
        return bool(np.any(self.transpose)) if is_column(self.transpose) else bool(self.transpose)

    def _ends(self, chip: Chip) -> tuple[TransferSide, TransferSide]:
        """Return source and destination sides, by rows where the copy transposes.

        The counts are the source's rows, and the destination's rows of the transposed block.
        """
        counts, strides = self.counts(), self.destination_strides()
        read = TransferSide(self.source_space, self.source_address, self.inner_bytes, counts, self._source_strides())
        run = self.inner_bytes
        if self._any_turned():
            size, turn = code_bytes(self.element_type, chip), self.transpose
            counts = (*counts[:3], where(turn, run // size, self.count2))
            run = where(turn, self.count2 * size, run)
        return read, TransferSide(self.destination_space, self.destination_address, run, counts, strides)

    def list_moved_operands(self, chip: Chip) -> Iterator[tuple[Access, IntOrColumn]]:
        for end, write in zip(self._ends(chip), (False, True)):
            access = Access(space_of(end.space, chip), end.address, end.counts, end.strides, end.inner_bytes, write)
            yield access, access.bytes

    def demand(self, chip: Chip) -> Demand:
        unit, (read, write) = self.unit_in(chip), self._ends(chip)
        if self._any_turned():
            block_bytes = code_bytes(self.element_type, chip) * max(1, unit.dma.transpose_block)  # of none programs are refused
            read, write = (end.in_pieces(where(self.transpose, block_bytes, end.inner_bytes)) for end in (read, write))
        return move_demand(unit, chip, read, write)

    def broken(self, chip: Chip) -> Iterator[str]:
        yield from Move.broken(self, chip)
        if self.transpose and not self.unit_in(chip).dma.transpose_block:
            yield f"transpose=1, the machine has {self.unit_in(chip).key}.transpose_block=0"
        size = code_bytes(self.element_type, chip)
        if self.transpose and self.inner_bytes % size:
            yield f"transpose=1 of {self.inner_bytes} bytes, no whole elements of {size}"
