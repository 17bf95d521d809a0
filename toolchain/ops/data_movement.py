"""Define operators that only move codes: Concat, Slice, Pad, Resize by whole factors; and the rules of these and of
permutations.

Classes follow `FloatOp` and `MoveOp` in `ops.kit.operator`; a rule function emits operators into its context, or refuses.
The rule of Resize is in `ops.resize`.
`HOSTED` says why gathers and scatters by computed indices stay on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np

from quant.fixed_point.core.device_arrays import as_contiguous
from toolchain.hw.chip import Chip
from toolchain.ir.graph import MAX_MATRIX, MAX_PARTS, MAX_WRAPS, Graph, Node, step_name
from toolchain.ops.kit.layout import NHWC, axis_in, permute_to_layout
from toolchain.ops.kit.operator import Array, FloatOp, Layer, MoveOp, PerSample, sample_shape, split_per_sample
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.tile import FillBox, Loop, Move
from toolchain.ops.permutation import Reshape, ScalePreserving, permutation
from toolchain.ops.rescale import at_output_scale, make_rescale_node

Shape = tuple[int, ...]


def _box_loops(shape: Shape) -> tuple[Loop, ...]:
    return tuple(Loop(n, d, 1, d, 1) for d, n in enumerate(shape))


@dataclass(frozen=True)
class Slice(ScalePreserving, MoveOp):
    """An operator y[i] = x[starts + i steps] for i in `shape`; steps are positive."""

    NAME = "Slice"
    VERSION = 1
    takes_device_arrays = True
    starts: Shape
    steps: Shape
    shape: Shape

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return split_per_sample(Slice(self.starts, self.steps, sample_shape(self.shape, count)), layer, axis)

    def reference(self, inputs: Sequence[Array]) -> Array:
        index = tuple(slice(s, s + n * k, k) for s, n, k in zip(self.starts, self.shape, self.steps))
        return as_contiguous(inputs[0][index])

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        loops = tuple(Loop(n, d, step, d, 1) for d, (n, step) in enumerate(zip(self.shape, self.steps)))
        return [], [Move(0, self.starts, (0,) * len(self.shape), loops)]


@dataclass(frozen=True)
class Pad(FloatOp):
    """A float operator that puts `value` (a real number) around x. `before`, `after`: elements by dimension.

    The output keeps x's scale where its codes hold the value; else x is rescaled first.
    """

    before: Shape
    after: Shape
    value: float
    keeps_scale = True

    @property
    def brings(self) -> tuple[float, ...]:
        """The padding value, which x's codes must hold where the output keeps their scale."""
        return (self.value,)

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot pad: the value is not 0, and the machine has no rescale. None: it can."""
        if self.value != 0 and "rescale" not in chip.functions:
            return f"a value of {self.value:g} may need a scale of its own: {chip.key('vector')}.functions: rescale"
        return None

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the padding by the value's code, after a rescale where input and output differ in scale or type."""
        name, x, y = node.inputs[0], scope.quant(node.inputs[0]), scope.quant(node.outputs[0])
        codes = scope.codes(node.outputs[0])
        code = int(np.clip(np.rint(self.value / y.scale) + y.zero_point, *codes.limits))
        nodes: list[Node] = []
        if (x, scope.codes(name)) != (y, codes):
            name = scope.own_name(f"{name}@{node.name}")
            nodes.append(make_rescale_node(step_name(node.name, "rescale"), node.inputs[0], name, y, codes, scope))
        return [*nodes, Node(node.name, IntegerPad(self.before, self.after, code), (name,), node.outputs, node.sources)]


@dataclass(frozen=True)
class IntegerPad(MoveOp):
    """An integer operator that puts `code` around x."""

    NAME = "Pad"
    VERSION = 1
    takes_device_arrays = True
    before: Shape
    after: Shape
    code: int
    keeps_scale = True

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return split_per_sample(self, layer, axis)

    def reference(self, inputs: Sequence[Array]) -> Array:
        return np.pad(inputs[0], tuple(zip(self.before, self.after)), constant_values=self.code)

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        """Return fills of the borders, none of which overlap, and one copy of the input."""
        inner, shape = layer.input_type(0).shape, layer.output.shape
        fills: list[FillBox] = []
        for d, (before, after) in enumerate(zip(self.before, self.after)):
            # Dimensions before d are cut to the data, so that no byte is written twice.
            start = [self.before[i] if i < d else 0 for i in range(len(shape))]
            size = [inner[i] if i < d else shape[i] for i in range(len(shape))]
            if before:
                fills.append(FillBox(tuple(start), (*size[:d], before, *size[d + 1 :]), self.code))
            if after:
                start[d] = before + inner[d]
                fills.append(FillBox(tuple(start), (*size[:d], after, *size[d + 1 :]), self.code))
        return fills, [Move(0, (0,) * len(shape), self.before, _box_loops(inner))]


@dataclass(frozen=True)
class ResizeNearest(ScalePreserving, MoveOp):
    """Every element repeated factors[d] times along dimension d (ONNX Resize nearest, asymmetric, whole factors)."""

    NAME = "ResizeNearest"
    VERSION = 1
    takes_device_arrays = True
    factors: Shape

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return split_per_sample(self, layer, axis)

    def reference(self, inputs: Sequence[Array]) -> Array:
        x = inputs[0]
        for axis, factor in enumerate(self.factors):
            x = np.repeat(x, factor, axis) if factor > 1 else x
        return x

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        """Return one copy, whose loops write each element as often as the factors say."""
        shape = layer.input_type(0).shape
        loops: list[Loop] = []
        for d, (n, factor) in enumerate(zip(shape, self.factors)):
            loops.append(Loop(n, d, 1, d, factor))
            if factor > 1:
                loops.append(Loop(factor, -1, 0, d, 1))
        zero = (0,) * len(shape)
        return [], [Move(0, zero, zero, tuple(loops))]


@dataclass(frozen=True)
class RescalingConcat(FloatOp):
    """A float Concat along `axis`, each part of which is rescaled to the output's scale where it has another.

    The compiler also makes it of one part, to change a scale.
    """

    axis: int

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot join the parts: one is constant, or there is no rescale. None: it can."""
        if any(n in graph.constants for n in node.inputs):
            return "a part is constant; fold it before"
        if "rescale" not in chip.functions:
            return f"parts of unequal scale need {chip.key('vector')}.functions: rescale"
        return None

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: parts may have 32-bit codes."""
        return True

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: the output may have 32-bit codes."""
        return True

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return rescales of the parts that differ from the output in scale or type, then the `IntegerConcat`."""
        nodes, names = at_output_scale(node, node.inputs, scope)
        joined = Node(node.name, IntegerConcat(self.axis), tuple(names), node.outputs, node.sources)
        return [*nodes, joined]


@dataclass(frozen=True)
class ModelConcat(RescalingConcat):
    """A Concat that the model has: its parts are tensors of the model, which may take the result's scale."""


@dataclass(frozen=True)
class IntegerConcat(MoveOp):
    """An integer Concat along `axis`; all parts have the output's scale."""

    NAME = "Join"
    VERSION = 1
    takes_device_arrays = True
    axis: int

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Return the operator itself for one sample; None where it joins along the sample axis."""
        return split_per_sample(self, layer, axis) if self.axis != axis else None

    def reference(self, inputs: Sequence[Array]) -> Array:
        return np.concatenate(inputs, self.axis)

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        """Return one copy for each input, in their order."""
        box_moves: list[Move] = []
        at = 0
        rank = len(layer.output.shape)
        for i, name in enumerate(layer.node.inputs):
            shape = layer.types[name].shape
            target = tuple(at if d == self.axis else 0 for d in range(rank))
            box_moves.append(Move(i, (0,) * rank, target, _box_loops(shape)))
            at += shape[self.axis]
        return [], box_moves


def concat(scope: SelectionContext) -> None:
    """Select a Concat in the layout of its parts. Refuse constant parts."""
    names = scope.node.inputs
    layout = scope.layout(*names)
    axis = int(scope.attributes["axis"]) % len(scope.shape(names[0]))
    if any(n in scope.graph.constants for n in names):
        return scope.refuse("a part is constant")
    return scope.emit(ModelConcat(axis_in(axis, layout)), tuple(scope.read(n, layout) for n in names), layout)


def slice_(scope: SelectionContext) -> None:
    """Select a Slice in the layout of its input, whose output has the size that the graph says.

    Refuse computed bounds, and negative steps, of which the frontend has replaced those up to a limit.
    """
    x = scope.node.inputs[0]
    shape = scope.shape(x)
    a = scope.attributes
    if "starts" not in a:
        return scope.refuse("its bounds are computed")
    starts, steps = [0] * len(shape), [1] * len(shape)
    axes = a.get("axes") or range(len(a["starts"]))
    for axis, start, step in zip(axes, a["starts"], a.get("steps") or [1] * len(a["starts"])):
        if step < 1:
            most = f"up to {MAX_PARTS} elements, a product up to a matrix of {MAX_MATRIX:,}"
            return scope.refuse(f"a step of {step} (negative ones become copies {most})")
        starts[axis % len(shape)], steps[axis % len(shape)] = int(start), int(step)
    layout = scope.layout(x)
    size = permute_to_layout(scope.shape(scope.node.outputs[0]), layout)
    op = Slice(permute_to_layout(tuple(starts), layout), permute_to_layout(tuple(steps), layout), size)
    return scope.emit(op, (scope.read(x, layout),), layout)


def pad(scope: SelectionContext) -> None:
    """Select a Pad by one value. Refuse computed or negative padding, and modes other than constant.

    The frontend has replaced other modes of few elements by copies.
    """
    x, a = scope.node.inputs[0], scope.attributes
    rank = len(scope.shape(x))
    if "pads" not in a:
        return scope.refuse("padding that is computed at run time")
    if (mode := a.get("mode", "constant")) != "constant":
        most = f"up to {isqrt(MAX_MATRIX):,} elements at each end"
        most += f" and {MAX_WRAPS} times the dimension" if mode == "wrap" else ""
        return scope.refuse(f"padding by mode={mode!r} that copies did not replace ({most})")
    if min(a["pads"]) < 0:
        return scope.refuse(f"negative padding: pads {list(a['pads'])}")
    pads = tuple(int(p) for p in a["pads"])
    layout = scope.layout(x)
    op = Pad(permute_to_layout(pads[:rank], layout), permute_to_layout(pads[rank:], layout), float(a.get("value") or 0.0))
    return scope.emit(op, (scope.read(x, layout),), layout)


def reshape(scope: SelectionContext) -> None:
    """Select a Reshape, from and to the model's order; a Transpose follows where an operator over space reads the result."""
    y = scope.node.outputs[0]
    target, source = scope.shape(y), scope.read(scope.node.inputs[0], "plain")
    if y not in scope.spatial:
        return scope.emit(Reshape(target), (source,), "plain")
    view = scope.step("plain", Reshape(target), (source,), target)
    return scope.emit(permutation(target, NHWC), (view,), "nhwc")


def transpose(scope: SelectionContext) -> None:
    """Select a Transpose, from the layout that x has to the one in which it is read; it becomes a Reshape where nothing moves."""
    x = scope.node.inputs[0]
    perm = tuple(int(p) for p in scope.attributes["perm"])
    layout = scope.layouts.get(x, "plain")
    source = scope.read(x, layout)
    target = "nhwc" if scope.node.outputs[0] in scope.spatial else "plain"
    order = tuple(axis_in(p, layout) for p in permute_to_layout(perm, target))
    return scope.emit(permutation(scope.types[source].shape, order), (source,), target)


def identity(scope: SelectionContext) -> None:
    """Select an Identity as a view: only those remain that give an output a second name. Refuse one of a graph's input."""
    x = scope.node.inputs[0]
    if x in scope.graph.inputs:
        return scope.refuse("an input that is handed on as it is would be rounded for no gain")
    layout = scope.layout(x)
    return scope.emit(Reshape(permute_to_layout(scope.shape(x), layout)), (scope.read(x, layout),), layout)


def expand(scope: SelectionContext) -> None:
    """Select an Expand or Tile that repeats dimensions of size one. New dimensions come first.

    Refuse copies of larger dimensions. Sizes are those of input and output in the graph.
    """
    x, y = scope.node.inputs[0], scope.node.outputs[0]
    after = scope.shape(y)
    before = (1,) * (len(after) - len(scope.shape(x))) + scope.shape(x)
    if any(b % s for s, b in zip(before, after)) or any(s not in (1, b) for s, b in zip(before, after)):
        return scope.refuse(f"copies of dimensions larger than one, from {before} to {after}")
    raised = len(before) > len(scope.shape(x))
    layout = "plain" if raised else scope.layout(x)
    source = scope.read(x, layout)
    if raised:
        source = scope.step("view", Reshape(before), (source,), before, sources=())
    factors = tuple(b // s for s, b in zip(before, after))
    return scope.emit(ResizeNearest(permute_to_layout(factors, layout)), (source,), layout)


RULES = {
    "Concat": Rule(concat, "any", bools=True),
    "Slice": Rule(slice_, "any", bools=True, indices=True),
    "Pad": Rule(pad, "any", bools=True),
    "Reshape": Rule(reshape, bools=True, indices=True),
    "Transpose": Rule(transpose, bools=True, indices=True),
    "Identity": Rule(identity, "any", bools=True, indices=True),
    "Expand": Rule(expand, bools=True, indices=True),
    "Tile": Rule(expand, bools=True, indices=True),
}

_COMPUTED = "copies take their addresses from the program, none from what another operation has written"
_GATHER_REASON = f"its indices are computed, or more than {MAX_PARTS} evenly rising runs: {_COMPUTED}"
HOSTED = {
    "Gather": _GATHER_REASON,
    **dict.fromkeys(("GatherElements", "GatherND"), f"it moves single elements: {_COMPUTED}"),
    **dict.fromkeys(("ScatterElements", "ScatterND"), f"its places are computed, or constant and too many runs: {_COMPUTED}"),
}
