"""Graphs as text, for people and for dumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeGuard

import numpy as np

from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType


def print_graph(graph: Graph) -> str:
    """One line a node: outputs with their types, operator with its parameters, inputs."""
    lines = [f"graph {graph.name} ({', '.join(graph.inputs)}) -> ({', '.join(graph.outputs)})"]
    for node in graph.nodes:
        outputs = ", ".join(f"{n}: {print_type(graph.types[n])}" for n in node.outputs if n in graph.types)
        lines.append(f"  {outputs} = {print_operator(node)}({', '.join(node.inputs)})  # {node.name}")
    for name, value in sorted(graph.constants.items()):
        lines.append(f"  constant {name}: {print_type(graph.types[name])} = {_array(value)}")
    return "\n".join(lines) + "\n"


def print_type(kind: TensorType) -> str:
    quant = f" {{scale {kind.quant.scale:.9g}, zero point {kind.quant.zero_point}}}" if kind.quant else ""
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]{quant}"


def print_operator(node: Node) -> str:
    if isinstance(node.op, OnnxOp):
        attributes = ", ".join(f"{k}={_value(v)}" for k, v in sorted(node.op.attributes.items()))
        return f"{node.op.domain or 'onnx'}.{node.op.op_type}<{attributes}>"
    return _value(node.op)


def _value(value: Any) -> str:
    """Return the text of a value of any depth.

    A part that occurs several times is written at its first occurrence as `#1=...`, and is `#1` afterwards.
    """
    repeated, numbers = _get_repeated_ids(value), dict[int, int]()
    pieces: list[str] = []
    waiting: list[Any] = [value]  # the next one last; a str is written as it is
    while waiting:
        part = waiting.pop()
        if not _is_sequence(part) and not _has_fields(part):
            pieces.append(_plain(part))
            continue
        if id(part) in numbers:
            pieces.append(f"#{numbers[id(part)]}")
            continue
        if id(part) in repeated:
            numbers[id(part)] = len(numbers) + 1
            pieces.append(f"#{numbers[id(part)]}=")
        waiting += reversed(_list_pieces(part))
    return "".join(pieces)


def _list_pieces(part: Any) -> list[Any]:
    """A tuple or dataclass as texts and the values between them."""
    if _has_fields(part):
        inside = [piece for f in fields(part) for piece in (", ", f"{f.name}=", getattr(part, f.name))]
        return [f"{type(part).__name__}<", *inside[1:], ">"]
    return ["(", *[piece for item in part for piece in (", ", item)][1:], ")"]


def _get_repeated_ids(value: Any) -> set[int]:
    """The ids of tuples of tuples that are met more than once."""
    met, repeated = set[int](), set[int]()
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if _has_fields(part):
            waiting += [getattr(part, f.name) for f in fields(part)]
        elif _is_sequence(part) and any(_is_sequence(item) for item in part):
            if id(part) in met:
                repeated.add(id(part))
                continue
            met.add(id(part))
            waiting += part
    return repeated


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, tuple | list)


def _has_fields(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _is_array(value: object) -> TypeGuard[np.ndarray]:
    return isinstance(value, np.ndarray)


def _plain(value: Any) -> str:
    if _is_array(value):
        return _array(value)
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _array(value: np.ndarray) -> str:
    if value.size <= 8:
        return "[" + ", ".join(_plain(v) for v in value.reshape(-1).tolist()) + "]"
    return f"<{value.dtype.name}{list(value.shape)} {value.min():.6g}..{value.max():.6g}>"
