"""Second moments of what a layer reads, about its mean: the Hessian of its output's squared error in its weights, where its bias
takes up what is wrong on average, and with what its outputs lack."""

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
    """How a convolution reads [n, h, w, c]: for each place of its output, groups of kh kw (c / groups) values."""

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int

    def rows(self, x: Array, most: int, seed: tuple[int, ...], zero: int, out: Array | None = None) -> Array:
        """What the layer reads at some places of its output, less `zero`, which is also what padding holds: float32[groups,
        places, k], in `out` where that is given. At most `most` places, drawn without repetition: the same for the same seed and
        shape."""
        slide = slide_over(x, self.kernel, self.strides, self.dilations, self.pads, "rows")
        view = windows(pad_spatial(x, self.pads, zero), self.kernel, slide)
        places = view.shape[:3]
        total = int(np.prod(places))
        if most < total:
            picked = np.sort(np.random.default_rng(seed).choice(total, most, replace=False, shuffle=False))
            view = view[np.unravel_index(picked, places)]
        taps, inner = self.kernel[0] * self.kernel[1], x.shape[3] // self.groups
        rows = view.reshape(-1, taps, self.groups, inner).transpose(2, 0, 1, 3)
        found = np.empty((self.groups, rows.shape[1], taps * inner), np.float32) if out is None else out
        np.subtract(rows, np.float32(zero), out=found.reshape(rows.shape), dtype=np.float32, casting="unsafe")
        return found


@dataclass(frozen=True, eq=False)
class OutputGap:
    """Of what outputs lack at the same rows: its mean, float64[g, o]; cross: float64[g, o, k], sum of (lacking - mean)
    (x - mean)^T; power: float64[g, o], sum of (lacking - mean)^2."""

    mean: Array
    cross: Array
    power: Array


@dataclass(frozen=True, eq=False)
class Moments:
    """count: of the rows; hessian: float64[g, k, k], sum of (x - mean) (x - mean)^T over them; mean: float64[g, k]; lacking: None
    where it is not known what outputs lack."""

    count: int
    hessian: Array
    mean: Array
    lacking: OutputGap | None = None

    def about(self, other: Moments) -> Moments:
        """The same rows about the means of others."""
        off, known = self.mean - other.mean, self.lacking
        hessian = self.hessian + self.count * off[:, :, None] * off[:, None, :]
        if known is None or other.lacking is None:
            return Moments(self.count, hessian, other.mean)
        wrong = known.mean - other.lacking.mean
        cross = known.cross + self.count * wrong[:, :, None] * off[:, None, :]
        return Moments(self.count, hessian, other.mean, OutputGap(other.lacking.mean, cross, known.power + self.count * wrong**2))

    def joined(self, other: Moments) -> Moments:
        """Of both rows together."""
        count = self.count + other.count

        def mean(one: Array, another: Array) -> Array:
            return one + (another - one) * (other.count / count)

        lacking = None
        if self.lacking is not None and other.lacking is not None:
            lacking = replace(self.lacking, mean=mean(self.lacking.mean, other.lacking.mean))
        middle = Moments(count, self.hessian, mean(self.mean, other.mean), lacking)
        one, another = self.about(middle), other.about(middle)
        if one.lacking is not None and another.lacking is not None:
            lacking = OutputGap(
                one.lacking.mean, one.lacking.cross + another.lacking.cross, one.lacking.power + another.lacking.power
            )
        return Moments(count, one.hessian + another.hessian, middle.mean, lacking)


def moments(rows: Array, lacking: Array | None) -> Moments:
    """rows: float32[g, ..., k], what the layer reads in integers; lacking: float32[g, ..., o], by how much its outputs should be
    more at these places, in the steps that rows have. What lies between may be strided."""
    groups, k = rows.shape[0], rows.shape[-1]
    between = tuple(range(1, rows.ndim - 1))
    count = math.prod(rows.shape[1:-1])
    mean, hessian = np.empty((groups, k)), np.empty((groups, k, k))
    known = None
    if lacking is not None:
        outputs = lacking.shape[-1]
        known = OutputGap(np.empty((groups, outputs)), np.empty((groups, outputs, k)), np.empty((groups, outputs)))
    step = max(1, _COPIED_BYTES // (4 * count * k))
    for part in (slice(g, g + step) for g in range(0, groups, step)):
        mean[part] = rows[part].mean(between, dtype=np.float64)
        read = _flat(rows[part], mean[part])
        hessian[part] = np.matmul(np.ascontiguousarray(read.transpose(0, 2, 1)), read)
        if known is not None and lacking is not None:
            known.mean[part] = lacking[part].mean(between, dtype=np.float64)
            wrong = _flat(lacking[part], known.mean[part])
            known.cross[part] = np.matmul(wrong.transpose(0, 2, 1), read)
            known.power[part] = np.einsum("gno,gno->go", wrong, wrong, dtype=np.float64)
    return Moments(count, hessian, mean, known)


def _flat(x: Array, mean: Array) -> Array:
    """float32[g, n, k], less the mean."""
    less = x - mean.astype(np.float32).reshape(len(x), *[1] * (x.ndim - 2), -1)
    return less.reshape(len(x), -1, x.shape[-1])
