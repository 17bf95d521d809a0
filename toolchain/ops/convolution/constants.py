"""The constants of a convolution's tile: weights, requantization parameters behind them or in a memory of their own, a table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from toolchain.ops.kit.tile import ConstantBlock, round_up


class Addresses(NamedTuple):
    """Where an instruction finds its constants; 0 for those that it does not use."""

    weights: int
    parameters: int = 0
    table: int = 0


class DeferredBytes(NamedTuple):
    """Bytes that are made when the program is emitted."""

    size_bytes: int
    data: Callable[[], bytes]


class Constants(NamedTuple):
    """The blocks of a work, and how an instruction addresses them. parameters: where they begin in the block of the weights, None
    where they are the block behind it; table: the number of its block."""

    blocks: tuple[ConstantBlock, ...]
    parameters: int | None = None
    table: int | None = None

    def at(self, found: Sequence[int], weights: int = 0, parameters: int = 0) -> Addresses:
        """found: the address of each block. weights, parameters: bytes from the first ones to those of the instruction."""
        if len(found) == 1 and self.parameters is None:
            return Addresses(found[0] + weights)
        first = found[1] if self.parameters is None else found[0] + self.parameters
        return Addresses(found[0] + weights, first + parameters, 0 if self.table is None else found[self.table])


def partial_sum_constants(key: tuple[Hashable, ...], weights: DeferredBytes) -> Constants:
    """Of a work that leaves sums in the accumulators: weights alone."""
    return Constants((ConstantBlock((*key, False), *weights, "weights"),))


def complete_constants(
    key: tuple[Hashable, ...], weights: DeferredBytes, parameters: DeferredBytes, table: Sequence[ConstantBlock], step: int
) -> Constants:
    """Of a work whose sums are written out. step: where weights and parameters lie in one memory, and so in one block, alignment
    of the latter in bytes; 0: all works of these channels share the parameters. key: of the weights, (layer, channels, ...)."""
    if not step:
        blocks = (
            ConstantBlock((*key, False), *weights, "weights"),
            ConstantBlock((*key[:2], "parameters"), *parameters, "parameters"),
            *table,
        )
        return Constants(blocks, None, 2 if table else None)
    behind = round_up(weights.size_bytes, step)

    def data() -> bytes:
        return weights.data().ljust(behind, b"\0") + parameters.data()

    blocks = (ConstantBlock((*key, True), behind + parameters.size_bytes, data, "weights"), *table)
    return Constants(blocks, behind, 1 if table else None)
