"""Integer graphs as JSON and one block of array bytes, and back: so that a compiled file carries its own reference."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from quant.fixed_point.requant import Requant
from toolchain.errors import ProgramError
from toolchain.ir.graph import Graph, Node, Quant, TensorType
from toolchain.ops.convolution import IntegerConvolution
from toolchain.ops.elementwise import IntegerBinary, Rescale
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.ops.movement import IntegerPad, Join, Reshape, ResizeNearest, Slice, Transpose
from toolchain.ops.pool import Geometry, IntegerAveragePool, IntegerMaxPool
from toolchain.ops.requants import LookupTable
from toolchain.ops.residual import Residual
from toolchain.ops.unary import Lookup

_CLASSES = {
    c.__name__: c
    for c in (
        Geometry,
        IntegerAveragePool,
        IntegerBinary,
        IntegerConvolution,
        IntegerMatrixProduct,
        IntegerMaxPool,
        IntegerPad,
        Join,
        Lookup,
        LookupTable,
        Node,
        Quant,
        Requant,
        Rescale,
        Reshape,
        Residual,
        ResizeNearest,
        Slice,
        TensorType,
        Transpose,
    )
}


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
    """The inverse of `graph_to_bytes`. Raises ProgramError for what it does not know."""

    def unpack(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(unpack(v) for v in value)
        if not isinstance(value, dict):
            return value
        if "array" in value:
            dtype, shape, start = value["array"]
            count = int(np.prod(shape, dtype=np.int64))
            return np.frombuffer(arrays, np.dtype(dtype).newbyteorder("<"), count, start).astype(dtype).reshape(shape)
        if value["class"] not in _CLASSES:
            raise ProgramError(f"the file holds an operator {value['class']!r} that this version does not know")
        return _CLASSES[value["class"]](**{k: unpack(v) for k, v in value["fields"].items()})

    body = json.loads(text)
    return Graph(
        body["name"],
        tuple(unpack(n) for n in body["nodes"]),
        tuple(body["inputs"]),
        tuple(body["outputs"]),
        {n: unpack(t) for n, t in body["types"].items()},
        {n: unpack(c) for n, c in body["constants"].items()},
    )
