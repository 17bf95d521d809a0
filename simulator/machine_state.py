"""Hold the state of a machine while a program runs: memories of bytes and the accumulators of its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.hw.chip import Chip

Array = NDArray[Any]


class MachineState:
    """A machine's memories and accumulators during a run; operations change them in place.

    `memory`: uint8 arrays by the codes of `chip.spaces`, the DRAM first.
    `accumulators`: sums left by the last operation of each array, by its number.
    An array is absent where that operation left none, or where the accumulators are a memory.
    `number`: what the front end has read from memory last, for a base register.
    `sum`: type of sums in memories of accumulators.
    """

    def __init__(self, chip: Chip, dram: Array, initial_memory: Mapping[str, Array] | None = None):
        """Set up a run.

        `dram`: uint8 of the whole DRAM, changed by the run.
        `initial_memory`: contents of other memories, by name, which are copied; all others begin with zeros.
        """
        begin = initial_memory or {}
        others = (begin[s.name].copy() if s.name in begin else np.zeros(s.memory.size, np.uint8) for s in chip.spaces[1:])
        self.memory: tuple[Array, ...] = (dram, *others)
        self.accumulators: dict[int, Array] = {}
        self.number = 0  # that the front end has read last, within its limit
        self.sum = np.dtype(f"<i{chip.array.accumulators.sum_bytes}")  # in memories of accumulators

    def feature_map(self, space: int, address: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: np.dtype) -> Array:
        """Return a writable view of codes in a memory. `strides`: bytes. `kind`: as of `memory_type`."""
        return np.ndarray(shape, kind, self.memory[space], address, strides)

    def sums(self, space: int, address: int, shape: tuple[int, ...]) -> Array:
        """Return a writable view of sums without gaps in a memory of accumulators."""
        return np.ndarray(shape, self.sum, self.memory[space], address)

    def bytes_of(self, space: int, address: int, size_bytes: int) -> Array:
        """Return a writable view, uint8[size_bytes], of a memory."""
        return self.memory[space][address : address + size_bytes]
