"""Find where rows of a kernel meet only padding, which programs may leave out, for the bounds of units (`unit_bounds`).

A convolution has _MOST bands at most, since each is bounded by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import Layer
from toolchain.report.bounds.required_reads import window_of

_MOST = 9


class Band(NamedTuple):
    """Rows [first, end) of a convolution's output, which meet inputs with at most the rows [top, bottom) of the kernel."""

    first: int
    end: int
    top: int
    bottom: int

    def __add__(self, other: object) -> Band:
        """Return the band of both, for one that begins where this one ends."""
        assert isinstance(other, Band)
        return Band(self.first, other.end, min(self.top, other.top), max(self.bottom, other.bottom))

    @property
    def taps(self) -> int:
        """Return the number of pairs of an output row and a kernel row, products with padding left out."""
        return (self.end - self.first) * (self.bottom - self.top)

    @property
    def rows(self) -> tuple[int, int]:
        """Return (first row, number of rows) of the output."""
        return self.first, self.end - self.first


def bands(layer: Layer, op: IntegerConvolution) -> list[Band]:
    """Return the bands from top to bottom; neighbouring output rows that meet the same rows of the kernel are one band.

    At most nine are returned. Beyond that the outermost bands are merged and count no rows of the kernel, which keeps a bound a
    bound.
    """
    merged_bands: list[Band] = []
    for row, taps in enumerate(_met(layer, op, 0)):
        at = np.flatnonzero(taps)
        band = Band(row, row + 1, int(at[0]), int(at[-1]) + 1) if len(at) else Band(row, row + 1, 0, 0)
        if merged_bands and merged_bands[-1][2:] == band[2:]:
            merged_bands[-1] += band
        else:
            merged_bands.append(band)
    while len(merged_bands) > _MOST:
        if sum(band.taps for band in merged_bands[:2]) < sum(band.taps for band in merged_bands[-2:]):
            merged_bands[:2] = [Band(merged_bands[0].first, merged_bands[1].end, 0, 0)]
        else:
            merged_bands[-2:] = [Band(merged_bands[-2].first, merged_bands[-1].end, 0, 0)]
    return merged_bands


def products(layer: Layer, op: IntegerConvolution) -> int | None:
    """Return the number of products that meet inputs; None where the bands describe all that programs can leave out.

    Programs may also leave out parts by columns or group by group, which only this number covers.
    """
    _, _, wide, _ = layer.constants[layer.node.inputs[1]].shape
    limits = op.limits(layer)
    far = limits.max_dilation is not None and op.dilations[1] > limits.max_dilation[1]
    cut = far or op.beyond(layer)[1] or (limits.max_kernel is not None and wide > limits.max_kernel[1])
    down, across = (_met(layer, op, axis) for axis in (0, 1))
    grouped = op.groups > 1 and not op.depthwise(layer)
    if not grouped and (across.all() or not cut) and (down.all() or len(bands(layer, op)) > 1):
        return None
    samples, outputs, reduction = layer.output.shape[0], layer.output.shape[3], layer.constants[layer.node.inputs[1]].shape[3]
    return int(samples * down.sum() * across.sum() * outputs * reduction)


def _met(layer: Layer, op: IntegerConvolution, axis: int) -> np.ndarray:
    """Return bool[outputs, kernel], True where an element of the kernel meets the input. axis: 0 for rows, 1 for columns."""
    return window_of(layer, op, axis).elements(layer.output.shape[1 + axis]) >= 0
