"""Read ONNX models of onnxruntime's EPContext form: nodes that hold what an execution provider has compiled, and host nodes.

`npu-sim` and sessions run such a model: context nodes hold a compiled file, and the host nodes between them are ONNX models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import AttributeProto, helper

from toolchain.errors import CompileError, ProgramError
from toolchain.frontend.convert import dtype_name
from toolchain.frontend.model_source import ModelFile
from toolchain.frontend.read_onnx import check_size, parse
from toolchain.ir.graph import TensorType

DOMAIN, OP_TYPE = "com.microsoft", "EPContext"
# The attributes of onnxruntime's schema, https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html
ATTRIBUTES = {
    "main_context": AttributeProto.INT,
    "ep_cache_context": AttributeProto.STRING,
    "embed_mode": AttributeProto.INT,
    "ep_sdk_version": AttributeProto.STRING,
    "onnx_model_filename": AttributeProto.STRING,
    "hardware_architecture": AttributeProto.STRING,
    "partition_name": AttributeProto.STRING,
    "source": AttributeProto.STRING,
    "notes": AttributeProto.STRING,
    "max_size": AttributeProto.INT,
}
EMBEDDED, EXTERNAL = 1, 0  # values of embed_mode (docs/python.md)


@dataclass(frozen=True)
class ContextNode:
    """An EPContext node.

    `context`: for a main node, the compiled bytes, or the relative path of their file where not `is_embedded`.
    Other nodes find their part in the context of a main one, by `partition`.
    `source`, `architecture`: the attributes source and hardware_architecture.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_main: bool
    is_embedded: bool
    context: bytes
    partition: str
    source: str
    architecture: str


@dataclass(frozen=True)
class HostNodes:
    """Consecutive nodes that onnxruntime runs. `model`: a serialized ONNX model of them. `nodes`: their names.

    `outputs`: the tensors that other parts read, or the whole model gives out.
    """

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ContextModel:
    """A model with EPContext nodes. `inputs`, `outputs`: types by name. `parts`: in the file's order."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    parts: tuple[ContextNode | HostNodes, ...]

    @property
    def context_nodes(self) -> tuple[ContextNode, ...]:
        """The parts that are EPContext nodes."""
        return tuple(part for part in self.parts if isinstance(part, ContextNode))


def read_context_model(file: ModelFile) -> ContextModel | None:
    """Return the parts of a model with EPContext nodes; None of a file that is no ONNX model with such nodes.

    Raise ProgramError where a node does not follow the schema, CompileError where the model is too large.
    """
    try:
        proto = parse(file)
    except CompileError:
        return None
    if not any(is_context(node) for node in proto.graph.node):
        return None
    check_size(proto, file)
    groups, initializers = _split(proto.graph.node), {tensor.name: tensor for tensor in proto.graph.initializer}
    types = {v.name: v for v in (*proto.graph.value_info, *proto.graph.output, *proto.graph.input)}
    readers: dict[str, set[int]] = {v.name: {-1} for v in proto.graph.output}
    for index, nodes in enumerate(groups):
        for name in (name for node in nodes for name in node.input):
            readers.setdefault(name, set()).add(index)
    parts = [
        _context_node(nodes[0], file)
        if is_context(nodes[0])
        else _host_nodes(
            proto, nodes, types, initializers, lambda name, index=index: bool(readers.get(name, set()) - {index}), file
        )
        for index, nodes in enumerate(groups)
    ]
    inputs = {v.name: _tensor_type(v, file) for v in proto.graph.input if v.name not in initializers}
    return ContextModel(inputs, {v.name: _tensor_type(v, file) for v in proto.graph.output}, tuple(parts))


def is_context(node: onnx.NodeProto) -> bool:
    """Return whether a node is an EPContext node."""
    return (node.domain, node.op_type) == (DOMAIN, OP_TYPE)


def context_path(context: bytes, base: Path | None) -> Path:
    """Return the file that an EPContext node names.

    `base`: the folder of the model; None: the model is in memory.
    Raise ProgramError where the path is not relative, or leaves the folder.
    """
    text = context.decode(errors="replace")
    parts = text.replace("\\", "/").split("/")
    if not text or "\0" in text or ".." in parts or not parts[0] or ":" in parts[0]:
        raise ProgramError(f"its context {text!r} must be a path relative to the model, without '..'")
    if base is None:
        raise ProgramError(f"its context {text!r} lies in a file, and the model is in memory; give the path of the model")
    file = base.joinpath(*parts).resolve()
    if not file.is_relative_to(base):
        raise ProgramError(f"its context {text!r} leads outside the folder of the model")
    return file


def _split(nodes: Iterable[onnx.NodeProto]) -> list[list[onnx.NodeProto]]:
    """Return each EPContext node alone, and host nodes as they follow each other."""
    groups: list[list[onnx.NodeProto]] = []
    for node in nodes:
        if groups and not is_context(node) and not is_context(groups[-1][0]):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _context_node(node: onnx.NodeProto, file: ModelFile) -> ContextNode:
    """Return an EPContext node. Raise ProgramError for unknown attributes, and values outside the schema."""
    values: dict[str, int | bytes] = {"main_context": 1, "embed_mode": EMBEDDED}
    for attribute in node.attribute:
        expected = ATTRIBUTES.get(attribute.name)
        if expected is None or attribute.type != expected:
            kind = "no attribute of EPContext" if expected is None else f"not {AttributeProto.AttributeType.Name(expected)}"
            raise ProgramError(f"{file}: node {node.name}: its attribute {attribute.name!r} is {kind}")
        values[attribute.name] = attribute.i if expected == AttributeProto.INT else attribute.s
    for name in ("main_context", "embed_mode"):
        if values[name] not in (0, 1):
            raise ProgramError(f"{file}: node {node.name}: {name} is {values[name]}; it must be 0 or 1")

    def text(name: str) -> str:
        return bytes(values.get(name, b"")).decode(errors="replace")

    return ContextNode(
        name=node.name,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        is_main=values["main_context"] == 1,
        is_embedded=values["embed_mode"] == EMBEDDED,
        context=bytes(values.get("ep_cache_context", b"")),
        partition=text("partition_name"),
        source=text("source"),
        architecture=text("hardware_architecture"),
    )


def _host_nodes(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    types: Mapping[str, onnx.ValueInfoProto],
    initializers: Mapping[str, onnx.TensorProto],
    is_read_elsewhere: Callable[[str], bool],
    file: ModelFile,
) -> HostNodes:
    """Return nodes as a model of their own, with the initializers that they read. Raise ProgramError where a tensor has no
    type.

    `is_read_elsewhere`: tells of which tensors the model must give the value out.
    """
    computed = dict.fromkeys(n for node in nodes for n in node.output if n)
    read = dict.fromkeys(n for node in nodes for n in node.input if n)
    inputs = [n for n in read if n not in computed and n not in initializers]
    outputs = [n for n in computed if is_read_elsewhere(n)]
    untyped = next((n for n in (*inputs, *outputs) if n not in types), None)
    if untyped is not None:
        raise ProgramError(f"{file}: tensor {untyped!r} has no type, which host nodes need; write the model again")
    weights = [initializers[n] for n in read if n in initializers]
    graph = helper.make_graph(nodes, proto.graph.name, [types[n] for n in inputs], [types[n] for n in outputs], weights)
    graph.value_info.extend(types[n] for n in computed if n in types and n not in outputs)
    domains = {node.domain for node in nodes} | {""}
    opsets = [opset for opset in proto.opset_import if opset.domain in domains]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=proto.ir_version)
    model_bytes = model.SerializeToString(deterministic=True)
    return HostNodes(model_bytes, tuple(inputs), tuple(outputs), tuple(node.name for node in nodes))


def _tensor_type(value: onnx.ValueInfoProto, file: ModelFile) -> TensorType:
    """Return the type of an input or output. Raise ProgramError where its shape is not fixed."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        raise ProgramError(f"{file}: {value.name!r} has no fixed shape; what is compiled has one")
    return TensorType(tuple(d.dim_value for d in tensor.shape.dim), dtype_name(tensor.elem_type))
