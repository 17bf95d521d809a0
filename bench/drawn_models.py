"""Draws random models of one node that onnxruntime mostly refuses to open or to run, for bench/fuzz_readers.py.

The node is of any operator, with inputs and attributes of any value.
Its opset, version and domain may not exist.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 3, 8, 8)  # of the input x
DOMAINS = ("", "com.microsoft", "ai.onnx.ml", "local", "ai.onnx.training")
OPSETS = (17,) * 20 + (21,) * 16 + (13, 11, 7, 0, -1, 99)
VERSIONS = (*(8,) * 30, *(10,) * 10, 3, 0, -1, 99)
TYPES = (*(TensorProto.FLOAT,) * 40, *(getattr(TensorProto, n) for n in ("DOUBLE", "FLOAT16", "BFLOAT16", "STRING", "COMPLEX64")))
INTEGERS = (*(0, 1, 2, 3, -1) * 5, 4, 8, -2, 5, 7, 16, 99, 1 << 31, -(1 << 63), (1 << 63) - 1)
FLOATS = (*(0.0, 1.0, 0.5, -1.0, 2.0) * 40, 1e38, -1e38, 1e-45, float("nan"), float("inf"))
STRINGS = (
    "",
    "NOTSET",
    "SAME_UPPER",
    "VALID",
    "constant",
    "reflect",
    "edge",
    "linear",
    "nearest",
    "cubic",
    "bidirectional",
    "ij,jk->ik",
    "...",
    "é",
)
ONNX_NAMES = {"float32": "float", "float64": "double", "object": "string"}  # numpy -> ONNX
LISTED = (
    "Gather",
    "Reshape",
    "Slice",
    "Expand",
    "Tile",
    "Pad",
    "Resize",
    "Split",
    "TopK",
    "ScatterND",
    "GatherND",
    "Conv",
    "Concat",
)


def model(rng: random.Random, _: bytes) -> bytes:
    """Serialized ONNX with an input x of SHAPE: a Relu, the drawn node, and in half of the cases an operator behind it."""
    schema, values = _schema(rng), _initializers(rng)
    inputs = _inputs(rng, schema, values)
    outputs = ["a", *(f"a{i}" for i in range(1, min(schema.min_output, 4)))]
    domain = schema.domain if rng.random() < 0.95 else rng.choice(DOMAINS)
    drawn = onnx.NodeProto(op_type=schema.name, input=inputs, output=outputs, name="drawn", domain=domain)
    drawn.attribute.extend(_attributes(rng, schema))
    last = helper.make_node(rng.choice(("Sigmoid", "Relu", "Identity", "Shape", "Frobnicate")), ["a"], ["y"])
    successors, result = ([last], "y") if rng.random() < 0.5 else ([], "a")
    x = helper.make_tensor_value_info("x", rng.choice(TYPES), SHAPE)
    y = helper.make_tensor_value_info(result, _output_type(rng, schema), rng.choice((None, None, SHAPE, (1,))))
    tensors = [numpy_helper.from_array(array, name) for name, array in values.items() if name in inputs]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r"]), drawn, *successors], "g", [x], [y], tensors)
    opsets = [helper.make_opsetid(d, rng.choice(OPSETS) if not d else 1) for d in {"": 0, domain: 0} if rng.random() < 0.99]
    return helper.make_model(graph, ir_version=rng.choice(VERSIONS), opset_imports=opsets).SerializeToString()


def _inputs(rng: random.Random, schema: onnx.defs.OpSchema, values: Mapping[str, np.ndarray]) -> list[str]:
    """Mostly as many as the operator takes, and of the types that it takes."""
    most = min(schema.max_input, 4) if rng.random() < 0.95 else 6
    names = []
    for index in range(rng.randint(min(schema.min_input, most), most)):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)].types if schema.inputs else ()
        fitting = [n for n, v in values.items() if f"tensor({ONNX_NAMES.get(v.dtype.name, v.dtype.name)})" in formal]
        if "tensor(float)" in formal and (index == 0 or rng.random() < 0.3):
            fitting = ["r"]
        names.append(rng.choice(fitting or ["r"]) if rng.random() < 0.93 else rng.choice(("r", "x", "", "missing", *values)))
    return names


def _output_type(rng: random.Random, schema: onnx.defs.OpSchema) -> int:
    types = schema.outputs[0].types if schema.outputs and rng.random() < 0.95 else ()
    fitting = [
        t
        for t, n in ((TensorProto.FLOAT, "float"), (TensorProto.BOOL, "bool"), (TensorProto.INT64, "int64"))
        if f"tensor({n})" in types
    ]
    return fitting[0] if fitting else rng.choice(TYPES)


def _schema(rng: random.Random) -> onnx.defs.OpSchema:
    schemas = onnx.defs.get_all_schemas()
    if rng.random() < 0.4:
        schemas = [s for s in schemas if s.name in LISTED and not s.domain]
    return rng.choice(sorted(schemas, key=lambda s: (s.domain, s.name)))


def _initializers(rng: random.Random) -> Mapping[str, np.ndarray]:
    def integers(count: int) -> np.ndarray:
        return np.array([rng.choice(INTEGERS) for _ in range(count)], np.int64)

    def floats(*shape: int) -> np.ndarray:
        return np.array(rng.choices(FLOATS, k=int(np.prod(shape))), np.float32).reshape(shape)

    return {
        "i": integers(rng.randrange(6)),
        "j": integers(1).reshape(()),
        "k": integers(4),
        "m": integers(2).reshape(1, 2),
        "f": floats(3),
        "g": floats(),
        "w": floats(*rng.choice(((4, 3, 3, 3), (4, 2, 3, 3), (8, 8), (0, 3)))),
        "b": np.array([True, False]),
        "s": np.array(["a", "é"], object),
        "c": np.array([0, 255], np.uint8),
        "h": np.zeros((2, 2), np.float16),
    }


def _attributes(rng: random.Random, schema: onnx.defs.OpSchema) -> list[onnx.AttributeProto]:
    kinds = onnx.defs.OpSchema.AttrType
    draws: dict[Any, Callable[[], Any]] = {
        kinds.INT: lambda: rng.choice(INTEGERS),
        kinds.INTS: lambda: rng.choices(INTEGERS, k=rng.choice((1, 2, 2, 4, 4, 3))),
        kinds.FLOAT: lambda: rng.choice(FLOATS),
        kinds.FLOATS: lambda: rng.choices(FLOATS, k=2),
        kinds.STRING: lambda: rng.choice(STRINGS),
        kinds.STRINGS: lambda: rng.choices(STRINGS, k=2),
        kinds.GRAPH: lambda: _body(rng),
        kinds.TENSOR: lambda: numpy_helper.from_array(rng.choice(list(_initializers(rng).values())), "t"),
    }
    drawn: dict[str, Any] = {}
    for name, attribute in sorted(schema.attributes.items()):
        if attribute.type in draws and rng.random() < (0.95 if attribute.required else 0.4):
            drawn[name] = draws[attribute.type if rng.random() < 0.97 else rng.choice(list(draws))]()
    if rng.random() < 0.02:
        drawn["no_such_attribute"] = 1
    return [helper.make_attribute(name, value) for name, value in drawn.items()]


def _body(rng: random.Random) -> onnx.GraphProto:
    """A graph that some operator could run, with up to three inputs of which it reads the last one or r."""
    inputs = [helper.make_tensor_value_info(n, t, None) for n, t in zip("uvz", rng.choices((*TYPES[:1], TensorProto.BOOL), k=3))]
    inputs = inputs[: rng.randrange(4)]
    read = inputs[-1].name if inputs and rng.random() < 0.7 else "r"
    nodes = [helper.make_node(rng.choice(("Relu", "Identity", "Shape")), [read], [f"o{i}"]) for i in range(rng.randrange(3))]
    outputs = [helper.make_tensor_value_info(n.output[0], rng.choice(TYPES), None) for n in nodes]
    return helper.make_graph(nodes, "body", inputs, outputs)
