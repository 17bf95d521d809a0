"""The normalised model, and the way from a file to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import onnx

from toolchain.frontend.bind import bind_inputs
from toolchain.frontend.emit import subgraph, to_proto
from toolchain.frontend.normal import normal_form
from toolchain.frontend.promote import promote
from toolchain.frontend.read import NORMAL_OPSET, opset_of, read_model
from toolchain.frontend.walk import static_graph, unique_name
from toolchain.ir.graph import Graph, TensorType

NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})


@dataclass(frozen=True)
class NormalModel:
    """A model in normal form (docs/frontend.md). `graph` holds OnnxOp nodes whose parameters are still constant inputs, as in
    ONNX; `notes` say what was assumed on the way in; `nodes` are (name, operator) of all nodes that the file has."""

    graph: Graph
    opset: int
    notes: tuple[str, ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The same as ONNX: valid, static, every tensor typed; made when first asked for."""
        return to_proto(self.graph, self.opset)

    @property
    def types(self) -> Mapping[str, TensorType]:
        return self.graph.types


def load_model(path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] = NO_SHAPES) -> NormalModel:
    """`shapes`: input name -> its whole shape. CompileError, in one message, when the model cannot be used."""
    proto = read_model(path)
    bound = bind_inputs(proto.graph, shapes)
    graph = static_graph(proto, bound.types)
    opset = max(NORMAL_OPSET, opset_of(proto))
    names: dict[str, int] = {}
    nodes = tuple((unique_name(n, i, names), n.op_type) for i, n in enumerate(proto.graph.node))
    del proto
    return NormalModel(normal_form(graph, opset), opset, bound.notes, nodes)


def to_graph(model: NormalModel) -> Graph:
    """Nodes hold OnnxOp with their constant parameters as attributes; weights stay constant inputs."""
    return promote(model.graph)


def extract(model: NormalModel, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """The part of the model between these tensors, for onnxruntime. CompileError when it needs more inputs."""
    return to_proto(subgraph(model.graph, inputs, outputs), model.opset)
