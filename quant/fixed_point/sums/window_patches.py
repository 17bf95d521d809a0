"""Computes windows of channels-last feature maps: padding, output sizes and strided views, without copies where none is needed.

Pairs are (height, width), and pads (top, left, bottom, right).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.device_arrays import is_foreign
from quant.fixed_point.core.fixed_point_errors import FixedPointError

Array = NDArray[Any]
Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class Slide:
    """A movement of a window over a padded map.

    `size`: number of its places, (oh, ow).
    """

    strides: Pair
    dilations: Pair
    size: Pair


def output_size(size: int, kernel: int, stride: int, dilation: int, pad_before: int, pad_after: int) -> int:
    """Return the number of windows along one axis: floor((size + pads - ((kernel - 1) dilation + 1)) / stride) + 1."""
    return (size + pad_before + pad_after - (kernel - 1) * dilation - 1) // stride + 1


def slide_over(x: Array, kernel: Pair, strides: Pair, dilations: Pair, pads: Pads, what: str) -> Slide:
    """Return how a window of `kernel` moves over x once it is padded.

    Raise FixedPointError where x is not [n, h, w, c], a parameter is out of range or nothing is left; `what` begins the message.
    """
    if x.ndim != 4:
        raise FixedPointError(f"{what}: x has shape {x.shape}; must be [n, h, w, c] (1-D: h = 1)")
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise FixedPointError(f"{what}: kernel {kernel}, strides {strides}, dilations {dilations} must be >= 1, pads {pads} >= 0")
    top, left, bottom, right = pads
    oh = output_size(x.shape[1], kernel[0], strides[0], dilations[0], top, bottom)
    ow = output_size(x.shape[2], kernel[1], strides[1], dilations[1], left, right)
    if oh < 1 or ow < 1:
        raise FixedPointError(
            f"{what}: kernel {kernel} with dilations {dilations} is larger than the padded input "
            f"{x.shape[1] + top + bottom}x{x.shape[2] + left + right}; enlarge pads or the input"
        )
    return Slide(strides, dilations, (oh, ow))


def pad_spatial(x: Array, pads: Pads, value: int) -> Array:
    """Return x: [n, h, w, c] as contiguous [n, top + h + bottom, left + w + right, c], filled with value.

    Without pads it is x itself.
    """
    if not any(pads):
        return x
    top, left, bottom, right = pads
    n, h, w, c = x.shape
    out = np.empty((n, top + h + bottom, left + w + right, c), x.dtype, like=x)
    out[:, :top] = value
    out[:, top + h :] = value
    middle = out[:, top : top + h]
    middle[:, :, :left] = value
    middle[:, :, left + w :] = value
    middle[:, :, left : left + w] = x
    return out


def windows(x: Array, kernel: Pair, slide: Slide) -> Array:
    """Return a view [n, oh, ow, kh, kw, c] of padded x: [n, h, w, c]; of arrays of another library a copy.

    Elements of neighbouring windows share memory, so it must not be written to.
    """
    if is_foreign(x):
        taps = [tap(x, ky, kx, slide) for ky in range(kernel[0]) for kx in range(kernel[1])]
        return np.stack(taps, axis=3).reshape(x.shape[0], *slide.size, *kernel, x.shape[3])
    sn, sh, sw, sc = x.strides
    (down, right), (dilation_y, dilation_x) = slide.strides, slide.dilations
    shape = (x.shape[0], *slide.size, *kernel, x.shape[3])
    steps = (sn, sh * down, sw * right, sh * dilation_y, sw * dilation_x, sc)
    view = np.lib.stride_tricks.as_strided if not x.flags.c_contiguous else None
    if view is not None:
        return view(x, shape, steps, writeable=False)
    # the constructor does as_strided's work at a tenth of its cost; x is contiguous, so it is its own buffer
    return np.ndarray(shape, x.dtype, x, 0, steps)


def tap(x: Array, ky: int, kx: int, slide: Slide) -> Array:
    """Return a view [n, oh, ow, c] of padded x: [n, h, w, c]: the elements at kernel position (ky, kx)."""
    (down, right), (oh, ow) = slide.strides, slide.size
    y0, x0 = ky * slide.dilations[0], kx * slide.dilations[1]
    return x[:, y0 : y0 + (oh - 1) * down + 1 : down, x0 : x0 + (ow - 1) * right + 1 : right]
