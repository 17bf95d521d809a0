"""Tiles: what one brings, runs and takes away, and the sizes worth trying; moves of boxes and fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolchain.machine import MachineOp
from toolchain.machine.tensors import Strides


class Box(NamedTuple):
    """A box of a tensor: elements start[i] .. start[i] + size[i] of each dimension.

    `role`: for reads, which of a unit's operands it is; the unit determines the memory of that operand.
    """

    tensor: str
    start: tuple[int, ...]
    size: tuple[int, ...]
    role: str = "input"


@dataclass(frozen=True)
class BoxLocation:
    """A location of a box's first element in the memory of its operand, and the strides from there."""

    address: int
    strides: Strides


class ConstantBlock(NamedTuple):
    """Constant bytes an instruction needs (weights, parameters, a table). Equal keys hold equal bytes. role: which of a unit's
    operands they are; the unit says which memory that one lies in."""

    key: tuple[Any, ...]
    size_bytes: int
    data: Callable[[], bytes]  # made when the program is emitted, not while tilings are compared
    role: str


# From where the tile's reads, blocks and write lie to its machine operations.
CodeGenerator = Callable[[Sequence[BoxLocation], Sequence[int], BoxLocation | None], tuple[MachineOp, ...]]


class TileTask(NamedTuple):
    """A task for one tile: load `reads` and `blocks` for the unit, run the operations of `emit`, store `write` (None: partial
    sums).

    `variant`: timing parameters that its shapes do not give: the array's dataflow and depthwise mode.
    It also has (start, count) of the rows and columns of the kernel, where windows lie beside padding.
    For partial sums it has their number.
    """

    reads: tuple[Box, ...]
    blocks: tuple[ConstantBlock, ...]
    write: Box | None
    emit: CodeGenerator
    variant: tuple[int, ...] = (0, 0)


def find_padded_edges(begin: tuple[int, int], box: Box, shape: Sequence[int]) -> tuple[int, int]:
    """The first row and column of a tile, each where what it reads ends with its input (NHWC) and may be padded; else -1."""
    top, first_column, rows, columns = box.start[1], box.start[2], box.size[1], box.size[2]
    return (
        begin[0] if not top or top + rows == shape[1] else -1,
        begin[1] if not first_column or first_column + columns == shape[2] else -1,
    )


@dataclass(frozen=True)
class Tiling:
    """Tile sizes in output rows, columns and channels, and reduction channels; `rows_outer` keeps inputs, else weights.

    `taps`: kernel rows of one instruction, 0 for all that the machine's limits allow. `batches`: matrix products of one.
    `dataflow`, `mode`: the array's, by the numbers that operations have for them.
    """

    rows: int
    columns: int
    channels: int
    inner: int
    rows_outer: bool = True  # nothing to an operation without weights
    taps: int = 0
    batches: int = 1
    dataflow: int = 0
    mode: int = 0

    @property
    def variant(self) -> tuple[int, int]:
        """Return the variant of its tile tasks."""
        return self.dataflow, self.mode

    @property
    def plain(self) -> bool:
        """One product an operation, by the array's first dataflow and depthwise mode."""
        return self.batches == 1 and self.variant == (0, 0)

    @property
    def volume(self) -> int:
        """Grows with what a tile reads and writes."""
        return self.rows * self.columns * self.channels * max(1, self.inner) * (self.taps or 1 << 16) * self.batches


class Extent(NamedTuple):
    """Part of an output of four dimensions, its rows, channels and columns as (start, count). columns: None: all of them."""

    rows: tuple[int, int]
    channels: tuple[int, int]
    columns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Loop:
    """One dimension of a strided move; dimension -1 stays in place (replicates or broadcasts)."""

    count: int
    source_dim: int
    source_step: int
    target_dim: int
    target_step: int


@dataclass(frozen=True)
class Move:
    """A copy of `loops` elements of input number `source` from `source_start` to `target_start` of the output.

    `indexed`: one of the two lies so many rows further as a number read by the operator.
    """

    source: int
    source_start: tuple[int, ...]
    target_start: tuple[int, ...]
    loops: tuple[Loop, ...]
    indexed: bool = False


@dataclass(frozen=True)
class FillBox:
    """Sets a box of the output to one code."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    value: int


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(size: int, multiple: int) -> int:
    """The least multiple of `multiple` that holds `size`."""
    return ceil_div(size, multiple) * multiple


def spans(total: int, tile: int, first: int = 0) -> list[tuple[int, int]]:
    """[first, first + total) cut into (start, size) pieces of at most `tile`."""
    return [(first + i, min(tile, total - i)) for i in range(0, total, tile)]


def halvings(total: int, multiple: int = 1) -> list[int]:
    """Tile sizes worth trying along a dimension: the whole, then even cuts into 2, 3, 4, 6, 8, ... rounded to `multiple`."""
    sizes: list[int] = []
    pieces = 1
    while True:
        size = min(total, round_up(ceil_div(total, pieces), multiple))
        if not sizes or size < sizes[-1]:
            sizes.append(size)
        if size <= multiple:
            return sizes
        pieces = pieces + max(1, pieces // 2)
