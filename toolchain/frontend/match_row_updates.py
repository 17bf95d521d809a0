"""Match a row update written with slices: a Concat of head, new rows and tail becomes a TensorScatter, during import.

The lengths of such slices depend on where the rows go, but the length of the result does not.
Where the rows have no room in the tensor, the file's own nodes make another length. Operators of _MOVES may stand between a row's
number and its use, since they keep a single number as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from toolchain.frontend.expansion_builder import ExpansionBuilder
from toolchain.frontend.read_onnx import has_operator
from toolchain.ir.graph import OnnxNode, TensorType

_MOVES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


class _Cut(NamedTuple):
    """A Slice of `x` along `axis` from `first` to `last`, which are tensors of one number."""

    x: str
    first: str
    last: str
    axis: int


class RowUpdateState(NamedTuple):
    """The nodes, types and constants known so far.

    `cuts`: Slices whose length depends on values, by the tensor that each would make.
    """

    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    nodes: Sequence[OnnxNode]
    cuts: Mapping[str, OnnxNode]


def match_row_update(node: OnnxNode, row_state: RowUpdateState) -> ExpansionBuilder | None:
    """Return the replacement of a Concat that is a row update; None for any other node, or where onnx has no TensorScatter.

    Head and tail are slices of one tensor, and the rows go where the head ends. The Concat is not along dimension 0.
    """
    if node.op.op_type != "Concat" or len(node.inputs) != 3 or node.inputs[1] not in row_state.types:
        return None
    head, tail = (_cut(row_state.cuts.get(name), row_state) for name in (node.inputs[0], node.inputs[2]))
    if head is None or tail is None or head.x != tail.x or not has_operator("TensorScatter"):
        return None
    shape, rows = row_state.types[head.x].shape, row_state.types[node.inputs[1]].shape
    axis, ends = int(node.op.attributes["axis"]) % len(shape), _number(tail.last, row_state)
    if axis == 0 or {head.axis, tail.axis} != {axis} or len(rows) != len(shape) or ends is None or ends < shape[axis]:
        return None
    place = _place(head.last, row_state)
    if _number(head.first, row_state) != 0 or place is None or _place(tail.first, row_state) != (place[0], place[1] + rows[axis]):
        return None
    w = ExpansionBuilder(node, row_state.types, row_state.constants)
    start_row = w.add("Cast", head.last, what="place", to=TensorProto.INT64)
    each = w.add("Expand", start_row, w.constant("samples", np.array(shape[:1], np.int64)), what="places")
    w.add("TensorScatter", head.x, node.inputs[1], each, output=0, axis=axis)
    return w


def _cut(node: OnnxNode | None, row_state: RowUpdateState) -> _Cut | None:
    """Return a Slice along one dimension in steps of one; None for any other node."""
    if node is None or node.op.op_type != "Slice" or len(node.inputs) < 3 or node.inputs[0] not in row_state.types:
        return None
    x, first, last, axes, steps = (*node.inputs, "", "")[:5]
    single = all(n in row_state.types and row_state.types[n].elements == 1 for n in (first, last))
    axis = _number(axes, row_state) if axes else 0
    if not single or axis is None or (steps and _number(steps, row_state) != 1):
        return None
    return _Cut(x, first, last, axis % len(row_state.types[x].shape))


def _number(name: str, row_state: RowUpdateState) -> int | None:
    """Return the value of a constant of one element; else None."""
    value = row_state.constants.get(name)
    return int(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _place(name: str, row_state: RowUpdateState) -> tuple[str, int] | None:
    """Return a computed number as (a tensor, what is added to it); None where it is constant."""
    more = 0
    while name not in row_state.constants:
        node = _maker(name, row_state.nodes)
        if node is None or row_state.types[node.inputs[0]].elements != 1:
            return name, more
        if node.op.op_type in _MOVES:
            name = node.inputs[0]
        elif node.op.op_type == "Add" and (number := _match_constant_addend(node, row_state)) is not None:
            name, more = number[0], more + number[1]
        else:
            return name, more
    return None


def _maker(name: str, nodes: Iterable[OnnxNode]) -> OnnxNode | None:
    return next((n for n in nodes if name in n.outputs), None)


def _match_constant_addend(node: OnnxNode, row_state: RowUpdateState) -> tuple[str, int] | None:
    """Return (one operand, the other's value) of an Add where the other is a constant of one element; else None."""
    for one, other in (node.inputs, node.inputs[::-1]):
        number = _number(other, row_state)
        if number is not None:
            return one, number
    return None
