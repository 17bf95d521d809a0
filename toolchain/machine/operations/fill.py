"""The operation fill: a DMA channel writes one code to a strided block of a memory.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.columns import code_bytes
from toolchain.machine.manual_text import describe_base_registers, formula, scale_index
from toolchain.machine.operations.move import Move, dimension_names
from toolchain.machine.parameters.addresses import OUTER, base_of, memory_address, move_stride
from toolchain.machine.parameters.codes import code, code_type
from toolchain.machine.parameters.extents import extent, move_count
from toolchain.machine.parameters.numbers import dma_channel
from toolchain.machine.parameters.spaces import Space, memory_space, space_of
from toolchain.machine.traffic import Demand
from toolchain.machine.units.dma import TransferSide, move_demand


@dataclass(frozen=True, slots=True)
class Fill(Move):
    """A fill of runs of `inner_elements` codes with one value, with up to four counts and strides."""

    NAME = "fill"
    channel: int = dma_channel()
    destination_space: Space = memory_space()
    destination_address: int = memory_address()
    inner_elements: int = extent()
    count0: int = move_count(0)
    count1: int = move_count(1)
    count2: int = move_count(2)
    destination_stride0: int = move_stride(0)
    destination_stride1: int = move_stride(1)
    destination_stride2: int = move_stride(2)
    value: int = code("element_type")
    destination_base: int = base_of("destination_address")
    count_outer: int = move_count(OUTER)
    destination_stride_outer: int = move_stride(OUTER)
    element_type: int = code_type()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        names = dimension_names(chip)
        indices = [f"i{name.strip('_')}" for name in names]
        loops = ", ".join(f"{i} < count{name}" for i, name in zip(indices, names))
        place = " + ".join(["destination_address", *(f"{i} destination_stride{name}" for i, name in zip(indices, names))])
        yield f"Writes `inner_elements` codes, each `value`, for all {loops}, each index from 0:"
        yield formula(
            f"code at D + {scale_index('e', 'element_type', chip)} of memory destination_space = value   for 0 <= e < "
            "inner_elements",
            f"D = {place}",
        )
        yield "Any memory that the channel reaches; `channel`: the DMA queue that runs it, from 0. No byte is written twice."
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=False)

    def spaces(self) -> tuple[int, ...]:
        return (self.destination_space,)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        target, inner_bytes = space_of(self.destination_space, chip), self.inner_elements * code_bytes(self.element_type, chip)
        return (Access(target, self.destination_address, self.counts(), self.destination_strides(), inner_bytes, True),)

    def demand(self, chip: Chip) -> Demand:
        inner_bytes = self.inner_elements * code_bytes(self.element_type, chip)
        write = TransferSide(
            self.destination_space, self.destination_address, inner_bytes, self.counts(), self.destination_strides()
        )
        return move_demand(self.unit_in(chip), chip, None, write)
