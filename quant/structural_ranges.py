"""Adjusts calibrated ranges by what the model's structure says and data cannot show: masks, unseen scores, joined tensors.

It stands between `quant.calibrate` and the choice of scales. It also reports operands of a Concat that the common scale leaves
with too few codes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quant.decomposed_ranges import Decomposition, clip_ranges, get_original
from quant.fixed_point.core.numerics import Numerics
from quant.masks import bound_masks
from quant.observe import Range
from quant.parameters import activation_quant
from quant.producer_links import Links
from toolchain.errors import format_count

if TYPE_CHECKING:
    import onnx

SCORE_LOGIT = 4.0  # Sigmoid gives 0.982: a score that any threshold lets through
SILENT = 1e-10  # a tensor that never leaves +-1e-10 holds rounding noise, no values
_TRUTHS = frozenset(("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"))
FEW_STEPS = 32  # fewer codes than this: a part of a Concat has lost three of eight bits
_NAMED = 4  # with a line of their own


@dataclass(frozen=True)
class AdjustedRanges:
    """Adjusted ranges and what the user should know of them.

    `notes`: sentences on masks, on the input of a Sigmoid whose range was widened, and on each tensor in `unseen`. Other changes
    leave none.
    `unseen`: names, as users know them, of tensors that were zero throughout, so that the data showed no range.
    """

    ranges: dict[str, Range]
    notes: tuple[str, ...]
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class SharedScalePart:
    """An operand of a Concat that shares the scale of the result, and how many codes its own range spans there.

    `concat`: name of the node.
    `range`, `joined`: of the operand and of the result.
    `steps`, `steps_alone`: codes that the operand's range spans at the common scale, and would at a scale of its own.
    """

    concat: str
    operand: str
    range: Range
    joined: Range
    steps: float
    steps_alone: float

    @property
    def poor(self) -> bool:
        """True where the operand has fewer than FEW_STEPS codes and would have as many alone."""
        return self.steps < FEW_STEPS <= self.steps_alone

    def __str__(self) -> str:
        operand_range = f"[{self.range.low:.4g}, {self.range.high:.4g}]"
        joined = f"[{self.joined.low:.4g}, {self.joined.high:.4g}]"
        return (
            f"{self.concat}: {self.operand} in {operand_range} gets {self.steps:.3g} codes of the joined range {joined}, "
            f"alone it would get {self.steps_alone:.3g}"
        )


def adjust_ranges(
    model: onnx.ModelProto,
    ranges: Mapping[str, Range],
    decomposition: Decomposition | None = None,
    get_source_name: Callable[[str], str] = str,
    always_zero: Callable[[Sequence[str]], Collection[str]] = lambda names: (),
) -> AdjustedRanges:
    """Return the ranges as the model's structure demands them; tensors without a range are passed over.

    `model`: the float model, as calibrated.
    `decomposition`: that of a model with steps in the place of operators; the original shows which tensors are masks and
    scores. None where no operator was decomposed.
    `get_source_name`: function that gives a tensor's name in notes.
    `always_zero`: returns those of some tensors that are zero for any input; they are not reported as unseen.

    `Masks`: where a Softmax reads scores plus a mask, both end where a masked position surely vanishes (quant.masks).
    `Scores`: where a Sigmoid or Softmax reaches an output of the model, its range holds [0, 1]. A Sigmoid's input that is mostly
    negative reaches SCORE_LOGIT even if the data held nothing to detect.
    `Concat`: the joined range holds the range of every operand.
    `Truth`: what is cast from a comparison reaches 0 and 1.
    `Zeros`: a tensor that was zero throughout shows no scale. It takes the range of its first operand that was not; an input of
    the model takes [-1, 1].
    `Between steps`: nothing beyond the bounds of `decomposition`.

    Raise CompileError where a mask cannot be told from its scores.
    """
    original = get_original(model, decomposition)
    graph = Links(original.graph)
    adjusted, notes = bound_masks(original, ranges, get_source_name)
    _widen_scores(graph, adjusted, notes, get_source_name)
    for node in graph.nodes:
        if node.op_type == "Concat" and node.output[0] in adjusted:
            for operand in node.input:
                if operand in adjusted:
                    adjusted[node.output[0]] = adjusted[node.output[0]].union(adjusted[operand])
    _widen_truths(graph, adjusted)
    silent = _fill_zero_ranges(Links(model.graph), adjusted, get_source_name)
    still = always_zero(list(silent)) if silent else ()
    unseen = [name for name in silent if name not in still]
    return AdjustedRanges(
        clip_ranges(adjusted, decomposition), (*notes, *(silent[n] for n in unseen)), tuple(get_source_name(n) for n in unseen)
    )


def find_shared_scale_parts(model: onnx.ModelProto, ranges: Mapping[str, Range], numerics: Numerics) -> list[SharedScalePart]:
    """Return every operand of every Concat, where both have ranges, in graph order, for codes of the machine's first type."""
    first, last = numerics.activation.limits
    shared_parts: list[SharedScalePart] = []
    for node in model.graph.node:
        if node.op_type != "Concat" or node.output[0] not in ranges:
            continue
        joined = ranges[node.output[0]]
        scale = activation_quant(joined, numerics).scale
        for operand in dict.fromkeys(node.input):
            if operand not in ranges:
                continue
            operand_range = ranges[operand]
            alone = min(operand_range.span / activation_quant(operand_range, numerics).scale, last - first) + 1
            shared_parts.append(
                SharedScalePart(
                    node.name or node.output[0], operand, operand_range, joined, operand_range.span / scale + 1, alone
                )
            )
    return shared_parts


def format_poor_parts(parts: Sequence[SharedScalePart]) -> list[str]:
    """Return a line for each of the worst operands that the common scale leaves too few codes, and one that counts the others.

    The worst come first; the list is empty where none is poor.
    """
    ranked = sorted((p for p in parts if p.poor), key=lambda p: p.steps)
    lines, more = [str(p) for p in ranked[:_NAMED]], len(ranked) - _NAMED
    return [*lines, f"{format_count(more, 'more operand')} of Concats with fewer than {FEW_STEPS} codes"] if more > 0 else lines


def _constants(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of initializers and outputs of Constant nodes."""
    return frozenset(i.name for i in graph.initializer) | {n.output[0] for n in graph.node if n.op_type == "Constant"}


def _widen_scores(graph: Links, ranges: dict[str, Range], notes: list[str], get_source_name: Callable[[str], str]) -> None:
    """Widen in `ranges` those of scores that reach an output to [0, 1] and those of logits to SCORE_LOGIT; append to `notes`."""
    constants = _constants(graph.graph)
    for node in graph.nodes:
        if node.op_type not in ("Sigmoid", "Softmax") or not graph.find_reached_outputs(node.output[0], constants):
            continue
        for name in graph.find_unchanged(node.output[0]) & ranges.keys():
            ranges[name] = ranges[name].union(Range(0.0, 1.0))
        logits = ranges.get(node.input[0])
        # scores of things that are rarely there: mostly negative, and the data held no clear case of one
        if node.op_type == "Sigmoid" and logits and logits.high < SCORE_LOGIT and logits.low < -max(logits.high, 0.0):
            ranges[node.input[0]] = Range(logits.low, SCORE_LOGIT)
            advice = ". Calibrate with data that holds positives" if logits.high < 0 else ""
            notes.append(
                f"{get_source_name(node.input[0])}: the data's largest logit is {logits.high:.3g}, so no score passes "
                f"{1 / (1 + 2.718281828459045**-logits.high):.2f}; its range was opened to {SCORE_LOGIT:g}{advice}"
            )


def _widen_truths(graph: Links, ranges: dict[str, Range]) -> None:
    """Widen in `ranges` those of tensors cast from true and false to hold 0 and 1, even if the data was never true."""
    for node in graph.nodes:
        made_of = graph.producer(node.input[0]) if node.op_type == "Cast" else None
        if made_of is not None and made_of.op_type in _TRUTHS and node.output[0] in ranges:
            ranges[node.output[0]] = ranges[node.output[0]].union(Range(0.0, 1.0))


def _fill_zero_ranges(graph: Links, ranges: dict[str, Range], get_source_name: Callable[[str], str]) -> dict[str, str]:
    """Give tensors in `ranges` that were always zero the range of an operand, and return a note for each of them by name."""
    silent: dict[str, str] = {}
    nonzero_ranges = {name: r for name, r in ranges.items() if max(-r.low, r.high) > SILENT}
    for name in [i.name for i in graph.graph.input if i.name in ranges and i.name not in nonzero_ranges]:
        ranges[name] = nonzero_ranges[name] = Range(-1.0, 1.0)
        silent[name] = (
            f"{get_source_name(name)}: the data holds nothing but zeros for this input; [-1, 1] was taken. "
            "Calibrate with real data"
        )
    for node in graph.nodes:
        before = next((nonzero_ranges[i] for i in node.input if i in nonzero_ranges), None)
        for name in node.output:
            if name in nonzero_ranges or before is None:
                continue
            nonzero_ranges[name] = before  # also through tensors that need no range of their own
            if name in ranges:
                ranges[name] = before
                silent[name] = (
                    f"{get_source_name(name)}: zero throughout the data; it took the range [{before.low:.4g}, {before.high:.4g}]"
                )
    return silent
