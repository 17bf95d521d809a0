"""Describe operations as tiles of one evaluation, and gather the tiles that are parts of the same.

A merged simulation computes an evaluation at once in place of its tiles. Every byte that an operation makes has a number, and
equal numbers are equal values. It says array, row, column and byte of the pixel (`ROW`, `COLUMN`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from simulator.merging.gathered_maps import GatheredMap, Reading
from simulator.merging.places import Places
from simulator.merging.value_numbers import ARRAY_BITS, INITIAL, INITIAL_NUMBER, Affine, ValueNumbers, array_of
from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp, WindowOp

# A number of a tile's output has a row, a column and a byte of its pixel, 16 bits each, below the array.
ROW, COLUMN = 1 << 32, 1 << 16
# Row and column of the first tile of an array; others may lie above or left of it.
_FIRST = 1 << 12  # source: rows of a feature map, of which _MOST leaves seven times as many behind it
_PLACES = 1 << 16  # source: the bits above
_MOST = _PLACES // 2  # so that a difference of two numbers is one of rows, columns and bytes only

Readings = Mapping[int, Sequence[Reading]]  # of gathered operands, by their position


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a tile reads: what output element (y, x, c) needs has the number `number` + (y, x, c) · `steps`.

    Of a gathered tensor these are numbers of places, and its values are those of the tile's `Reading`s.

    `name`: how the operation's fields of it begin.
    `pixel_bytes`: what an element needs from there on, the same for any number of channels; 0: `steps[2]` bytes a channel.
    """

    number: int
    steps: tuple[int, int, int]
    gathered: bool = False
    name: str = "input"
    pixel_bytes: int = 0


class Constants(NamedTuple):
    """The places in the DRAM of the constants of a tile's output channels.

    `weights`: address and input channels of each block, one of channels behind those of the block before.
    `parameters`: address.
    """

    weights: tuple[tuple[int, int], ...]
    parameters: int


@dataclass(frozen=True, slots=True)
class Tile:
    """An operation as a part of an evaluation.

    `index`: of the operation in the program.
    `kind`: what all tiles of an evaluation share.
    `operands`: the first one says where in the output the tile lies.
    `shape`: rows, columns and channels of its output.
    `item_bytes`: of an output element.
    `output`: memory, address, row and column stride of its output.
    `constants`: those of its channels; None where its channels are those of its operands.
    `table`: the DRAM address of its table; None: it has none.
    `strides`: input rows and columns from one output element to the next.
    """

    index: int
    op: MachineOp
    kind: Hashable
    operands: tuple[Operand, ...]
    shape: tuple[int, int, int]
    item_bytes: int
    output: tuple[int, int, int, int] = (0, 0, 0, 0)
    constants: Constants | None = None
    table: int | None = None
    strides: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True)
class PlacedTile:
    """A tile at an output element (y, x, c), counted from the first tile of its evaluation."""

    tile: Tile
    at: tuple[int, int, int]


@dataclass(eq=False)
class Evaluation:
    """A set of tiles whose outputs are parts of one array, computed by one operation from the same operands.

    `array`: identity of its output in the numbers of values.
    `channels`: first output channel and count by the constants.
    `maps`: what the tiles read of each gathered operand.
    """

    array: int
    first: Tile
    tiles: list[PlacedTile] = field(default_factory=list[PlacedTile])
    channels: dict[Constants, tuple[int, int]] = field(default_factory=dict[Constants, tuple[int, int]])
    maps: dict[int, GatheredMap] = field(default_factory=dict[int, GatheredMap])

    def add(self, tile: Tile, readings: Readings = MappingProxyType({})) -> int | None:
        """Add a tile, and return the number of its first output byte; None, and no tile added, where it is no part of this."""
        first = self.first
        number = self._add(tile, readings)
        if number is None:
            self.first = first
        return number

    def _add(self, tile: Tile, readings: Readings) -> int | None:
        if self.tiles and all(p.at[0] == 0 and p.tile.shape[0] == 1 for p in self.tiles):
            self._space_rows(tile)
        at = self._find_place(tile)
        if at is None:
            return None
        row, column, byte = at[0] + _FIRST, at[1] + _FIRST, at[2] * tile.item_bytes
        size = (tile.shape[0], tile.shape[1], tile.shape[2] * tile.item_bytes)
        if any(place < 0 or place + n >= _MOST for place, n in zip((row, column, byte), size)):
            return None
        if not self._add_readings(tile, at, readings):
            return None
        if tile.constants:
            self.channels[tile.constants] = (at[2], tile.shape[2])
        self.tiles.append(PlacedTile(tile, at))
        return (self.array << ARRAY_BITS) + row * ROW + column * COLUMN + byte

    def _add_readings(self, tile: Tile, at: tuple[int, int, int], readings: Readings) -> bool:
        """Add what the tile reads of gathered operands. Return False, and add nothing, where others read other values there."""
        placed = [
            (self.maps.setdefault(k, GatheredMap()), part, self.find_map_place(k, at))
            for k, parts in readings.items()
            for part in parts
        ]
        if not all(gathered.fits(part, place, self.array) for gathered, part, place in placed):
            return False
        for gathered, part, place in placed:
            gathered.add(part, place)
        return True

    def find_map_place(self, operand: int, at: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return row, column and byte of a gathered operand's map that output element `at` begins to read."""
        down, right = self.first.strides if operand == 0 else (1, 1)
        steps = self.first.operands[operand].steps
        return at[0] * down if steps[0] else 0, at[1] * right if steps[1] else 0, at[2] * steps[2]

    def _space_rows(self, tile: Tile) -> None:
        """Take the distance of rows, which tiles of one row do not show, from the first tile of the next row."""
        first, *others = self.first.operands
        row = first.steps[0] // self.first.strides[0]  # of the input
        for above in (p.tile for p in self.tiles if p.tile.shape == tile.shape and p.tile.constants == tile.constants):
            distances = [below.number - o.number for below, o in zip(tile.operands, above.operands)]
            if distances[0] > 0 and distances[0] % row == 0 and min(distances) >= 0:
                if not first.gathered and not is_multiple(distances[0], distances[0] // row):
                    return  # windows go down its columns: no number of these is a row
                operands = (replace(o, steps=(step, *o.steps[1:])) for o, step in zip((first, *others), distances))
                # of a window the rows between are data too, of which it skips some
                rows = distances[0] // row if isinstance(self.first.op, WindowOp) else 1
                strides = (rows, self.first.strides[1])
                self.first = replace(self.first, operands=tuple(operands), strides=strides)
                return

    def _find_place(self, tile: Tile) -> tuple[int, int, int] | None:
        if not all(self._steps_agree(tile, *pair) for pair in zip(tile.operands, self.first.operands)):
            return None
        (mine, *others), (first, *first_others) = tile.operands, self.first.operands
        row, column, channel = first.steps
        y, rest = divmod(mine.number - first.number, row)
        x, rest = divmod(rest, column)
        c, rest = divmod(rest, channel) if channel else (0, rest)
        c = self._find_channel(tile.constants) if tile.constants and not channel else c
        if rest or (tile.constants and not self._takes_channels(tile.constants, c, tile.shape[2])):
            return None
        at = (y, x, c)
        for other, first_other in zip(others, first_others):
            if other.number != first_other.number + sum(n * step for n, step in zip(at, first_other.steps)):
                return None
        return at

    def _steps_agree(self, tile: Tile, operand: Operand, first: Operand) -> bool:
        """Return whether steps are the same. Those of an only row or column mean nothing."""
        return all(n == 1 or a == b for n, a, b in zip((*tile.shape[:2], 0), operand.steps, first.steps))

    def _find_channel(self, constants: Constants) -> int:
        """Return the first output channel where only constants tell channels apart: those of new ones are the next."""
        span = self.channels.get(constants)
        return span[0] if span is not None else max((first + n for first, n in self.channels.values()), default=0)

    def _takes_channels(self, constants: Constants, first: int, count: int) -> bool:
        """Return whether the channels have these constants, or no others yet."""
        if constants in self.channels:
            return self.channels[constants] == (first, count)
        return all(first >= other + n or other >= first + count for other, n in self.channels.values())

    @property
    def low(self) -> tuple[int, int, int]:
        """The least row, column and channel of all tiles, which may be of several; they may be below 0."""
        y, x, c = (min(p.at[k] for p in self.tiles) for k in range(3))
        return y, x, c

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels from the least place on."""
        h, w, c = (max(p.at[k] + p.tile.shape[k] for p in self.tiles) - low for k, low in enumerate(self.low))
        return h, w, c

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands from the least place on."""
        low = self.low
        return tuple(replace(o, number=o.number + sum(n * s for n, s in zip(low, o.steps))) for o in self.first.operands)


def is_multiple(step: int, count: int) -> bool:
    """Return whether a step between two numbers is `count` equal steps of whole rows, columns and bytes."""
    return not any(part % count for part in (step // ROW, step % ROW // COLUMN, step % COLUMN))


def split_place(number: int) -> tuple[int, int, int]:
    """Return row and column, counted from the array's first tile, and byte of a number."""
    return (number // ROW) % _PLACES - _FIRST, (number // COLUMN) % _PLACES - _FIRST, number % _PLACES


class Memories:
    """The numbers of a program's values as operations see them.

    `values`: what each byte holds now.
    `places`: where each byte was copied from; None: not followed.
    `grids`: arrays whose numbers have rows and columns.
    `gathered`: kinds of tiles whose operands are gathered.
    `scattered`: kinds of tiles whose operands lie in no one array, of those met.
    """

    def __init__(
        self,
        chip: Chip,
        values: ValueNumbers,
        constants: Sequence[tuple[int, int]],
        places: Places | None = None,
        gathered: frozenset[Hashable] = frozenset(),
    ):
        """Set up a view of the values.

        `constants`: ranges of the DRAM that hold the same in all runs.
        """
        self.chip, self.values, self.places, self.gathered = chip, values, places, gathered
        self.grids: set[int] = set()
        self.scattered: set[Hashable] = set()
        ranges: list[tuple[int, int]] = []
        for first, last in sorted(constants):
            if ranges and first <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
            else:
                ranges.append((first, last))
        self._starts, self._ends = [first for first, _ in ranges], [last for _, last in ranges]

    def note_scattered(self, kind: Hashable) -> None:
        """Note a kind of tiles whose operands lie in no one array, so that another step through the program gathers them."""
        if self.places is None:
            self.scattered.add(kind)

    def read_constant(self, space: int, address: int, size_bytes: int) -> int | None:
        """Return the DRAM address whose constant bytes lie there, or None."""
        box = self.values.read_affine(space, address, (size_bytes,), (1,))
        if box is None or array_of(box.first) != INITIAL or (size_bytes > 1 and box.steps != (1,)):
            return None
        first = box.first - INITIAL_NUMBER
        at = bisect_right(self._starts, first) - 1
        return first if at >= 0 and first + size_bytes <= self._ends[at] else None

    def read_pixels(
        self, space: int, address: int, counts: tuple[int, int], strides: tuple[int, int], size_bytes: int, gathers: bool
    ) -> Affine | None:
        """Return the number of the first byte, with the steps from row to row and from pixel to pixel.

        None: the pixels lie in no one array at equal steps. `counts`, `strides`: rows and columns, and their bytes apart.
        `gathers`: the numbers are the places that each pixel's first byte was copied from.
        """
        read_bytes = 1 if gathers else size_bytes
        numbers = self.places if gathers and self.places is not None else self.values
        box = numbers.read_affine(space, address, (*counts, read_bytes), (*strides, 1))
        if box is None or (read_bytes > 1 and box.steps[2] != 1):
            return None
        row, column, _ = box.steps
        return Affine(box.first, self.fill_steps(box.first, (row, column), counts, size_bytes))

    def fill_steps(
        self, number: int, steps: tuple[int | None, int | None], counts: tuple[int, int], size_bytes: int
    ) -> tuple[int, int]:
        """Return (row step, column step), with the likely ones where one row or column, or None, shows none.

        They are those of an array of rows and columns, else of pixels side by side. `size_bytes`: of a pixel.
        """
        row, column = steps
        grid = array_of(number) in self.grids
        column = (COLUMN if grid else size_bytes) if counts[1] == 1 or column is None else column
        return (ROW if grid else counts[1] * column) if counts[0] == 1 or row is None else row, column
