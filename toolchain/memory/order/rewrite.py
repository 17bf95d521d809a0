"""Rewrite a graph before its order is searched: operators that only move bytes go, and views take their place.

A view is a tensor that lies inside another one. Callers choose the operators by name; nothing is recognized here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from toolchain.memory.order.graph import InvalidGraph, Operator


@dataclass(frozen=True)
class Rewritten:
    """A graph after a rewrite; the given one is not changed.

    `operators`: those left, reading what stands for the tensors that went; copies among them where a rewrite needs any.
    `tensor_sizes`: bytes, of the tensors that went too.
    `graph_outputs`: a renamed output is replaced by all that stands for it.
    `views`: tensor -> (tensor it lies in, offset in bytes), for `Buffer.view_of`.
    """

    operators: tuple[Operator, ...]
    tensor_sizes: Mapping[str, int]
    graph_outputs: tuple[str, ...]
    views: Mapping[str, tuple[str, int]]


def drop_no_ops(
    operators: Sequence[Operator], tensor_sizes: Mapping[str, int], graph_outputs: Iterable[str], names: Iterable[str]
) -> Rewritten:
    """Remove operators that hand their one input on unchanged (reshape, identity, a split into one).

    Readers of the output read the input instead, and the output is a view of it at offset 0.
    `names`: the operators to remove. Raise InvalidGraph where one is unknown or has not one input and one output.
    """
    remaining_ops = list(operators)
    renamed: dict[str, tuple[str, ...]] = {}
    for name in names:
        op = _get_operator(remaining_ops, name)
        if len(op.inputs) != 1 or len(op.outputs) != 1:
            raise InvalidGraph(f"operator {name}: has {len(op.inputs)} inputs and {len(op.outputs)} outputs, no no-op")
        remaining_ops.remove(op)
        renamed[op.outputs[0]] = op.inputs
    views: dict[str, tuple[str, int]] = {t: (_expand(t, renamed)[0], 0) for t in renamed}
    return _substitute_tensors(remaining_ops, tensor_sizes, graph_outputs, renamed, views)


def split_by_view(
    operators: Sequence[Operator], tensor_sizes: Mapping[str, int], graph_outputs: Iterable[str], names: Iterable[str]
) -> Rewritten:
    """Remove splits: their outputs are views of the first input, one behind another, and readers read that input itself.

    `names`: the splits. Raise InvalidGraph where one is unknown, or its outputs have not together the bytes of the input.
    """
    remaining_ops = list(operators)
    renamed: dict[str, tuple[str, ...]] = {}
    views: dict[str, tuple[str, int]] = {}
    for name in names:
        op = _get_operator(remaining_ops, name)
        _check_bytes(op, op.inputs[:1], op.outputs, tensor_sizes)
        remaining_ops.remove(op)
        for t, offset in zip(op.outputs, _offsets(op.outputs, tensor_sizes)):
            renamed[t] = op.inputs[:1]
            views[t] = (op.inputs[0], offset)
    return _substitute_tensors(remaining_ops, tensor_sizes, graph_outputs, renamed, views)


def concat_by_view(
    operators: Sequence[Operator],
    tensor_sizes: Mapping[str, int],
    graph_outputs: Iterable[str],
    names: Iterable[str],
    scattered: bool = False,
) -> Rewritten:
    """Remove concatenations: parts are written straight into their place in the output, and readers read the parts.

    A tensor has one place: the first concatenation in `names` that wants it gets it.
    A later one gets a copy, made by a new operator `NAME.copyK`.
    The output's bytes are needed for each part only from when the part is made.

    `scattered`: readers take parts that do not lie side by side. Then no copies are made, and only the first place is in `views`.
    Raise InvalidGraph where an operator is unknown, or its inputs have not together the bytes of its output.
    """
    remaining_ops, sizes = list(operators), dict(tensor_sizes)
    renamed: dict[str, tuple[str, ...]] = {}
    views: dict[str, tuple[str, int]] = {}
    for name in names:
        op = _get_operator(remaining_ops, name)
        _check_bytes(op, op.outputs[:1], op.inputs, sizes)
        at = remaining_ops.index(op)
        remaining_ops.remove(op)
        parts: list[str] = []
        copies: list[Operator] = []
        for k, (t, offset) in enumerate(zip(op.inputs, _offsets(op.inputs, sizes))):
            part = t
            if (t in views or t in parts) and not scattered:
                part = f"{op.outputs[0]}.part{k}"
                sizes[part] = sizes[t]
                copies.append(Operator(f"{name}.copy{k}", (t,), (part,)))
            views.setdefault(part, (op.outputs[0], offset))
            parts.append(part)
        remaining_ops[at:at] = copies
        renamed[op.outputs[0]] = tuple(parts)
    return _substitute_tensors(remaining_ops, sizes, graph_outputs, renamed, views)


def _substitute_tensors(
    operators: Sequence[Operator],
    sizes: Mapping[str, int],
    graph_outputs: Iterable[str],
    renamed: Mapping[str, tuple[str, ...]],
    views: Mapping[str, tuple[str, int]],
) -> Rewritten:
    """Return the graph with every use of a renamed tensor replaced by uses of what stands for it.

    In-place pairs on a tensor that several stand for are dropped.
    """
    changed: list[Operator] = []
    for op in operators:
        inputs = tuple(dict.fromkeys(x for t in op.inputs for x in _expand(t, renamed)))
        in_place = tuple((out, _expand(old, renamed)[0]) for out, old in op.in_place if len(_expand(old, renamed)) == 1)
        changed.append(replace(op, inputs=inputs, in_place=in_place))
    outputs = tuple(dict.fromkeys(x for t in graph_outputs for x in _expand(t, renamed)))
    return Rewritten(tuple(changed), dict(sizes), outputs, dict(views))


def _expand(tensor: str, renamed: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the tensors that stand for a tensor in the end, itself where it is not renamed."""
    if tensor not in renamed:
        return (tensor,)
    return tuple(x for t in renamed[tensor] for x in _expand(t, renamed))


def _get_operator(operators: Sequence[Operator], name: str) -> Operator:
    for op in operators:
        if op.name == name:
            return op
    raise InvalidGraph(f"operator {name}: is not in the graph")


def _offsets(tensors: Sequence[str], sizes: Mapping[str, int]) -> list[int]:
    return [0, *accumulate(sizes[t] for t in tensors)][: len(tensors)]


def _check_bytes(op: Operator, outputs: Sequence[str], parts: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Raise InvalidGraph unless there is one output, and the parts have together as many bytes."""
    have, want = sum(sizes[t] for t in parts), sum(sizes[t] for t in outputs)
    if len(outputs) != 1 or have != want:
        raise InvalidGraph(f"operator {op.name}: its parts have {have} bytes, the whole {want}: no concat or split")
