"""Integer graphs as JSON and one block of array bytes, and back: so that a compiled file carries its own reference."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from functools import cache
from typing import Any

import numpy as np

from toolchain.errors import ProgramError, ToolchainError
from toolchain.ir.graph import Graph, Node, Quant, TensorType
from toolchain.ops.registry import INTEGER_OPERATORS


def _classes() -> dict[str, type]:
    """What a compiled file may hold: the graph, the integer operators, and the dataclasses among their fields."""
    found: dict[str, type] = {}
    waiting: list[Any] = [Node, TensorType, Quant, *INTEGER_OPERATORS.values()]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint.__name__ not in found:
            found[hint.__name__] = hint
            waiting += typing.get_type_hints(hint).values()
    return found


_CLASSES = _classes()


def graph_to_bytes(graph: Graph) -> tuple[str, bytes]:
    """(JSON, array bytes) of a graph whose nodes are integer operators. Deterministic."""
    arrays = bytearray()

    def pack(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            start = len(arrays)
            arrays.extend(np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes())
            return {"array": [value.dtype.name, list(value.shape), start]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            packed = {f.name: pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"class": type(value).__name__, "fields": packed}
        if isinstance(value, tuple | list):
            return [pack(v) for v in value]
        return value

    body = {
        "name": graph.name,
        "nodes": [pack(n) for n in graph.nodes],
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "types": {n: pack(t) for n, t in sorted(graph.types.items())},
        "constants": {n: pack(c) for n, c in sorted(graph.constants.items())},
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":")), bytes(arrays)


def graph_from_bytes(text: str, arrays: bytes) -> Graph:
    """The inverse of `graph_to_bytes`. Raises ProgramError for what it does not know or what is not of the right kind."""
    try:
        return _graph(json.loads(text), _Arrays(arrays))
    except (ToolchainError, MemoryError):
        raise
    except Exception as fault:  # whatever an operator's class says of fields that do not fit it
        reason = f"lacks {fault}" if isinstance(fault, KeyError) else str(fault).partition("\n")[0]
        raise ProgramError(f"graph: {reason}") from None


class _Arrays:
    """The block of array bytes. Each belongs to one array, so that no file unpacks to more than it holds."""

    def __init__(self, data: bytes):
        self.data, self.left = data, len(data)

    def get(self, dtype: str, shape: list[int], start: int) -> np.ndarray:
        kind, count = np.dtype(dtype), math.prod(shape)
        # frombuffer takes a negative count for all there is.
        if kind.kind not in "biuf" or min((start, *shape)) < 0:
            raise ValueError(f"array of {dtype} {shape} at {start}")
        self.left -= count * kind.itemsize
        if self.left < 0:
            raise ValueError(f"its arrays have more bytes together than the {len(self.data)} that it holds")
        return np.frombuffer(self.data, kind.newbyteorder("<"), count, start).astype(kind).reshape(shape)


def _graph(body: Any, arrays: _Arrays) -> Graph:
    graph = Graph(
        body["name"],
        tuple(_unpack(n, arrays) for n in body["nodes"]),
        tuple(body["inputs"]),
        tuple(body["outputs"]),
        {n: _unpack(t, arrays) for n, t in body["types"].items()},
        {n: _unpack(c, arrays) for n, c in body["constants"].items()},
    )
    parts = ((graph.nodes, Node), (graph.types.values(), TensorType), (graph.constants.values(), np.ndarray))
    for values, kind in parts:
        wrong = next((v for v in values if not isinstance(v, kind)), None)
        if wrong is not None:
            raise ValueError(f"holds a {type(wrong).__name__} where a {kind.__name__} belongs")
    inert = next((n.name for n in graph.nodes if not hasattr(n.op, "reference")), None)
    if inert is not None:
        raise ValueError(f"node {inert!r} has no operator")
    return graph


def _unpack(value: Any, arrays: _Arrays) -> Any:
    if isinstance(value, list):
        return tuple(_unpack(v, arrays) for v in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays.get(*value["array"])
    name = value["class"]
    if name not in _CLASSES:
        raise ProgramError(f"graph: holds an operator {name!r} that this version does not know")
    fields = {k: _unpack(v, arrays) for k, v in value["fields"].items()}
    hints = _field_types(name)
    for key, field in fields.items():
        if key in hints and not _fits(field, hints[key]):
            raise ProgramError(f"graph: {name}.{key} is {field!r:.40}")
    return _CLASSES[name](**fields)


@cache
def _field_types(name: str) -> dict[str, Any]:
    hints = typing.get_type_hints(_CLASSES[name])
    return {f.name: hints[f.name] for f in dataclasses.fields(_CLASSES[name])}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a field annotated so may hold the value; arrays and nested classes by their class alone."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and _fits_tuple(value, arguments)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    kind = origin or hint
    if issubclass(kind, enum.Enum):
        return value in [member.value for member in kind]
    return isinstance(value, kind)


def _fits_tuple(values: tuple[Any, ...], hints: tuple[Any, ...]) -> bool:
    if hints[1:] == (...,):
        return all(_fits(v, hints[0]) for v in values)
    return len(values) == len(hints) and all(_fits(v, h) for v, h in zip(values, hints))
