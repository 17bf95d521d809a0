"""Factors of channels in a float network: which tensors can carry them, and the network that carries them.

A tensor with factors is that much larger on each of its channels. What makes it takes the factors into its weights, what reads
it takes them out again, so that no output changes; between a host's node and such a tensor stands a product that undoes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toolchain.errors import CompileError, InternalError
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType

Array = np.ndarray[Any, Any]
Factors = Mapping[str, Array]

# What is multiplied on a channel of its input is multiplied on the channel of its output.
_ALIKE = frozenset(
    {"AveragePool", "Clip", "Dropout", "GlobalAveragePool", "GlobalMaxPool", "Identity", "LeakyRelu", "MaxPool", "PRelu", "Relu"}
)
_WEIGHTED = frozenset({"Conv", "Gemm", "MatMul"})


def channel_axis(rank: int) -> int:
    """Of a tensor with factors: axis 1 of four dimensions and more, else the last."""
    return 1 if rank >= 4 else rank - 1


@dataclass(frozen=True)
class Roles:
    """What a node does with factors. makes: its output can take any; takes: inputs that may bring any; alike: inputs whose
    factors are those of its output."""

    makes: bool = False
    takes: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()


def roles(node: OnnxNode, graph: OnnxGraph) -> Roles:
    """Of a node of the normal form; what is not said of it knows no factors."""
    kind, inputs = node.op.op_type, node.inputs
    constant = [n in graph.constants for n in inputs]
    if kind in _WEIGHTED and len(inputs) > 1 and not constant[0] and all(constant[1:]) and _plain(node, graph):
        return Roles(makes=True, takes=inputs[:1])
    if kind in _ALIKE and all(constant[1:]) and _homogeneous(node, graph):
        return Roles(alike=inputs[:1])
    if kind == "Add" and len(inputs) == 2 and sum(constant) < 2 and _one_shape(node, graph):
        return Roles(alike=tuple(n for n, c in zip(inputs, constant) if not c))
    if kind == "Reshape" and not constant[0] and _keeps_channels(node, graph):
        return Roles(alike=inputs[:1])
    if kind == "LayerNormalization" and len(inputs) > 1 and not constant[0] and all(constant[1:]):
        last = node.op.attributes.get("axis", -1) in (-1, len(graph.types[inputs[0]].shape) - 1)
        return Roles(makes=last and len(graph.types[inputs[0]].shape) < 4)
    return Roles()


def _plain(node: OnnxNode, graph: OnnxGraph) -> bool:
    """Whether the channels of its input and output are those of its weights."""
    kind, attributes = node.op.op_type, node.op.attributes
    rank, weights = len(graph.types[node.inputs[0]].shape), graph.constants[node.inputs[1]]
    if kind == "Conv":
        return rank >= 4
    if kind == "Gemm":
        return not attributes.get("transA", 0)
    return weights.ndim == 2 and 2 <= rank <= 3


def _homogeneous(node: OnnxNode, graph: OnnxGraph) -> bool:
    if node.op.op_type != "Clip":
        return True
    low = graph.constants[node.inputs[1]] if len(node.inputs) > 1 and node.inputs[1] else np.array(-np.inf)
    return low.size == 1 and low.item() == 0  # the upper bound is for those who choose factors to keep: see clamp_bound


def clamp_bound(node: OnnxNode, graph: OnnxGraph) -> float | None:
    """The upper bound of a Clip, in the units of a channel whose factor is 1."""
    if node.op.op_type != "Clip" or len(node.inputs) < 3 or not node.inputs[2]:
        return None
    return graph.constants[node.inputs[2]].item()


def _keeps_channels(node: OnnxNode, graph: OnnxGraph) -> bool:
    """Whether a Reshape leaves the last dimension of two or three as it is, where the channels are."""
    shapes = [graph.types[n].shape for n in (node.inputs[0], node.outputs[0])]
    return all(2 <= len(shape) <= 3 for shape in shapes) and shapes[0][-1] == shapes[1][-1]


def reach(node: OnnxNode, graph: OnnxGraph) -> Array:
    """float64[o]: no output channel of a weighted node is above this, whatever the data; infinity where nothing bounds them."""
    producer = graph.producers().get(node.inputs[0])
    bound = None if producer is None else clamp_bound(producer, graph)
    weights = weights_of(node, graph)
    if bound is None or node.op.op_type != "Conv":
        return np.full(len(weights), np.inf)
    bias = graph.constants[node.inputs[2]].astype(np.float64) if len(node.inputs) > 2 and node.inputs[2] else 0.0
    return np.maximum(weights, 0).reshape(len(weights), -1).sum(1) * bound + bias


def _one_shape(node: OnnxNode, graph: OnnxGraph) -> bool:
    """Tensors of one shape, constants with a number for each channel or one for all."""
    shape = graph.types[node.outputs[0]].shape
    axis = channel_axis(len(shape))
    for name in node.inputs:
        given = graph.types[name].shape
        if name not in graph.constants and given != shape:
            return False
        padded = (1,) * (len(shape) - len(given)) + given
        if name in graph.constants and any(d != 1 for i, d in enumerate(padded) if i != axis):
            return False
    return bool(shape)


# --- applying


def scaled_model(model: NormalModel, factors: Factors) -> tuple[NormalModel, tuple[str, ...]]:
    """The model whose tensors carry their factors, by the same names, and the nodes that were put in for the host.

    Raises CompileError: factors for a tensor that the model has not, or of another number of channels.
    """
    graph = model.graph
    faults = [fault for name, f in factors.items() if (fault := _fault(name, f, graph)) is not None]
    if faults:
        raise CompileError("\n".join(faults))
    producers = graph.producers()
    constants, types = dict(graph.constants), dict(graph.types)
    nodes: list[OnnxNode] = []
    put_in: dict[str, OnnxNode] = {}
    for node in graph.nodes:
        role = roles(node, graph)
        renamed = {}
        for name in node.inputs:
            if name in factors and name not in role.takes and not (name in role.alike and _same(node, factors)):
                if name not in put_in:
                    put_in[name] = _undone(name, factors[name], constants, types)
                    nodes.append(put_in[name])
                renamed[name] = put_in[name].outputs[0]
        made = replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs))
        nodes.append(_scaled(made, role, factors, graph, constants, types))
    lost = [n for n in factors if n not in producers or n in graph.outputs]
    if lost:
        raise InternalError(f"factors for {lost[0]!r}, which is an input or output of the model")
    scaled = graph.with_nodes(nodes, types, constants)
    return replace(model, graph=scaled, source=None), tuple(n.name for n in put_in.values())


def _fault(name: str, factors: Array, graph: OnnxGraph) -> str | None:
    if name not in graph.types or name in graph.constants:
        return f"factors: the model has no tensor {name!r}; repair it again"
    shape = graph.types[name].shape
    channels = shape[channel_axis(len(shape))] if shape else 0
    if factors.shape != (channels,) or not np.isfinite(factors).all() or factors.min(initial=1.0) <= 0:
        return f"factors of {name!r}: are {factors.size} numbers; its {channels} channels need one above 0 each"
    return None


def _same(node: OnnxNode, factors: Factors) -> bool:
    """Whether a node whose factors are alike has them on its output too."""
    return node.outputs[0] in factors


def _undone(name: str, factors: Array, constants: dict[str, Array], types: dict[str, TensorType]) -> OnnxNode:
    t = types[name]
    shape = [1] * len(t.shape)
    shape[channel_axis(len(t.shape))] = -1
    inverse, plain = f"{name}/inverse factors", f"{name}/without factors"
    constants[inverse] = (1 / factors).astype(np.float32).reshape(shape)
    types[inverse], types[plain] = TensorType(constants[inverse].shape, "float32"), t
    return Node(plain, OnnxOp("Mul"), (name, inverse), (plain,))


def _scaled(
    node: OnnxNode, role: Roles, factors: Factors, graph: OnnxGraph, constants: dict[str, Array], types: dict[str, TensorType]
) -> OnnxNode:
    """The node with its constants as the factors of its input and output ask."""
    out = factors.get(node.outputs[0])
    brought = factors.get(node.inputs[0]) if node.inputs and node.inputs[0] in role.takes else None
    if out is None and brought is None:
        return node
    if out is not None and not role.makes and not role.alike:
        raise InternalError(f"{node.name} ({node.op.op_type}) cannot make {node.outputs[0]!r} with factors")
    if out is not None and role.alike and any(n not in factors or not np.array_equal(factors[n], out) for n in role.alike):
        raise InternalError(f"{node.name}: its operands and its output have different factors")
    names = list(node.inputs)
    for index, value in _new_constants(node, out, brought, graph).items():
        names[index] = f"{node.name}/{node.inputs[index]} with factors"
        constants[names[index]] = value.astype(np.float32)
        types[names[index]] = TensorType(value.shape, "float32")
    return replace(node, inputs=tuple(names))


def _new_constants(node: OnnxNode, out: Array | None, brought: Array | None, graph: OnnxGraph) -> dict[int, Array]:
    """By the place among the inputs."""
    kind = node.op.op_type
    held = {i: graph.constants[n].astype(np.float64) for i, n in enumerate(node.inputs) if n in graph.constants}
    if kind in _WEIGHTED:
        weights = _weight_view(node, held[1])
        if brought is not None:
            weights /= _inputs_of(node, brought, weights.shape)
        if out is not None:
            weights *= out.reshape(-1, *(1,) * (weights.ndim - 1))
        found = {1: held[1]}
        if 2 in held and out is not None:
            found[2] = np.broadcast_to(held[2], (*held[2].shape[:-1], out.size)) * out
        return found
    if out is None:
        return {}
    if kind == "LayerNormalization":
        return {i: np.broadcast_to(v, out.shape) * out for i, v in held.items()}
    if kind == "Add":
        shape = graph.types[node.outputs[0]].shape
        along = [1] * len(shape)
        along[channel_axis(len(shape))] = -1
        return {i: v * out.reshape(along) for i, v in held.items()}
    return {}


def _weight_view(node: OnnxNode, weights: Array) -> Array:
    """[o, i, ...] of a weighted node's constant, a view of it."""
    if node.op.op_type == "Conv" or (node.op.op_type == "Gemm" and node.op.attributes.get("transB", 0)):
        return weights
    return weights.T


def _inputs_of(node: OnnxNode, factors: Array, shape: Sequence[int]) -> Array:
    """The factors of the inputs that each weight of [o, i, ...] is multiplied with."""
    groups = int(node.op.attributes.get("group", 1)) if node.op.op_type == "Conv" else 1
    by_group = np.repeat(factors.reshape(groups, shape[1]), shape[0] // groups, axis=0)
    return by_group.reshape(shape[0], shape[1], *(1,) * (len(shape) - 2))


def weights_of(node: OnnxNode, graph: OnnxGraph) -> Array:
    """float64[o, i, ...] of a weighted node."""
    return _weight_view(node, graph.constants[node.inputs[1]].astype(np.float64))


def by_input(node: OnnxNode, magnitudes: Array, inputs: int) -> Array:
    """float64[o, i] magnitudes of a weighted node's [o, i / groups] -> the largest that each of its inputs is multiplied with."""
    groups = int(node.op.attributes.get("group", 1)) if node.op.op_type == "Conv" else 1
    return magnitudes.reshape(groups, -1, magnitudes.shape[1]).max(1).reshape(inputs)
