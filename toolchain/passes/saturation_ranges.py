"""Where a tensor's codes may end because its readers stop telling: beyond, a function gives the code that it gives there."""

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
from toolchain.ops.scalar_functions import evaluate
from toolchain.ops.unary import Unary

Array = NDArray[Any]
_FURTHER = 16.0  # spans of what was seen, so far it is asked whether a function stays what it is at an end
_WHOLE = 1e-3  # of a code
_WORTH = 15 / 16  # of a scale: half a decibel
_MOST_BITS = 8  # of codes: those of more tell enough
_ROUNDS = 8  # functions in a row through which ends are followed; two without moves between are one by then


@dataclass(frozen=True)
class SaturationRange:
    """Values of a tensor down from `low` to `least`, and up from `high` to `most`, are as good as `low` and `high`."""

    low: float
    high: float
    least: float
    most: float

    def clip_to_effective(self, x: Array) -> Array:
        """Of the same type, without what says nothing: what lies still further stays as far from the codes' end as it was."""
        inside = np.clip(x, self.low, self.high, dtype=x.dtype)
        below = np.minimum(x - self.least, 0, dtype=x.dtype) if self.low > self.least > -math.inf else 0
        above = np.maximum(x - self.most, 0, dtype=x.dtype) if self.high < self.most < math.inf else 0
        return inside + below + above


def get_calibrated_ranges(graph: Graph, ranges: Mapping[str, Range | Quant]) -> dict[str, Range]:
    """Of the chip's tensors whose scale is not given. ranges: of the model's."""
    return {n: r for n, (own, _) in graph.origins.items() if isinstance(r := ranges.get(own), Range)}


def find_effective_ranges(
    graph: Graph, seen: Mapping[str, Range], quants: Mapping[str, Quant], types: Mapping[str, CodeType]
) -> dict[str, Range]:
    """graph: of float operators; seen: what calibration saw of its tensors; quants, types: of their codes. Of tensors of which a
    part alone tells their readers anything, that part. What the host reads, what is given out, and a Concat, whose operands are
    judged each by itself, tell all."""
    consumers = graph.consumers()
    whole = {*graph.outputs, *(n for state in graph.states for n in (state.past, state.made))}
    whole |= {n for node in graph.nodes if isinstance(node.op, ModelConcat) for n in node.outputs}
    found: dict[str, Range] = {}

    def read(node: Node, x: str) -> Range:
        """What its reader is told by."""
        y = node.outputs[0]
        if isinstance(node.op, OnnxOp) or y not in quants or types[y].is_wide:
            return seen[x]
        if same_scale(node.op):
            return found.get(y, seen[x])
        return operator_of(node, FloatOp).telling(seen[x], quants[y], types[y])

    for x in reversed(list(dict.fromkeys([*graph.inputs, *(n for node in graph.nodes for n in node.outputs)]))):
        readers = consumers.get(x, ())
        if x not in seen or x not in types or x in whole or not readers or types[x].bits > _MOST_BITS:
            continue
        part = reduce(Range.union, (read(node, x) for node in readers))
        if part.low > seen[x].low or part.high < seen[x].high:
            found[x] = Range(*np.clip((part.low, part.high), seen[x].low, seen[x].high).tolist())  # they may not meet
    return found


def narrow_ranges(
    graph: Graph,
    seen: Mapping[str, Range],
    types: Mapping[str, CodeType],
    quants_of: Callable[[Mapping[str, Range]], Mapping[str, Quant]],
) -> dict[str, Range]:
    """The ranges in whose place these are taken, where codes are finer for it: a code further than what tells, so that those
    which end between two lose none. quants_of: scales and zero points with some ranges in the place of those seen."""
    found: dict[str, Range] = {}
    plain = quants_of(found)
    exact = {n for node in graph.nodes if _loses_nothing(node, plain, types) for n in (*node.inputs, *node.outputs)}
    seen = {n: r for n, r in seen.items() if n not in exact}
    quants = plain
    for _ in range(_ROUNDS):  # finer codes tell finer
        told = {n: _a_code_further(r, types[n], seen[n]) for n, r in find_effective_ranges(graph, seen, quants, types).items()}
        quants = quants_of(told)
        told = {n: r for n, r in told.items() if quants[n].scale <= _WORTH * plain[n].scale}
        if told == found:
            break
        found, quants = told, quants_of(told)
    return found


def find_saturation_ranges(graph: Graph, integer: Graph, ranges: Mapping[str, Range | Quant]) -> dict[str, SaturationRange]:
    """Of the tensors that have one. graph: of float operators, integer: what was made of it with these ranges of the model's
    tensors."""
    seen = get_calibrated_ranges(graph, ranges)
    quants = {name: kind.quant for name, kind in integer.types.items() if kind.quant is not None}
    types = {name: CodeType(integer.types[name].dtype) for name in quants}
    parts = find_effective_ranges(graph, seen, quants, types)
    further = {n: Range(r.low - _FURTHER * r.span, r.high + _FURTHER * r.span) for n, r in seen.items()}
    far = find_effective_ranges(graph, further, quants, types) if parts else {}
    found: dict[str, SaturationRange] = {}
    for name, part in parts.items():
        own, told, quant = seen[name], far.get(name, further[name]), quants[name]
        first, last = (quant.scale * (limit - quant.zero_point) for limit in types[name].limits)
        low = min(first, part.low) if part.low > own.low else -math.inf
        high = max(last, part.high) if part.high < own.high else math.inf
        found[name] = SaturationRange(
            low, high, own.low if told.low < own.low else -math.inf, own.high if told.high > own.high else math.inf
        )
    return found


def _loses_nothing(node: Node, quants: Mapping[str, Quant], types: Mapping[str, CodeType]) -> bool:
    """Whether a function makes whole codes of codes, as a change of sign does: with other scales both were rounded anew."""
    if not isinstance(node.op, Unary) or types[node.inputs[0]].is_wide:
        return False
    x, y = quants[node.inputs[0]], quants[node.outputs[0]]
    low, high = types[node.inputs[0]].limits
    with np.errstate(all="ignore"):
        made = evaluate(node.op.function, x.scale * (np.linspace(low, high, 256).round() - x.zero_point)) / y.scale
        return bool((np.abs(made - np.rint(made)) < _WHOLE).all())


def _a_code_further(part: Range, codes: CodeType, seen: Range) -> Range:
    step = part.with_zero().span / (2**codes.bits - 1)
    return Range(max(part.low - step, seen.low), min(part.high + step, seen.high))
