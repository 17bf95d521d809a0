"""Cuts a float ONNX network into models that run one after the other, so that few of its tensors are in memory at once.

`quant.calibrate` uses it where the observed tensors outgrow its memory. `quant.float_session` runs the pieces. A tensor without a
static shape counts as UNKNOWN_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from toolchain.ir.float_submodel import FloatSubmodel

UNKNOWN_BYTES = 16 << 20


@dataclass(frozen=True)
class PiecewiseModel:
    """A float network in pieces, for `quant.float_session.FloatSession`.

    The nodes of a piece make at most `held_bytes` of tensors together, or it is a single node. Sizes are those of `tensor_bytes`.
    A tensor between pieces has its type in the model or the one that onnx infers, and is float32 without either.
    """

    proto: onnx.ModelProto
    held_bytes: int

    @property
    def inputs(self) -> Sequence[str]:
        """The inputs that are no constants, in the model's order."""
        constants = {i.name for i in self.proto.graph.initializer}
        return tuple(i.name for i in self.proto.graph.input if i.name not in constants)

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Yield the pieces in the order to run them, with the nodes that the tensors `names` need and no others.

        Each gives the tensors of `names` that it makes, and what later pieces read. None gives inputs or constants of `names`.
        """
        nodes = _find_required_nodes(self.proto.graph, names)
        typed = _find_types(self.proto)
        pieces = list(_cut(nodes, _count_bytes(self.proto, typed), self.held_bytes))
        reads = [{name for node in piece for name in _read(node)} for piece in pieces]
        weights = {i.name: i for i in self.proto.graph.initializer}
        for at, piece in enumerate(pieces):
            piece_outputs = [name for node in piece for name in node.output if name]
            later = set(names).union(*reads[at + 1 :])
            outputs = [name for name in piece_outputs if name in later]
            inputs = sorted(reads[at].difference(piece_outputs, weights))
            read_weights = [weights[n] for n in sorted(reads[at] & weights.keys())]
            yield FloatSubmodel(self._piece(piece, inputs, outputs, typed, read_weights), tuple(inputs), tuple(outputs))

    def _piece(
        self,
        nodes: Iterable[onnx.NodeProto],
        inputs: Iterable[str],
        outputs: Iterable[str],
        typed: Mapping[str, onnx.ValueInfoProto],
        weights: Iterable[onnx.TensorProto],
    ) -> bytes:
        """Return the serialized model of some nodes.

        `typed`: types of tensors by name.
        """

        def value(name: str) -> onnx.ValueInfoProto:
            untyped = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            return typed.get(name, untyped)

        graph = onnx.GraphProto(name=self.proto.graph.name)
        graph.node.extend(nodes)
        graph.input.extend(map(value, inputs))
        graph.output.extend(map(value, outputs))
        graph.initializer.extend(weights)
        ir, opsets = self.proto.ir_version, self.proto.opset_import
        return onnx.ModelProto(
            ir_version=ir, opset_import=opsets, graph=graph, functions=self.proto.functions
        ).SerializeToString()


def tensor_bytes(model: onnx.ModelProto) -> dict[str, int]:
    """Return the bytes of each tensor that a node makes, four an element; UNKNOWN_BYTES where its shape is not static.

    Tensors that the model declares no type of get one by onnx's inference.
    """
    return _count_bytes(model, _find_types(model))


def _count_bytes(model: onnx.ModelProto, typed: Mapping[str, onnx.ValueInfoProto]) -> dict[str, int]:
    """Return what `tensor_bytes` does, by the types of tensors."""
    return {name: _value_bytes(typed.get(name)) for name in _list_outputs(model)}


def _find_types(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return types by tensor, as the model declares them. Where it lacks one of a node's output, onnx infers what it can."""
    typed = {v.name: v for v in _collect_value_infos(model)}
    if any(name not in typed for name in _list_outputs(model)):
        inferred = onnx.shape_inference.infer_shapes(model)
        typed |= {v.name: v for v in inferred.graph.value_info}
    return typed


def _list_outputs(model: onnx.ModelProto) -> list[str]:
    """Return the tensors that nodes make, in the graph's order."""
    return [output for node in model.graph.node for output in node.output if output]


def _value_bytes(value: onnx.ValueInfoProto | None) -> int:
    """Return the bytes of a float32 tensor of this shape; UNKNOWN_BYTES where it is not static."""
    if value is None or not value.type.tensor_type.HasField("shape"):
        return UNKNOWN_BYTES
    size = 4
    for d in value.type.tensor_type.shape.dim:
        if not d.HasField("dim_value"):
            return UNKNOWN_BYTES
        size *= d.dim_value
    return size


def _collect_value_infos(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*model.graph.value_info, *model.graph.input, *model.graph.output)


def _find_required_nodes(graph: onnx.GraphProto, names: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes from which the tensors `names` are computed, in the graph's order."""
    required, nodes = set(names), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if required.intersection(node.output):
            nodes.append(node)
            required.update(_read(node))
    return nodes[::-1]


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors of the graph that a node or one of its subgraphs reads, without names that are local to a subgraph."""
    yield from (name for name in node.input if name)
    bodies = [g for a in node.attribute for g in (a.g, *a.graphs) if g.node or g.output]
    for body in bodies:
        local_names = {name for inner in body.node for name in inner.output} | {i.name for i in (*body.input, *body.initializer)}
        inner = {name for node in body.node for name in _read(node)} | {o.name for o in body.output}
        yield from sorted(inner - local_names)


def _cut(nodes: Sequence[onnx.NodeProto], sizes: Mapping[str, int], held_bytes: int) -> Iterator[list[onnx.NodeProto]]:
    """Yield runs of nodes whose outputs take at most `held_bytes`, or a single node."""
    piece, room = list[onnx.NodeProto](), held_bytes
    for node in nodes:
        size = sum(sizes[name] for name in node.output if name)
        if piece and size > room:
            yield piece
            piece, room = [], held_bytes
        piece.append(node)
        room -= size
    if piece:
        yield piece
