"""Integer graphs as JSON, and back: so that a compiled file carries its own reference. docs/container.md has the keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from toolchain.codegen.json_values import decode_fields, decode_value, encode_value, records
from toolchain.errors import InternalError, NewerFileError, ProgramError, ToolchainError, first_line
from toolchain.ir.graph import INNER, Graph, Node, Origin, TensorType
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import NpuOp
from toolchain.ops.kit.registry import INTEGER_OPERATORS

_LAYOUTS = ("plain", "nhwc", INNER)
_NODE_KEYS = ("fields", "inputs", "name", "operator", "outputs", "sources", "version")

for _operator in INTEGER_OPERATORS.values():
    records(_operator)  # what no file can hold is said at import


def graph_to_text(graph: Graph, array: Callable[[np.ndarray, bool], Any]) -> str:
    """Return the text of a graph whose nodes are integer operators. Deterministic.

    `array`: stores an array's bytes and returns their place; its second argument is true for weights of 4 bits.
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
    """The inverse of `graph_to_text`. Raises ProgramError for what it does not know or what is not of the right kind."""
    try:
        return _graph(json.loads(text), array)
    except (ToolchainError, MemoryError):
        raise
    except Exception as fault:  # whatever an operator's class says of fields that do not fit it
        reason = f"lacks {fault}" if isinstance(fault, KeyError) else first_line(fault)
        raise ProgramError(f"graph: {reason}") from None


def _graph(body: Any, array: Callable[[Any], np.ndarray]) -> Graph:
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
    origin = Origin(*_value(name, origin_value, tuple[str, str], array))
    if origin.layout not in _LAYOUTS:
        raise ValueError(f"tensor {name!r}: layout {origin.layout!r:.20} is none of {', '.join(_LAYOUTS)}")
    return origin


def _value(name: str, value: Any, hint: Any, array: Callable[[Any], np.ndarray]) -> Any:
    try:
        return decode_value(value, hint, array)
    except ValueError as wrong:
        raise ValueError(f"tensor {name!r}: {wrong}") from None


def _node(node_value: Any, array: Callable[[Any], np.ndarray]) -> Node:
    if not isinstance(node_value, dict) or sorted(node_value) != list(_NODE_KEYS):
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
