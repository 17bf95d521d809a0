"""Select Where, and Max and Min of two tensors: one of two values, element by element, and nothing of the other.

The result is c x + (1 - c) y, each product at the output's scale.
The value that is not chosen adds exactly nothing, and the chosen one is rounded once. Classes follow `FloatOp`. The vector engine
needs the functions _FUNCTIONS for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.masks import SCORE_CONSUMERS
from quant.observe import Range
from quant.producer_links import HANDED_ON
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, OnnxOp, Quant
from toolchain.ir.masks import MASK_LOW
from toolchain.ops.comparison import Compare, find_missing_function, no_nan, operands, truth
from toolchain.ops.exact_integers import FINE, TRUTH, CodeOperand, CodeSteps
from toolchain.ops.kit.operator import FloatOp
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext

_FUNCTIONS = ("add", "sub", "mul")


@dataclass(frozen=True)
class Where(FloatOp):
    """A float operator y = x where c, else z: inputs c, x, z, each a tensor or a constant, with numpy broadcasting.

    Constant values beyond the output's codes, infinity too, become their end.
    """

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return find_missing_function(_FUNCTIONS, node, graph, chip)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the steps that choose by the condition. Constants are rounded to the codes of the output."""
        steps = CodeSteps(node, scope)
        c, x, z = node.inputs
        build_where(steps, truth(steps, c), operand(steps, x), operand(steps, z))
        return steps.new_nodes


@dataclass(frozen=True)
class PairExtremum(FloatOp):
    """A float operator y = the larger (max) or smaller (min) of two, as `Compare` tells them apart."""

    kind: Literal["max", "min"]

    def get_effective_range(self, input_range: Range, y: Quant, codes: CodeType) -> Range:
        """Return the part of an operand's range in the output's codes: beyond them it is not chosen, or saturates."""
        return input_range.within(*(y.scale * (limit - y.zero_point) for limit in codes.limits))

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return Compare("greater").find_unsupported_reason(node, graph, chip) or find_missing_function(
            _FUNCTIONS, node, graph, chip
        )

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the steps: a comparison, then a choice by its result."""
        steps = CodeSteps(node, scope)
        a, b = (operand(steps, name) for name in node.inputs)
        pair = (a, b) if self.kind == "max" else (b, a)
        first = steps.sum("first", "sub", *pair, CodeOperand("", TRUTH, steps.output.codes, ()), (0, 1), FINE)
        build_where(steps, first, a, b)
        return steps.new_nodes


def operand(steps: CodeSteps, name: str) -> CodeOperand:
    """Return a value to be chosen; a constant is rounded to the codes of the output."""
    value = steps.scope.graph.constants.get(name)
    if value is None:
        return steps.read(name)
    y = steps.output
    codes = np.clip(np.rint(value.astype(np.float64) / y.quant.scale) + y.quant.zero_point, *y.codes.limits)
    return steps.constant(name, codes.astype(np.int64), y.quant, y.codes)


def build_where(steps: CodeSteps, c: CodeOperand, x: CodeOperand, z: CodeOperand) -> None:
    """Add the steps from a bool and two values to the node's output."""
    y = steps.output
    _hold_ends(steps, x, z, y)
    other = replace(c, name=f"{c.name}/not", value=1 - c.value) if c.value is not None else _opposite(steps, c)
    parts = _part(steps, "where true", c, x, y), _part(steps, "where false", other, z, y)
    low, high = y.codes.limits
    steps.sum("", "add", *parts, y, (low - y.quant.zero_point, high - y.quant.zero_point))


def _hold_ends(steps: CodeSteps, x: CodeOperand, z: CodeOperand, y: CodeOperand) -> None:
    """Widen the output's range by half a step of a choice where its own codes are finer.

    The chosen numbers lie up to half a step beyond the range, and would be changed if they were cut.
    """
    step = max(value.quant.scale for value in (x, z))
    output_range = steps.scope.find_calibrated_range(y.name)
    if output_range is not None and step > 2 * y.quant.scale:
        steps.scope.widen(y.name, Range(output_range.low - step / 2, output_range.high + step / 2))


def _opposite(steps: CodeSteps, c: CodeOperand) -> CodeOperand:
    return steps.opposite("not", c, CodeOperand("", TRUTH, c.codes, ()))


def _part(steps: CodeSteps, what: str, c: CodeOperand, x: CodeOperand, y: CodeOperand) -> CodeOperand:
    """Return x where c, else zero, in the codes of y."""
    if c.value is None or x.value is None:
        return steps.product(what, c, x, y)
    return steps.constant(what, np.where(c.value == 1, x.value, y.quant.zero_point), y.quant, y.codes)


def _where(scope: SelectionContext) -> None:
    """Select a Where. Refuse constants with NaN, and constants with a magnitude of -MASK_LOW or more.

    A large negative one is accepted where only operators read the result to which so low a value adds nothing, such as
    Softmax.
    """
    no_nan(scope, scope.node.inputs)
    values = [v for v in (scope.value(n) for n in scope.node.inputs[1:]) if v is not None and v.dtype.kind == "f" and v.size]
    ends = [float(end) for v in values for end in (v.max(), v.min())]
    far = next((end for end in sorted(ends, reverse=True) if abs(end) >= -MASK_LOW), None)
    if far is not None and not (far < 0 and _is_masked_only(scope.node.outputs[0], scope.graph)):
        judges = ", ".join(sorted(SCORE_CONSUMERS))
        return scope.refuse(f"{far:g} for what is not chosen, read by others than {judges}: one scale does not hold both")
    read, layout = operands(scope, scope.node.inputs)
    return scope.emit(Where(), read, layout)


def _is_masked_only(name: str, graph: Graph) -> bool:
    """Return whether the tensor's moves, sums and choices end only in consumers to which a value so low adds nothing."""
    consumers, producers, pending, visited = graph.consumers(), graph.producers(), [name], set[str]()
    while pending:
        name = pending.pop()
        if name in graph.outputs:
            return False
        visited.add(name)
        for node in consumers.get(name, ()):
            kind = node.op.op_type if isinstance(node.op, OnnxOp) else ""
            if kind in SCORE_CONSUMERS or kind == "ReduceMax" or (kind == "Sub" and _less_largest(node, name, producers)):
                continue
            if kind not in (*HANDED_ON, "Add", "Concat", "Sub", "Where"):
                return False
            pending += [n for n in node.outputs if n and n not in visited]
    return True


def _less_largest(node: Node, name: str, producers: Mapping[str, Node]) -> bool:
    """Return whether a Sub is x - max(x), the step of a decomposed Softmax."""
    producer = producers.get(node.inputs[1])
    if producer is None or not isinstance(producer.op, OnnxOp) or producer.op.op_type != "ReduceMax":
        return False
    return node.inputs[0] == name == producer.inputs[0]


def _extreme(kind: Literal["max", "min"]) -> Callable[[SelectionContext], None]:
    def rule(scope: SelectionContext) -> None:
        no_nan(scope, scope.node.inputs)
        read, layout = operands(scope, scope.node.inputs)
        return scope.emit(PairExtremum(kind), read, layout)

    return rule


RULES = {
    "Where": Rule(_where, "any", bools=True),
    "Max": Rule(_extreme("max"), "any"),
    "Min": Rule(_extreme("min"), "any"),
}
