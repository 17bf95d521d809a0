"""Arrange the constants of a convolution's tile task in blocks: weights, requantization parameters and a table.

Parameters lie behind the weights, or in a block of their own where they are in another memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from toolchain.ops.kit.tile import ConstantBlock, round_up


class Addresses(NamedTuple):
    """The byte addresses of an instruction's constants; 0 for those that it does not use."""

    weights: int
    parameters: int = 0
    table: int = 0


class DeferredBytes(NamedTuple):
    """Bytes that `data` makes when the program is emitted."""

    size_bytes: int
    data: Callable[[], bytes]


class Constants(NamedTuple):
    """The constant blocks of a tile task, and how an instruction addresses them.

    `parameters`: the byte at which they begin in the block of the weights; None where they are the block after it or absent.
    `table`: the number of its block; None where there is none.
    """

    blocks: tuple[ConstantBlock, ...]
    parameters: int | None = None
    table: int | None = None

    def at(self, addresses: Sequence[int], weights: int = 0, parameters: int = 0) -> Addresses:
        """Return the addresses of an instruction's constants.

        `addresses`: the address of each block.
        `weights`, `parameters`: bytes from the blocks' first weights and parameters to those of the instruction.
        """
        if len(addresses) == 1 and self.parameters is None:
            return Addresses(addresses[0] + weights)
        first = addresses[1] if self.parameters is None else addresses[0] + self.parameters
        return Addresses(addresses[0] + weights, first + parameters, 0 if self.table is None else addresses[self.table])


def partial_sum_constants(key: tuple[Hashable, ...], weights: DeferredBytes) -> Constants:
    """Return the constants of a tile task that leaves sums in the accumulators: weights alone."""
    return Constants((ConstantBlock((*key, False), *weights, "weights"),))


def complete_constants(
    key: tuple[Hashable, ...], weights: DeferredBytes, parameters: DeferredBytes, table: Sequence[ConstantBlock], step: int
) -> Constants:
    """Return the constants of a tile task that stores results: weights, parameters and table.

    `key`: of the weights, (layer, channels, ...).
    `step`: alignment of the parameters in bytes, where weights and parameters lie in one memory, and so in one block.
    With 0 they lie apart, and all tasks of these channels share the parameters.
    """
    if not step:
        blocks = (
            ConstantBlock((*key, False), *weights, "weights"),
            ConstantBlock((*key[:2], "parameters"), *parameters, "parameters"),
            *table,
        )
        return Constants(blocks, None, 2 if table else None)
    parameter_offset = round_up(weights.size_bytes, step)

    def data() -> bytes:
        return weights.data().ljust(parameter_offset, b"\0") + parameters.data()

    blocks = (ConstantBlock((*key, True), parameter_offset + parameters.size_bytes, data, "weights"), *table)
    return Constants(blocks, parameter_offset, 1 if table else None)
