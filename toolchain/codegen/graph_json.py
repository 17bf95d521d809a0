"""Write the integer graph of a compiled file as JSON and read it back. docs/container.md has the keys.

The file so carries its own bit-exact reference. An operator is written by its name, its version and the fields of its
dataclass. A field's type determines how its value is read; no class is named in the file. Values are int, float, str,
bool, None, enumerations (by value), tuples (lists) and dataclasses (objects with all fields). A numpy array is
{"array": place of its bytes}; the caller stores the bytes.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from toolchain.errors import InternalError, NewerFileError, ProgramError, ToolchainError, first_line
from toolchain.foundation.type_guards import is_array, is_dict, is_list, is_sequence
from toolchain.ir.graph import INNER, Graph, Node, Origin, TensorType
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import NpuOp
from toolchain.ops.kit.registry import INTEGER_OPERATORS

ArrayAt = Callable[[Any], np.ndarray]  # the array whose bytes are where a file says
_LAYOUTS = ("plain", "nhwc", INNER)
_NODE_KEYS = ("fields", "inputs", "name", "operator", "outputs", "sources", "version")


def encode_value(value: Any, array: Callable[[np.ndarray], Any]) -> Any:
    """Return the JSON value of a field's value. Raise InternalError for a value that a file cannot hold.

    `array`: stores an array's bytes and returns their place, as JSON.
    """
    if is_array(value):
        return {"array": array(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode_value(getattr(value, f.name), array) for f in dataclasses.fields(value)}
    if is_sequence(value):
        return [encode_value(v, array) for v in value]
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InternalError(f"a compiled file holds no {type(value).__name__}: {value!r:.60}")


def decode_value(value: Any, hint: Any, array: ArrayAt) -> Any:
    """Return the value of type `hint` of a JSON value. Raise ValueError where it is of another kind.

    `array`: returns the array that lies at a place. This is the inverse of `encode_value`.
    """
    return _reader(hint)(value, array)


@cache
def _reader(hint: Any) -> Callable[[Any, ArrayAt], Any]:
    """Return the function that decodes JSON values of one type."""
    inner, origin, arguments = _without_none(hint), _type_origin(hint), typing.get_args(hint)
    if inner is not hint:
        inner_reader = _reader(inner)
        return lambda value, array: None if value is None else inner_reader(value, array)
    if origin is np.ndarray:
        return _array
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type, hint)
        return lambda value, array: kind(**decode_fields(value, kind, array))
    if origin is tuple:
        return _many(_reader(arguments[0])) if arguments[1:] == (...,) else _each([_reader(h) for h in arguments])
    return partial(_plain, hint)


def _array(value: Any, array: ArrayAt) -> np.ndarray:
    """Return the array that a value places. Raise ValueError where the value is no such object."""
    if not isinstance(value, dict) or value.keys() != {"array"}:
        raise ValueError(f"{value!r:.40} is no array")
    return array(value["array"])


def _many(read: Callable[[Any, ArrayAt], Any]) -> Callable[[Any, ArrayAt], tuple[Any, ...]]:
    """Return the decoder of a tuple of any length whose elements `read` decodes."""

    def values(value: Any, array: ArrayAt) -> tuple[Any, ...]:
        if not is_list(value):
            raise ValueError(f"is {value!r:.40}")
        return tuple(read(v, array) for v in value)

    return values


def _each(reads: Sequence[Callable[[Any, ArrayAt], Any]]) -> Callable[[Any, ArrayAt], tuple[Any, ...]]:
    """Return the decoder of a tuple of fixed length, with a decoder for each element."""

    def values(value: Any, array: ArrayAt) -> tuple[Any, ...]:
        if not is_list(value) or len(value) != len(reads):
            raise ValueError(f"is {value!r:.40}")
        return tuple(read(v, array) for read, v in zip(reads, value))

    return values


def _plain(hint: Any, value: Any, array: ArrayAt) -> Any:
    """Return a value of a plain type or enumeration. Raise ValueError where it does not fit the type."""
    if not _fits(value, hint):
        raise ValueError(f"is {value!r:.40}")
    return hint(value) if isinstance(hint, type) and issubclass(hint, enum.Enum) else value


def decode_fields(value: Any, kind: type, array: ArrayAt) -> dict[str, Any]:
    """Return the value of each field of the dataclass `kind`. Raise ValueError, which names the field, for a missing,
    unknown or wrong one.
    """
    hints = field_types(kind)
    if not is_dict(value):
        raise ValueError(f"is {value!r:.40}")
    fault = next((f"lacks {n!r}" for n in hints if n not in value), None)
    fault = fault or next((f"has {n!r:.40}, which it should not" for n in value if n not in hints), None)
    if fault:
        raise ValueError(fault)
    value_by_field: dict[str, Any] = {}
    for name, hint in hints.items():
        try:
            value_by_field[name] = _reader(hint)(value[name], array)
        except ValueError as wrong:
            raise ValueError(f"{name} {wrong}") from None
    return value_by_field


@cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass, by name."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def records(hint: Any) -> dict[str, type]:
    """Return all dataclasses that occur in a type and, recursively, in their fields, by class name.

    Raise InternalError for a type that a file cannot hold.
    """
    hint = _without_none(hint)
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type, hint)
        inner = (records(h) for h in field_types(kind).values())
        return {kind.__name__: kind} | {name: c for kinds in inner for name, c in kinds.items()}
    if _type_origin(hint) is tuple:
        kinds = (records(h) for h in typing.get_args(hint) if h is not ...)
        return {name: c for inner in kinds for name, c in inner.items()}
    describe_type(hint)
    return {}


def describe_type(hint: Any) -> str:
    """Return a type as docs/container.md writes it: `[int, int]`, `array`, `Requant or null`.

    Raise InternalError for a type that a file cannot hold.
    """
    inner, origin, arguments = _without_none(hint), _type_origin(hint), typing.get_args(hint)
    if inner is not hint:
        return f"{describe_type(inner)} or null"
    if origin is np.ndarray:
        return "array"
    if origin is tuple:
        return f"[{', '.join('...' if h is ... else describe_type(h) for h in arguments)}]"
    if origin is typing.Literal:
        return " or ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(f'"{member.value}"' for member in hint)
    if isinstance(hint, type) and (hint in (int, float, str, bool) or dataclasses.is_dataclass(hint)):
        return hint.__name__
    raise InternalError(f"a field of type {hint}: a compiled file cannot hold it; docs/container.md lists what it can")


def _type_origin(hint: Any) -> Any:
    """`typing.get_origin`, of what a name stands for: from 2.5 on NumPy's arrays have one."""
    origin = typing.get_origin(hint)
    return typing.get_origin(origin.__value__) if hasattr(origin, "__value__") else origin


def _without_none(hint: Any) -> Any:
    """T of `T | None`; any other type as it is."""
    if _type_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    others = [h for h in typing.get_args(hint) if h is not types.NoneType]
    return others[0] if len(others) == 1 else hint


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a field of a plain type may hold the value."""
    if _type_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if not isinstance(hint, type):
        return False
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    return isinstance(value, hint)


for _operator in INTEGER_OPERATORS.values():
    records(_operator)  # what no file can hold is said at import


def graph_to_text(graph: Graph, array: Callable[[np.ndarray, bool], Any]) -> str:
    """Return the JSON text of a graph of integer operators. The same graph gives the same text.

    Inputs, outputs and states of the graph are not written. Raise InternalError for a node of another kind. `array`:
    stores an array's bytes and returns their place. Its second argument is true for weights of 4 bits.
    """
    narrow = {n.inputs[1] for n in graph.nodes if isinstance(n.op, IntegerConvolution) and n.op.weight_type.bits == 4}

    def wide(value: np.ndarray) -> Any:
        return array(value, False)

    body = {
        "name": graph.name,
        "nodes": [_pack_node(n, wide) for n in graph.nodes],
        "types": {n: encode_value(t, wide) for n, t in graph.types.items()},
        # in the order of their bytes in the file
        "constants": {n: {"array": array(c, n in narrow)} for n, c in sorted(graph.constants.items())},
        "origins": {n: list(origin) for n, origin in graph.origins.items()},
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def _pack_node(node: Node, array: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    """Return a node as JSON. Raise InternalError where it is no integer operator."""
    op = node.op
    if not isinstance(op, NpuOp) or INTEGER_OPERATORS.get(op.NAME) is not type(op):
        raise InternalError(f"node {node.name}: {type(op).__name__} is no integer operator of toolchain.ops")
    return {
        "name": node.name,
        "operator": op.NAME,
        "version": op.VERSION,
        "fields": encode_value(op, array),
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "sources": list(node.sources),
    }


def graph_from_text(text: str, array: Callable[[Any], np.ndarray]) -> Graph:
    """Return the graph of a text of `graph_to_text`, without inputs and outputs.

    Raise ProgramError for whatever is malformed; NewerFileError for an operator or version that this toolchain does not
    know. `array`: returns the array that lies at a place.
    """
    try:
        return _graph(json.loads(text), array)
    except (ToolchainError, MemoryError):
        raise
    except Exception as fault:  # whatever an operator's class says of fields that do not fit it
        reason = f"lacks {fault}" if isinstance(fault, KeyError) else first_line(fault)
        raise ProgramError(f"graph: {reason}") from None


def _graph(body: Any, array: Callable[[Any], np.ndarray]) -> Graph:
    """Return the graph of a JSON object; it has no inputs and outputs."""
    return Graph(
        body["name"],
        tuple(_node(n, array) for n in body["nodes"]),
        (),
        (),
        {n: _value(n, t, TensorType, array) for n, t in body["types"].items()},
        {n: _value(n, c, np.ndarray[Any, Any], array) for n, c in body["constants"].items()},
        {n: _origin(n, o, array) for n, o in body.get("origins", {}).items()},  # files of older builds do not say them
    )


def _origin(name: str, origin_value: Any, array: Callable[[Any], np.ndarray]) -> Origin:
    """Return the origin of a tensor. Raise ValueError where its layout is unknown."""
    origin = Origin(*_value(name, origin_value, tuple[str, str], array))
    if origin.layout not in _LAYOUTS:
        raise ValueError(f"tensor {name!r}: layout {origin.layout!r:.20} is none of {', '.join(_LAYOUTS)}")
    return origin


def _value(name: str, value: Any, hint: Any, array: Callable[[Any], np.ndarray]) -> Any:
    """Decode a value of type `hint`. Raise ValueError that names the tensor."""
    try:
        return decode_value(value, hint, array)
    except ValueError as wrong:
        raise ValueError(f"tensor {name!r}: {wrong}") from None


def _node(node_value: Any, array: Callable[[Any], np.ndarray]) -> Node:
    """Return the node of its JSON. Raise NewerFileError for an unknown operator or version, ValueError that names the
    node for another fault.
    """
    if not is_dict(node_value) or sorted(node_value) != list(_NODE_KEYS):
        raise ValueError(f"a node has {', '.join(_NODE_KEYS)}, not {node_value!r:.40}")
    name, operator = node_value["name"], node_value["operator"]
    operator_class = INTEGER_OPERATORS.get(operator) if isinstance(operator, str) else None
    if operator_class is None:
        raise NewerFileError(
            f"node {name!r} is an operator {operator!r:.40}, which this toolchain does not know: a newer one, or one with an "
            f"operator of its own, wrote the file; read it with that, or build it again"
        )
    if node_value["version"] != operator_class.VERSION:
        raise NewerFileError(
            f"node {name!r}: operator {operator} has version {node_value['version']!r:.20}, this toolchain reads "
            f"{operator_class.VERSION}; "
            f"build the file again, or read it with the toolchain that wrote it"
        )
    try:
        op = operator_class(**decode_fields(node_value["fields"], operator_class, array))
        texts = {k: decode_value(node_value[k], tuple[str, ...], array) for k in ("inputs", "outputs", "sources")}
        return Node(decode_value(name, str, array), op, texts["inputs"], texts["outputs"], texts["sources"])
    except ValueError as wrong:
        raise ValueError(f"node {name!r} ({operator}): {wrong}") from None
