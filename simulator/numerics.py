"""The arithmetic a chip's `numerics` asks of each operation, as parameters of `quant.fixed_point`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point import ConvWeights, Requant, Rounding
from quant.fixed_point.core.scale import ScaleKind
from quant.fixed_point.pointwise.tables import TableForm, lookup8, lookup16
from simulator.state import PARAMETERS
from toolchain.hw.chip import Chip

Array = NDArray[Any]
_INT32_LOW, _INT32_HIGH = -(1 << 31), (1 << 31) - 1


class Arithmetic:
    """`numerics` of one chip. Requantizations and weights of equal parameters are made once (they are values)."""

    def __init__(self, chip: Chip):
        numerics = chip.numerics
        self.rounding = {key: Rounding(numerics.per_op.get(key, numerics.rounding)) for key in _KEYS}
        self.wrap = numerics.overflow == "wrap"
        self.kind: ScaleKind = numerics.scale.kind
        self.int4 = numerics.weight == "int4"
        self.accumulator_bits = chip.array.accumulators.bits
        self.interpolation: TableForm = "tflite" if numerics.table.interpolation == "tflite" else "tosa"
        self.requant = lru_cache(maxsize=1024)(self._requant)
        self.channel_requant = lru_cache(maxsize=256)(self._channel_requant)
        self.weights = lru_cache(maxsize=16)(self._weights)

    def _requant(self, key: str, multiplier: int, shift: int, zero_point: int, low: int, high: int) -> Requant:
        """One scale for all channels. key: of `numerics.per_op`."""
        scale, right = np.array([multiplier], np.int64), np.array([shift], np.int64)
        return Requant(scale, right, self.rounding[key], zero_point, low, high, self.wrap, self.kind)

    def inner_requant(self, key: str, multiplier: int, shift: int) -> Requant:
        """To int32, inside an operation: no zero point, no clamp."""
        return self.requant(key, multiplier, shift, 0, _INT32_LOW, _INT32_HIGH)

    def _channel_requant(self, block: bytes, zero_point: int, low: int, high: int) -> tuple[Array, Requant]:
        """A parameter block -> (bias int64[c], Requant of a convolution)."""
        entries = np.frombuffer(block, PARAMETERS)
        multiplier, shift = entries["multiplier"], entries["shift"]
        if (multiplier == multiplier[0]).all():
            multiplier = multiplier[:1]
        if (shift == shift[0]).all():
            shift = shift[:1]
        rounding = self.rounding["convolution"]
        return entries["bias"].astype(np.int64), Requant(
            multiplier.astype(np.int64), shift.astype(np.int64), rounding, zero_point, low, high, self.wrap, self.kind
        )

    def _weights(self, block: bytes, outputs: int, height: int, width: int, inputs: int) -> ConvWeights:
        """Dense weights, order o, ky, kx, i; int4: each output channel starts on a byte."""
        each = height * width * inputs
        raw = np.frombuffer(block, np.uint8)
        values = unpack_int4(raw.reshape(outputs, -1), each) if self.int4 else raw.view(np.int8)
        return ConvWeights(values.reshape(outputs, height, width, inputs))

    def depthwise_weights(self, raw: Array, height: int, width: int, channels: int) -> ConvWeights:
        """raw: uint8, order ky, kx, c; int4: each ky, kx row starts on a byte."""
        taps = height * width
        values = unpack_int4(raw.reshape(taps, -1), channels) if self.int4 else raw.view(np.int8)
        planes = values.reshape(height, width, channels).transpose(2, 0, 1)[..., None]
        return ConvWeights(planes, groups=channels)

    def lookup(self, x: Array, table: Array) -> Array:
        """table: the bytes in sram. int8[256], or int16[513] interpolated."""
        if x.dtype.itemsize == 1:
            return lookup8(x, table.view(np.int8))
        return lookup16(x, table.view("<i2"), self.interpolation)


_KEYS = ("convolution", "matrix_product", "average_pool", "add", "sub", "mul", "rescale", "prelu")


def unpack_int4(packed: Array, count: int) -> Array:
    """uint8[rows, ceil(count / 2)] -> int8[rows, count]; low nibble first."""
    signed = packed.view(np.int8)
    values = np.empty((packed.shape[0], packed.shape[1], 2), np.int8)
    values[..., 0] = (signed << 4) >> 4
    values[..., 1] = signed >> 4
    return values.reshape(packed.shape[0], -1)[:, :count]
