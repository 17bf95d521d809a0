"""Select comparisons and logic: bool tensors are codes 0 and 1 at scale 1, and nothing of them is rounded.

A comparison is the difference of two operands, clamped to 0..1 or -1..1 (docs/nonlinear.md). Classes follow `FloatOp`.
Casts from and to bool stand here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant, step_name
from toolchain.ops.elementwise.select_elementwise import laid_out
from toolchain.ops.exact_integers import FINE, TRUTH, CodeOperand, CodeSteps, counting, counts_to
from toolchain.ops.kit.operator import Array, FloatOp
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.permutation import Reshape
from toolchain.ops.rescale import Rescale, make_rescale_node

_NEAR = 2.0**-20  # of a code, beside which a constant is that code: float32 does not tell them apart
_FUNCTIONS = {"and": ("mul",), "or": ("add",), "xor": ("sub", "mul"), "not": ("sub",)}


def find_missing_function(functions: Sequence[str], node: Node, graph: Graph, chip: Chip) -> str | None:
    """Return why the vector engine cannot run these functions on the node's operands, naming the machine's key; None: it can."""
    missing = next((f for f in functions if f not in chip.functions), None)
    if missing is not None:
        return f"{chip.key('vector')}.functions has no {missing}"
    shapes = {graph.types[n].shape for n in node.inputs if n not in graph.constants}
    broadcasts = len(shapes | {graph.types[node.outputs[0]].shape}) > 1
    if broadcasts and not chip.limits.elementwise.broadcast:
        return "operands of unequal shape need limits.elementwise.broadcast: true"
    return None


@dataclass(frozen=True)
class Compare(FloatOp):
    """An operator y = a > b, or a == b, of real numbers; y is a bool. `negated`: its opposite.

    It is exact for codes of one scale, and for constants.
    With different scales, numbers closer than half a FINE part of the larger step are equal.
    """

    kind: Literal["greater", "equal"]
    negated: bool = False

    def own_scale(self, codes: CodeType) -> Quant:
        """Return scale 1 with zero point 0: the codes of bools are 0 and 1."""
        return TRUTH

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot compare: sums of codes that wrap around, or a missing function or broadcast. None: it
        can.
        """
        if chip.numerics.wraps:
            return "a difference of codes is clamped to the step that it takes, and numerics.overflow: wrap wraps it before"
        constant = any(n in graph.constants for n in node.inputs)
        functions = ("sub", *(("mul",) if self.kind == "equal" else ()), *(("add",) if constant else ()))
        return find_missing_function(functions, node, graph, chip)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the steps: a clamped difference, for "equal" its square too, and the opposite of that where it is asked for."""
        steps = CodeSteps(node, scope)
        y, (a, b, beyond) = steps.output, self._operands(steps)
        if self.kind == "greater":
            difference = _difference(steps, "greater" if self.negated else "", (a, b), beyond, y, 0)
            if self.negated:
                steps.opposite("", difference, y)
            return steps.new_nodes
        difference = _difference(steps, "sign", (a, b), beyond, signs(y), -1)
        differ = steps.product("" if self.negated else "differ", difference, difference, y, (0, 1))
        if not self.negated:
            steps.opposite("", differ, y)
        return steps.new_nodes

    def _operands(self, steps: CodeSteps) -> tuple[CodeOperand, CodeOperand, Array | None]:
        """Return both operands, and where the constant one needs no comparison; None: nowhere.

        It needs none where the constant lies beyond the other's codes, or between two of them: the result is known there.
        """
        names, constants = steps.node.inputs, steps.scope.graph.constants
        index = next((i for i, n in enumerate(names) if n in constants), None)
        if index is None:
            return steps.read(names[0]), steps.read(names[1]), None
        other = steps.read(names[1 - index])
        chosen = (
            steps.scope.find_calibrated_range(other.name) is not None
        )  # its scale: what the model has of it lies between its codes
        codes, beyond = _threshold(constants[names[index]], other, self.kind, index, 0.5 if chosen else _NEAR)
        constant_operand = steps.constant(names[index], codes, other.quant, other.codes)
        pair = (constant_operand, other) if index == 0 else (other, constant_operand)
        return *pair, beyond if beyond.any() else None


def _threshold(value: Array, other: CodeOperand, kind: str, index: int, equal: float) -> tuple[Array, Array]:
    """Return the codes that compare with those of `other` as `value` compares with its numbers, and where there are none.

    `index`: 1 for other > value, 0 for value > other.
    `equal`: how far from a code a number may lie that is equal to it.
    """
    codes = value.astype(np.float64) / other.quant.scale
    reach = equal if kind == "equal" else _NEAR
    with np.errstate(invalid="ignore"):  # infinity is infinitely far from itself
        near = np.abs(codes - np.rint(codes)) <= np.maximum(reach, _NEAR * np.abs(codes))
    one = np.rint(codes) if kind == "equal" else np.ceil(codes) if index == 0 else np.floor(codes)
    one = np.where(near, np.rint(codes), one) + other.quant.zero_point
    low, high = other.codes.limits
    if kind == "equal":
        beyond = ~near | (one < low) | (one > high)
    else:
        beyond = one > high if index == 0 else one < low
    return np.clip(one, low, high).astype(np.int64), beyond


def _difference(
    steps: CodeSteps, what: str, operands: tuple[CodeOperand, CodeOperand], beyond: Array | None, y: CodeOperand, low: int
) -> CodeOperand:
    """Add the nodes of the difference a - b, clamped to low..1, and 1 where `beyond` forces it; return it."""
    if beyond is None:
        return steps.sum(what, "sub", *operands, y, (low, 1), FINE)
    difference = steps.sum(f"{what or 'greater'} of codes", "sub", *operands, y, (low, 1), FINE)
    forced_steps = steps.constant("beyond", 2 * beyond.astype(np.int64), TRUTH, y.codes)
    return steps.sum(what, "add", difference, forced_steps, y, (low, 1))


def signs(y: CodeOperand) -> CodeOperand:
    """Return an operand whose scale represents -1, 0 and 1 in codes of the type of y."""
    return replace(y, quant=Quant(1.0, max(0, y.codes.low + 1)))


@dataclass(frozen=True)
class Logic(FloatOp):
    """An operator y = a `kind` b of bool tensors; "not" has one operand."""

    kind: Literal["and", "or", "xor", "not"]

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return find_missing_function(_FUNCTIONS[self.kind], node, graph, chip)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the steps: a product for "and", a clamped sum for "or", the squared difference for "xor", 1 less the operand
        for "not".
        """
        steps = CodeSteps(node, scope)
        y, (a, *others) = steps.output, [truth(steps, name) for name in node.inputs]
        if self.kind == "not":
            steps.opposite("", a, y)
        elif self.kind == "and":
            steps.product("", a, others[0], y)
        elif self.kind == "or":
            steps.sum("", "add", a, others[0], y, (0, 1))
        else:
            sign = steps.sum("sign", "sub", a, others[0], signs(y), (-1, 1))
            steps.product("", sign, sign, y, (0, 1))
        return steps.new_nodes


def truth(steps: CodeSteps, name: str) -> CodeOperand:
    """Return a bool operand, computed or constant."""
    value = steps.scope.graph.constants.get(name)
    if value is None:
        return steps.read(name)
    return steps.constant(name, value.astype(np.int64), TRUTH, steps.output.codes)


@dataclass(frozen=True)
class AlwaysFalse(FloatOp):
    """An operator y = false, for IsNaN and IsInf of codes, which are never either."""

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return find_missing_function(("rescale",), node, graph, chip)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return one rescale whose clamp leaves the code of false alone."""
        x, y, codes = scope.quant(node.inputs[0]), scope.quant(node.outputs[0]), scope.codes(node.outputs[0])
        false = y.zero_point
        requant = scope.requant(1.0, "rescale", codes, false, false, false, where=node.name)
        return [Node(node.name, Rescale(x.zero_point, requant), node.inputs, node.outputs, node.sources)]


@dataclass(frozen=True)
class CastToReal(FloatOp):
    """An operator y = x as a real number, for a bool or an integer up to `most`.

    The result counts in ones.
    Where a function's table is interpolated, it is in the finest power-of-two steps that hold the numbers, to have entries
    for them.
    `symmetric`: whether the machine's zero points are all 0.
    """

    most: int
    symmetric: bool

    def own_scale(self, codes: CodeType) -> Quant:
        """Return the scale of the result: 1, larger by a power of two where the codes would not reach `most`.

        For a type whose tables are interpolated it is the finest power of two by which the codes reach `most`.
        """
        if codes.interpolates:
            return Quant(2.0 ** -int(np.log2(codes.high / self.most)), 0)
        steps = self.most / counts_to(codes, self.symmetric)
        scale = 2.0 ** np.ceil(np.log2(steps)) if steps > 1 else 1.0
        return Quant(float(scale), counting(codes, int(np.ceil(self.most / scale))).zero_point)

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return find_missing_function(("rescale",), node, graph, chip)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return a Reshape where scale and type stay.

        Else return a rescale, with others before it where one multiplier cannot express the ratio.
        """
        (x,), (y,) = node.inputs, node.outputs
        if (scope.quant(x), scope.codes(x)) == (scope.quant(y), scope.codes(y)):
            return [Node(node.name, Reshape(scope.graph.types[y].shape), node.inputs, node.outputs, node.sources)]
        target_quant, codes = scope.quant(y), scope.codes(y)
        most = scope.numerics(y).scale.extremes[1]
        reach = 2.0 ** np.floor(np.log2(most))
        steps: list[Node] = []
        while reach > 1 and scope.quant(x).scale / target_quant.scale > most:
            inner, finer = (
                scope.own_name(f"{y}@{node.name}.{len(steps)}"),
                Quant(scope.quant(x).scale / reach, target_quant.zero_point),
            )
            steps.append(make_rescale_node(step_name(node.name, f"rescale {len(steps)}"), x, inner, finer, codes, scope))
            x = inner
        return [*steps, replace(make_rescale_node(node.name, x, y, target_quant, codes, scope), sources=node.sources)]


def operands(scope: SelectionContext, names: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the node's operands as the chip has them, and their common layout."""
    rank = len(scope.shape(scope.node.outputs[0]))
    layout = scope.layout(*names) if rank == 4 else "plain"
    return tuple(laid_out(scope, n, layout, rank) for n in names), layout


def no_nan(scope: SelectionContext, names: Sequence[str]) -> None:
    """Refuse the node, by NotSelected, where one of these constants holds NaN."""
    for value in (scope.value(n) for n in names):
        if value is not None and value.dtype.kind == "f" and np.isnan(value).any():
            scope.refuse("a constant operand holds NaN, which is no code")


def _make_comparison(
    kind: Literal["greater", "equal"], is_swapped: bool = False, negated: bool = False
) -> Callable[[SelectionContext], None]:
    """Return the rule of a comparison. `is_swapped`: its operands are exchanged. `negated`: the opposite is computed."""

    def rule(scope: SelectionContext) -> None:
        names = scope.node.inputs[::-1] if is_swapped else scope.node.inputs
        no_nan(scope, names)
        read, layout = operands(scope, names)
        return scope.emit(Compare(kind, negated), read, layout)

    return rule


def _logical(kind: Literal["and", "or", "xor", "not"]) -> Callable[[SelectionContext], None]:
    def rule(scope: SelectionContext) -> None:
        read, layout = operands(scope, scope.node.inputs)
        return scope.emit(Logic(kind), read, layout)

    return rule


def _never(scope: SelectionContext) -> None:
    """Select IsNaN or IsInf of a tensor that the chip makes or the network is fed. Refuse one that the host makes."""
    x = scope.node.inputs[0]
    if x not in scope.layouts and x not in scope.graph.inputs:
        return scope.refuse("its input is made by the host, where it may hold NaN and infinity")
    read, layout = operands(scope, (x,))
    return scope.emit(AlwaysFalse(), read, layout)


def _cast(scope: SelectionContext) -> None:
    """Select a Cast between bool, float32 and integers that the chip made. Refuse a cast that drops fractions."""
    x, y = scope.node.inputs[0], scope.node.outputs[0]
    before, after = (scope.graph.types[n].dtype for n in (x, y))
    read, layout = operands(scope, (x,))
    is_integer = before == "bool" or x in scope.counted
    most = scope.counted.get(x, 1)
    if is_integer and after == "float32":
        scope.emit(CastToReal(most, scope.chip.numerics.symmetric_activations), read, layout)
    elif is_integer and after != "bool":
        scope.emit(Reshape(scope.types[read[0]].shape), read, layout, most)
    elif after == "bool":
        zero = scope.constant(f"{scope.node.name}@0", np.zeros((), np.float32))
        scope.emit(Compare("equal", negated=True), (*read, zero), layout)
    else:
        scope.refuse(f"a cast from {before} to {after}: a real number loses its fraction, which no operation of the chip does")


RULES = {
    "Greater": Rule(_make_comparison("greater"), "any", bools=True, indices=True),
    "Less": Rule(_make_comparison("greater", is_swapped=True), "any", bools=True, indices=True),
    "GreaterOrEqual": Rule(_make_comparison("greater", is_swapped=True, negated=True), "any", bools=True, indices=True),
    "LessOrEqual": Rule(_make_comparison("greater", negated=True), "any", bools=True, indices=True),
    "Equal": Rule(_make_comparison("equal"), "any", bools=True, indices=True),
    "And": Rule(_logical("and"), "any", bools=True),
    "Or": Rule(_logical("or"), "any", bools=True),
    "Xor": Rule(_logical("xor"), "any", bools=True),
    "Not": Rule(_logical("not"), "any", bools=True),
    "IsNaN": Rule(_never, "any", bools=True),
    "IsInf": Rule(_never, "any", bools=True),
    "Cast": Rule(_cast, "any", bools=True, indices=True),
}
