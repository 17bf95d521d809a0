"""What a machine holds while a program runs: two memories of bytes and the accumulators of the array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.hw.chip import Chip
from toolchain.machine import Space

Array = NDArray[Any]
PARAMETERS = np.dtype([("bias", "<i8"), ("multiplier", "<i4"), ("shift", "<i4")])


class State:
    """memory[Space]: uint8 arrays. accumulators: what the last array operation left, or None."""

    def __init__(self, chip: Chip, dram: Array):
        self.memory = {Space.DRAM: dram, Space.SRAM: np.zeros(chip.memories.sram.size, np.uint8)}
        self.sram = self.memory[Space.SRAM]
        self.accumulators: Array | None = None
        self.activation = np.dtype("<i2") if chip.numerics.activation == "int16" else np.dtype(np.int8)

    def feature_map(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """A view of activations in sram; strides in bytes."""
        return np.ndarray(shape, self.activation, self.sram, address, strides)

    def sram_bytes(self, address: int, size_bytes: int) -> Array:
        """A view of uint8[size_bytes] of sram."""
        return self.sram[address : address + size_bytes]
