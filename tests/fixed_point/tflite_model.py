"""Make models of one TFLite operator as flatbuffers, and run them by the reference kernels (test only).

    `x = Tensor((1, 8), np.int8, scale=0.1, zero_point=3)`.
    `y = Tensor((1, 8), np.int8, scale=1 / 256, zero_point=-128)`.
    `model = single_operator("SOFTMAX", [x], [y], "SoftmaxOptions", beta=1.0)`.
    `(out,) = run(model, [codes])` runs LiteRT's reference kernels.
    `(out,) = run(model, [codes], engine="micro")` runs TFLite Micro.

`ai-edge-litert` writes and runs, `tflite-micro` runs. `missing(engine)` returns the reason to skip, or None.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Engine = Literal["reference", "optimized", "micro"]
_PACKAGES = {
    "reference": ("ai_edge_litert", "ai-edge-litert"),
    "optimized": ("ai_edge_litert", "ai-edge-litert"),
    "micro": ("tflite_micro", "tflite-micro"),
}
_TYPE_NAMES = {"float32": "FLOAT32", "int32": "INT32", "int64": "INT64", "uint8": "UINT8", "int8": "INT8"}
_TYPE_NAMES |= {"int16": "INT16", "bool": "BOOL"}


@dataclass(frozen=True)
class Tensor:
    """One tensor. scale and zero_point: numbers, or one a channel of `axis`; with `data` a constant of the model."""

    shape: tuple[int, ...]
    dtype: Any
    scale: float | Sequence[float] | None = None
    zero_point: int | Sequence[int] = 0
    axis: int = 0
    data: np.ndarray | None = None
    name: str = ""


def constant(data: np.ndarray, scale: Any = None, zero_point: Any = 0, axis: int = 0) -> Tensor:
    """A constant tensor, shape and type taken from data."""
    return Tensor(data.shape, data.dtype, scale, zero_point, axis, data)


def missing(engine: Engine = "reference") -> str | None:
    """The reason why models cannot be written or run by `engine` here, or None. Writing needs ai-edge-litert always."""
    for module, package in {_PACKAGES["reference"], _PACKAGES[engine]}:
        if importlib.util.find_spec(module) is None:
            return f"{package} is not installed (pip install {package})"
    return None


def single_operator(
    op: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    options: str | None = None,
    *,
    version: int = 1,
    **fields: Any,
) -> bytes:
    """Return the .tflite bytes of one builtin operator.

    `op`: its name in BuiltinOperator ("CONV_2D").
    `inputs`: in the operator's order, None for an omitted one (no bias).
    `options`: its table in BuiltinOptions ("Conv2DOptions").
    `fields`: the entries of that table (strideW=2, padding=1; enumerations by number, `code("Padding", "VALID")`).

    Tensors without data are the model's inputs, in order.
    """
    schema = _schema()
    flatbuffers: Any = importlib.import_module("flatbuffers")
    graph, model = schema.SubGraphT(), schema.ModelT()
    graph.tensors, model.buffers = [], [schema.BufferT()]
    graph.inputs, graph.outputs, operator = [], [], schema.OperatorT()
    operator.inputs = [-1 if t is None else _add(model, graph, t) for t in inputs]
    operator.outputs = [_add(model, graph, t) for t in outputs]
    graph.inputs = [i for i, t in zip(operator.inputs, inputs, strict=True) if t is not None and t.data is None]
    graph.outputs = list(operator.outputs)
    if options is not None:
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        operator.builtinOptions = getattr(schema, options + "T")()
        for name, value in fields.items():
            if not hasattr(operator.builtinOptions, name):
                raise AttributeError(f"{options} has no field {name}")
            setattr(operator.builtinOptions, name, value)
    operator.opcodeIndex = 0
    graph.operators = [operator]
    kind = schema.OperatorCodeT()
    kind.builtinCode = getattr(schema.BuiltinOperator, op)
    kind.deprecatedBuiltinCode = min(kind.builtinCode, 127)
    kind.version = version
    model.version, model.operatorCodes, model.subgraphs = 3, [kind], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def code(enumeration: str, name: str) -> int:
    """The number of an enumeration of the schema: code("Padding", "SAME")."""
    return getattr(getattr(_schema(), enumeration), name)


def run(model: bytes, inputs: Sequence[np.ndarray], engine: Engine = "reference") -> list[np.ndarray]:
    """The outputs for these inputs. reference: LiteRT with BuiltinRefOpResolver; optimized: LiteRT's optimized kernels
    without XNNPACK; micro: TFLite Micro."""
    if engine == "micro":
        runtime: Any = importlib.import_module("tflite_micro").runtime
        micro = runtime.Interpreter.from_bytes(model, arena_size=1 << 24)
        for i, x in enumerate(inputs):
            micro.set_input(x, i)
        micro.invoke()
        outputs = len(_schema().ModelT.InitFromPackedBuf(model).subgraphs[0].outputs)
        return [np.array(micro.get_output(i)) for i in range(outputs)]
    litert: Any = importlib.import_module("ai_edge_litert.interpreter")
    kinds = litert.OpResolverType
    kind = kinds.BUILTIN_REF if engine == "reference" else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = litert.Interpreter(model_content=model, experimental_op_resolver_type=kind, num_threads=1)
    interpreter.allocate_tensors()
    for detail, x in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]


def _schema() -> Any:
    return importlib.import_module("ai_edge_litert.schema_py_generated")


def _add(model: Any, graph: Any, t: Tensor) -> int:
    schema = _schema()
    tensor = schema.TensorT()
    tensor.shape = list(t.shape)
    tensor.type = getattr(schema.TensorType, _TYPE_NAMES[np.dtype(t.dtype).name])
    tensor.name = t.name or f"t{len(graph.tensors)}"
    tensor.buffer = len(model.buffers)
    buffer = schema.BufferT()
    if t.data is not None:
        buffer.data = np.frombuffer(np.ascontiguousarray(t.data, dtype=t.dtype).tobytes(), dtype=np.uint8)
    model.buffers.append(buffer)
    if t.scale is not None:
        scales = np.atleast_1d(np.asarray(t.scale, dtype=np.float32))
        quantization = schema.QuantizationParametersT()
        quantization.scale = scales
        quantization.zeroPoint = np.broadcast_to(np.asarray(t.zero_point, dtype=np.int64), scales.shape).copy()
        quantization.quantizedDimension = t.axis
        tensor.quantization = quantization
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1
