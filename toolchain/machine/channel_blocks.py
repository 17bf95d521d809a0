"""Describe feature maps in granules of channels (NHCWB16, NCHWc), where a machine's `layout.feature_maps` has them.

An operand with surface stride 0 has no granules, on such a machine too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.hw.chip import Chip
from toolchain.machine.columns import IntOrColumn, ceil_div, least, most, where

Array = NDArray[Any]
Extent = tuple[tuple[IntOrColumn, ...], tuple[IntOrColumn, ...], IntOrColumn]  # counts, strides, contiguous bytes


def granule_of(chip: Chip) -> int:
    """Return the number of channels in a granule; 0 on machines without granules."""
    maps = chip.layout.feature_maps
    return 0 if maps is None else maps.granule


def count_stored_channels(channels: IntOrColumn, surface_stride: IntOrColumn, chip: Chip) -> IntOrColumn:
    """Return the number of stored channels of a pixel, those included that fill the last granule."""
    granule = granule_of(chip)
    return where(surface_stride, ceil_div(channels, granule) * granule, channels) if granule else channels


def extent_of(
    counts: tuple[IntOrColumn, ...],
    strides: tuple[IntOrColumn, ...],
    channels: IntOrColumn,
    surface_stride: IntOrColumn,
    item_bytes: IntOrColumn,
    chip: Chip,
) -> Extent:
    """Return (counts, strides, contiguous bytes) of an operand with so many channels at these pixels. Whole granules
    are touched.
    """
    granule = granule_of(chip)
    if not granule:
        return counts, strides, channels * item_bytes
    surfaces = where(surface_stride, most(1, ceil_div(channels, granule)), 1)
    together = where(surface_stride, least(1, channels) * granule, channels)  # nothing where there are no channels
    return (surfaces, *counts), (surface_stride, *strides), together * item_bytes


def in_granules(values: Array, granule: int) -> Array:
    """Return values[..., c] as [..., ceil(c / granule), granule]. Zeros fill the last granule."""
    *outer, channels = values.shape
    filled = np.zeros((*outer, -(-channels // granule) * granule), values.dtype)
    filled[..., :channels] = values
    return filled.reshape(*outer, -1, granule)


def out_of_granules(values: Array, channels: int) -> Array:
    """Return the values[..., c] of granules [..., ceil(c / granule), granule]: the inverse of `in_granules`."""
    return values.reshape(*values.shape[:-2], -1)[..., :channels]
