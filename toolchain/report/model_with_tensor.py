"""Run the float network with one tensor given beside its inputs, so that a change of this tensor shows at the outputs.

The error report puts a layer's error into float in this way (report.error_report).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quant.producer_links import SHAPE_OPS
from toolchain.frontend import NormalModel
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType, fresh_name


@dataclass(frozen=True)
class ModelWithTensor:
    """A float network, as FloatSession runs it, in which the values of one tensor are given and not computed.

    `model`: the canonical float model, which stays as it is.
    `tensor`: the model tensor that becomes an input.
    `ends`: float32 tensors that are clipped, as codes clip them, with their least and their largest value. The model's inputs
    are not clipped.
    """

    model: NormalModel
    tensor: str
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @property
    def inputs(self) -> Sequence[str]:
        """Return the names of the inputs and of the tensor."""
        return (*self.model.inputs, self.tensor)

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Yield the one submodel that computes these tensors from the inputs and the given tensor."""
        model = replace(self.model, graph=_clip_tensors(self.model.graph, self.ends)) if self.ends else self.model
        yield model.normal_part(self.inputs, names)


def _clip_tensors(graph: OnnxGraph, ends: Mapping[str, tuple[float, float]]) -> OnnxGraph:
    """Return the graph with a Clip behind each of these float32 tensors."""
    nodes, types, constants = list[OnnxNode](), dict(graph.types), dict[str, np.ndarray]()
    for node in graph.nodes:
        raw_names = {name: fresh_name(f"{name}: unclipped", types) for name in node.outputs if name in ends}
        nodes.append(replace(node, outputs=tuple(raw_names.get(name, name) for name in node.outputs)))
        for name, raw in raw_names.items():
            limits = [fresh_name(f"{name}: {end} of codes", types) for end in ("least", "largest")]
            nodes.append(Node(f"{name}: clipped", OnnxOp("Clip"), (raw, *limits), (name,)))
            constants |= {limit: np.array(value, np.float32) for limit, value in zip(limits, ends[name], strict=True)}
            types |= {raw: types[name], **dict.fromkeys(limits, TensorType((), "float32"))}
    return graph.with_nodes(nodes, types, constants)


def list_ends(graph: OnnxGraph) -> list[str]:
    """Return the float tensors whose values the outputs hold, in front of nodes that only move data, in the outputs' order.

    A Concat gives each of its operands, so that a small part cannot hide behind a larger one. Constants are left out.
    """
    producers, tensors, pending = graph.producers(), dict[str, None](), list(reversed(graph.outputs))
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if node is None or node.op.op_type not in SHAPE_OPS:
            tensors[name] = None
        else:
            pending += [n for n in reversed(node.inputs[: None if node.op.op_type == "Concat" else 1]) if n]
    return [n for n in tensors if graph.types[n].dtype.startswith("float") and n not in graph.constants]
