"""Computes second moments of the inputs of a layer about their mean, and of the gap of its outputs from float's.

They are the Hessian of the output's squared error in its weights, where its bias absorbs the mean error. `gptq_rounding` and
`damping` use them. Shapes: g groups of a convolution, o outputs of a group, k weights of an output, rows are output places.
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
    """The window of a convolution over [n, h, w, c]; at each output place it reads kh kw (c / groups) values for each group.

    `kernel`, `strides`, `dilations`: (height, width). `pads`: (top, left, bottom, right). `groups`: of input channels.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int

    def rows(self, x: Array, most: int, seed: tuple[int, ...], zero: int, out: Array | None = None) -> Array:
        """Return the values that the layer reads at some output places, less `zero`: float32[groups, places, k].

        The last axis counts kernel rows, columns and a group's channels, in this order.
        `x`: codes[n, h, w, c].
        `most`: places that are drawn at most, without repetition, the same for the same seed and shape, in their order.
        `zero`: the zero point, which padding holds too.
        `out`: array for the result; None: a new one.
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
    """Moments of the outputs' gap at the same rows: how much the outputs should be larger.

    `mean`: float64[g, o], mean of the gap.
    `cross`: float64[g, o, k], sum of (gap - mean) (x - mean)^T.
    `power`: float64[g, o], sum of (gap - mean)^2.
    """

    mean: Array
    cross: Array
    power: Array


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments of the inputs x of a layer.

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
        """Return the moments of the same rows about the means of `other` instead of their own.

        The gap is None where one of both has none.
        """
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
        """Return the moments of both sets of rows together; the gap is None where one of both has none."""
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
    """Return the moments of rows. All axes between the first and the last count rows; they may be strided.

    `rows`: float32[g, ..., k], the integers that the layer reads, less their zero point.
    `output_gap`: float32[g, ..., o], how much its outputs should be larger at these places, in the steps of the rows; None:
    unknown.
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
    """Return float32[g, n, k] from float32[g, ..., k], less the mean (float64[g, k])."""
    less = x - mean.astype(np.float32).reshape(len(x), *[1] * (x.ndim - 2), -1)
    return less.reshape(len(x), -1, x.shape[-1])
