"""Number the values in a program's memories: bytes of equal numbers hold equal values, wherever they lie.

A number is an array's identity above 48 bits and a place in that array below them. An array is what one evaluation or one
single operation makes. Array 1 is the DRAM at the start, where the place is the address. 0 is no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import InternalError
from toolchain.machine import Access

Numbers = NDArray[np.int64]

ARRAY_BITS = 48  # source: what the largest DRAM address needs
INITIAL = 1  # source: an array, none of whose numbers is 0, which marks what is not written
INITIAL_NUMBER = INITIAL << ARRAY_BITS
MOST_ARRAYS = (1 << (63 - ARRAY_BITS)) - 1  # source: int64; the largest identity
_PAGE_BITS = 10  # a program's tiles are some KiB: measured, 512 B to 4 KiB are equally fast


def array_of(number: int) -> int:
    """Return the array in which the value of this number was made."""
    return number >> ARRAY_BITS


class Affine(NamedTuple):
    """Numbers that are first + sum(i_k steps[k]), a step for each dimension; 0 where a dimension has one element."""

    first: int
    steps: tuple[int, ...]


class ValueNumbers:
    """The number of the value that each byte holds while a program is stepped through. `write` changes it."""

    def __init__(self, sizes: Sequence[int], initial: Sequence[int] = (INITIAL,)):
        """Number the initial values.

        `sizes`: bytes of each memory, the DRAM first.
        `initial`: the arrays of the initial values of the first memories, where the place is the address; others have none.
        """
        # zeros cost no memory until something is written: initial values of the DRAM, else bytes that no program reads
        self._numbers = [np.zeros(size, np.int64) for size in sizes]
        self._last_writes = [np.zeros((size >> _PAGE_BITS) + 1, np.int64) for size in sizes]
        self._initial = [array << ARRAY_BITS for array in initial]
        self._writes = 0
        self._affine: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], tuple[int, Affine | None]] = {}

    def read(self, space: int, address: int, counts: Sequence[int], strides: Sequence[int]) -> Numbers:
        """Return the numbers of a box of bytes, int64[counts]; strides in bytes, that of the last dimension included.

        None of the strides is negative.

        The result is to be read only. It may be a view, which later writes change.
        """
        end = address + sum((n - 1) * s for n, s in zip(counts, strides)) + 1
        view = self._view(space, address, counts, strides)
        if space >= len(self._initial):
            return view
        initial = self._initial[space] + address + _offsets(tuple(counts), tuple(strides))
        return np.where(view == 0, initial, view) if self._last_write(space, address, end) else initial

    def write(self, space: int, address: int, counts: Sequence[int], strides: Sequence[int], numbers: Numbers) -> None:
        """Let a box of bytes hold the values of these numbers, which are broadcast to its shape.

        Where the number is 0, a byte has its initial number again, as if it was never written.
        """
        self._view(space, address, counts, strides)[...] = numbers
        self._writes += 1
        end = address + sum((n - 1) * s for n, s in zip(counts, strides)) + 1
        self._last_writes[space][address >> _PAGE_BITS : (end - 1 >> _PAGE_BITS) + 1] = self._writes

    def read_affine(self, space: int, address: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> Affine | None:
        """Return the numbers of a box of bytes where they are affine in its indexes and of one array, else None."""
        key = (space, address, counts, strides)
        cached = self._affine.get(key)
        end = address + sum((n - 1) * s for n, s in zip(counts, strides)) + 1
        if cached is not None and cached[0] >= self._last_write(space, address, end):
            return cached[1]
        affine = fit_affine(self.read(space, address, counts, strides))
        self._affine[key] = (self._writes, affine)
        return affine

    def list_written(self) -> tuple[Numbers, Numbers]:
        """Return (addresses, numbers), int64[n] each: the bytes of the DRAM that were written, in order, and what they hold.

        Bytes to which 0 was written are left out.
        """
        pages = np.flatnonzero(self._last_writes[0])
        addresses = ((pages << _PAGE_BITS)[:, None] + np.arange(1 << _PAGE_BITS)).ravel()
        addresses = addresses[addresses < self._numbers[0].size]
        numbers = self._numbers[0][addresses]
        return addresses[numbers != 0], numbers[numbers != 0]

    def _view(self, space: int, address: int, counts: Sequence[int], strides: Sequence[int]) -> Numbers:
        """Return a writable view of the numbers of a box."""
        numbers = self._numbers[space]
        return np.ndarray(counts, np.int64, numbers, 8 * address, [8 * s for s in strides])

    def _last_write(self, space: int, first: int, end: int) -> int:
        return int(self._last_writes[space][first >> _PAGE_BITS : (end - 1 >> _PAGE_BITS) + 1].max(initial=0))


def box_of(access: Access) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return counts and strides of the bytes of an access, the contiguous run as the last dimension.

    Raise InternalError for a negative stride, which merging does not follow: it takes the address for the first byte.
    `check_program` refuses programs that have one.
    """
    if any(stride < 0 for stride in access.strides):
        raise InternalError(f"merging: an access at {access.address} has strides {access.strides}, and none may be negative")
    return (*access.counts, access.inner_bytes), (*access.strides, 1)


def fit_affine(numbers: Numbers) -> Affine | None:
    """Return the affine form of numbers; None where they have none, are of several arrays, or mark no value."""
    origin = (0,) * numbers.ndim
    first = int(numbers[origin])
    steps = tuple(int(numbers[(*origin[:k], 1, *origin[k + 1 :])]) - first if n > 1 else 0 for k, n in enumerate(numbers.shape))
    reaches = [(n - 1) * s for n, s in zip(numbers.shape, steps)]
    lowest, highest = first + sum(r for r in reaches if r < 0), first + sum(r for r in reaches if r > 0)
    if first <= 0 or not array_of(lowest) == array_of(highest) == array_of(first):
        return None
    return Affine(first, steps) if np.array_equal(numbers, first + _offsets(numbers.shape, steps)) else None


def forget_offsets() -> None:
    """Free what is kept of offsets between reads. `merge_program` calls it at its end."""
    _offsets.cache_clear()


@lru_cache(maxsize=64)
def _offsets(counts: tuple[int, ...], steps: tuple[int, ...]) -> Numbers:
    """Return sum(i_k steps[k]) for all indexes, int64[counts]."""
    total = np.zeros((), np.int64)
    for n, step in zip(counts, steps):
        total = total[..., None] + np.arange(n, dtype=np.int64) * step
    return total
