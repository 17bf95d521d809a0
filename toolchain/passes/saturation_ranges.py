"""Narrow the codes of a tensor to the values that its readers tell apart.

Beyond such a range a function gives the code that it gives at the range's end, so finer codes inside lose nothing.
`quantize` narrows ranges by it; `find_saturation_ranges` tells reports which errors do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from toolchain.ir.graph import Graph, Node, OnnxOp, Quant
from toolchain.ops.data_movement import ModelConcat
from toolchain.ops.kit.operator import FloatOp, operator_of, same_scale
from toolchain.ops.pool.select_pool import MaxPool
from toolchain.ops.scalar_functions import evaluate
from toolchain.ops.unary import Unary

Array = NDArray[Any]
_FURTHER = 16.0  # spans of what was seen, so far it is asked whether a function stays what it is at an end
_INTEGER_TOLERANCE_CODES = 1e-3  # of a code
_WORTH = 15 / 16  # of a scale: half a decibel
_WORTH_ROUNDING = 1 / 2  # of a scale, 6 dB, where finer codes mean one rounding more, at most 3 dB
_ENOUGH_BITS = 8  # a range that has so many bits of codes for its effective part keeps wider codes as they are
_ROUNDS = 8  # functions in a row through which ends are followed; two without moves between are one by then


@dataclass(frozen=True)
class SaturationRange:
    """The values of a tensor beyond which its readers saturate.

    Values down from `low` to `least`, and up from `high` to `most`, are as good as `low` and `high`. An infinite `low` or
    `high`: nothing saturates at that end. An infinite `least` or `most`: saturation has no end there.
    """

    low: float
    high: float
    least: float
    most: float

    def clip_to_effective(self, x: Array) -> Array:
        """Return the values clipped to low and high. What lies beyond `least` or `most` keeps its distance from there."""
        inside = np.clip(x, self.low, self.high, dtype=x.dtype)
        below = np.minimum(x - self.least, 0, dtype=x.dtype) if self.low > self.least > -math.inf else 0
        above = np.maximum(x - self.most, 0, dtype=x.dtype) if self.high < self.most < math.inf else 0
        return inside + below + above


def get_calibrated_ranges(graph: Graph, ranges: Mapping[str, Range | Quant]) -> dict[str, Range]:
    """Return the calibrated ranges by chip tensor, without tensors whose scale is given.

    `ranges`: by the model's tensor; a Quant is a given scale and zero point.
    """
    return {n: r for n, (model_tensor, _) in graph.origins.items() if isinstance(r := ranges.get(model_tensor), Range)}


def find_effective_ranges(
    graph: Graph, calibrated_ranges: Mapping[str, Range], quants: Mapping[str, Quant], types: Mapping[str, CodeType]
) -> dict[str, Range]:
    """Return the effective range of each tensor whose readers do not tell its whole calibrated range apart.

    Other tensors are left out. So are tensors of more than 8 bits, unless fewer than 8 of them are left to the effective range.

    What the host reads, what is given out, and a Concat need it all; a Concat's operands are judged each by itself.
    `graph`: of float operators.
    `calibrated_ranges`: by chip tensor.
    `quants`, `types`: by chip tensor, of their codes.
    """
    consumers = graph.consumers()
    fully_read = {*graph.outputs, *(n for state in graph.states for n in (state.past, state.present_tensor))}
    fully_read |= {n for node in graph.nodes if isinstance(node.op, ModelConcat) for n in node.outputs}
    effective_ranges: dict[str, Range] = {}

    def read(node: Node, x: str) -> Range:
        """Return the range that tells the reader of a tensor what it reads."""
        y = node.outputs[0]
        if isinstance(node.op, OnnxOp) or y not in quants or types[y].is_wide:
            return calibrated_ranges[x]
        if isinstance(node.op, MaxPool) and y in calibrated_ranges:  # what is below all maxima is none of them
            part, maxima = effective_ranges.get(y, calibrated_ranges[x]), calibrated_ranges[y]
            return part if part.low > maxima.low else Range(maxima.low, max(part.high, maxima.low), maxima.tails)
        if same_scale(node.op):
            return effective_ranges.get(y, calibrated_ranges[x])
        return operator_of(node, FloatOp).get_effective_range(calibrated_ranges[x], quants[y], types[y])

    for x in reversed(list(dict.fromkeys([*graph.inputs, *(n for node in graph.nodes for n in node.outputs)]))):
        readers = consumers.get(x, ())
        if x not in calibrated_ranges or x not in types or x in fully_read or not readers:
            continue
        calibrated = calibrated_ranges[x]
        part = reduce(Range.union, (read(node, x) for node in readers))
        is_narrower = part.low > calibrated.low or part.high < calibrated.high
        part = part.within(calibrated.low, calibrated.high)  # they may not meet
        if is_narrower and part.span <= calibrated.span / 2 ** max(types[x].bits - _ENOUGH_BITS, 0):
            effective_ranges[x] = part
    return effective_ranges


def narrow_ranges(
    graph: Graph,
    calibrated_ranges: Mapping[str, Range],
    types: Mapping[str, CodeType],
    quants_of: Callable[[Mapping[str, Range]], Mapping[str, Quant]],
) -> dict[str, Range]:
    """Return, by chip tensor, the narrower range to take in place of the calibrated one, where its codes become finer by it.

    A range goes one code beyond the effective one, so that values which end between two codes lose none.
    `quants_of`: returns all scales and zero points, with the given ranges in place of the calibrated ones.
    """
    narrowed_ranges: dict[str, Range] = {}
    plain = quants_of(narrowed_ranges)
    most_scale = dict.fromkeys(calibrated_ranges, _WORTH)
    for node in graph.nodes:
        if (bound := _bound_scale_ratio(node, plain, types)) is not None:
            most_scale |= {n: min(bound, most_scale[n]) for n in (*node.inputs, *node.outputs) if n in most_scale}
    quants = plain
    for _ in range(_ROUNDS):  # finer codes tell finer
        effective_ranges = {
            n: _a_code_further(r, types[n], calibrated_ranges[n])
            for n, r in find_effective_ranges(graph, calibrated_ranges, quants, types).items()
        }
        quants = quants_of(effective_ranges)
        effective_ranges = {n: r for n, r in effective_ranges.items() if quants[n].scale <= most_scale[n] * plain[n].scale}
        if effective_ranges == narrowed_ranges:
            break
        narrowed_ranges, quants = effective_ranges, quants_of(effective_ranges)
    return narrowed_ranges


def find_saturation_ranges(graph: Graph, integer: Graph, ranges: Mapping[str, Range | Quant]) -> dict[str, SaturationRange]:
    """Return the saturation range of each chip tensor that has one, in real values; others are left out.

    `graph`: of float operators.
    `integer`: the integer graph made of `graph` with `ranges`.
    `ranges`: by the model's tensor, its calibrated range, or its qparams where they are given.
    """
    calibrated_ranges = get_calibrated_ranges(graph, ranges)
    quants = {name: kind.quant for name, kind in integer.types.items() if kind.quant is not None}
    types = {name: CodeType(integer.types[name].dtype) for name in quants}
    parts = find_effective_ranges(graph, calibrated_ranges, quants, types)
    further = {n: Range(r.low - _FURTHER * r.span, r.high + _FURTHER * r.span) for n, r in calibrated_ranges.items()}
    far = find_effective_ranges(graph, further, quants, types) if parts else {}
    saturation_ranges: dict[str, SaturationRange] = {}
    for name, part in parts.items():
        calibrated_range, far_range, quant = calibrated_ranges[name], far.get(name, further[name]), quants[name]
        first, last = (quant.scale * (limit - quant.zero_point) for limit in types[name].limits)
        low = min(first, part.low) if part.low > calibrated_range.low else -math.inf
        high = max(last, part.high) if part.high < calibrated_range.high else math.inf
        saturation_ranges[name] = SaturationRange(
            low,
            high,
            calibrated_range.low if far_range.low < calibrated_range.low else -math.inf,
            calibrated_range.high if far_range.high > calibrated_range.high else math.inf,
        )
    return saturation_ranges


def _bound_scale_ratio(node: Node, quants: Mapping[str, Quant], types: Mapping[str, CodeType]) -> float | None:
    """Return how many times its scale a tensor's finer one may be, for a function that maps each code exactly to a code.

    Such is a change of sign, and other scales would round once more. None for other functions, and for one that makes one code
    of all codes, which loses what these stand for.
    """
    if not isinstance(node.op, Unary) or types[node.inputs[0]].is_wide:
        return None
    x, y = quants[node.inputs[0]], quants[node.outputs[0]]
    low, high = types[node.inputs[0]].limits
    with np.errstate(all="ignore"):
        output_codes = evaluate(node.op.function, x.scale * (np.linspace(low, high, 256).round() - x.zero_point)) / y.scale
        rounded = np.rint(output_codes)
        if not (np.abs(output_codes - rounded) < _INTEGER_TOLERANCE_CODES).all():
            return None
    return _WORTH_ROUNDING if np.ptp(rounded) else None


def _a_code_further(part: Range, codes: CodeType, calibrated_range: Range) -> Range:
    """Return the range extended by one code at each end, inside the calibrated range."""
    step = part.with_zero().span / (2**codes.bits - 1)
    low, high = max(part.low - step, calibrated_range.low), min(part.high + step, calibrated_range.high)
    return Range(low, high, part.tails)
