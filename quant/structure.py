"""What the model's structure knows about ranges that data cannot show: scores never seen, masks, joined tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from quant.observe import Range
from quant.parameters import activation_quant, code_range
from toolchain.hw.chip import Numerics

# Operators that hand values on unchanged, whatever they do to shapes.
_SHAPE_OPS = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
_LINEAR_OPS = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})
SCORE_LOGIT = 4.0  # Sigmoid gives 0.982: a score that any threshold lets through
MASK_LOW = -1000.0  # an additive attention mask is meant as minus infinity well before this
MASK_MARGIN = 16.0  # exp(-16) is 1e-7: a masked position is gone
SILENT = 1e-10  # a tensor that never leaves +-1e-10 holds rounding noise, no values
FEW_STEPS = 32  # fewer codes than this: a part of a Concat has lost three of eight bits


@dataclass(frozen=True)
class Adjusted:
    """`notes`: a sentence for each range that was changed, and why."""

    ranges: dict[str, Range]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class JoinedPart:
    """An operand of a Concat on the common scale: how many of the machine's codes its own range spans there."""

    concat: str
    operand: str
    range: Range
    joined: Range
    steps: float
    steps_alone: float

    @property
    def poor(self) -> bool:
        return self.steps < FEW_STEPS <= self.steps_alone

    def __str__(self) -> str:
        own = f"[{self.range.low:.4g}, {self.range.high:.4g}]"
        joined = f"[{self.joined.low:.4g}, {self.joined.high:.4g}]"
        return (
            f"{self.concat}: {self.operand} in {own} gets {self.steps:.3g} codes of the joined range {joined}, "
            f"alone it would get {self.steps_alone:.3g}"
        )


def adjust_ranges(model: onnx.ModelProto, ranges: Mapping[str, Range]) -> Adjusted:
    """The ranges as the model's structure demands them; tensors without a range are passed over.

    Masks: where Softmax reads scores plus a mask below MASK_LOW, both end where a masked position is surely gone.
    Scores: where a Sigmoid or Softmax reaches an output of the model, its range is [0, 1] and the Sigmoid's input reaches
    SCORE_LOGIT even if the data held nothing to detect.
    Concat: the joined range holds the range of every operand.
    Silence: a tensor that was zero throughout says nothing of a scale; it takes the range of what it was made from.
    """
    graph = _Links(model.graph)
    found, notes = dict(ranges), list[str]()
    _bound_masks(graph, found, notes)
    _open_scores(graph, found, notes)
    for node in graph.nodes:
        if node.op_type == "Concat" and node.output[0] in found:
            for operand in node.input:
                if operand in found:
                    found[node.output[0]] = found[node.output[0]].union(found[operand])
    _open_silence(graph, found, notes)
    return Adjusted(found, tuple(notes))


def joined_parts(model: onnx.ModelProto, ranges: Mapping[str, Range], numerics: Numerics) -> list[JoinedPart]:
    """Every operand of every Concat that has ranges, in graph order."""
    first, last = code_range(numerics)
    found: list[JoinedPart] = []
    for node in model.graph.node:
        if node.op_type != "Concat" or node.output[0] not in ranges:
            continue
        joined = ranges[node.output[0]]
        scale = activation_quant(joined, numerics).scale
        for operand in dict.fromkeys(node.input):
            if operand not in ranges:
                continue
            own = ranges[operand]
            alone = min(own.span / activation_quant(own, numerics).scale, last - first) + 1
            found.append(JoinedPart(node.name or node.output[0], operand, own, joined, own.span / scale + 1, alone))
    return found


@dataclass(frozen=True)
class _Links:
    graph: onnx.GraphProto

    @property
    def nodes(self) -> Iterable[onnx.NodeProto]:
        return self.graph.node

    def producer(self, name: str) -> onnx.NodeProto | None:
        return next((n for n in self.graph.node if name in n.output), None)

    def outputs_reached(self, name: str, constants: frozenset[str]) -> bool:
        """Whether `name` reaches an output of the model unchanged, or scaled and moved by constants only."""
        reached = {name}
        # the score of a box is often the product of two
        factors = {n.output[0] for n in self.graph.node if n.op_type in ("Sigmoid", "Softmax")} | constants
        for node in self.graph.node:
            used = any(i in reached for i in node.input)
            linear = node.op_type in _LINEAR_OPS and all(i in reached or i in factors for i in node.input)
            if used and (node.op_type in _SHAPE_OPS or linear):
                reached.update(node.output)
        return any(o.name in reached for o in self.graph.output)

    def unchanged_from(self, name: str) -> set[str]:
        """`name` and what it becomes through operators that hand values on; a Concat ends the walk, it holds others too."""
        same = {name}
        for node in self.graph.node:
            if node.input and node.input[0] in same and node.op_type in _SHAPE_OPS - {"Concat"}:
                same.update(node.output)
        return same


def _constants(graph: onnx.GraphProto) -> frozenset[str]:
    return frozenset(i.name for i in graph.initializer) | {n.output[0] for n in graph.node if n.op_type == "Constant"}


def _open_scores(graph: _Links, found: dict[str, Range], notes: list[str]) -> None:
    constants = _constants(graph.graph)
    for node in graph.nodes:
        if node.op_type not in ("Sigmoid", "Softmax") or not graph.outputs_reached(node.output[0], constants):
            continue
        for name in graph.unchanged_from(node.output[0]) & found.keys():
            found[name] = found[name].union(Range(0.0, 1.0))
        logits = found.get(node.input[0])
        # scores of things that are rarely there: mostly negative, and the data held no clear case of one
        if node.op_type == "Sigmoid" and logits and logits.high < SCORE_LOGIT and logits.low < -max(logits.high, 0.0):
            found[node.input[0]] = Range(logits.low, SCORE_LOGIT)
            notes.append(
                f"{node.input[0]}: the data's largest logit is {logits.high:.3g}, so no score passes "
                f"{1 / (1 + 2.718281828459045**-logits.high):.2f}; its range was opened to {SCORE_LOGIT:g}. "
                "Calibrate with data that holds positives"
            )


def _open_silence(graph: _Links, found: dict[str, Range], notes: list[str]) -> None:
    heard = {name: r for name, r in found.items() if max(-r.low, r.high) > SILENT}
    for name in [i.name for i in graph.graph.input if i.name in found and i.name not in heard]:
        found[name] = heard[name] = Range(-1.0, 1.0)
        notes.append(f"{name}: the data holds nothing but zeros for this input; [-1, 1] was taken. Calibrate with real data")
    for node in graph.nodes:
        before = next((heard[i] for i in node.input if i in heard), None)
        for name in node.output:
            if name in heard or before is None:
                continue
            heard[name] = before  # also through tensors that need no range of their own
            if name in found:
                found[name] = before
                notes.append(f"{name}: zero throughout the data; it took the range [{before.low:.4g}, {before.high:.4g}]")


def _bound_masks(graph: _Links, found: dict[str, Range], notes: list[str]) -> None:
    seen = dict(found)  # one mask may serve many layers
    for node in graph.nodes:
        add = graph.producer(node.input[0]) if node.op_type == "Softmax" else None
        if add is None or add.op_type != "Add" or add.output[0] not in found:
            continue
        for mask, scores in (tuple(add.input), tuple(add.input)[::-1]):
            if mask not in seen or scores not in seen or seen[mask].low > MASK_LOW or seen[scores].low <= MASK_LOW:
                continue
            real = seen[scores].with_zero()
            bound = -(real.span + MASK_MARGIN)
            for name in _same_before(graph, mask) & found.keys():
                low = bound if found[name] is seen[name] else min(found[name].low, bound)
                found[name] = Range(low, max(seen[name].high, low))
            found[add.output[0]] = Range(real.low + bound, max(real.high, seen[mask].high + real.high))
            notes.append(
                f"{mask}: a mask down to {seen[mask].low:.3g}; in {node.name or add.output[0]} {bound:.4g} masks as well"
            )


def _same_before(graph: _Links, name: str) -> set[str]:
    """`name` and the tensors it was made from by operators that hand values on."""
    same = {name}
    while (node := graph.producer(name)) is not None and node.op_type in _SHAPE_OPS - {"Concat"}:
        name = node.input[0]
        same.add(name)
    return same
