"""Collect an operand's values, whose bytes lie in several arrays, by where they lie in the map that an evaluation reads.

The evaluation then loads the map from those arrays before it runs. A `Place` is (row, column, byte of the pixel). A number
names a value of an array (`value_numbers`); 0 is no value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.merging.box_copies import ValueBox, boxes_of_bytes
from simulator.merging.value_numbers import Numbers, array_of

Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """Values that a tile reads of an operand.

    `rows`, `columns`: int64[n], counted from the tile's first window, padding included, or from its first output element.
    `numbers`: int64[rows, columns, bytes of a pixel].
    """

    rows: Numbers
    columns: Numbers
    numbers: Numbers


@dataclass(eq=False)
class GatheredMap:
    """The map of one operand: numbers of its values as the tiles of an evaluation read them; 0 where none does.

    `low`: row, column and byte of `numbers[0, 0, 0]`, counted from the first tile.
    `numbers`: int64[rows, columns, bytes]; it grows with the tiles.
    """

    low: Place = (0, 0, 0)
    numbers: Numbers = field(default_factory=lambda: np.zeros((0, 0, 0), np.int64))

    def fits(self, reading: Reading, at: Place, before: int) -> bool:
        """Return whether a reading agrees with what other tiles read; False where it lacks a value. No value changes.

        `at`: where the tile lies, counted from the first one.
        `before`: all values are of arrays below it, so that they are made before the evaluation.
        """
        numbers = reading.numbers
        if int(numbers.min()) <= 0 or array_of(int(numbers.max())) >= before:
            return False
        index = self._find_index(reading, at)  # before `numbers`, which it may make anew
        present = self.numbers[index]
        return not present.any() or not ((present != numbers) & (present != 0)).any()

    def add(self, reading: Reading, at: Place) -> None:
        """Add what a tile at a place reads. Call `fits` first."""
        index = self._find_index(reading, at)
        self.numbers[index] = reading.numbers

    def _find_index(self, reading: Reading, at: Place) -> Any:
        """Make room for a reading and return its index into `numbers`."""
        size_bytes: int = reading.numbers.shape[2]
        axes = (reading.rows + at[0], reading.columns + at[1], at[2] + np.arange(size_bytes))
        self._cover(axes)
        index = tuple(_as_index(axis - low) for axis, low in zip(axes, self.low))
        if any(isinstance(part, np.ndarray) for part in index):
            return np.ix_(*(axis - low for axis, low in zip(axes, self.low)))
        return index

    def cut(self, low: Place, shape: Place) -> Numbers:
        """Return the numbers of a part, int64[shape]; 0 beyond what was read."""
        part = np.zeros(shape, np.int64)
        inside: list[slice] = []
        source: list[slice] = []
        for first, count, begin, size in zip(low, shape, self.low, self.numbers.shape):
            start, end = max(first, begin), max(min(first + count, begin + size), max(first, begin))
            inside.append(slice(start - first, end - first))
            source.append(slice(start - begin, end - begin))
        part[tuple(inside)] = self.numbers[tuple(source)]
        return part

    def _cover(self, axes: tuple[Numbers, Numbers, Numbers]) -> None:
        """Make room for these rows, columns and bytes; twice as much where a dimension grows, so that few tiles copy."""
        needs = [(int(axis.min()), int(axis.max()) + 1) for axis in axes]
        if not self.numbers.size:
            self.low = tuple(first for first, _ in needs)  # type: ignore[assignment]
            self.numbers = np.zeros([end - first for first, end in needs], np.int64)
            return
        spans = [(low, low + size) for low, size in zip(self.low, self.numbers.shape)]
        if all(low <= first and end <= high for (first, end), (low, high) in zip(needs, spans)):
            return
        grown: list[tuple[int, int]] = []
        for (first, end), (low, high) in zip(needs, spans):
            size = high - low
            grown.append((low if first >= low else min(first, low - size), high if end <= high else max(end, high + size)))
        low, shape = tuple(first for first, _ in grown), tuple(end - first for first, end in grown)
        self.numbers, self.low = self.cut(low, shape), low  # type: ignore[arg-type, assignment]


def _as_index(axis: Numbers) -> slice | Numbers:
    """Return a slice for rows or columns without gaps, which is faster than their numbers."""
    first = int(axis[0])
    return slice(first, first + axis.size) if int(axis[-1]) - first == axis.size - 1 else axis


def boxes_of_map(numbers: Numbers) -> list[ValueBox]:
    """Return boxes that copy a map's values to where it lies densely from address 0.

    `numbers`: int64[rows, columns, bytes] of the values; bytes of number 0 are in no box.
    """
    flat = numbers.ravel()
    addresses = np.flatnonzero(flat)
    return boxes_of_bytes(addresses, flat[addresses])
