"""Propagate a value for each channel through the operators of a float network, as factors of channels go through them.

A pattern is an array that broadcasts to a tensor, with one value for each of its channels. The channels are axis 1 of a
convolution's output, the last axis of a product's, or both axes that a Reshape cut them into. Values are factors, or numbers of
channels that share one factor. The modules repair.channels and repair.channel_scaling use both.
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
    """Return the shape of the pattern of a tensor of which no more is known.

    Channels are on axis 1 from four dimensions on, else on the last axis; all other axes have 1.
    """
    at = _CHANNELS_AT if len(shape) >= _FIRST_MAP_RANK else len(shape) - 1
    return tuple(d if axis == at else 1 for axis, d in enumerate(shape))


def power(node: OnnxNode, graph: OnnxGraph) -> Fraction:
    """Return d of a homogeneous node: f(s x) = s^d f(x) for every s > 0. The node must be one that `propagate_pattern`
    accepts."""
    if node.op.op_type == "Sqrt":
        return Fraction(1, 2)
    if node.op.op_type == "Pow":
        return Fraction(float(graph.constants[node.inputs[1]].item()))
    return Fraction(2 if node.op.op_type == "Mul" and node.inputs[0] == node.inputs[1] else 1)


def propagate_pattern(node: OnnxNode, graph: OnnxGraph, pattern_by_tensor: Patterns, merge: Merge) -> Array | None:
    """Return the pattern of a node's output by those of its inputs, before it is taken to the node's power.

    Return None where the node is not homogeneous, would mix channels, or has no input with a pattern.

    `merge`: called for two patterns that must be one, as the operands of a sum; it returns the first, as wide as both. It may
    raise or record what it gets.
    """
    if not node.inputs or len([y for y in node.outputs if y]) != 1:
        return None
    rule = _rule(node, graph)
    read = [pattern_by_tensor[n] for n in node.inputs if n in pattern_by_tensor]
    return None if rule is None or not read else rule(node, graph, read, merge)


_Rule = Callable[[OnnxNode, OnnxGraph, list[Array], Merge], Array | None]


def _rule(node: OnnxNode, graph: OnnxGraph) -> _Rule | None:
    """Return the rule of a node's operator, None where the node is not homogeneous in its activations."""
    kind, constant = node.op.op_type, [n in graph.constants for n in node.inputs]
    if node.op.domain not in ("", "ai.onnx") or (constant[0] and kind not in (*SUMS, "Mul")):
        return None
    others_constant = all(constant[1:])
    if kind in SUMS:
        return _sum
    if kind == "Mul":
        return _spread if any(constant) or node.inputs[0] == node.inputs[1] else None
    if kind in ("Concat", "Transpose"):
        return (_propagate_concat if kind == "Concat" else _propagate_transpose) if not any(constant) else None
    if not others_constant:
        return None
    if kind in _POINTWISE or kind == "Sqrt" or (kind == "Clip" and _clips_at_zero(node, graph)):
        return _first
    if kind == "Pow":
        exponent = graph.constants[node.inputs[1]]
        return _first if exponent.size == 1 and exponent.item() > 0 else None
    if kind in _POOLS:
        return _propagate_pool
    if kind in _REDUCTIONS:
        return _propagate_reduction
    return {"Div": _spread, "Pad": _propagate_pad, "Reshape": _propagate_reshape, "Slice": _propagate_slice}.get(kind)


def clamp_bound(node: OnnxNode, graph: OnnxGraph) -> float | None:
    """Return the upper bound of a Clip, None for another node or a Clip without one.

    It is in the units of a channel whose factor is 1, so who chooses factors must keep such channels clear of it.
    """
    if node.op.op_type != "Clip" or len(node.inputs) < 3 or not node.inputs[2]:
        return None
    return graph.constants[node.inputs[2]].item()


def _clips_at_zero(node: OnnxNode, graph: OnnxGraph) -> bool:
    """Return whether the lower bound of a Clip is 0, which keeps it homogeneous but for its upper bound."""
    low = graph.constants[node.inputs[1]] if len(node.inputs) > 1 and node.inputs[1] else np.array(-np.inf)
    return low.size == 1 and low.item() == 0


# --- rules


def _first(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    return read[0]


def _propagate_pool(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    return read[0] if read[0].shape[2:] == (1,) * (read[0].ndim - 2) else None


def _spread(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Return the pattern of a product with a constant, or of a tensor with itself."""
    return _at_rank(read[0], len(graph.types[node.outputs[0]].shape))


def _sum(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Return the pattern of a sum; None where a constant has more channels than the pattern.

    Constants take the factors too, so they may have a number for each channel, or one for all.
    """
    rank = len(graph.types[node.outputs[0]].shape)
    pattern = _at_rank(read[0], rank)
    for other in read[1:]:
        pattern = merge(pattern, _at_rank(other, rank))
    constant_shapes = [graph.constants[n].shape for n in node.inputs if n in graph.constants]
    padded = [(1,) * (rank - len(shape)) + shape for shape in constant_shapes]
    return pattern if all(d == 1 or pattern.shape[axis] > 1 for shape in padded for axis, d in enumerate(shape)) else None


def _propagate_concat(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Return the pattern of a Concat. Along the channels it is the patterns one behind the other, else they must be the
    same."""
    rank = read[0].ndim
    axis = int(node.op.attributes.get("axis", 0)) % rank
    if all(pattern.shape[axis] == 1 for pattern in read):
        joined_pattern = read[0]
        for other in read[1:]:
            joined_pattern = merge(joined_pattern, other)
        return joined_pattern
    lengths = [graph.types[n].shape[axis] for n in node.inputs]
    wide = np.broadcast_shapes(*((*p.shape[:axis], 1, *p.shape[axis + 1 :]) for p in read))
    parts = [np.broadcast_to(p, (*wide[:axis], length, *wide[axis + 1 :])) for p, length in zip(read, lengths)]
    return np.concatenate(parts, axis)


def _propagate_transpose(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    return read[0].transpose(node.op.attributes.get("perm", tuple(reversed(range(read[0].ndim)))))


def _propagate_slice(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    pattern, shape = read[0], graph.types[node.inputs[0]].shape
    starts, ends = (_numbers(node, graph, name) for name in ("starts", "ends"))
    axes = _numbers(node, graph, "axes") or list(range(len(starts)))
    steps = _numbers(node, graph, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if pattern.shape[axis] > 1:
            pattern = pattern.take(range(*slice(start, end, step).indices(shape[axis])), axis % len(shape))
    return pattern


def _propagate_pad(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Return the pattern of a Pad with zeros, None where it adds channels."""
    rank, pads = read[0].ndim, _numbers(node, graph, "pads")
    filled = promote_node(node, graph.constants).op.attributes["value"] or 0.0
    along = [pads[axis] or pads[axis + rank] for axis in range(rank)]
    plain = node.op.attributes.get("mode", "constant") == "constant" and not np.any(filled)
    return read[0] if plain and not any(p and read[0].shape[axis] > 1 for axis, p in enumerate(along)) else None


def _propagate_reduction(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Return the pattern of a reduction; channels that are reduced together have one factor."""
    pattern, rank = read[0], read[0].ndim
    axes = [axis % rank for axis in _numbers(node, graph, "axes")] or list(range(rank))
    for axis in axes:
        first = pattern.take([0], axis)
        for index in range(1, pattern.shape[axis]):
            first = merge(first, pattern.take([index], axis))
        pattern = first
    keeps_dims = bool(node.op.attributes.get("keepdims", 1))
    return pattern if keeps_dims else pattern.reshape([d for axis, d in enumerate(pattern.shape) if axis not in axes])


def _propagate_reshape(node: OnnxNode, graph: OnnxGraph, read: list[Array], merge: Merge) -> Array | None:
    """Return the pattern of a Reshape. Dimensions that are cut or joined with the channels' get a value for each index."""
    before, after = (graph.types[n].shape for n in (node.inputs[0], node.outputs[0]))
    if 0 in before:
        return None
    wide, narrow = list[int](), list[int]()  # only dimensions that go with the channels' are spread
    for before_axes, others in _blocks(before, after):
        varied = any(read[0].shape[axis] > 1 for axis in before_axes)
        wide += [before[axis] if varied else 1 for axis in before_axes]
        narrow += [after[axis] if varied else 1 for axis in others]
    pattern = np.broadcast_to(read[0], wide).reshape(narrow)
    for axis in range(pattern.ndim):
        first = pattern.take([0], axis)
        pattern = first if (pattern == first).all() else pattern
    return pattern


def _blocks(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return pairs of axes of both shapes that hold the same elements in the same order, as few axes at a time as can be."""
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        before_axes, others, left, right = list[int](), list[int](), 1, 1
        while not (before_axes or others) or left != right:
            if left <= right and i < len(before):
                left, before_axes, i = left * before[i], [*before_axes, i], i + 1
            else:
                right, others, j = right * after[j], [*others, j], j + 1
        blocks.append((before_axes, others))
    return blocks


def _at_rank(pattern: Array, rank: int) -> Array:
    """Return the pattern with dimensions of size 1 in front, up to so many dimensions."""
    return pattern.reshape((1,) * (rank - pattern.ndim) + pattern.shape)


def _numbers(node: OnnxNode, graph: OnnxGraph, name: str) -> list[int]:
    """Return the numbers of a constant parameter, an empty list where it is absent."""
    values = promote_node(node, graph.constants).op.attributes[name]
    return [] if values is None else [int(v) for v in np.atleast_1d(values)]
