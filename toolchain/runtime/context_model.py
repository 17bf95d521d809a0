"""Open an ONNX model with EPContext nodes of onnxruntime as one compiled container.

Its chip parts come from compiled files, embedded or beside it, and its host nodes become host subgraphs. A session opens such a
model like a compiled file.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.codegen import (
    MAGIC,
    Container,
    HostSubgraph,
    IoType,
    Region,
    container_from_bytes,
    container_to_bytes,
    read_container,
)
from toolchain.codegen.verify_container import verify_container
from toolchain.errors import CompileError, ProgramError

if TYPE_CHECKING:
    from toolchain.frontend.context_nodes import ContextModel, ContextNode

SOURCE = "npu-toolchain"  # the attribute `source` of nodes that this toolchain writes


def name_partitions(container: Container) -> dict[str, int]:
    """Return the index of each region among the segments, by the name of its partition: the container's name and a number from
    0."""
    regions = [index for index, segment in enumerate(container.segments) if isinstance(segment, Region)]
    return {f"{container.name}_{number}": index for number, index in enumerate(regions)}


def open_context_model(model: str | bytes, entry: str | None) -> Container | None:
    """Return the parts of a model with EPContext nodes as one container; None for every other file.

    `model`: a path, or the bytes of a model whose contexts are embedded.
    `entry`: must be None for such a model.
    Raise ProgramError where a node or its context is not sound, or is another toolchain's. Raise CompileError where an entry is
    named.
    """
    if not _may_be_onnx(model):
        return None
    from toolchain.frontend import model_file, read_context_model

    file = model_file(model)
    parts = read_context_model(file)
    if parts is None:
        return None
    if entry is not None:
        raise CompileError(f"entry {entry}: a model with EPContext nodes has one set of input shapes; leave it out")
    return _assemble(parts, str(file), file.folder)


def _may_be_onnx(model: str | bytes) -> bool:
    """Return whether a file is there and does not begin as a compiled file does."""
    if isinstance(model, bytes):
        return model[: len(MAGIC)] != MAGIC
    if not os.path.isfile(model):
        return False
    try:
        with open(model, "rb") as file:
            return file.read(len(MAGIC)) != MAGIC
    except OSError:
        return False  # who reads it in full says why


def _assemble(model: ContextModel, label: str, folder: Path | None) -> Container:
    """Return a container of the regions of all contexts and of the model's host nodes, in the model's order.

    `label`: the file, for messages; `folder`: where contexts beside it lie.
    Raise ProgramError where contexts are of several builds, keep states, or do not have the nodes' partitions.
    """
    from toolchain.frontend.context_nodes import HostNodes

    contexts: list[Container] = []
    for node in model.context_nodes:
        with _node_in_errors(label, node):
            _require_ours(node)
            if node.is_main:
                contexts.append(_read_context(node, label, folder))
                _require_one_build(contexts, node)
    if not contexts:
        raise ProgramError(f"{label}: has no EPContext node with main_context 1, which holds the parts; write it again")
    container, partitions = contexts[0], name_partitions(contexts[0])
    segments: list[Region | HostSubgraph] = []
    for part in model.parts:
        if isinstance(part, HostNodes):
            segments.append(HostSubgraph(part.model, part.inputs, part.outputs, part.nodes))
            continue
        with _node_in_errors(label, part):
            if part.partition not in partitions:
                raise ProgramError(f"its partition {part.partition!r} is in no context, or taken by another node")
            segments.append(_rename_ports(container.segments[partitions.pop(part.partition)], part))
    verify_container(segments, container.graph, container.machine)
    inputs, outputs = (
        tuple(IoType(name, t.shape, t.dtype) for name, t in types.items()) for types in (model.inputs, model.outputs)
    )
    return replace(container, inputs=inputs, outputs=outputs, segments=tuple(segments))


@contextmanager
def _node_in_errors(label: str, node: ContextNode) -> Generator[None]:
    """Put the file and the node before a fault inside."""
    try:
        yield
    except ProgramError as fault:
        raise ProgramError(f"{label}: EPContext node {node.name}: {fault}") from None


def _require_ours(node: ContextNode) -> None:
    """Raise ProgramError for a node that another toolchain wrote."""
    if node.source != SOURCE:
        raise ProgramError(f"is of {node.source or 'an unnamed source'}, not of {SOURCE}; run it with the provider that wrote it")


def _require_one_build(contexts: Sequence[Container], node: ContextNode) -> None:
    """Check the last context against the node that holds it, and the first one. Raise ProgramError."""
    first, last = contexts[0], contexts[-1]
    if node.architecture != last.machine.chip.name:
        raise ProgramError(
            f"is for {node.architecture or 'no machine'}, its context for {last.machine.chip.name}; write it again"
        )
    if container_to_bytes(first) != container_to_bytes(last):
        raise ProgramError("its context is of another build than that of the first node; write the model again")
    if last.states:
        raise ProgramError(f"its context keeps the state {last.states[0][1].port.model!r}; run the compiled file instead")


def _read_context(node: ContextNode, label: str, folder: Path | None) -> Container:
    """Return the container that a node holds or names."""
    if node.is_embedded:
        return container_from_bytes(node.context, "its context")
    from toolchain.frontend import context_path

    return read_container(context_path(node.context, folder))


def _rename_ports(region: Region | HostSubgraph, node: ContextNode) -> Region:
    """Return a region whose ports have the names of the node's inputs and outputs, which stand in the region's order.

    Raise ProgramError where their numbers differ.
    """
    assert isinstance(region, Region)
    inputs, outputs = (list(dict.fromkeys(port.model for port in ports)) for ports in (region.inputs, region.outputs))
    for kind, names, tensors in (("inputs", inputs, node.inputs), ("outputs", outputs, node.outputs)):
        if len(names) != len(tensors):
            raise ProgramError(f"has {len(tensors)} {kind}, its partition {len(names)}; write the model again")
    new_inputs, new_outputs = dict(zip(inputs, node.inputs)), dict(zip(outputs, node.outputs))
    return replace(
        region,
        inputs=tuple(replace(port, model=new_inputs[port.model]) for port in region.inputs),
        outputs=tuple(replace(port, model=new_outputs[port.model]) for port in region.outputs),
    )
