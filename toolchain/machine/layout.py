"""How codes and constants lie in memory: feature maps, parameters of output channels, weights, tables of functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.hw.engines import MacArray
from toolchain.machine.codes import by_type
from toolchain.machine.columns import Whole, ceil_div, most, where

# Of an output channel; what convolutions and `emit` read from parameter_address on is one after another of these.
PARAMETERS = np.dtype([("bias", "<i8"), ("multiplier", "<i4"), ("shift", "<i4")])
PARAMETER_BYTES = PARAMETERS.itemsize


def memory_type(dtype: DTypeLike) -> np.dtype:
    """In which codes of a type lie in memory, whatever the order of bytes here: little-endian."""
    return np.dtype(dtype).newbyteorder("<")


def weight_bytes(count: Whole, number: Whole, chip: Chip) -> Whole:
    """Bytes of `count` weights of the type of that number stored together: int4 has two a byte, low nibble first."""
    return by_type(number, chip.weight_types, lambda codes: ceil_div(count, 2) if codes is CodeType.INT4 else count)


def group_bytes(count: Whole, group: Whole, array: MacArray) -> Whole:
    """Bytes of scales and minima beside `count` weights of one output channel in groups of `group`; 0 where group is 0.

    Scales: unsigned, minima: signed, each of the least whole bytes that hold their bits, little-endian. Where, is the array's
    key `layout`. blocks: the weights of each output channel group by group, scale and minimum in front of the group's codes;
    rows: of each output channel all codes, all scales, all minima; planes: codes of all output channels, then all scales, then
    all minima.
    """
    if array.groups is None:
        return 0
    return where(group, ceil_div(count, most(group, 1)) * array.groups.entry_bytes, 0)
