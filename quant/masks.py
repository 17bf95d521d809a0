"""Additive masks: what a Softmax reads is scores plus minus infinity, however the model spells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from quant.observe import MinMax, Observer, Range
from quant.producer_links import HANDED_ON, Links
from toolchain.errors import CompileError
from toolchain.ir.masks import MASK_LOW

MASK_MARGIN = 16.0  # exp(-16) is 1e-7: a masked position is gone
LOWEST = float(np.finfo(np.float32).min)  # what stands for minus infinity where ranges must be finite
# Operators that minus infinity cannot get past: a position so low has no part in what they give.
JUDGES = frozenset({"ArgMax", "Hardmax", "LogSoftmax", "Softmax"})


def masked_tensors(model: onnx.ModelProto) -> frozenset[str]:
    """What is summed into the scores that a Softmax, LogSoftmax, Hardmax or ArgMax reads, the sums too: minus infinity in
    any of these is a mask. Sums that others see as well are none: a bound in its place would be a wrong number to them."""
    graph, found = Links(model.graph), set[str]()
    pending = [node.input[0] for node in graph.nodes if node.op_type in JUDGES and _sums(graph, node.input[0])]
    while pending:
        name = pending.pop()
        if name in found or _seen_elsewhere(graph, name):
            continue
        node = graph.producer(name)
        found.add(name)
        if node is not None and node.op_type in HANDED_ON:
            pending.append(node.input[0])
        elif node is not None and node.op_type in ("Add", "Sub"):
            pending.extend(node.input)
        elif node is not None and (scores := _masked_by_choice(graph, node)) is not None:
            pending.append(scores)
    return frozenset(found)


def _sums(graph: Links, name: str) -> bool:
    *_, first = _before(graph, name)
    node = graph.producer(first)
    return node is not None and (node.op_type in ("Add", "Sub") or _masked_by_choice(graph, node) is not None)


def _masked_by_choice(graph: Links, node: onnx.NodeProto) -> str | None:
    """The scores of a Where that puts minus infinity, or what stands for it, in the place of some of them."""
    if node.op_type != "Where":
        return None
    for scores, other in (node.input[1:3], node.input[:0:-1]):
        mask = graph.constant(other)
        if mask is not None and mask.size and mask.max() <= MASK_LOW and graph.constant(scores) is None:
            return scores
    return None


def _seen_elsewhere(graph: Links, name: str) -> bool:
    """Whether a sum is an output of the model, or read by what minus infinity can get past. A maximum of positions that
    are not all masked it cannot."""
    return _sums(graph, name) and not graph.ends_in(name, {*JUDGES, "ReduceMax"}, (*HANDED_ON, "Add", "Sub", "Where"))


def _before(graph: Links, name: str) -> Iterator[str]:
    """`name` and the tensors it was made from by operators that hand values on, backwards."""
    yield name
    while (node := graph.producer(name)) is not None and node.op_type in HANDED_ON:
        name = node.input[0]
        yield name


def bound_masks(
    model: onnx.ModelProto, ranges: Mapping[str, Range], called: Callable[[str], str] = str
) -> tuple[dict[str, Range], list[str]]:
    """The ranges with those of masks and masked scores ending where a masked position is surely gone; a note for each mask.
    called: what these call a tensor.

    A mask goes down to a bound, a sum of scores and mask to MASK_MARGIN below its least score. Raises CompileError: minus
    infinity in every operand of a sum, so that scores cannot be told from masks.
    """
    bounder = _Bounder(Links(model.graph), dict(ranges), called)
    for node in model.graph.node:
        if node.op_type in JUDGES:
            bounder.scores(node.input[0], 0.0)
    lost = [name for name in masked_tensors(model) & ranges.keys() if bounder.found[name].low <= LOWEST]
    if lost:
        raise CompileError(
            f"tensor {min(lost)!r}: goes down to minus infinity, and nothing tells its scores from its mask; "
            "mend the model, or give calibration data that does not mask everything"
        )
    return bounder.found, bounder.notes


class MaskAwareObserver:
    """Another observer's range, but for a tensor that masks its ends as they are: they say that it does."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self._ends = observer, MinMax()

    def update(self, x: np.ndarray) -> None:
        self._observer.update(x)
        self._ends.update(x)

    def range(self) -> Range:
        ends = self._ends.range()
        return ends if min(ends.low, -ends.high) <= MASK_LOW else self._observer.range()


@dataclass(frozen=True)
class _Term:
    """An operand of a sum, as it is added. low, high: what it lets through; lowest: with what it masks.

    sign: -1 where it is taken off.
    """

    name: str
    sign: int
    lowest: float
    low: float
    high: float

    @property
    def masks(self) -> bool:
        return self.lowest <= MASK_LOW

    @property
    def span(self) -> float:
        return max(self.high, 0.0) - min(self.low, 0.0)


class _Bounder:
    """found: the ranges as they are changed; `seen` stays, for one mask may serve many layers."""

    def __init__(self, graph: Links, ranges: dict[str, Range], called: Callable[[str], str]) -> None:
        self._graph, self.found, self._seen, self._called = graph, ranges, dict(ranges), called
        self._constants = {i.name: i for i in graph.graph.initializer}
        self.notes: list[str] = []

    def scores(self, name: str, room: float) -> Range | None:
        """What a masked `name` lets through, once it and its operands are bounded; None: it is no masked sum.

        room: by how much what is added behind `name` may lift a masked position over one that is not.
        """
        node = self._graph.producer(name)
        if node is None or _seen_elsewhere(self._graph, name):
            return None
        if node.op_type in HANDED_ON:
            kept = self.scores(node.input[0], room)
        else:
            kept = self._sum(node, room) if node.op_type in ("Add", "Sub") else self._choice(node, room)
        if kept is not None and name in self.found:
            low = kept.low - room - MASK_MARGIN
            if self.found[name] is not self._seen[name]:
                low = min(low, self.found[name].low)
            self.found[name] = Range(low, max(kept.high, low))
        return kept

    def _choice(self, node: onnx.NodeProto, room: float) -> Range | None:
        name = _masked_by_choice(self._graph, node)
        if name is None or name not in self._seen:
            return None
        self.notes.append(f"{node.name or node.output[0]}: masks; {MASK_MARGIN:g} below the least score masks as well")
        return self.scores(name, room) or self._seen[name]

    def _sum(self, node: onnx.NodeProto, room: float) -> Range | None:
        terms = [self._term(n, -1 if i and node.op_type == "Sub" else 1) for i, n in enumerate(node.input)]
        for mask, other in (terms, terms[::-1]):
            if mask is None or other is None or not mask.masks or other.masks:
                continue
            kept = self.scores(mask.name, room + other.span) if mask.sign > 0 else None
            if kept is None:
                kept = Range(mask.low, mask.high)
                self._bound(mask, mask.low - other.span - room - MASK_MARGIN, node.name or node.output[0])
            return Range(kept.low + min(other.low, 0.0), max(kept.high + max(other.high, 0.0), other.high))
        return None

    def _term(self, name: str, sign: int) -> _Term | None:
        if name in self._seen:
            low, high = sorted((sign * self._seen[name].low, sign * self._seen[name].high))
            return _Term(name, sign, low, low if low > MASK_LOW else min(0.0, high), high)
        constant = self._constants.get(name)
        if constant is None or constant.data_type != onnx.TensorProto.FLOAT:
            return None
        values = sign * numpy_helper.to_array(constant)
        kept = values[values > MASK_LOW]
        return _Term(name, sign, float(values.min()), float(kept.min()), float(kept.max())) if kept.size else None

    def _bound(self, mask: _Term, bound: float, where: str) -> None:
        for name in self._parts(mask.name, mask.sign) & self.found.keys():
            if _seen_elsewhere(self._graph, name):
                continue
            seen, found = self._seen[name], self.found[name]
            if mask.sign > 0:
                low = bound if found is seen else min(found.low, bound)
                self.found[name] = Range(low, max(seen.high, low))
            else:
                high = -bound if found is seen else max(found.high, -bound)
                self.found[name] = Range(min(seen.low, high), high)
        self.notes.append(f"{self._called(mask.name)}: a mask down to {mask.lowest:.3g}; in {where} {bound:.4g} masks as well")

    def _parts(self, name: str, sign: int) -> set[str]:
        """The tensors that a mask is made of by operators that hand values on and by sums of masks."""
        same = list(_before(self._graph, name))
        node = self._graph.producer(same[-1])
        terms = [self._term(n, sign) for n in node.input] if node is not None and node.op_type == "Add" else []
        return set(same).union(*(self._parts(t.name, sign) for t in terms if t is not None and t.masks))
