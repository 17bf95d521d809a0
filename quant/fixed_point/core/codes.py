"""Defines `CodeType`, the integer types of codes: how many bits, from where to where, and how they lie in memory."""

from __future__ import annotations

from enum import StrEnum

import numpy as np


class CodeType(StrEnum):
    """A type of activations or weights, by the name that machines' files and ONNX use.

    `low`, `high`: the least and the largest code.
    `dtype`: type of arrays with a code in each element, int8 for int4.
    `size_bytes`: bytes of one code in memory that is not packed.
    `table_entries`: entries of a function's table: 256 for types of at most 8 bits, one for each code. Types of 16 bits have 513,
    the ends of 512 segments. Types of 32 bits have no table: 0.
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
    INT32 = "int32"

    def __init__(self, name: str) -> None:
        sign, bits = name.split("int")
        self.bits = int(bits)
        self.low = 0 if sign == "u" else -(1 << (self.bits - 1))
        self.high = self.low + (1 << self.bits) - 1
        self.dtype = np.dtype("int8" if self.bits == 4 else name)
        self.size_bytes = self.dtype.itemsize
        self.table_entries = {16: 513, 32: 0}.get(self.bits, 256)

    @property
    def interpolates(self) -> bool:
        """True for 16 bits, where a function's table lacks an entry for each code and is interpolated."""
        return 0 < self.table_entries < 1 << self.bits

    @property
    def is_wide(self) -> bool:
        """True for 32 bits, a type for sums: read by an array in bit slices, without a table, symmetric, with spare bits."""
        return self.bits > 16

    @property
    def spare_bits(self) -> int:
        """The upper bits of a code that the range of a tensor leaves free: 4 for wide types, else 0.

        Values beyond the calibrated range then do not saturate, and the rest still has three bits more than a float32.
        """
        return 4 if self.is_wide else 0

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest code, both inclusive."""
        return self.low, self.high
