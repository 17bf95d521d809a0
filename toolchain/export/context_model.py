"""Write a compiled model as ONNX for onnxruntime: each part of the chip is an EPContext node, host nodes stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto, helper

from toolchain import __version__
from toolchain.codegen import Container, HostSubgraph, Region
from toolchain.errors import CompileError
from toolchain.frontend.context_nodes import ATTRIBUTES, DOMAIN, EMBEDDED, EXTERNAL, OP_TYPE
from toolchain.frontend.convert import elem_type
from toolchain.frontend.read_onnx import NORMAL_OPSET
from toolchain.input_limits import ONNX_BYTES
from toolchain.ir.graph import fresh_name
from toolchain.isa import machine_digest
from toolchain.runtime import SOURCE, model_shape, name_partitions


@dataclass
class _GraphParts:
    """The parts of the ONNX graph so far.

    `names`: every tensor name in it, so that host subgraphs do not clash. `opsets`: version by domain.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict[str, onnx.TensorProto])
    types: dict[str, onnx.ValueInfoProto] = field(default_factory=dict[str, onnx.ValueInfoProto])
    opsets: dict[str, int] = field(default_factory=lambda: {"": NORMAL_OPSET, DOMAIN: 1})
    names: dict[str, None] = field(default_factory=dict[str, None])


def context_model(container: Container, data: bytes, path: str | None, source_model: str = "") -> bytes:
    """Return the bytes of an ONNX model in which every chip part is an EPContext node.

    The first of them holds the whole compiled file, or names it; the others name their part of it.
    `data`: the compiled file's bytes.
    `path`: the file in which they lie, relative to the model's folder; None: the node holds them.
    `source_model`: the name of the file that was compiled.
    Raise CompileError where there is no chip part or a state, or where the bytes to embed are more than a protobuf holds.
    """
    partitions = name_partitions(container)
    _require_expressible(container, data, path)
    parts = _GraphParts(names=dict.fromkeys(_border_names(container)))
    host_types = _host_types(container)
    attributes = {
        "ep_sdk_version": __version__,
        "hardware_architecture": container.machine.chip.name,
        "source": SOURCE,
        "embed_mode": EMBEDDED if path is None else EXTERNAL,
        "onnx_model_filename": source_model,
        "notes": f"machine {machine_digest(container.machine)}, compiled file {hashlib.sha256(data).hexdigest()}",
        "max_size": max(s.dram_bytes for s in container.segments if isinstance(s, Region)),
    }
    names_by_index = {index: name for name, index in partitions.items()}
    for index, segment in enumerate(container.segments):
        if isinstance(segment, HostSubgraph):
            _add_host(parts, segment)
            continue
        is_main = names_by_index[index] == next(iter(partitions))
        context = {"ep_cache_context": data if path is None else path} if is_main else {}
        node_attributes = {"main_context": int(is_main), "partition_name": names_by_index[index], **context, **attributes}
        _add_region(parts, segment, node_attributes, host_types)
    return _serialize(container, parts)


def _require_expressible(container: Container, data: bytes, path: str | None) -> None:
    """Raise CompileError where EPContext nodes cannot hold the compiled model."""
    if not any(isinstance(s, Region) for s in container.segments):
        raise CompileError("EPContext: no part of the model runs on the chip, so that there is no node to write")
    if container.states:
        name = container.states[0][1].port.model
        raise CompileError(f"EPContext: the state {name!r} stays on the chip, which no node can say; build with --state none")
    if path is None and len(data) > ONNX_BYTES - (1 << 20):  # names and lengths around it
        raise CompileError(f"EPContext: {len(data):,} bytes cannot be embedded, ONNX holds 2 GiB; leave them beside the model")


def _border_names(container: Container) -> Iterable[str]:
    """Yield the names of tensors that the segments have in common."""
    yield from (t.name for t in (*container.inputs, *container.outputs))
    for segment in container.segments:
        if isinstance(segment, Region):
            yield from (port.model for port in segment.ports)
        else:
            yield from (*segment.inputs, *segment.outputs)


def _host_types(container: Container) -> dict[str, onnx.ValueInfoProto]:
    """Return the type of each tensor that the model's ports or the host's models declare."""
    types: dict[str, onnx.ValueInfoProto] = {}
    for segment in container.segments:
        if isinstance(segment, HostSubgraph):
            graph = onnx.ModelProto.FromString(segment.model).graph
            types |= {v.name: v for v in (*graph.input, *graph.output)}
    for t in (*container.inputs, *container.outputs):
        types[t.name] = helper.make_tensor_value_info(t.name, elem_type(t.dtype), t.shape)
    return types


def _add_region(
    parts: _GraphParts, region: Region, attributes: dict[str, Any], host_types: dict[str, onnx.ValueInfoProto]
) -> None:
    """Add the EPContext node of a region, with its inputs and outputs under the model's names."""
    for port in (*region.inputs, *region.outputs):
        value = helper.make_tensor_value_info(port.model, TensorProto.FLOAT, model_shape(port))
        parts.types.setdefault(port.model, host_types.get(port.model, value))
    inputs, outputs = ([*dict.fromkeys(p.model for p in ports)] for ports in (region.inputs, region.outputs))
    ordered = {name: attributes[name] for name in ATTRIBUTES if name in attributes}
    parts.nodes.append(helper.make_node(OP_TYPE, inputs, outputs, attributes["partition_name"], domain=DOMAIN, **ordered))


def _add_host(parts: _GraphParts, island: HostSubgraph) -> None:
    """Add the nodes of a host subgraph. What only it has gets a name that no other tensor has."""
    proto = onnx.ModelProto.FromString(island.model)
    border = {*island.inputs, *island.outputs}
    renamed = dict[str, str]()
    for name in dict.fromkeys(
        [*(t.name for t in proto.graph.initializer), *(n for node in proto.graph.node for n in node.output)]
    ):
        if name and name not in border:
            renamed[name] = fresh_name(name, parts.names) if name in parts.names else name
            parts.names[renamed[name]] = None
    for tensor in proto.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
        parts.initializers[tensor.name] = tensor
    for node in proto.graph.node:
        node.input[:] = [renamed.get(n, n) for n in node.input]
        node.output[:] = [renamed.get(n, n) for n in node.output]
        parts.nodes.append(node)
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        value.name = renamed.get(value.name, value.name)
        parts.types.setdefault(value.name, value)
    for opset in proto.opset_import:  # what older ones mean stays so in the newest, from the frontend's normal form on
        parts.opsets[opset.domain] = max(opset.version, parts.opsets.get(opset.domain, 1))


def _serialize(container: Container, parts: _GraphParts) -> bytes:
    """Return the bytes of the ONNX model; equal parts give equal bytes."""
    inputs, outputs = (
        [helper.make_tensor_value_info(t.name, elem_type(t.dtype), t.shape) for t in ports]
        for ports in (container.inputs, container.outputs)
    )
    ends = {t.name for t in (*container.inputs, *container.outputs)}
    values = [value for name, value in parts.types.items() if name not in ends and name not in parts.initializers]
    graph = helper.make_graph(parts.nodes, container.name, inputs, outputs, [*parts.initializers.values()], value_info=values)
    opsets = [helper.make_opsetid(domain, version) for domain, version in parts.opsets.items()]
    ir_version = max(10, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name=SOURCE)
    return model.SerializeToString(deterministic=True)
