"""Quantizes float weights: codes with a scale for each channel, for the tensor or for groups; and requantizes them.

`weight_quant` is the entry of the quantizer; `toolchain.repair` changes the results with the other functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.weight_scaling import WeightScaling
from quant.fixed_point.sums.grouped_sums import WeightGroups
from quant.parameters.weight_codes import weight_code_range
from quant.parameters.weight_groups import (
    RealGroups,
    channel_scales,
    covering_groups,
    fitting_codes,
    form_of,
    group_codes,
    real_groups,
    round_groups,
)
from quant.parameters.weight_scales import weight_scales
from toolchain.errors import CompileError
from toolchain.ir.file_quantization import FileWeightGroups

Array = NDArray[Any]

_COARSE_STEPS = 2.0**10  # multipliers below this round a scale by more than 2**-11


@dataclass(frozen=True, eq=False)
class WeightQuant:
    """Quantized weights: real = scales x integers, the scales along `axis`.

    Without groups the integers are the codes. With groups they are made of codes, scales and minima of groups
    (`quant.fixed_point.sums.grouped_sums`).
    `codes`: int8, in the weights' shape, whose first dimension is `axis` where there are groups.
    `scales`: float64[channels], or [1] where all weights share one.
    """

    codes: Array
    scales: Array
    axis: int
    groups: WeightGroups | None = None

    @property
    def scaling(self) -> WeightScaling:
        """The rule of which weights share a scale."""
        group = 0 if self.groups is None else self.groups.size
        return WeightScaling(self.axis if len(self.scales) > 1 else None, group)

    @property
    def integers(self) -> Array:
        """The integers that sums are made of: int8 codes or, with groups, int32, in the weights' shape."""
        return self.codes if self.groups is None else self.groups.apply_scales(self.codes)

    def steps(self) -> tuple[Array, Array]:
        """Return (real value of one code more, real value of code 0), each float64 in the weights' shape."""
        scales = along(self.scales, self.axis, self.codes.ndim)
        if self.groups is None:
            return np.broadcast_to(scales, self.codes.shape), np.zeros(self.codes.shape)
        zero = self.groups.apply_scales(np.zeros_like(self.codes))
        return (self.groups.apply_scales(np.ones_like(self.codes)) - zero) * scales, zero * scales

    def dequantize(self) -> Array:
        """Return the weights as real numbers, float64 in their shape."""
        return self.integers * along(self.scales, self.axis, self.codes.ndim)


def along(values: Array, axis: int, rank: int) -> Array:
    """Return values[c] reshaped so that they broadcast along `axis` of an array of `rank` dimensions."""
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def weight_quant(
    w: Array,
    axis: int,
    numerics: Numerics,
    *,
    scaling: WeightScaling | None = None,
    method: Literal["minmax", "mse"] | None = None,
    name: str = "weights",
) -> WeightQuant:
    """Return codes with a scale for each index of `axis` where the machine has such scales, else with one scale.

    `w`: float, any shape; not changed.
    `scaling`: which weights share a scale; None: as the machine has it. In groups of neighbours along the reduction, each has its
    own scale, and a minimum where the machine has those. Then `axis` is 0, and the other dimensions lie in their order in memory.
    `method`: 'minmax' covers the largest weight; 'mse' searches the clipping of least squared error, which pays at int4. None
    means minmax at int8, mse at int4. Powers of two are always searched.
    `name`: of the layer, in the error.

    Without minima code 0 is real 0. Weights in small integer ratios, such as 1:3:9 of a linear interpolation, take the finest
    scale that holds them exactly. A channel of zeros takes the largest scale of the others, so that its bias keeps its bits.
    Raise CompileError: NaN or infinity. Raise ValueError: groups on a machine without groups.
    """
    if not np.isfinite(w).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(w))[0]]
        raise CompileError(f"{name}: holds {float(w[tuple(at)])} at {at}; weights must be finite, mend the model")
    axis = axis % max(w.ndim, 1)
    rows = np.moveaxis(np.asarray(w, np.float64), axis, 0).reshape(w.shape[axis], -1)
    scaling = WeightScaling(axis if numerics.weights_per_channel else None) if scaling is None else scaling
    if scaling.axis is None:
        rows = rows.reshape(1, -1)
    method = method or ("mse" if numerics.weight is CodeType.INT4 else "minmax")
    if scaling.group:
        real = covering_groups(np.asarray(w, np.float64).reshape(len(w), -1), scaling.group, numerics, method)
        scales = channel_scales(real, numerics)
        integer_groups = round_groups(real, scales, scaling.group, form_of(numerics))
        return WeightQuant(group_codes(w, integer_groups, scales, weight_code_range(numerics.weight)), scales, 0, integer_groups)
    scales = weight_scales(rows, numerics, method)
    return requantize_weight(w, WeightQuant(np.zeros(w.shape, np.int8), scales, axis), scales, numerics)


def requantize_weight(w: Array, weight: WeightQuant, scales: Array, numerics: Numerics) -> WeightQuant:
    """Return the weights `w` quantized at other scales. Groups keep their real scales and minima, rounded at the new scales.

    `weight`: gives the axis and the groups. Where its codes go below `weight_code_range`, as a file's may, the new ones may too.
    `scales`: float64[o], or [1] where all weights share one.
    """
    first, last = weight_code_range(numerics.weight)
    first = min(first, int(weight.codes.min(initial=0)))
    if weight.groups is not None:
        real = real_groups(weight.groups, weight.scales)
        groups = round_groups(real, scales, weight.groups.size, form_of(numerics))
        return WeightQuant(group_codes(w, groups, scales, (first, last)), scales, weight.axis, groups)
    steps = np.asarray(w, np.float64) / along(scales, weight.axis, w.ndim)
    return WeightQuant(np.clip(np.rint(steps), first, last).astype(np.int8), scales, weight.axis)


def rescale_groups(weight: WeightQuant, times: Array, numerics: Numerics) -> WeightQuant:
    """Return the same codes with scales of groups that are `times` as large, rounded to the machine's bits.

    `weight`: with groups; minima keep their real values, rounded too.
    `times`: float64[o, g], for each channel and group.
    """
    assert weight.groups is not None
    scales, minima = real_groups(weight.groups, weight.scales)
    real = RealGroups(scales * times, minima)
    scales = channel_scales(real, numerics)
    return replace(weight, scales=scales, groups=round_groups(real, scales, weight.groups.size, form_of(numerics)))


def chosen_rows(first: Array, one: WeightQuant, other: WeightQuant) -> WeightQuant:
    """Return the rows of `one` where `first` is true, else those of `other`, as a new WeightQuant.

    `first`: bool of each index of `axis`, which must be 0. Both have a scale for each of them.
    """
    at = np.flatnonzero(first)
    codes, scales = other.codes.copy(), other.scales.copy()
    codes[at], scales[at] = one.codes[at], one.scales[at]
    if one.groups is None or other.groups is None:
        return replace(other, codes=codes, scales=scales)
    group_scales, minima = other.groups.scales.copy(), None if other.groups.minima is None else other.groups.minima.copy()
    group_scales[at] = one.groups.scales[at]
    if minima is not None and one.groups.minima is not None:
        minima[at] = one.groups.minima[at]
    return replace(other, codes=codes, scales=scales, groups=WeightGroups(other.groups.size, group_scales, minima))


def quantize_file_groups(file_groups: FileWeightGroups, shape: tuple[int, ...], numerics: Numerics) -> WeightQuant | None:
    """Return a file's own codes in `shape`, their scales and minima rounded to the machine's bits.

    Return None where the machine has no such groups, or its codes do not hold the file's.
    """
    fitting = fitting_codes(file_groups, numerics)
    if fitting is None:
        return None
    codes, real = fitting
    scales = channel_scales(real, numerics)
    return WeightQuant(codes.reshape(shape), scales, 0, round_groups(real, scales, file_groups.size, form_of(numerics)))


def check_chosen_weight(chosen: WeightQuant, w: Array, numerics: Numerics, *, name: str) -> WeightQuant:
    """Return `chosen`, the codes that repair chose for the weights `w`, if they fit.

    Raise CompileError where their shape, range, scales or groups belong to other weights or to another machine.
    """
    first, last = weight_code_range(numerics.weight)
    scales = w.shape[chosen.axis] if numerics.weights_per_channel else 1
    faults: list[str] = []
    if chosen.codes.shape != w.shape:
        faults.append(f"their shape is {list(chosen.codes.shape)}, the weights' {list(w.shape)}")
    low, high = int(chosen.codes.min(initial=0)), int(chosen.codes.max(initial=0))
    if low < first or high > last:
        faults.append(f"they reach from {low} to {high}, the machine's {numerics.weight} from {first} to {last}")
    if chosen.scales.shape != (scales,):
        faults.append(f"they have {chosen.scales.size} scales, the machine takes {scales}")
    faults += [] if chosen.groups is None else _group_faults(chosen.groups, numerics)
    if numerics.scale.kind == "pow2" and (np.frexp(chosen.scales)[0] != 0.5).any():
        faults.append("their scales are no powers of two, and the machine has no others (numerics.scale.kind)")
    if faults:
        raise CompileError(f"{name}: the codes chosen for it do not fit: {'; '.join(faults)}; repair it for this machine")
    return chosen


def _group_faults(groups: WeightGroups, numerics: Numerics) -> list[str]:
    """Return phrases on what the machine lacks of the groups; empty where it has them."""
    form = numerics.groups
    if form is None or groups.size not in form.sizes:
        return [f"they are in groups of {groups.size}, the machine has {'none' if form is None else f'those of {form.sizes}'}"]
    least = 0 if groups.minima is None else int(np.abs(groups.minima).max(initial=0))
    reached = (("scales", int(groups.scales.max(initial=0)), form.largest_scale), ("minima", least, form.largest_minimum))
    return [f"{what} of groups reach {reach}, the machine's {most}" for what, reach, most in reached if reach > most]


def expressible_weight(w: Array, weight: WeightQuant, ratio: float, numerics: Numerics) -> WeightQuant:
    """Return `weight` at scales that make ratio x scale a requantization of the machine, where the machine's scales are coarse.
    Near its shift_max few scales remain, and rounding to one of them would scale a whole channel wrongly.

    `ratio`: the input's scale over the output's.

    Scales grow; where that would cost more than half of the weights' bits they stay.
    """
    form = numerics.scale
    if form.kind == "float32":
        return weight
    steps = weight.scales * ratio / form.extremes[0]
    grown = np.ceil(steps) / steps
    grows = (steps < _COARSE_STEPS) & (grown <= 2.0 ** (numerics.weight.bits / 2)) & (grown > 1)
    return (
        requantize_weight(w, weight, np.where(grows, weight.scales * grown, weight.scales), numerics) if grows.any() else weight
    )


def product_scale(x: float, w: Any, y: float, numerics: Numerics) -> Array:
    """Return the factor x w / y from products of codes at scales x and w to codes at scale y.

    It has the shape of `w`. Where the machine's scales are float32, it is computed in float32 step by step, as in onnxruntime's
    QLinearConv and QLinearMatMul.
    """
    if numerics.scale.kind != "float32":
        return np.asarray(x * w / y)
    return np.asarray(np.float32(x) * np.asarray(w, np.float32) / np.float32(y)).astype(np.float64)
