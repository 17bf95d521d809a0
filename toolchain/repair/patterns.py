"""How what is known of a tensor's channels goes through the operators of a float network.

A pattern is an array that broadcasts to a tensor: a value for each of its channels, wherever the tensor has these (axis 1 of a
convolution's output, the last of a product's, both of two that a Reshape cut it into). Values are factors, or numbers of channels
that have one factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from toolchain.frontend.promote_attributes import promote_node
from toolchain.ir.graph import OnnxGraph, OnnxNode

Array = np.ndarray[Any, Any]
# Two patterns of one tensor, which have to be one: the first, as wide as both.
Merge = Callable[[Array, Array], Array]
Patterns = Mapping[str, Array]

_CHANNELS_AT = 1  # of a tensor of more dimensions than a product's rows
_FIRST_MAP_RANK = 4

_POINTWISE = frozenset({"Abs", "Dropout", "Identity", "LeakyRelu", "Neg", "PRelu", "Relu"})
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})
SUMS = frozenset({"Add", "Max", "Min", "Sub"})
_REDUCTIONS = frozenset({"ReduceMax", "ReduceMean"})


def plain_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Of the pattern of a tensor of which no more is known: channels on axis 1 of four dimensions and more, else the last."""
    at = _CHANNELS_AT if len(shape) >= _FIRST_MAP_RANK else len(shape) - 1
    return tuple(d if axis == at else 1 for axis, d in enumerate(shape))


def power(node: OnnxNode, graph: OnnxGraph) -> Fraction:
    """d, where the node is homogeneous: f(s x) = s^d f(x) for every s > 0."""
    if node.op.op_type == "Sqrt":
        return Fraction(1, 2)
    if node.op.op_type == "Pow":
        return Fraction(float(graph.constants[node.inputs[1]].item()))
    return Fraction(2 if node.op.op_type == "Mul" and node.inputs[0] == node.inputs[1] else 1)


def propagate_pattern(node: OnnxNode, graph: OnnxGraph, known: Patterns, merge: Merge) -> Array | None:
    """The pattern of a node's output, before it is taken to the node's power, by those of its inputs. None: the node is not
    homogeneous, or would mix channels. merge: told of all that must be one, as the operands of a sum."""
    if not node.inputs or len([y for y in node.outputs if y]) != 1:
        return None
    rule = _rule(node, graph)
    read = [known[n] for n in node.inputs if n in known]
    return None if rule is None or not read else rule(node, graph, read, merge)


_Rule = Callable[[OnnxNode, OnnxGraph, list[Array], Merge], Array | None]


def _rule(node: OnnxNode, graph: OnnxGraph) -> _Rule | None:
    kind, constant = node.op.op_type, [n in graph.constants for n in node.inputs]
    if node.op.domain not in ("", "ai.onnx") or (constant[0] and kind not in (*SUMS, "Mul")):
        return None
    others_constant = all(constant[1:])
    if kind in SUMS:
        return _sum
    if kind == "Mul":
        return _spread if any(constant) or node.inputs[0] == node.inputs[1] else None
    if kind in ("Concat", "Transpose"):
        return (_joined if kind == "Concat" else _turned) if not any(constant) else None
    if not others_constant:
        return None
    if kind in _POINTWISE or kind == "Sqrt" or (kind == "Clip" and _clips_at_zero(node, graph)):
        return _first
    if kind == "Pow":
        exponent = graph.constants[node.inputs[1]]
        return _first if exponent.size == 1 and exponent.item() > 0 else None
    if kind in _POOLS:
        return _pooled
    if kind in _REDUCTIONS:
        return _reduced
    return {"Div": _spread, "Pad": _padded, "Reshape": _reshaped, "Slice": _sliced}.get(kind)


def clamp_bound(node: OnnxNode, graph: OnnxGraph) -> float | None:
    """The upper bound of a Clip, in the units of a channel whose factor is 1: it is for those who choose factors to keep."""
    if node.op.op_type != "Clip" or len(node.inputs) < 3 or not node.inputs[2]:
        return None
    return graph.constants[node.inputs[2]].item()


def _clips_at_zero(node: OnnxNode, graph: OnnxGraph) -> bool:
    low = graph.constants[node.inputs[1]] if len(node.inputs) > 1 and node.inputs[1] else np.array(-np.inf)
    return low.size == 1 and low.item() == 0


# --- rules


def _first(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    return read[0]


def _pooled(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    return read[0] if read[0].shape[2:] == (1,) * (read[0].ndim - 2) else None


def _spread(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Of a product with a constant, or with itself."""
    return _at_rank(read[0], len(graph.types[node.outputs[0]].shape))


def _sum(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Constants take the factors too, so they may have a number for each channel, or one for all."""
    rank = len(graph.types[node.outputs[0]].shape)
    found = _at_rank(read[0], rank)
    for other in read[1:]:
        found = merge(found, _at_rank(other, rank))
    held = [graph.constants[n].shape for n in node.inputs if n in graph.constants]
    padded = [(1,) * (rank - len(shape)) + shape for shape in held]
    return found if all(d == 1 or found.shape[axis] > 1 for shape in padded for axis, d in enumerate(shape)) else None


def _joined(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Along the channels these are one behind the other; along anything else they are the same of all parts."""
    rank = read[0].ndim
    axis = int(node.op.attributes.get("axis", 0)) % rank
    if all(pattern.shape[axis] == 1 for pattern in read):
        found = read[0]
        for other in read[1:]:
            found = merge(found, other)
        return found
    lengths = [graph.types[n].shape[axis] for n in node.inputs]
    wide = np.broadcast_shapes(*((*p.shape[:axis], 1, *p.shape[axis + 1 :]) for p in read))
    parts = [np.broadcast_to(p, (*wide[:axis], length, *wide[axis + 1 :])) for p, length in zip(read, lengths)]
    return np.concatenate(parts, axis)


def _turned(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    return read[0].transpose(node.op.attributes.get("perm", tuple(reversed(range(read[0].ndim)))))


def _sliced(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    found, shape = read[0], graph.types[node.inputs[0]].shape
    starts, ends = (_numbers(node, graph, name) for name in ("starts", "ends"))
    axes = _numbers(node, graph, "axes") or list(range(len(starts)))
    steps = _numbers(node, graph, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if found.shape[axis] > 1:
            found = found.take(range(*slice(start, end, step).indices(shape[axis])), axis % len(shape))
    return found


def _padded(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """By zeros, where no channel is new."""
    rank, pads = read[0].ndim, _numbers(node, graph, "pads")
    filled = promote_node(node, graph.constants).op.attributes["value"] or 0.0
    along = [pads[axis] or pads[axis + rank] for axis in range(rank)]
    plain = node.op.attributes.get("mode", "constant") == "constant" and not np.any(filled)
    return read[0] if plain and not any(p and read[0].shape[axis] > 1 for axis, p in enumerate(along)) else None


def _reduced(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """What is reduced together has one factor."""
    found, rank = read[0], read[0].ndim
    axes = [axis % rank for axis in _numbers(node, graph, "axes")] or list(range(rank))
    for axis in axes:
        first = found.take([0], axis)
        for index in range(1, found.shape[axis]):
            first = merge(first, found.take([index], axis))
        found = first
    kept = bool(node.op.attributes.get("keepdims", 1))
    return found if kept else found.reshape([d for axis, d in enumerate(found.shape) if axis not in axes])


def _reshaped(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    before, after = (graph.types[n].shape for n in (node.inputs[0], node.outputs[0]))
    if 0 in before:
        return None
    wide, narrow = list[int](), list[int]()  # only dimensions that go with the channels' are spread
    for own, others in _blocks(before, after):
        varied = any(read[0].shape[axis] > 1 for axis in own)
        wide += [before[axis] if varied else 1 for axis in own]
        narrow += [after[axis] if varied else 1 for axis in others]
    found = np.broadcast_to(read[0], wide).reshape(narrow)
    for axis in range(found.ndim):
        first = found.take([0], axis)
        found = first if (found == first).all() else found
    return found


def _blocks(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Axes of both shapes that hold the same elements in the same order, as few at a time as can be."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        own, others, left, right = list[int](), list[int](), 1, 1
        while not (own or others) or left != right:
            if left <= right and i < len(before):
                left, own, i = left * before[i], [*own, i], i + 1
            else:
                right, others, j = right * after[j], [*others, j], j + 1
        found.append((own, others))
    return found


def _at_rank(pattern: Array, rank: int) -> Array:
    return pattern.reshape((1,) * (rank - pattern.ndim) + pattern.shape)


def _numbers(node: OnnxNode, graph: OnnxGraph, name: str) -> list[int]:
    """Of a constant parameter; none where it is not given."""
    found = promote_node(node, graph.constants).op.attributes[name]
    return [] if found is None else [int(v) for v in np.atleast_1d(found)]
