"""Write and read rows at a place that is a number of each run: TensorScatter, and circular buffers of states.

A base register that is read from memory (control.indirect) holds the place. Without it, in circular mode, and where each sample
has its own place, writing one row is decomposed into a choice over all places.
Classes follow `FloatOp` and `MoveOp` in `ops.kit.operator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, OnnxNode
from toolchain.ops.kit.decomposition import Decomposition, DecompositionBuilder
from toolchain.ops.kit.operator import Array, FloatOp, Layer, MoveOp, RowIndex
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.tile import FillBox, Loop, Move
from toolchain.ops.rescale import at_output_scale

_KEY = "control.indirect"


@dataclass(frozen=True)
class ScatterRows(FloatOp):
    """A float operator y = x, except for rows along `axis` from number[0] on, which are those of z. Inputs are x, z, number.

    `in_place`: y takes the storage of x, of which only these rows are written.
    """

    axis: int
    in_place: bool = False

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return _find_missing_type(graph.types[node.inputs[0]].shape[self.axis], chip)

    def number_type(self, shape: tuple[int, ...], chip: Chip) -> CodeType:
        """Return the narrowest type of codes for the place, on a machine that has one (`number_types`). `shape`: of x."""
        return min(number_types(shape[self.axis], chip), key=lambda codes: codes.bits)

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: operands may have 32-bit codes."""
        return True

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: the output may have 32-bit codes."""
        return True

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return rescales of operands that differ from the output in scale or type, then `PutRows`."""
        nodes, names = at_output_scale(node, node.inputs[:2], scope)
        put = PutRows(self.axis, self.in_place, 0)
        return [*nodes, Node(node.name, put, (*names, node.inputs[2]), node.outputs, node.sources)]


@dataclass(frozen=True)
class PutRows(MoveOp):
    """An integer operator that writes rows: inputs x, rows, number; all of one scale.

    A number beyond the last place that holds the rows counts as that place; one below 0 counts as 0.
    `in_place`: as in `ScatterRows`.
    `again`: 0, or the distance in rows at which the rows are written once more.
    """

    NAME = "PutRows"
    VERSION = 2
    takes_device_arrays = True
    axis: int
    in_place: bool
    again: int

    def reference(self, inputs: Sequence[Array]) -> Array:
        """Return a copy of the input with the rows at the index, which is cut to where they fit."""
        x, rows, number = inputs
        count = rows.shape[self.axis]
        first = min(max(int(number.reshape(-1)[0]), 0), x.shape[self.axis] - self.again - count)
        y = x.copy()
        for place in self._places():
            y[(*(slice(None),) * self.axis, slice(first + place, first + place + count))] = rows
        return y

    def _places(self) -> tuple[int, ...]:
        """Return the offsets of the written rows from the row that the number names."""
        return (0, self.again) if self.again else (0,)

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        """Return the copies: the whole input first, unless it is written in place, then the rows at the index."""
        x, rows = (layer.input_type(i).shape for i in (0, 1))
        none = (0,) * len(x)
        full_copy = Move(0, none, none, tuple(Loop(n, d, 1, d, 1) for d, n in enumerate(x)))
        loops = tuple(Loop(n, d, 1, d, 1) for d, n in enumerate(rows))
        starts = (tuple(place if d == self.axis else 0 for d in range(len(x))) for place in self._places())
        put = [Move(1, none, start, loops, indexed=True) for start in starts]
        return [], put if self.in_place else [full_copy, *put]

    def row_index(self, layer: Layer) -> RowIndex:
        places, count = (layer.input_type(i).shape[self.axis] for i in (0, 1))
        return RowIndex(2, layer.node.outputs[0], self.axis, places - self.again - count)


@dataclass(frozen=True)
class TakeRows(MoveOp):
    """An integer operator that reads `count` rows of x along `axis`, from row number[0] + `first` on. Inputs are x, number.

    A number beyond `last` counts as that; one below 0 counts as 0.
    `shape`: of the output, which may have other dimensions of one.
    """

    NAME = "TakeRows"
    VERSION = 1
    takes_device_arrays = True
    axis: int
    first: int
    count: int
    last: int
    shape: tuple[int, ...]

    def reference(self, inputs: Sequence[Array]) -> Array:
        """Return the rows at the index, which is cut to `last`, in the output's shape."""
        x, number = inputs
        first = self.first + min(max(int(number.reshape(-1)[0]), 0), self.last)
        return x[(*(slice(None),) * self.axis, slice(first, first + self.count))].reshape(self.shape)

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        x = layer.input_type(0).shape
        start = tuple(self.first if d == self.axis else 0 for d in range(len(x)))
        source_dims = [(d, n) for d, n in enumerate(self.count if d == self.axis else n for d, n in enumerate(x)) if n > 1]
        target_dims = [d for d, n in enumerate(self.shape) if n > 1]
        loops = tuple(Loop(n, source, 1, target, 1) for (source, n), target in zip(source_dims, target_dims))
        return [], [Move(0, start, (0,) * len(self.shape), loops, indexed=True)]

    def row_index(self, layer: Layer) -> RowIndex:
        return RowIndex(1, layer.node.inputs[0], self.axis, self.last)


def number_types(places: int, chip: Chip) -> list[CodeType]:
    """Return the machine's types that can count so many places: signed ones, as `load_base` reads them. The list may be empty."""
    return [codes for codes in chip.code_types if codes.limits[0] < 0 and codes.limits[1] >= places - 1]


def _find_missing_type(places: int, chip: Chip) -> str | None:
    """Return why the machine cannot address so many places by a number of each run, or None."""
    if chip.control.indirect is None:
        return f"a row's place is a number of each run: {_KEY}"
    if places - 1 > chip.control.indirect.max_index:
        return f"{places} places: {_KEY}.max_index is {chip.control.indirect.max_index}"
    if not number_types(places, chip):
        return f"{places} places are more than its codes count: numerics.activation"
    return None


def find_missing_row_support(node: OnnxNode, graph: Graph, chip: Chip) -> str | None:
    """Return why the machine cannot write the rows of a TensorScatter where a number of each run says; None: it can.

    The reason lies in the machine or in the node: a constant or absent place, one place for each sample, or circular mode.
    `one_row` decomposes such a node where it writes a single row.
    """
    cache, _, *at = node.inputs
    if not any(at) or at[0] in graph.constants:
        return "its place is constant"
    if graph.types[at[0]].elements != 1:
        return f"{graph.types[at[0]].elements} places, one of each sample"
    if node.op.attributes.get("mode", "linear") != "linear":
        return "its places go round"
    return _find_missing_type(graph.types[cache].shape[_axis(node, graph)], chip)


def _axis(node: OnnxNode, graph: Graph) -> int:
    return int(node.op.attributes.get("axis", -2)) % len(graph.types[node.inputs[0]].shape)


def scatter(scope: SelectionContext) -> None:
    """Select a TensorScatter. Refuse it for any reason of `find_missing_row_support`, and where cache or rows are constant."""
    reason = find_missing_row_support(scope.node, scope.graph, scope.chip)
    cache, new, *at = scope.node.inputs
    if reason is not None:
        return scope.refuse(reason)
    if any(n in scope.graph.constants for n in (cache, new)):
        return scope.refuse("its cache or its rows are constant")
    read = tuple(scope.read(n, "plain") for n in (cache, new, at[0]))
    return scope.emit(ScatterRows(_axis(scope.node, scope.graph)), read, "plain")


def one_row(steps: DecompositionBuilder) -> None:
    """Decompose a TensorScatter of one row of each sample: Where chooses the new row at its place, the cache elsewhere.

    Each sample may have its own place, also in circular mode, on any machine. Several rows of a sample are refused.
    """
    cache, new, *at = steps.node.inputs
    shape, axis = steps.shape(cache), _axis(steps.node, steps.graph)
    if steps.shape(new)[axis] != 1:
        steps.refuse(f"{steps.shape(new)[axis]} rows at once, whose place is a number of each run: {_KEY}")
    count, places = shape[0], shape[axis]
    row = steps.add("Reshape", at[0] if any(at) else (0,) * count, (count, 1), what="row")
    if steps.node.op.attributes.get("mode", "linear") == "circular":
        row = steps.add("Mod", row, (places,), what="row of the circle")
    here = steps.add("Equal", tuple(range(places)), row, what="is the row")
    lies = (count, *(places if i == axis else 1 for i in range(1, len(shape))))
    steps.add("Where", steps.add("Reshape", here, lies, what="is the row, as they lie"), new, cache, what="rows", output=0)


RULES = {"TensorScatter": Rule(scatter, numbers=(2,))}
DECOMPOSITIONS = {"TensorScatter": Decomposition(one_row, find_missing_row_support)}
