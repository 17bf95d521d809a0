"""Computes scales and minima of groups of weights, and codes in them: real = channel's scale x (m_g code + n_g).

A group is some neighbours along the reduction with a scale m_g, an integer, and a minimum n_g, an integer that machines may lack.
A minimum is the value at code 0; it is the group's least weight only where codes begin at 0.
`RealGroups` has both as real numbers, and `quant.fixed_point.sums.grouped_sums` defines the integer form. In shapes, `o` counts
output channels, `g` groups of a channel, `k` weights of a channel.

A file's zero point counts as whole where it is within _POINT_TOLERANCE of a scale, as near as float32 says one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.scale import ScaleForm
from quant.fixed_point.core.weight_scaling import GroupForm
from quant.fixed_point.sums.grouped_sums import WeightGroups, group_count, spread
from quant.parameters.weight_codes import weight_code_range
from quant.parameters.weight_scales import SMALLEST_CHANNEL, weight_scales
from toolchain.ir.file_quantization import FileWeightGroups

Array = NDArray[Any]
_POINT_TOLERANCE = 2.0**-16


class RealGroups(NamedTuple):
    """Real scales and minima of groups: float64[o, g], not negative, and float64[o, g], None where there are no minima."""

    scales: Array
    minima: Array | None


def form_of(numerics: Numerics) -> GroupForm:
    """Return which groups the machine has. Raise ValueError where it has none."""
    if numerics.groups is None:
        raise ValueError("a machine without groups of weights")
    return numerics.groups


def covering_groups(rows: Array, size: int, numerics: Numerics, method: str) -> RealGroups:
    """Return scales and minima of groups of `size` weights for weights float64[o, k].

    A scale covers its group (`method` minmax), or has least squared error (mse). Where the machine has minima, it covers from the
    least to the largest weight, whatever the method; else it is symmetric. The last group of a channel may be shorter.
    A group of zeros has scale 0. With minima any group of equal weights has scale 0, and its minimum is their value.
    """
    count, first_last = group_count(rows.shape[1], size), weight_code_range(numerics.weight)
    missing = ((0, 0), (0, count * size - rows.shape[1]))
    if not form_of(numerics).minimum_bits:
        each = np.pad(rows, missing).reshape(-1, size)
        free = Numerics(numerics.activation, numerics.weight, scale=ScaleForm())  # a group's scale is any whole number
        return RealGroups(np.where(each.any(1), weight_scales(each, free, method), 0.0).reshape(-1, count), None)
    each = np.pad(rows, missing, mode="edge").reshape(len(rows), count, size)
    low, high, (first, last) = each.min(2), each.max(2), first_last
    scales = (high - low) / (last - first)
    return RealGroups(scales, low - first * scales)


def channel_scales(real: RealGroups, numerics: Numerics) -> Array:
    """Return float64[o], or [1] where channels share one: the least scales at which scales and minima of all groups fit their
    bits.

    They are powers of two where the machine has only those. No scale is below SMALLEST_CHANNEL times the largest. A channel of
    zeros takes the largest scale of the others, or 2^-7 where all are zero.
    """
    form = form_of(numerics)
    required = real.scales.max(1, initial=0.0) / form.largest_scale
    if real.minima is not None and real.minima.any():
        required = np.maximum(required, np.abs(real.minima).max(1) / form.largest_minimum)
    if not numerics.weights_per_channel:
        required = required.max(keepdims=True)
    if numerics.scale.kind == "pow2":
        required = np.where(required > 0, np.exp2(np.ceil(np.log2(np.where(required > 0, required, 1.0)))), 0.0)
    largest = float(required.max(initial=0.0)) or 2.0**-7
    return np.where(required > 0, np.maximum(required, largest * SMALLEST_CHANNEL), largest)


def round_groups(real: RealGroups, scales: Array, size: int, form: GroupForm) -> WeightGroups:
    """Return the groups with scales and minima rounded to nearest integers at these scales of channels, saturated to their bits.

    A scale above zero stays above zero, so that its codes keep their meaning. Minima are dropped where the machine has none.
    """
    step = scales.reshape(-1, 1)
    m = np.clip(np.rint(real.scales / step), np.where(real.scales > 0, 1, 0), form.largest_scale).astype(np.int32)
    if real.minima is None or not form.minimum_bits:
        return WeightGroups(size, m)
    largest = form.largest_minimum
    return WeightGroups(size, m, np.clip(np.rint(real.minima / step), -largest, largest).astype(np.int32))


def real_groups(groups: WeightGroups, scales: Array) -> RealGroups:
    """Return the real scales and minima of rounded groups: the inverse of `round_groups`, but for rounding."""
    step = scales.reshape(-1, 1)
    return RealGroups(groups.scales * step, None if groups.minima is None else groups.minima * step)


def group_codes(w: Array, groups: WeightGroups, scales: Array, limits: tuple[int, int]) -> Array:
    """Return the codes nearest to the weights w[o, ...] at these groups and scales of channels, as int8 in the shape of `w`.

    `limits`: the least and the largest code. A group with a scale of 0 has codes of 0.
    """
    rows = np.asarray(w, np.float64).reshape(len(w), -1)
    steps, count = rows / scales.reshape(-1, 1), rows.shape[1]
    if groups.minima is not None:
        steps = steps - spread(groups.minima, groups.size, count)
    m = spread(groups.scales, groups.size, count)
    codes = np.divide(steps, m, out=np.zeros_like(steps), where=m > 0)
    return np.clip(np.rint(codes), *limits).astype(np.int8).reshape(w.shape)


def fitting_codes(file_groups: FileWeightGroups, numerics: Numerics) -> tuple[Array, RealGroups] | None:
    """Return a file's codes (int8[o, k]) and real groups in the machine's terms; None where it cannot hold them.

    Codes of another range (0 to 15 of 4 bits) move by one number, and their minima with them. Where integer zero points do the
    same, codes move by these and there are no minima. A negative scale turns the codes' sign.
    """
    form, (first, last) = numerics.groups, numerics.weight.limits
    if form is None or file_groups.size not in form.sizes:
        return None
    scales = np.asarray(file_groups.scales, np.float64)
    minima = np.zeros_like(scales) if file_groups.minima is None else np.asarray(file_groups.minima, np.float64)
    points = np.rint(np.divide(-minima, scales, out=np.zeros_like(minima), where=scales != 0))
    has_integer_point = np.abs(minima + points * scales) <= _POINT_TOLERANCE * np.abs(scales)
    low, high = int(file_groups.codes.min(initial=0)), int(file_groups.codes.max(initial=0))
    moved = high - last if high > last else min(low - first, 0)
    for each, new_minima in ((points, None), (np.full_like(points, moved), minima + moved * scales)):
        codes = file_groups.codes - spread(each, file_groups.size, file_groups.codes.shape[1])
        codes = np.where(spread(scales, file_groups.size, codes.shape[1]) < 0, -codes, codes)
        fits = codes.min(initial=0) >= first and codes.max(initial=0) <= last
        if fits and (has_integer_point.all() if new_minima is None else form.minimum_bits or not new_minima.any()):
            return codes.astype(np.int8), RealGroups(np.abs(scales), new_minima)
    return None
