"""Converts the qparams of a quantized ONNX file for a machine: which of its scales, zero points and codes can stay as they are.

What the file says of constants is `FileWeights` (`toolchain.ir.file_quantization`). Where a machine cannot keep codes, the
functions return None or a reason, and the caller requantizes.
"""

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
_INTEGER_TOLERANCE_STEPS = 2.0**-16  # steps from a whole number: scales that were folded twice in float32 are off by less


def find_code_type(file_quant: FileQuant, numerics: Numerics) -> CodeType | None:
    """Return the machine's activation type of the file's width that takes this scale and zero point; None where there is none."""
    if numerics.scale.kind == "pow2" and math.frexp(file_quant.scale)[0] != 0.5:
        return None
    fitting = (t for t in numerics.types if t.bits == file_quant.bits)
    return next((t for t in fitting if not numerics.of(t).symmetric_activations or file_quant.quant(t.low).zero_point == 0), None)


def get_file_codes(value: Array, how: FileWeights | None, numerics: Numerics) -> tuple[Array, Quant] | None:
    """Return the file's own codes (whole float64 in the shape of `value`) of a constant activation, and its qparams.

    Return None where the file has none, the machine cannot keep them, or the constant has changed.
    `value`: the constant as real numbers.
    `how`: how the file holds it; None: in float.
    """
    code_type = None if how is None or how.quant is None else find_code_type(how.quant, numerics)
    if how is None or how.quant is None or code_type is None:
        return None
    quant = how.quant.quant(code_type.low)
    codes = np.asarray(value, np.float64) / quant.scale + quant.zero_point
    low, high = code_type.limits
    integers = np.rint(codes)
    if (
        (np.abs(codes - integers) > _INTEGER_TOLERANCE_STEPS).any()
        or integers.min(initial=0) < low
        or integers.max(initial=0) > high
    ):
        return None
    return integers, quant


def narrowest_weight(how: FileWeights, numerics: Numerics, *, groups: bool) -> CodeType:
    """Return the type of fewest bits that holds a file's codes, or the machine's first type where none does.

    It is the first type too where the file has groups and the layer cannot.
    `groups`: the layer can have its weights in groups.
    """
    if len(numerics.weight_types) == 1 or (how.groups is not None and not groups):
        return numerics.weight
    narrow = sorted(numerics.weight_types, key=lambda t: t.bits)
    return next((t for t in narrow if _holds(how, numerics.with_weights(t))), numerics.weight)


def _holds(how: FileWeights, numerics: Numerics) -> bool:
    """Return whether the machine's weights hold the file's codes, with their groups."""
    return holds_codes(how, numerics.weight) if how.groups is None else fitting_codes(how.groups, numerics) is not None


def holds_codes(how: FileWeights, codes: CodeType) -> bool:
    """Return whether a type holds a file's codes of weights, from which their zero points are subtracted. Groups do not count."""
    return codes.low <= how.least.min() and how.largest.max() <= codes.high


def explain_requantization(how: FileWeights, numerics: Numerics, scales: Array) -> str | None:
    """Return why a machine cannot keep a file's codes of weights and requantizes them, or None where it keeps them.

    The reason is a noun phrase with the machine's key, such as `one scale for all channels (numerics.weights_per_channel)`.
    `scales`: current scales of the codes (`get_current_scales`).
    """
    if how.groups is not None:
        size = how.groups.size
        return None if fitting_codes(how.groups, numerics) is not None else f"no such groups of {size} weights (numerics.groups)"
    if numerics.scale.kind == "pow2" and (np.frexp(scales)[0] != 0.5).any():
        return "scales that are powers of two (numerics.scale)"
    if not numerics.weights_per_channel and np.ptp(scales) > _INTEGER_TOLERANCE_STEPS * scales.max():
        return "one scale for all channels (numerics.weights_per_channel)"
    return None if holds_codes(how, numerics.weight) else f"{numerics.weight} weights (numerics.weight)"


def get_file_weights(w: Array, axis: int, how: FileWeights, numerics: Numerics, name: str) -> WeightQuant | None:
    """Return the file's own codes and scales of the weights `w`; None where the machine has no such scales, groups or codes.

    `w`: real weights, which may have been rearranged, or scaled for each channel, since the file was read.
    `axis`: of the output channels.
    `name`: of the layer, for the error.

    Raise InternalError where the weights are no whole multiples of their scales.
    """
    if how.groups is not None:
        return _quantize_in_groups(w, how.groups, numerics)
    if len(how.scales) not in (1, w.shape[axis]):
        return None
    scales = get_current_scales(w, axis, how)
    if explain_requantization(how, numerics, scales) is not None:
        return None
    if not _are_integer_codes(_rows(w, axis), scales).all():
        raise InternalError(f"{name}: its weights are no longer whole multiples of the scales that the model gives them")
    scales = scales if numerics.weights_per_channel else scales[:1]
    codes = np.rint(np.asarray(w, np.float64) / along(scales, axis, w.ndim))
    low, high = numerics.weight.limits
    if codes.min(initial=0) < low or codes.max(initial=0) > high:
        return None  # turned around: -128 became 128
    return WeightQuant(codes.astype(np.int8), scales, axis)


def _quantize_in_groups(w: Array, groups: FileWeightGroups, numerics: Numerics) -> WeightQuant | None:
    """Return the weights in the file's own groups; None where these no longer lie along the reduction, or the weights have
    changed.

    Kernels of one element keep them; a channel may have been scaled.
    """
    rows, file_rows = np.asarray(w, np.float64).reshape(len(w), -1), groups.real()
    if rows.shape != file_rows.shape or rows.shape[1] != w.shape[-1]:
        return None
    row_peaks, peak = np.abs(rows).max(1, initial=0), np.abs(file_rows).max(1, initial=0)
    factor = np.where(peak > 0, row_peaks / np.where(peak > 0, peak, 1), 1.0)[:, None]  # a channel may have been scaled since
    if (np.abs(rows - file_rows * factor) > _INTEGER_TOLERANCE_STEPS * np.maximum(row_peaks, peak)[:, None]).any():
        return None
    minima = None if groups.minima is None else groups.minima * factor
    return quantize_file_groups(replace(groups, scales=groups.scales * factor, minima=minima), w.shape, numerics)


def get_current_scales(w: Array, axis: int, how: FileWeights) -> Array:
    """Return the scales of the weights `w` as float64[channels].

    A channel that was multiplied by a number has a scale that takes its largest code to its peak; the others have the file's.
    Where the number of channels has changed, the file's scales come back as they are.
    """
    rows = _rows(w, axis)
    if len(how.scales) not in (1, len(rows)):
        return how.scales
    file_scales = np.broadcast_to(how.scales, (len(rows),)).astype(np.float64)
    has_channel_peaks = len(how.peaks) == len(rows)  # else the channels were taken apart, and the largest of all is known
    peaks = np.abs(rows).max(1, initial=0) if has_channel_peaks else np.full(len(rows), np.abs(rows).max(initial=0))
    codes = how.peaks if has_channel_peaks else np.full(len(rows), how.peaks.max())
    moved = np.where((peaks > 0) & (codes > 0), peaks / np.maximum(codes, 1), file_scales)
    return np.where(_are_integer_codes(rows, file_scales), file_scales, moved)


def _rows(w: Array, axis: int) -> Array:
    """Return float64[channels, rest]."""
    return np.moveaxis(np.asarray(w, np.float64), axis, 0).reshape(w.shape[axis], -1)


def _are_integer_codes(rows: Array, scales: Array) -> Array:
    """Return bool[channels]: whether each row is whole multiples of its scale."""
    steps = rows / scales[:, None]
    near = np.abs(steps - np.rint(steps)) <= _INTEGER_TOLERANCE_STEPS * np.maximum(1, np.abs(steps))
    return np.asarray(near.all(1))
