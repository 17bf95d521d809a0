"""The operation load_base: a base register gets a value from a number in memory, which is known only when the program
runs.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.columns import IntOrColumn
from toolchain.machine.front_end import FrontEnd
from toolchain.machine.manual_text import describe_base_registers, formula
from toolchain.machine.operation import MachineOp
from toolchain.machine.operations.move import list_unreachable_memories
from toolchain.machine.parameters.addresses import base_number, base_of, base_offset, base_scale, memory_address
from toolchain.machine.parameters.numbers import dma_channel, index_limit, word_size
from toolchain.machine.parameters.spaces import Space, memory_space, space_of
from toolchain.machine.traffic import Demand
from toolchain.machine.units.dma import TransferSide, move_demand


@dataclass(frozen=True, slots=True)
class LoadBase(MachineOp):
    """An operation that sets base[base] = base[source] + offset + scale * word, where word is clamped to 0..limit.

    The word is the number in the `word_bytes` bytes at `address` of the memory `space`, two's complement.
    """

    NAME = "load_base"
    ENGINE = "dma"
    STALLS: ClassVar[bool] = True
    channel: int = dma_channel()
    base: int = base_number(1)
    source: int = base_number(0)
    offset: int = base_offset()
    scale: int = base_scale()
    limit: int = index_limit()
    space: Space = memory_space()
    address: int = memory_address()
    word_bytes: int = word_size()
    address_base: int = base_of("address")

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield formula("base[base] = base[source] + offset + scale min(max(word, 0), limit)")
        yield (
            "word is the number in the `word_bytes` bytes (1, 2 or 4) at `address` of the memory `space`, two's complement, "
            "least significant byte first. It runs on DMA queue `channel`, behind what stands there; the front end dispatches "
            "nothing behind it before it is over. base[0] is 0."
        )
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=False)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return "control.indirect" if chip.control.indirect else None

    def number(self) -> IntOrColumn:
        return self.channel

    def steer(self, front: FrontEnd, index: int) -> None:
        """Note in the front end that register `base` depends on the word that this operation loads. The word is read later.

        `index`: the position of this operation among the dispatched ones.
        Raise ValueError where the machine has no control.indirect, or no such register.
        """
        front.load_base(self.base, self.source, self.offset, index, self.scale, self.limit)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return (Access(space_of(self.space, chip), self.address, (), (), self.word_bytes, False),)

    def demand(self, chip: Chip) -> Demand:
        return move_demand(self.unit_in(chip), chip, TransferSide(self.space, self.address, self.word_bytes, (), ()), None)

    def broken(self, chip: Chip) -> Iterator[str]:
        if self.word_bytes not in (1, 2, 4):
            yield f"word_bytes={self.word_bytes}, must be 1, 2 or 4"
        if self.scale < 0:
            yield f"scale={self.scale}, must be at least 0"
        most = chip.control.indirect.max_index if chip.control.indirect else 0
        if not 0 <= self.limit <= most:
            yield f"limit={self.limit}, must be 0 to {most} (control.indirect.max_index)"
        yield from list_unreachable_memories(self.unit_in(chip), (self.space,), chip)
