"""Second moments of what a layer reads, about its mean: the Hessian of its output's squared error in its weights, where its bias
takes up what is wrong on average, and with what its outputs lack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.sums.windows import Pads, Pair, pad_spatial, slide_over, windows

Array = NDArray[Any]
_COPIED_BYTES = 16 << 20  # of rows at once


@dataclass(frozen=True)
class Window:
    """How a convolution reads [n, h, w, c]: for each place of its output, groups of kh kw (c / groups) values."""

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int

    def rows(self, x: Array, most: int, seed: tuple[int, ...], zero: int) -> Array:
        """What the layer reads at some places of its output, less `zero`, which is also what padding holds: float32[groups,
        places, k]. At most `most` places, drawn without repetition: the same for the same seed and shape."""
        slide = slide_over(x, self.kernel, self.strides, self.dilations, self.pads, "rows")
        view = windows(pad_spatial(x, self.pads, zero), self.kernel, slide)
        places = view.shape[:3]
        total = int(np.prod(places))
        if most < total:
            picked = np.sort(np.random.default_rng(seed).choice(total, most, replace=False, shuffle=False))
            view = view[np.unravel_index(picked, places)]
        taps, inner = self.kernel[0] * self.kernel[1], x.shape[3] // self.groups
        rows = view.reshape(-1, taps, self.groups, inner).transpose(2, 0, 1, 3).reshape(self.groups, -1, taps * inner)
        found = rows.astype(np.float32)
        found -= np.float32(zero)
        return found


@dataclass(frozen=True, eq=False)
class Moments:
    """hessian: float64[g, k, k], sum of (x - mean) (x - mean)^T over the rows; mean: float64[g, k]; cross: float64[g, o, k], sum
    of lacking (x - mean)^T, and lacking: float64[g, o], its mean; both None where it is not known what outputs lack."""

    hessian: Array
    mean: Array
    cross: Array | None = None
    lacking: Array | None = None


def moments(rows: Array, lacking: Array | None) -> Moments:
    """rows: float32[g, n, k], what the layer reads in integers; lacking: float32[g, n, o], by how much its outputs should be
    more at these places, in the steps that rows have."""
    groups, count, k = rows.shape
    mean, hessian = np.empty((groups, k)), np.empty((groups, k, k))
    cross = None if lacking is None else np.empty((groups, lacking.shape[2], k))
    step = max(1, _COPIED_BYTES // (4 * count * k))
    for part in (slice(g, g + step) for g in range(0, groups, step)):
        mean[part] = rows[part].mean(1, dtype=np.float64)
        read = rows[part] - mean[part, None].astype(np.float32)
        hessian[part] = np.matmul(np.ascontiguousarray(read.transpose(0, 2, 1)), read)
        if cross is not None and lacking is not None:
            cross[part] = np.matmul(lacking[part].transpose(0, 2, 1), read)
    return Moments(hessian, mean, cross, None if lacking is None else lacking.mean(1, dtype=np.float64))
