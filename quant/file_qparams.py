"""How a machine takes what a quantized model gives: scales of activations, and codes of weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.parameters import WeightQuant, along, quantize_file_groups
from quant.parameters.weight_groups import fitting_codes
from toolchain.errors import InternalError
from toolchain.ir.file_quantization import FileQuant, FileWeightGroups, FileWeights
from toolchain.ir.graph import Quant

Array = NDArray[Any]
_WHOLE = 2.0**-16  # steps from a whole number: scales that were folded twice in float32 are off by less


def find_code_type(given: FileQuant, numerics: Numerics) -> CodeType | None:
    """The type of activations, of that width, in which a machine holds tensors at this scale and zero point; None: in none."""
    if numerics.scale.kind == "pow2" and math.frexp(given.scale)[0] != 0.5:
        return None
    fitting = (t for t in numerics.types if t.bits == given.bits)
    return next((t for t in fitting if not numerics.of(t).symmetric_activations or given.quant(t.low).zero_point == 0), None)


def get_file_codes(value: Array, how: FileWeights | None, numerics: Numerics) -> tuple[Array, Quant] | None:
    """The file's own codes, scale and zero point of a constant activation; None where it has none, or the machine cannot keep
    them, or the constant is another by now."""
    held = None if how is None or how.quant is None else find_code_type(how.quant, numerics)
    if how is None or how.quant is None or held is None:
        return None
    quant = how.quant.quant(held.low)
    codes = np.asarray(value, np.float64) / quant.scale + quant.zero_point
    low, high = held.limits
    whole = np.rint(codes)
    if (np.abs(codes - whole) > _WHOLE).any() or whole.min(initial=0) < low or whole.max(initial=0) > high:
        return None
    return whole, quant


def narrowest_weight(how: FileWeights, numerics: Numerics, *, groups: bool) -> CodeType:
    """The type of fewest bits that holds a file's codes, the machine's first where none does. groups: whether the layer can have
    its weights in groups."""
    if len(numerics.weight_types) == 1 or (how.groups is not None and not groups):
        return numerics.weight
    narrow = sorted(numerics.weight_types, key=lambda t: t.bits)
    return next((t for t in narrow if _holds(how, numerics.with_weights(t))), numerics.weight)


def _holds(how: FileWeights, numerics: Numerics) -> bool:
    return holds_codes(how, numerics.weight) if how.groups is None else fitting_codes(how.groups, numerics) is not None


def holds_codes(how: FileWeights, codes: CodeType) -> bool:
    """Whether a type holds a file's codes of weights, in no groups, less their zero points."""
    return codes.low <= how.least.min() and how.largest.max() <= codes.high


def explain_requantization(how: FileWeights, numerics: Numerics, scales: Array) -> str | None:
    """Why a machine cannot keep a file's codes of weights, and rounds what they stand for; None where it keeps them. scales: of
    the codes now (`get_current_scales`)."""
    if how.groups is not None:
        size = how.groups.size
        return None if fitting_codes(how.groups, numerics) is not None else f"no such groups of {size} weights (numerics.groups)"
    if numerics.scale.kind == "pow2" and (np.frexp(scales)[0] != 0.5).any():
        return "scales that are powers of two (numerics.scale)"
    if not numerics.weights_per_channel and np.ptp(scales) > _WHOLE * scales.max():
        return "one scale for all channels (numerics.weights_per_channel)"
    return None if holds_codes(how, numerics.weight) else f"{numerics.weight} weights (numerics.weight)"


def get_file_weights(w: Array, axis: int, how: FileWeights, numerics: Numerics, name: str) -> WeightQuant | None:
    """The file's own codes and scales of the weights `w`, which may have been arranged anew or scaled for each channel since.

    None where the machine has no such scales or groups, or no type that holds the codes, so that it takes its own.
    """
    if how.groups is not None:
        return _grouped(w, how.groups, numerics)
    if len(how.scales) not in (1, w.shape[axis]):
        return None
    scales = get_current_scales(w, axis, how)
    if explain_requantization(how, numerics, scales) is not None:
        return None
    if not _whole(_rows(w, axis), scales).all():
        raise InternalError(f"{name}: its weights are no longer whole multiples of the scales that the model gives them")
    scales = scales if numerics.weights_per_channel else scales[:1]
    codes = np.rint(np.asarray(w, np.float64) / along(scales, axis, w.ndim))
    low, high = numerics.weight.limits
    if codes.min(initial=0) < low or codes.max(initial=0) > high:
        return None  # turned around: -128 became 128
    return WeightQuant(codes.astype(np.int8), scales, axis)


def _grouped(w: Array, groups: FileWeightGroups, numerics: Numerics) -> WeightQuant | None:
    """In the file's own groups, where they lie along the reduction still: those of a kernel of one element."""
    rows, held = np.asarray(w, np.float64).reshape(len(w), -1), groups.real()
    if rows.shape != held.shape or rows.shape[1] != w.shape[-1]:
        return None
    own, peak = np.abs(rows).max(1, initial=0), np.abs(held).max(1, initial=0)
    factor = np.where(peak > 0, own / np.where(peak > 0, peak, 1), 1.0)[:, None]  # a channel may have been scaled since
    if (np.abs(rows - held * factor) > _WHOLE * np.maximum(own, peak)[:, None]).any():
        return None
    minima = None if groups.minima is None else groups.minima * factor
    return quantize_file_groups(replace(groups, scales=groups.scales * factor, minima=minima), w.shape, numerics)


def get_current_scales(w: Array, axis: int, how: FileWeights) -> Array:
    """float64[channels] of the weights `w`: the file's, or what they became where a channel was multiplied by a number, which is
    what takes its largest code to its peak."""
    rows = _rows(w, axis)
    if len(how.scales) not in (1, len(rows)):
        return how.scales
    given = np.broadcast_to(how.scales, (len(rows),)).astype(np.float64)
    alike = len(how.peaks) == len(rows)  # else the channels were taken apart, and the largest of all is known
    peaks = np.abs(rows).max(1, initial=0) if alike else np.full(len(rows), np.abs(rows).max(initial=0))
    codes = how.peaks if alike else np.full(len(rows), how.peaks.max())
    moved = np.where((peaks > 0) & (codes > 0), peaks / np.maximum(codes, 1), given)
    return np.where(_whole(rows, given), given, moved)


def _rows(w: Array, axis: int) -> Array:
    """float64[channels, rest]"""
    return np.moveaxis(np.asarray(w, np.float64), axis, 0).reshape(w.shape[axis], -1)


def _whole(rows: Array, scales: Array) -> Array:
    """bool[n]: whether each row is whole multiples of its scale."""
    steps = rows / scales[:, None]
    near = np.abs(steps - np.rint(steps)) <= _WHOLE * np.maximum(1, np.abs(steps))
    return np.asarray(near.all(1))
