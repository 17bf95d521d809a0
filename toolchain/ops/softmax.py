"""Select Softmax as the vector engine's function, or decompose it and LogSoftmax into steps that the chip has.

Classes follow `FloatOp` and `TiledOp` in `ops.kit.operator`. The machine file decides: its key `limits.decompose` names the
operators that are decomposed. A LogSoftmax that is not is run by the host.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from quant.fixed_point import softmax8, softmax16
from quant.fixed_point.core.codes import CodeType
from toolchain import machine
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.ir.range_constraints import ClippedRange, FixedRange
from toolchain.machine.operations.softmax import MOST_COLUMNS_OF_BYTES, scale_fields, scale_of
from toolchain.ops.division import inverse
from toolchain.ops.kit.box_tiles import box_nest, box_orders
from toolchain.ops.kit.decomposition import Decomposition, DecompositionBuilder
from toolchain.ops.kit.loops import LoopOrder
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Array, FloatOp, Layer, PerSample, TiledOp, split_per_sample
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.tile import Box, BoxLocation, Extent, TileTask, Tiling, halvings
from toolchain.ops.permutation import Reshape

_CLOSE_CALL = 2.5  # docs/accuracy.md: sum of exp(x - max) of two equal classes, and some of others


def softmax(steps: DecompositionBuilder) -> None:
    """Decompose Softmax into exp(x - max) / sum."""
    x = undo_transpose(steps)
    _, power, total = exponentials(steps, x)
    x.add_last_step(steps, "quotient", "Mul", power, inverse(steps, total, "sum"))


def log_softmax(steps: DecompositionBuilder) -> None:
    """Decompose LogSoftmax into x - (max + log(sum)).

    What is subtracted is rounded once a row, and x keeps its own codes.
    """
    x = undo_transpose(steps)
    largest, _, total = exponentials(steps, x)
    shift = steps.add("Add", largest, steps.add("Log", total, what="log(sum)"), what="max + log(sum)")
    x.add_last_step(steps, "x - max - log(sum)", "Sub", x.name, shift)


@dataclass(frozen=True)
class _Operand:
    """The tensor that the softmax steps read.

    `axis`: the dimension that they go over.
    `perm`: the Transpose from it to the node's output; None where the order is the same.
    """

    name: str
    axis: int
    perm: tuple[int, ...] | None

    def add_last_step(self, steps: DecompositionBuilder, what: str, op_type: str, *inputs: str) -> None:
        """Add the last step, in the order of the node's output."""
        result = steps.add(op_type, *inputs, what=what, output=0 if self.perm is None else None)
        if self.perm is not None:
            steps.add("Transpose", result, what=f"{what}, turned", output=0, perm=self.perm)


def undo_transpose(steps: DecompositionBuilder) -> _Operand:
    """Return the operand before a Transpose that only makes its dimension the last one, as softmax units need it; else the
    input.

    Steps go over any dimension, and the Transpose after them meets the one that transposes back.
    """
    x = steps.node.inputs[0]
    axis = int(steps.node.op.attributes["axis"]) % len(steps.shape(x))
    before = steps.graph.producers().get(x)
    if before is None or before.op.op_type != "Transpose" or not steps.graph.read_once(x, steps.graph.consumers()):
        return _Operand(x, axis, None)
    perm = tuple(int(i) for i in before.op.attributes["perm"])
    return _Operand(x, axis, None) if perm[axis] == len(perm) - 1 else _Operand(before.inputs[0], perm[axis], perm)


def exponentials(steps: DecompositionBuilder, operand: _Operand) -> tuple[str, str, str]:
    """Add and return max, exp(x - max), and the sum of that.

    Differences from the largest are at most 0; below `lost_exponent` their exp is zero. The sum's range includes a close call
    of several equal numbers, which samples may not show.
    """
    x, axis = operand.name, operand.axis
    length = steps.shape(x)[axis]
    largest = steps.add("ReduceMax", x, (axis,), what="max")
    less = steps.add("Sub", x, largest, what="x - max", range=ClippedRange(steps.lost_exponent, 0.0))
    # An interpolated table has an entry for one code beyond the last, which is 0; it must not saturate.
    highest = math.exp(-steps.lost_exponent * 2.0**-steps.bits) if steps.interpolates else 1.0
    power = steps.add("Exp", less, what="exp", range=FixedRange(0.0, highest))
    close_call = min(_CLOSE_CALL, float(length))
    mean_range = ClippedRange(-math.inf, math.inf, reaches=close_call / max(length, 1))
    mean = steps.add("ReduceMean", power, (axis,), what="mean of exp", range=mean_range)
    sum_range = ClippedRange(-math.inf, math.inf, reaches=close_call)
    return largest, power, steps.add("Mul", mean, float(length), what="sum", range=sum_range)


@dataclass(frozen=True)
class Softmax(FloatOp):
    """A float operator y[r, :] = softmax(x[r, :]) on a matrix.

    Its output has one fixed scale: 2^-8 for 8-bit codes, 2^-15 for 16-bit ones.
    """

    one_type: ClassVar[bool] = True

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot run it. None: it can.

        Reasons are a missing softmax and, where it has 8 bits, codes without zero points or rows that are too long.
        """
        columns = graph.types[node.inputs[0]].shape[1]
        if "softmax" not in chip.functions:
            return f"{chip.key('vector')}.functions has no softmax; limits.decompose makes it of steps where the chip has each"
        if any(codes.bits > 8 for codes in chip.operand_types):
            return None
        if chip.numerics.symmetric_activations:
            return "a softmax of 8 bits has the least code for 0; numerics.symmetric_activations is true"
        if columns > MOST_COLUMNS_OF_BYTES:
            return f"rows of {columns}; a softmax of 8 bits takes {MOST_COLUMNS_OF_BYTES}"
        return None

    def least_type(self, node: Node, graph: Graph, chip: Chip) -> CodeType | None:
        """Return a type of 16 bits where 8 bits do not do: long rows, or codes without zero points. Else None.

        It is None as well where the machine has no type above 8 bits.
        """
        fits = graph.types[node.inputs[0]].shape[1] <= MOST_COLUMNS_OF_BYTES and not chip.numerics.symmetric_activations
        return None if fits else next((codes for codes in chip.operand_types if codes.bits > 8), None)

    def own_scale(self, codes: CodeType) -> Quant:
        """Return the scale of probabilities: 2^-8 from the least code in 8 bits, else 2^-15."""
        return Quant(2.0**-8, codes.low) if codes.bits == 8 else Quant(2.0**-15, 0)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        x = node.inputs[0]
        op = IntegerSoftmax(*scale_fields(scope.quant(x).scale, scope.codes(x)))
        return [Node(node.name, op, node.inputs, node.outputs, node.sources)]


@dataclass(frozen=True)
class IntegerSoftmax(TiledOp):
    """A softmax on codes[r, c] of one type, at the output scale of `Softmax`. The input's scale is multiplier * 2**(-shift -
    26).
    """

    NAME = "Softmax"
    VERSION = 1
    multiplier: int
    shift: int

    def reference(self, inputs: Sequence[Array]) -> Array:
        """Compute the softmax of each row, in 8 or 16 bits by the input's type."""
        (x,) = inputs
        return (softmax8 if x.dtype.itemsize == 1 else softmax16)(x, scale_of(self.multiplier, self.shift))

    def tiling_key(self) -> Hashable:
        return ()

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return split_per_sample(self, layer, axis) if axis == 0 else None

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        """Yield tilings that cut the rows into parts; a row is never cut."""
        rows, columns = layer.output.shape
        return (Tiling(1, part, columns, 0) for part in halvings(rows))

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        return box_orders(layer, full_reason="the sum over a row is of all of it")

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        return box_nest(layer.output.shape, tiling, lambda start, size: self._make_task(layer, start, size))

    def _make_task(self, layer: Layer, start: tuple[int, ...], size: tuple[int, ...]) -> TileTask:
        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[machine.MachineOp, ...]:
            assert out is not None
            (source,) = sites
            return (
                machine.Softmax(
                    rows=size[0],
                    columns=size[1],
                    input_address=source.address,
                    input_row_stride=source.strides[0],
                    output_address=out.address,
                    output_row_stride=out.strides[0],
                    input_multiplier=self.multiplier,
                    input_shift=self.shift,
                    element_type=layer.output_number,
                ),
            )

        return TileTask((Box(layer.node.inputs[0], start, size),), (), Box(layer.node.outputs[0], start, size), emit)


def select(scope: SelectionContext) -> None:
    """Select a Softmax over the last dimension, as rows of a matrix, with Reshapes around it. Refuse other dimensions."""
    x, shape = scope.node.inputs[0], scope.shape(scope.node.inputs[0])
    if not shape or scope.attributes["axis"] % len(shape) != len(shape) - 1:
        return scope.refuse(f"Softmax over another than the last of {len(shape)} dimensions")
    flat = (math.prod(shape[:-1]), shape[-1])
    source = scope.read(x, "plain")
    if len(shape) == 2:
        return scope.emit(Softmax(), (source,), "plain")
    rows = scope.step("rows", Reshape(flat), (source,), flat, like=source, sources=())
    result = scope.add_main_step("softmax", Softmax(), (rows,), flat)
    return scope.emit(Reshape(shape), (result,), "plain")


RULES = {"Softmax": Rule(select)}
DECOMPOSITIONS = {"LogSoftmax": Decomposition(log_softmax), "Softmax": Decomposition(softmax)}
