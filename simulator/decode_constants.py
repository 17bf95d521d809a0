"""Decode instructions' numbers and constant blocks into parameters of `quant.fixed_point`.

Every run of a prepared program uses one decoder, so that constants are decoded once.
The `_WEIGHT_BLOCKS` used last are kept decoded; a further block displaces the one that was not used for longest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point import ConvWeights, Requant
from quant.fixed_point.core.codes import CodeType
from simulator.unpack_weight_groups import unpack_weight_groups
from toolchain.hw.chip import Chip
from toolchain.hw.engines import get_grouped_arrays
from toolchain.machine import out_of_tiles, read_parameters

Array = NDArray[Any]
# Measured on ResNet-50, whose layers in turns come back to blocks: 1,080 blocks are decoded once, with 16 kept twice.
_WEIGHT_BLOCKS = 64
_INT32_LOW, _INT32_HIGH = -(1 << 31), (1 << 31) - 1


class ConstantDecoder:
    """A decoder for one machine. What depends on equal parameters is made once and kept.

    `requant`, `channel_requant`, `weights`: `_requant`, `_channel_requant` and `_weights` with a cache.
    """

    def __init__(self, chip: Chip):
        self._chip, self._numerics = chip, chip.numerics
        self._groups = next(iter(get_grouped_arrays(chip.engines).values()), None)
        self.requant = lru_cache(maxsize=1024)(self._requant)
        self.channel_requant = lru_cache(maxsize=256)(self._channel_requant)
        self.weights = lru_cache(maxsize=_WEIGHT_BLOCKS)(self._weights)

    def _requant(self, key: str, multiplier: int, shift: int, zero_point: int, low: int, high: int) -> Requant:
        """Return a requantization with one scale for all channels.

        `key`: the operation's name in `numerics.per_op`, which may give it a rounding of its own.
        """
        return self._numerics.requant(key, multiplier, shift, zero_point=zero_point, low=low, high=high)

    def inner_requant(self, key: str, multiplier: int, shift: int) -> Requant:
        """Return a requantization to int32 inside an operation: no zero point, no clamp."""
        return self.requant(key, multiplier, shift, 0, _INT32_LOW, _INT32_HIGH)

    def _channel_requant(self, block: bytes, zero_point: int, low: int, high: int) -> tuple[Array, Requant]:
        """Return (bias int64[c], requantization) of a parameter block: a convolution's, one scale for each channel."""
        bias, multiplier, shift = read_parameters(block, self._chip)
        if (multiplier == multiplier[0]).all():
            multiplier = multiplier[:1]
        if (shift == shift[0]).all():
            shift = shift[:1]
        requant = self._numerics.requant("convolution", multiplier, shift, zero_point=zero_point, low=low, high=high)
        return bias, requant

    def _weights(
        self, block: bytes, codes: CodeType, outputs: int, height: int, width: int, inputs: int, group: int
    ) -> ConvWeights:
        """Return dense weights, [outputs, height, width, inputs], of a block as it lies in memory.

        Each output channel begins on a byte of its own, order ky, kx, i; or the block is in tiles where the layout has them.
        `group`: weights that share a scale, 0: none; then the scales in the block are applied.
        """
        count, tile = height * width * inputs, self._chip.layout.weight_tile
        if tile is not None:
            tiles = np.frombuffer(block, np.uint8).reshape(-(-outputs // tile[1]) * -(-count // tile[0]), -1)
            values = out_of_tiles(_unpack_weights(tiles, codes, tile[0] * tile[1]), outputs, count, tile)
            return ConvWeights(values.reshape(outputs, height, width, inputs))
        rows = np.frombuffer(block, np.uint8).reshape(outputs, -1)
        if group and self._groups is not None:
            part_bytes = group // 2 if codes is CodeType.INT4 else group
            packed, groups = unpack_weight_groups(rows, group, part_bytes, -(-count // group), self._groups)
            values = groups.apply_scales(_unpack_weights(packed, codes, count))
        else:
            values = _unpack_weights(rows, codes, count)
        return ConvWeights(values.reshape(outputs, height, width, inputs))

    def depthwise_weights(self, raw: Array, codes: CodeType, height: int, width: int, channels: int) -> ConvWeights:
        """Return depthwise weights, [channels, height, width, 1].

        `raw`: uint8, order ky, kx, c; int4: each ky, kx row starts on a byte.
        """
        values = _unpack_weights(raw.reshape(height * width, -1), codes, channels)
        channel_weights = values.reshape(height, width, channels).transpose(2, 0, 1)[..., None]
        return ConvWeights(channel_weights, groups=channels)


def _unpack_weights(rows: Array, codes: CodeType, count: int) -> Array:
    """Return int8[rows, count], the weights in each of uint8[rows, bytes]."""
    return unpack_int4(rows, count) if codes is CodeType.INT4 else rows.view(np.int8)


def unpack_int4(packed: Array, count: int) -> Array:
    """Return int8[rows, count] of uint8[rows, ceil(count / 2)]; the low nibble comes first."""
    signed = packed.view(np.int8)
    values = np.empty((packed.shape[0], packed.shape[1], 2), np.int8)
    values[..., 0] = (signed << 4) >> 4
    values[..., 1] = signed >> 4
    return values.reshape(packed.shape[0], -1)[:, :count]
