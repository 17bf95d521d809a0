"""Convolution and matrix product by their definitions, in int64 loops over taps: slow, and obviously right."""

from __future__ import annotations

import numpy as np


def wrap(x: np.ndarray, bits: int) -> np.ndarray:
    return ((x + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1)) if bits < 64 else x


def conv2d(x, w, strides, dilations, pads, groups, x_zero_point, w_zero_point, bias) -> np.ndarray:
    """int64[n, oh, ow, oc], unwrapped."""
    x = x.astype(np.int64) - x_zero_point
    w = w.astype(np.int64) - np.asarray(w_zero_point, np.int64).reshape(-1, 1, 1, 1)
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    oc, kh, kw, ic = w.shape
    oh = (x.shape[1] - (kh - 1) * dilations[0] - 1) // strides[0] + 1
    ow = (x.shape[2] - (kw - 1) * dilations[1] - 1) // strides[1] + 1
    y = np.zeros((x.shape[0], oh, ow, oc), np.int64)
    for o in range(oc):
        g = o // (oc // groups)
        for ky in range(kh):
            for kx in range(kw):
                rows = slice(ky * dilations[0], ky * dilations[0] + (oh - 1) * strides[0] + 1, strides[0])
                columns = slice(kx * dilations[1], kx * dilations[1] + (ow - 1) * strides[1] + 1, strides[1])
                y[..., o] += (x[:, rows, columns, g * ic : (g + 1) * ic] * w[o, ky, kx]).sum(axis=-1)
    return y + (0 if bias is None else bias)


def conv_transpose2d(x, w, strides, dilations, pads, output_padding, groups, x_zero_point, w_zero_point) -> np.ndarray:
    """int64[n, oh, ow, oc] by scattering every input."""
    x = x.astype(np.int64) - x_zero_point
    w = w.astype(np.int64) - np.asarray(w_zero_point, np.int64).reshape(-1, 1, 1, 1)
    oc, kh, kw, ic = w.shape
    n, h, width, _ = x.shape
    full_h = (h - 1) * strides[0] + (kh - 1) * dilations[0] + 1 + output_padding[0]
    full_w = (width - 1) * strides[1] + (kw - 1) * dilations[1] + 1 + output_padding[1]
    full = np.zeros((n, full_h, full_w, oc), np.int64)
    for o in range(oc):
        g = o // (oc // groups)
        for j in range(h):
            for i in range(width):
                for ky in range(kh):
                    for kx in range(kw):
                        part = (x[:, j, i, g * ic : (g + 1) * ic] * w[o, ky, kx]).sum(axis=-1)
                        full[:, j * strides[0] + ky * dilations[0], i * strides[1] + kx * dilations[1], o] += part
    top, left, bottom, right = pads
    return full[:, top : full_h - bottom, left : full_w - right]
