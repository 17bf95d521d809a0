"""Define tiles and moves, the terms in which an operator tells the scheduler what it does with memory.

A `Tiling` gives the sizes of tiles. A `TileTask` is the load, compute and store of one tile. DMA does a `Move` or `FillBox`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolchain.machine import MachineOp
from toolchain.machine.tensors import Strides


class Box(NamedTuple):
    """A box of a tensor: along each dimension i, the elements from start[i] up to, but without, start[i] + size[i].

    `role`: for reads, which of a unit's operands it is; the unit determines the memory of that operand.
    """

    tensor: str
    start: tuple[int, ...]
    size: tuple[int, ...]
    role: str = "input"


@dataclass(frozen=True)
class BoxLocation:
    """A location of a box in the memory of its operand: the byte address of its first element, and the strides from there."""

    address: int
    strides: Strides


class ConstantBlock(NamedTuple):
    """The constant bytes that an instruction needs: weights, parameters or a table.

    `key`: blocks of equal keys hold equal bytes.
    `data`: returns the bytes; it is called when the program is emitted, not while tilings are compared.
    `role`: which of a unit's operands they are; the unit determines the memory of that operand.
    """

    key: tuple[Any, ...]
    size_bytes: int
    data: Callable[[], bytes]
    role: str


# From where the tile's reads, blocks and write lie to its machine operations.
CodeGenerator = Callable[[Sequence[BoxLocation], Sequence[int], BoxLocation | None], tuple[MachineOp, ...]]


class TileTask(NamedTuple):
    """A task for one tile: load `reads` and `blocks` for the unit, run the operations of `emit`, store `write`.

    `write`: the box of the output; None where the task leaves partial sums in the accumulators.
    `emit`: takes the locations of `reads`, the addresses of `blocks` and the location of `write`, and returns machine
    operations.
    `variant`: further numbers on which the task's cycles depend, beside its shapes. These are the array's dataflow and
    depthwise mode, the parts of the kernel, where windows lie beside padding, and the number of partial sums.
    """

    reads: tuple[Box, ...]
    blocks: tuple[ConstantBlock, ...]
    write: Box | None
    emit: CodeGenerator
    variant: tuple[int, ...] = (0, 0)


def find_padded_edges(begin: tuple[int, int], box: Box, shape: Sequence[int]) -> tuple[int, int]:
    """Return (row, column): each is that of `begin` where the box touches an edge of its input along that axis, else -1.

    Only tiles at an edge may be padded, so that the others are alike.
    `begin`: the tile's first output row and column. `shape`: the input's, NHWC.
    """
    top, first_column, rows, columns = box.start[1], box.start[2], box.size[1], box.size[2]
    return (
        begin[0] if not top or top + rows == shape[1] else -1,
        begin[1] if not first_column or first_column + columns == shape[2] else -1,
    )


@dataclass(frozen=True)
class Tiling:
    """The sizes of a layer's tiles: output rows, columns and channels, and reduction channels (`inner`).

    `inner` is 0 where a layer has no reduction over channels, as a pool.
    `rows_outer`: the loops over rows stand outside that over channels, so inputs stay; False: weights stay. Without weights
    it means nothing.
    `taps`: kernel rows of one instruction, 0 for as many as the machine's limits allow.
    `batches`: matrix products of one instruction.
    `dataflow`, `mode`: the array's dataflow and depthwise mode, by the numbers that operations have for them.
    """

    rows: int
    columns: int
    channels: int
    inner: int
    rows_outer: bool = True
    taps: int = 0
    batches: int = 1
    dataflow: int = 0
    mode: int = 0

    @property
    def variant(self) -> tuple[int, int]:
        """The array's (dataflow, depthwise mode), which every `TileTask.variant` begins with."""
        return self.dataflow, self.mode

    @property
    def plain(self) -> bool:
        """True where an operation is one product, by the array's first dataflow and depthwise mode."""
        return self.batches == 1 and self.variant == (0, 0)

    @property
    def volume(self) -> int:
        """A measure without a unit that grows with what a tile reads and writes; it only orders tilings."""
        return self.rows * self.columns * self.channels * max(1, self.inner) * (self.taps or 1 << 16) * self.batches


class Extent(NamedTuple):
    """A part of an output of four dimensions: rows, channels and columns as (start, count). `columns` None: all of them."""

    rows: tuple[int, int]
    channels: tuple[int, int]
    columns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Loop:
    """One loop of a strided move: `count` steps along `source_dim` and `target_dim`, by `source_step` and `target_step`
    elements.

    Dimension -1 does not advance: as source it repeats an element, as target it overwrites one.
    """

    count: int
    source_dim: int
    source_step: int
    target_dim: int
    target_step: int


@dataclass(frozen=True)
class Move:
    """A copy from input number `source` to the output, element by element over the nested `loops`.

    It begins at `source_start` and `target_start`, which are indices of elements.
    `indexed`: source or target lies further along by a number of rows that is read at run time (`RowIndex`).
    """

    source: int
    source_start: tuple[int, ...]
    target_start: tuple[int, ...]
    loops: tuple[Loop, ...]
    indexed: bool = False


@dataclass(frozen=True)
class FillBox:
    """A box of the output in which every code is set to `value`."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    value: int


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up, for b > 0."""
    return -(-a // b)


def round_up(size: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is not below `size`."""
    return ceil_div(size, multiple) * multiple


def spans(total: int, tile: int, first: int = 0) -> list[tuple[int, int]]:
    """Return [first, first + total) cut into (start, size) pieces of `tile`; the last may be shorter."""
    return [(first + i, min(tile, total - i)) for i in range(0, total, tile)]


def halvings(total: int, multiple: int = 1) -> list[int]:
    """Return tile sizes worth trying along a dimension, descending: the whole, then cuts into 2, 3, 4, 6, 9, ... pieces.

    All but the whole are rounded up to `multiple`; the last is at most `multiple`.
    """
    sizes: list[int] = []
    pieces = 1
    while True:
        size = min(total, round_up(ceil_div(total, pieces), multiple))
        if not sizes or size < sizes[-1]:
            sizes.append(size)
        if size <= multiple:
            return sizes
        pieces = pieces + max(1, pieces // 2)
