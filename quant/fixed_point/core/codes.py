"""Types of the codes that machines compute with: how many bits, from where to where, and how they lie in memory."""

from __future__ import annotations

from enum import StrEnum

import numpy as np


class CodeType(StrEnum):
    """A type of activations or weights, by the name that machines' files and ONNX give it.

    low, high: the least and the largest code. dtype: of arrays with a code in each element, int8 for int4. size_bytes: of one
    code in memory that is not packed. table_entries: of a function's table, one for each code of at most 8 bits, the ends of 512
    segments of 16 bits.
    """

    bits: int
    low: int
    high: int
    dtype: np.dtype
    size_bytes: int
    table_entries: int

    INT4 = "int4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"

    def __init__(self, name: str) -> None:
        sign, bits = name.split("int")
        self.bits = int(bits)
        self.low = 0 if sign == "u" else -(1 << (self.bits - 1))
        self.high = self.low + (1 << self.bits) - 1
        self.dtype = np.dtype("int8" if self.bits == 4 else name)
        self.size_bytes = self.dtype.itemsize
        self.table_entries = 513 if self.bits == 16 else 256

    @property
    def interpolates(self) -> bool:
        """Whether a function's table has no entry for each code."""
        return self.table_entries < 1 << self.bits

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest code."""
        return self.low, self.high
