"""Lay out weights that are quantized in groups, as a machine reads them: codes, scales and minima in one of three orders."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.sums.grouped_sums import WeightGroups
from toolchain.hw.engines import WeightGroups as GroupKeys

Array = NDArray[Any]


def lay_groups(packed: Array, groups: WeightGroups, part_bytes: int, keys: GroupKeys) -> bytes:
    """Return the bytes of packed weights with their groups, in the order `keys.layout`, as `machine.group_bytes` defines.

    `packed`: uint8[o, bytes], the codes of each output channel.
    `part_bytes`: bytes of one group's codes.
    `keys`: the machine's key on groups: layout, bytes of a scale and of a minimum.
    """
    scales = _bytes(groups.scales, "u", keys.scale_bytes)
    minima = _bytes(np.zeros_like(groups.scales) if groups.minima is None else groups.minima, "i", keys.minimum_bytes)
    outputs, count = groups.scales.shape
    if keys.layout == "blocks":
        missing = count * part_bytes - packed.shape[1]
        codes = np.pad(packed, ((0, 0), (0, missing))).reshape(outputs, count, part_bytes)
        rows = np.concatenate([scales, minima, codes], 2).reshape(outputs, -1)
        return np.ascontiguousarray(rows[:, : rows.shape[1] - missing]).tobytes()
    parts = [packed, scales.reshape(outputs, -1), minima.reshape(outputs, -1)]
    if keys.layout == "rows":
        return np.concatenate(parts, 1).tobytes()
    return b"".join(p.tobytes() for p in parts)


def _bytes(values: Array, kind: str, size: int) -> Array:
    """int[o, g] -> uint8[o, g, size], little-endian."""
    if not size:
        return np.zeros((*values.shape, 0), np.uint8)
    return np.ascontiguousarray(values.astype(f"<{kind}{size}")).view(np.uint8).reshape(*values.shape, size)
