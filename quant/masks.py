"""Finds additive masks, which add minus infinity to scores that a Softmax reads, and bounds their ranges.

A masked score may be minus infinity or -1e9, which as the end of a range would leave the scores no codes. Calibration asks here
which tensors may be masked, and records below which value a position vanishes. `bound_masks` then moves the ends of the ranges
there (part of `quant.structural_ranges`). A Softmax stands for any operator of SCORE_CONSUMERS.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from quant.observe import Masking, MinMax, Observer, Range
from quant.producer_links import HANDED_ON, Links
from toolchain.errors import CompileError
from toolchain.ir.masks import MASK_LOW

if TYPE_CHECKING:
    import onnx

MASK_MARGIN = 16.0  # exp(-16) is 1e-7: a masked position is gone
LOWEST = float(np.finfo(np.float32).min)  # what stands for minus infinity where ranges must be finite
# Operators that minus infinity cannot get past: a position so low has no part in what they give.
SCORE_CONSUMERS = frozenset({"ArgMax", "Hardmax", "LogSoftmax", "Softmax"})
_SCALES = frozenset({"Div", "Mul"})
_TERMS = frozenset({"Add", "Sub", "Where"})
_JOINS = frozenset({"Concat", "Max"})  # each element of the result is one of an operand
_ENDS = SCORE_CONSUMERS | {"ReduceMax"}


def find_masked_tensors(model: onnx.ModelProto) -> frozenset[str]:
    """Return the tensors that are summed into the scores of a Softmax, LogSoftmax, Hardmax or ArgMax, the sums included.

    So are those summed into what a ReduceMax reads. Minus infinity in any of these is a mask. A sum that the model gives out or
    other operators read is left out. There a bound in place of minus infinity would be wrong.
    """
    graph, masked = Links(model.graph), set[str]()
    pending = [node.input[0] for node in graph.nodes if node.op_type in _ENDS and _is_sum(graph, node.input[0])]
    while pending:
        name = pending.pop()
        if name in masked or _is_read_elsewhere(graph, name):
            continue
        node = graph.producer(name)
        masked.add(name)
        if node is None:
            continue
        if node.op_type in HANDED_ON or node.op_type == "Clip" or _factor(graph, node):
            pending.append(node.input[0])
        elif node.op_type in _TERMS | _JOINS:
            pending.extend(n for n in _terms(node) if graph.constant(n) is None)
    return frozenset(masked)


def _terms(node: onnx.NodeProto) -> Sequence[str]:
    """Return the operands of a sum or of a join, or the two choices of a Where."""
    return node.input[1:] if node.op_type == "Where" else node.input


def _factor(graph: Links, node: onnx.NodeProto) -> Range | None:
    """Return the range of the positive constants by which a Mul or Div multiplies its first operand; None for any other node."""
    value = graph.constant(node.input[1]) if node.op_type in _SCALES else None
    if value is None or not value.size or not value.min() > 0:
        return None
    low, high = float(value.min()), float(value.max())
    return Range(low, high) if node.op_type == "Mul" else Range(1 / high, 1 / low)


def _is_sum(graph: Links, name: str) -> bool:
    """Return whether a tensor is a sum, a choice or a masked product, followed back through moves, scalings and joins."""
    *_, first = _before(graph, name)
    node = graph.producer(first)
    if node is None:
        return False
    if node.op_type in _JOINS:
        return any(_is_sum(graph, n) for n in node.input)
    return node.op_type in _TERMS or _has_mask_for_bias(graph, node)


def _has_mask_for_bias(graph: Links, node: onnx.NodeProto) -> bool:
    """Return whether some outputs of a matrix product or convolution get a bias that alone may mask them."""
    bias = graph.constant(node.input[2]) if node.op_type in ("Conv", "Gemm") and len(node.input) > 2 else None
    return bias is not None and bool(bias.size) and float(bias.min()) <= float(bias.max()) - MASK_MARGIN


def _is_read_elsewhere(graph: Links, name: str) -> bool:
    """Return whether a sum is a model output, or an operator reads it that minus infinity would get past.

    A ReduceMax does not let it past, since not all positions are masked.
    """
    return _is_sum(graph, name) and not graph.ends_in(name, _ENDS, (*HANDED_ON, "Clip", *_TERMS, *_SCALES, *_JOINS))


def _before(graph: Links, name: str) -> Iterator[str]:
    """Yield `name`, then backwards the tensors that it is moved, scaled or clipped from."""
    yield name
    while (node := graph.producer(name)) is not None and (
        node.op_type in HANDED_ON or node.op_type == "Clip" or _factor(graph, node)
    ):
        name = node.input[0]
        yield name


def bound_masks(
    model: onnx.ModelProto, ranges: Mapping[str, Range], get_source_name: Callable[[str], str] = str
) -> tuple[dict[str, Range], list[str]]:
    """Return the ranges with those of masks and masked scores cut where nothing is left of a position, and notes.

    A tensor that a Softmax reads ends at its `Masking.floor`. An operand of a sum ends where the sum would, whatever the other
    is. There is a note for each Softmax whose mask was cut.
    `ranges`: as calibrated, with `Range.masking`; not changed.
    `get_source_name`: returns the name that notes use for a tensor.

    Raise CompileError: a tensor goes down to minus infinity, and no row of a Softmax shows scores that are not masked.
    """
    graph = Links(model.graph)
    intervals = _needed_intervals(graph, ranges)
    bounded_ranges = dict(ranges)
    for name in sorted(find_masked_tensors(model) & ranges.keys()):
        measured, (low, high) = _measured_range(ranges[name]), intervals.get(name, (-inf, inf))
        if measured.low < low or measured.high > high:
            bounded_ranges[name] = measured.within(low, high)
        if bounded_ranges[name].low <= LOWEST:
            raise CompileError(
                f"tensor {name!r}: goes down to minus infinity, and nothing tells its scores from its mask; "
                "mend the model, or give calibration data that does not mask everything"
            )
    return bounded_ranges, [
        note
        for node in graph.nodes
        if node.op_type in SCORE_CONSUMERS
        if (note := _note(node, ranges, bounded_ranges, get_source_name))
    ]


def _note(
    node: onnx.NodeProto, ranges: Mapping[str, Range], bounded_ranges: Mapping[str, Range], get_source_name: Callable[[str], str]
) -> str:
    """Return the note of a Softmax whose input's range was cut; an empty text where it was not."""
    x = node.input[0]
    if x not in ranges or _measured_range(ranges[x]).low >= bounded_ranges[x].low - MASK_MARGIN:
        return ""
    low = _measured_range(ranges[x]).low
    reader, bound = node.name or node.output[0], bounded_ranges[x].low
    return f"{get_source_name(x)}: a mask down to {low:.3g}; to {reader} {bound:.4g} masks as well"


def _measured_range(r: Range) -> Range:
    """Return the range from the smallest to the largest value seen, masked ones too."""
    return r if r.masking is None else r.masking.ends


def _find_observed(graph: Links, name: str, observed: Container[str]) -> tuple[str, tuple[int, ...]]:
    """Return the first tensor on the way back through Transposes that is among `observed`, else `name` itself.

    The chip's graph has no tensor behind a Transpose that only changes the layout, so none is observed there. The tuple has the
    dimension of that tensor for each of `name`; it is empty where they are one.
    """
    source, places = name, tuple[int, ...]()
    while source not in observed and (node := graph.producer(source)) is not None and node.op_type == "Transpose":
        perm = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), ())
        if not perm:
            break
        source, places = node.input[0], tuple(perm[i] for i in places) if places else perm
    return (source, places) if source in observed else (name, ())


def _shows_masks(node: onnx.NodeProto, ranges: Mapping[str, Range]) -> bool:
    """Return whether a ReduceMax reads masked values, which lie MASK_MARGIN below all maxima, and none of these is masked."""
    x, y = ranges.get(node.input[0]), ranges.get(node.output[0])
    return x is not None and y is not None and y.low > MASK_LOW and _measured_range(x).low <= y.low - MASK_MARGIN


_Interval = tuple[float, float]
_ALL = (-inf, inf)


def _needed_intervals(graph: Links, ranges: Mapping[str, Range]) -> dict[str, _Interval]:
    """Return by tensor the interval of values that its readers tell apart; values beyond it act as its ends do."""
    intervals: dict[str, _Interval] = {o.name: _ALL for o in graph.graph.output}
    for node in reversed(list(graph.nodes)):
        after = intervals.get(node.output[0], _ALL)
        for index, name in enumerate(node.input):
            if node.op_type == "ReduceMax" and not _shows_masks(node, ranges):
                continue  # of a Softmax in steps: a maximum is never among what is masked
            low, high = _needed_by(node, index, after, graph, ranges)
            before = intervals.get(name, (low, high))
            intervals[name] = min(before[0], low), max(before[1], high)
    return intervals


def _needed_by(node: onnx.NodeProto, index: int, after: _Interval, graph: Links, ranges: Mapping[str, Range]) -> _Interval:
    """Return the interval that one reader tells apart of its operand `index`, given the one needed of its own output
    (`after`)."""
    kind, (low, high) = node.op_type, after
    if kind in SCORE_CONSUMERS:
        observed = ranges.get(_find_observed(graph, node.input[0], ranges)[0])
        masking = None if observed is None else observed.masking
        return (-inf if masking is None or masking.floor is None else masking.floor), inf
    if kind == "ReduceMax":
        return ranges[node.output[0]].low, inf
    if kind in HANDED_ON or kind in ("Clip", "Concat") or (kind == "Where" and index):
        return after  # what a Clip makes of lower values masks as well
    if factor := _factor(graph, node):
        return min(low / factor.low, low / factor.high), max(high / factor.low, high / factor.high)
    if kind == "Max":
        others = [_range_of(n, graph, ranges) for i, n in enumerate(node.input) if i != index]
        return max(low, *(-inf if r is None else r.low for r in others)), high
    if kind not in ("Add", "Sub"):
        return _ALL
    other = _range_of(node.input[1 - index], graph, ranges)
    if other is None:
        return _ALL
    if kind == "Add":
        return low - other.high, high - other.low
    return (low + other.low, high + other.high) if index == 0 else (other.low - high, other.high - low)


def _range_of(name: str, graph: Links, ranges: Mapping[str, Range]) -> Range | None:
    """Return the range of a tensor, or that of the values of a float constant; None where neither is known."""
    if name in ranges:
        return _measured_range(ranges[name])
    value = graph.constant(name)
    if value is None or value.dtype.kind != "f" or not value.size:
        return None
    return Range.of(np.clip(value, LOWEST, -LOWEST))


@dataclass
class RowFloor:
    """A sink that finds the value below which nothing is left of a position in any row seen.

    That is MASK_MARGIN below the least of the rows' largest values. A LogSoftmax gives low values as they are, so there it is
    MASK_MARGIN below the least value that is no minus infinity.

    `readers`: (operator type, axis along which its rows lie) of each that reads the tensor.
    `floor`: None until a row was seen that is not wholly masked.
    """

    readers: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    floor: float | None = None

    def update(self, x: np.ndarray) -> None:
        """Take the rows of `x`, float[...] in the shape that the readers see."""
        for reader, axis in self.readers if x.size else ():
            ends = x if reader == "LogSoftmax" else x.max(axis)
            ends = ends[ends > MASK_LOW]
            if ends.size:
                floor = float(ends.min()) - MASK_MARGIN
                self.floor = floor if self.floor is None else min(self.floor, floor)


def find_row_floors(model: onnx.ModelProto, tensors: Container[str]) -> dict[str, RowFloor]:
    """Return a fresh RowFloor for each tensor that may be masked and that a Softmax reads.

    `tensors`: those observed. In place of one that is not, the observed one has the floor that it is a Transpose of.
    """
    graph, masks, floors = Links(model.graph), find_masked_tensors(model), dict[str, RowFloor]()
    for node in model.graph.node:
        if node.op_type in SCORE_CONSUMERS and node.input[0] in masks:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0 if node.op_type == "ArgMax" else -1)
            name, places = _find_observed(graph, node.input[0], tensors)
            floors.setdefault(name, RowFloor()).readers.append((node.op_type, places[axis] if places else axis))
    return floors


class MaskAwareObserver:
    """An observer that wraps another one for tensors that may be masked, and records `Range.masking`.

    `rows`: floors of the rows of those that a Softmax reads; they are updated elsewhere.
    """

    def __init__(self, observer: Observer, rows: Sequence[RowFloor] = ()) -> None:
        self._observer, self._ends, self._rows = observer, MinMax(), rows

    def update(self, x: np.ndarray) -> None:
        self._observer.update(x)
        self._ends.update(x)

    def range(self) -> Range:
        return mask_aware_range(self._observer.range, self._ends.range(), self._rows)


def mask_aware_range(observed: Callable[[], Range], ends: Range, rows: Sequence[RowFloor]) -> Range:
    """Return a range with `masking`: `ends` where these show a mask, else what `observed()` returns.

    `ends`: the smallest and the largest value seen; one of magnitude -MASK_LOW or more is a mask.
    `rows`: floors of the rows of all tensors with this range; the least counts. Empty where no Softmax reads one.
    """
    r = ends if min(ends.low, -ends.high) <= MASK_LOW else observed()
    floors = [row.floor for row in rows if row.floor is not None]
    return Range(r.low, r.high, r.tails, r.step, Masking(ends, min(floors, default=None)))
