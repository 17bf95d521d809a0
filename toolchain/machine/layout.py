"""Define how codes and constants lie in memory: weights, group scales, requantization entries of channels.

Compiler and simulator both use it. Sizes take integers or columns of them (`machine.columns`).
docs/machine.md describes the keys (`layout`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.hw.engines import WeightGroups
from toolchain.machine.columns import IntOrColumn, by_type, ceil_div, most, where

Array = NDArray[Any]
_WORDS = frozenset((8, 16, 32, 64))  # bits that numpy reads at once


def memory_type(dtype: DTypeLike) -> np.dtype:
    """Return the type of codes in memory, which are little-endian whatever the byte order here."""
    return np.dtype(dtype).newbyteorder("<")


def weight_bytes(count: IntOrColumn, number: IntOrColumn, chip: Chip) -> IntOrColumn:
    """Return the bytes of `count` weights stored together. int4 has two a byte, the low half first.

    `number`: of their type in `chip.weight_types`.
    """
    return by_type(number, chip.weight_types, lambda codes: ceil_div(count, 2) if codes is CodeType.INT4 else count)


def parameter_bytes(channels: IntOrColumn, chip: Chip) -> IntOrColumn:
    """Return the bytes of the requantization entries of so many output channels."""
    return channels * chip.layout.parameters.size_bytes


def group_bytes(count: IntOrColumn, group: IntOrColumn, groups: WeightGroups | None) -> IntOrColumn:
    """Return the bytes of scales and minima stored with `count` weights of one output channel in groups of `group`.

    They are 0 where `group` is 0 or `groups` is None. The last group may have fewer weights.

    Scales are unsigned, minima signed, each of the fewest whole bytes that hold their bits, little-endian.
    The array's key `groups.layout` tells where they lie.
    `blocks`: the weights of each output channel group by group, scale and minimum in front of the group's codes.
    `rows`: for each output channel all codes, all scales, all minima.
    `planes`: codes of all output channels, then all scales, then all minima.
    """
    if groups is None:
        return 0
    return where(group, ceil_div(count, most(group, 1)) * groups.entry_bytes, 0)


def dense_bytes(
    outputs: IntOrColumn,
    inner: IntOrColumn,
    number: IntOrColumn,
    chip: Chip,
    group: IntOrColumn = 0,
    groups: WeightGroups | None = None,
) -> IntOrColumn:
    """Return the bytes of a convolution's weights [outputs, inner], with the scales and minima of their groups.

    `number`: of the weights' type in `chip.weight_types`. `group`, `groups`: as in `group_bytes`.
    Without weight tiles each output channel begins at a byte. With weight tiles, all tiles are whole, and weights have no groups.
    """
    if chip.layout.weight_tile is None:
        return outputs * (weight_bytes(inner, number, chip) + group_bytes(inner, group, groups))
    rows, columns = chip.layout.weight_tile
    return ceil_div(outputs, columns) * ceil_div(inner, rows) * weight_bytes(rows * columns, number, chip)


def in_tiles(weights: Array, tile: tuple[int, int]) -> Array:
    """Return weights[outputs, inner] as tiles [tiles, rows * columns], filled up with zeros.

    `tile`: (rows, columns), rows of inner indices and columns of outputs. Tiles follow one another along the inner
    indices first. In a tile, the outputs of one inner index lie together.
    """
    (outputs, inner), (rows, columns) = weights.shape, tile
    filled = np.pad(weights, ((0, -outputs % columns), (0, -inner % rows)))
    return filled.reshape(-1, columns, filled.shape[1] // rows, rows).transpose(0, 2, 3, 1).reshape(-1, rows * columns)


def out_of_tiles(tiles: Array, outputs: int, inner: int, tile: tuple[int, int]) -> Array:
    """Return the weights [outputs, inner] of tiles: the inverse of `in_tiles`."""
    rows, columns = tile
    filled = tiles.reshape(-(-outputs // columns), -(-inner // rows), rows, columns).transpose(0, 3, 1, 2)
    return filled.reshape(-(-outputs // columns) * columns, -1)[:outputs, :inner]


def pack_parameters(bias: Array, multiplier: Array, shift: Array, chip: Chip) -> bytes:
    """Return the bytes of the requantization entries of c output channels, one after another.

    `bias`: int64[c]. `multiplier`, `shift`: int64[c] or [1]. Raise ValueError where a value does not fit its field, as
    another multiplier than 1 does not fit no bits.
    """
    values = (bias, *np.broadcast_arrays(multiplier, shift, bias)[:2])
    bits = [_as_bits(value.astype(np.int64), *form) for value, form in zip(values, _fields(chip), strict=True)]
    return np.packbits(np.concatenate(bits, axis=1), axis=1, bitorder="little").tobytes()


def read_parameters(block: bytes, chip: Chip) -> tuple[Array, Array, Array]:
    """Return bias, multiplier and shift, each int64[c], of a block of whole entries, as `pack_parameters` returns.

    A multiplier that has no bits in the entry is 1.
    """
    entries = np.frombuffer(block, np.uint8).reshape(-1, chip.layout.parameters.size_bytes)
    fields = _fields(chip)
    if all(width in _WORDS for width, _ in fields):
        words = entries.view(_entry_type(fields))[:, 0]
        bias, multiplier, shift = (words[str(i)].astype(np.int64) for i in range(len(fields)))
        return bias, multiplier, shift
    bits = np.unpackbits(entries, axis=1, bitorder="little")
    columns: list[Array] = []
    at = 0
    for width, signed in fields:
        columns.append(_of_bits(bits[:, at : at + width], signed))
        at += width
    bias, multiplier, shift = columns
    return bias, multiplier, shift


@lru_cache(maxsize=16)
def _entry_type(fields: tuple[tuple[int, bool], ...]) -> np.dtype:
    """Return the numpy type of an entry whose fields are `_WORDS`."""
    return np.dtype([(str(i), f"<{'iu'[not signed]}{width // 8}") for i, (width, signed) in enumerate(fields)])


def _fields(chip: Chip) -> tuple[tuple[int, bool], ...]:
    """Return the fields of an entry, in order: bits, and whether the most significant bit is the sign. A multiplier
    without bits is 1.
    """
    entry = chip.layout.parameters
    signed_shift = chip.numerics.scale.shifts[0] < 0
    return (entry.bias_bits, True), (entry.multiplier_bits, False), (entry.shift_bits, signed_shift)


def _of_bits(bits: Array, signed: bool) -> Array:
    """Return int64[c] of bits uint8[c, width], the least significant first. A value without bits is 1."""
    width = bits.shape[1]
    if not width:
        return np.ones(len(bits), np.int64)
    places = np.int64(1) << np.arange(width, dtype=np.int64)
    if signed and width < 64:  # the last place of 64 is negative as it stands
        places[-1] = -places[-1]
    return bits.astype(np.int64) @ places


def _as_bits(values: Array, width: int, signed: bool) -> Array:
    """Return the bits of int64[c] as uint8[c, width], the least significant first. Raise ValueError where a value needs
    more.
    """
    bits = (values[:, None] >> np.arange(width) & 1).astype(np.uint8)
    code_values = _of_bits(bits, signed)
    if (code_values != values).any():
        at = int(np.flatnonzero(code_values != values)[0])
        raise ValueError(f"{int(values[at])} of channel {at} does not fit {width} bits")
    return bits
