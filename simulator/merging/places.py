"""Follow where the bytes of a program's memories were copied from, so that parts of one map have places in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.merging.value_numbers import ARRAY_BITS, MOST_ARRAYS, ValueNumbers, box_of
from toolchain.machine import Access

FIRST_PLACES = MOST_ARRAYS - 255  # source: memories are numbered by a byte; arrays of values lie below


class Places(ValueNumbers):
    """The place of each byte in the largest memory that it was copied from, as a number: an array for each memory.

    A place says nothing of the value: others may have lain there. Places are followed only where operands are gathered.
    """

    def __init__(self, sizes: Sequence[int]):
        super().__init__(sizes, [FIRST_PLACES + space for space in range(len(sizes))])
        self._sizes = sizes

    def copy(self, source: Access, target: Access) -> None:
        """Let the target's bytes have the places of the source's, unless the source's memory is the smaller one."""
        if not target.space:
            return
        places = self.read(source.space, source.address, *box_of(source))
        smaller = [FIRST_PLACES + s for s, size in enumerate(self._sizes) if s and size <= self._sizes[target.space]]
        followed = np.where(np.isin(places >> ARRAY_BITS, smaller), 0, places) if source.space else places
        self.write(target.space, target.address, *box_of(target), followed)

    def reset(self, space: int, address: int, counts: Sequence[int], strides: Sequence[int]) -> None:
        """Let bytes that an operation makes have the places where they lie."""
        if space:
            self.write(space, address, counts, strides, np.zeros((), np.int64))
