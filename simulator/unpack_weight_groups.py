"""Separate grouped weights as they lie in memory into codes, scales and minima.

A group is consecutive weights of an output channel that share a scale. `decode_constants` calls it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point import WeightGroups
from toolchain.hw.engines import WeightGroups as GroupKeys

Array = NDArray[Any]


def unpack_weight_groups(rows: Array, size: int, part_bytes: int, count: int, keys: GroupKeys) -> tuple[Array, WeightGroups]:
    """Return (codes, groups): uint8[o, bytes] without the scales and minima stored with them, and these.

    `rows`: uint8[o, bytes], one output channel each, laid out by `keys.layout`.
    `size`: weights of a group.
    `part_bytes`: bytes of a group's codes.
    `count`: groups of a row.
    """
    outputs, (scale, minimum) = len(rows), (keys.scale_bytes, keys.minimum_bytes)
    row_bytes = rows.shape[1] - count * keys.entry_bytes
    if keys.layout == "blocks":
        padded_rows = np.zeros((outputs, count * (keys.entry_bytes + part_bytes)), np.uint8)
        padded_rows[:, : rows.shape[1]] = rows
        parts = padded_rows.reshape(outputs, count, -1)
        scales, minima, codes = np.split(parts, [scale, keys.entry_bytes], 2)
        return codes.reshape(outputs, -1)[:, :row_bytes], _groups(size, scales, minima)
    ends = np.cumsum([row_bytes, count * scale])
    if keys.layout == "rows":
        codes, scales, minima = np.split(rows, ends, 1)
    else:
        codes, scales, minima = (part.reshape(outputs, -1) for part in np.split(rows.reshape(-1), outputs * ends))
    return codes, _groups(size, scales.reshape(outputs, count, scale), minima.reshape(outputs, count, minimum))


def _groups(size: int, scales: Array, minima: Array) -> WeightGroups:
    """Return weight groups of `scales` and `minima`: uint8[o, g, bytes]; without bytes there are no minima."""
    return WeightGroups(size, _numbers(scales, "u"), _numbers(minima, "i") if minima.shape[2] else None)


def _numbers(parts: Array, kind: str) -> Array:
    """Return int32[o, g] of uint8[o, g, bytes], little-endian. `kind`: u unsigned, i signed."""
    return np.ascontiguousarray(parts).view(f"<{kind}{parts.shape[2]}")[..., 0].astype(np.int32)
