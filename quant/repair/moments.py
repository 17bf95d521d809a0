"""Compute second moments of what a layer reads, about its mean, and with the gap of its outputs.

They are the Hessian of the output's squared error in its weights, where its bias absorbs the mean error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.sums.window_patches import Pads, Pair, pad_spatial, slide_over, windows

Array = NDArray[Any]
_COPIED_BYTES = 16 << 20  # of rows at once


@dataclass(frozen=True)
class ConvolutionWindow:
    """A window of a convolution over [n, h, w, c]: for each place of its output, groups of kh kw (c / groups) values."""

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int

    def rows(self, x: Array, most: int, seed: tuple[int, ...], zero: int, out: Array | None = None) -> Array:
        """Return what the layer reads at some places of its output, less `zero`, which padding holds too: float32[groups, places,
        k].
        The result is in `out` where that is passed. At most `most` places are drawn without repetition, the same for the same
        seed and shape.
        """
        slide = slide_over(x, self.kernel, self.strides, self.dilations, self.pads, "rows")
        view = windows(pad_spatial(x, self.pads, zero), self.kernel, slide)
        places = view.shape[:3]
        total = int(np.prod(places))
        if most < total:
            picked = np.sort(np.random.default_rng(seed).choice(total, most, replace=False, shuffle=False))
            view = view[np.unravel_index(picked, places)]
        taps, inner = self.kernel[0] * self.kernel[1], x.shape[3] // self.groups
        rows = view.reshape(-1, taps, self.groups, inner).transpose(2, 0, 1, 3)
        patches = np.empty((self.groups, rows.shape[1], taps * inner), np.float32) if out is None else out
        np.subtract(rows, np.float32(zero), out=patches.reshape(rows.shape), dtype=np.float32, casting="unsafe")
        return patches


@dataclass(frozen=True, eq=False)
class OutputGap:
    """A record of the gap of outputs at the same rows: by how much they should be more.

    `mean`: float64[g, o], mean of the gap.
    `cross`: float64[g, o, k], sum of (gap - mean) (x - mean)^T.
    `power`: float64[g, o], sum of (gap - mean)^2.
    """

    mean: Array
    cross: Array
    power: Array


@dataclass(frozen=True, eq=False)
class Moments:
    """A record of second moments.

    `count`: number of rows.
    `hessian`: float64[g, k, k], sum of (x - mean) (x - mean)^T over them.
    `mean`: float64[g, k].
    `output_gap`: gap of the outputs, None where it is unknown.
    """

    count: int
    hessian: Array
    mean: Array
    output_gap: OutputGap | None = None

    def about(self, other: Moments) -> Moments:
        """The same rows about the means of others."""
        off, gap = self.mean - other.mean, self.output_gap
        hessian = self.hessian + self.count * off[:, :, None] * off[:, None, :]
        if gap is None or other.output_gap is None:
            return Moments(self.count, hessian, other.mean)
        wrong = gap.mean - other.output_gap.mean
        cross = gap.cross + self.count * wrong[:, :, None] * off[:, None, :]
        return Moments(
            self.count, hessian, other.mean, OutputGap(other.output_gap.mean, cross, gap.power + self.count * wrong**2)
        )

    def join(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows together."""
        count = self.count + other.count

        def mean(one: Array, another: Array) -> Array:
            return one + (another - one) * (other.count / count)

        output_gap = None
        if self.output_gap is not None and other.output_gap is not None:
            output_gap = replace(self.output_gap, mean=mean(self.output_gap.mean, other.output_gap.mean))
        middle = Moments(count, self.hessian, mean(self.mean, other.mean), output_gap)
        one, another = self.about(middle), other.about(middle)
        if one.output_gap is not None and another.output_gap is not None:
            output_gap = OutputGap(
                one.output_gap.mean,
                one.output_gap.cross + another.output_gap.cross,
                one.output_gap.power + another.output_gap.power,
            )
        return Moments(count, one.hessian + another.hessian, middle.mean, output_gap)


def moments(rows: Array, output_gap: Array | None) -> Moments:
    """Return the moments of rows; the axes in the middle may be strided.

    `rows`: float32[g, ..., k], what the layer reads in integers.
    `output_gap`: float32[g, ..., o], by how much its outputs should be more at these places, in the steps of the rows.
    """
    groups, k = rows.shape[0], rows.shape[-1]
    between = tuple(range(1, rows.ndim - 1))
    count = math.prod(rows.shape[1:-1])
    mean, hessian = np.empty((groups, k)), np.empty((groups, k, k))
    gap_moments = None
    if output_gap is not None:
        outputs = output_gap.shape[-1]
        gap_moments = OutputGap(np.empty((groups, outputs)), np.empty((groups, outputs, k)), np.empty((groups, outputs)))
    step = max(1, _COPIED_BYTES // (4 * count * k))
    for part in (slice(g, g + step) for g in range(0, groups, step)):
        mean[part] = rows[part].mean(between, dtype=np.float64)
        read = _flat(rows[part], mean[part])
        hessian[part] = np.matmul(np.ascontiguousarray(read.transpose(0, 2, 1)), read)
        if gap_moments is not None and output_gap is not None:
            gap_moments.mean[part] = output_gap[part].mean(between, dtype=np.float64)
            wrong = _flat(output_gap[part], gap_moments.mean[part])
            gap_moments.cross[part] = np.matmul(wrong.transpose(0, 2, 1), read)
            gap_moments.power[part] = np.einsum("gno,gno->go", wrong, wrong, dtype=np.float64)
    return Moments(count, hessian, mean, gap_moments)


def _flat(x: Array, mean: Array) -> Array:
    """float32[g, n, k], less the mean."""
    less = x - mean.astype(np.float32).reshape(len(x), *[1] * (x.ndim - 2), -1)
    return less.reshape(len(x), -1, x.shape[-1])
