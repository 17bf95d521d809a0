"""Scale the channels of a float network by factors, without a change of its outputs.

A tensor with factors is that much larger on each of its channels. Its producer takes the factors into its weights, and its
consumers take them out again. Between a host node and such a tensor, a product undoes the factors. Which tensors can carry
factors is found by `toolchain.repair.channels`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.errors import CompileError, InternalError
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType
from toolchain.repair.channels import WEIGHTED, Channels, Roles
from toolchain.repair.patterns import SUMS, Array, clamp_bound, power, propagate_pattern

Factors = Mapping[str, Array]

_SAME = 1e-9  # relative difference of equal factors: the rounding of powers


def reach(node: OnnxNode, graph: OnnxGraph) -> Array:
    """Return float64[o], upper bounds of a weighted node's output channels, whatever the data; infinity where there is none.

    Only a Conv is bounded, whose input a clamp keeps between 0 and a bound.
    """
    producer = graph.producers().get(node.inputs[0])
    bound = None if producer is None else clamp_bound(producer, graph)
    weights = weights_of(node, graph)
    if bound is None or node.op.op_type != "Conv":
        return np.full(len(weights), np.inf)
    bias = graph.constants[node.inputs[2]].astype(np.float64) if len(node.inputs) > 2 and node.inputs[2] else 0.0
    return np.maximum(weights, 0).reshape(len(weights), -1).sum(1) * bound + bias


# --- applying


def scale_model(model: NormalModel, factors: Factors) -> tuple[NormalModel, tuple[str, ...]]:
    """Return the model whose tensors carry their factors, by the same names, and the nodes that undo factors for the host.

    The second result has the names of these nodes, one for each tensor with factors that a host node reads.
    The returned model has no file behind it (`source` is None). The given one is not changed. New constants are float32.

    `factors`: float64[c] by tensor, above 0; `toolchain.repair.channels` says which dimension has the c channels.
    Raise CompileError for factors of a tensor that the model lacks, or of another number of channels. Raise InternalError for
    factors that the nodes cannot carry.
    """
    graph = model.graph
    channels = Channels(graph)
    faults = [fault for name, f in factors.items() if (fault := _fault(name, f, graph, channels)) is not None]
    if faults:
        raise CompileError("\n".join(faults))
    shaped = _shape_factors(factors, channels)
    producers = graph.producers()
    constants, types = dict(graph.constants), dict(graph.types)
    nodes: list[OnnxNode] = []
    put_in: dict[str, OnnxNode] = {}
    for node in graph.nodes:
        role = channels.roles[node.name]
        renamed: dict[str, str] = {}
        for name in node.inputs:
            if name in factors and name not in role.takes and not (name in role.passes and _same(node, factors)):
                if name not in put_in:
                    put_in[name] = _undone(name, shaped[name], constants, types)
                    nodes.append(put_in[name])
                renamed[name] = put_in[name].outputs[0]
        renamed_node = replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs))
        nodes.append(_scale_node(renamed_node, role, shaped, graph, constants, types))
    lost = [n for n in factors if n not in producers or n in graph.outputs]
    if lost:
        raise InternalError(f"factors for {lost[0]!r}, which is an input or output of the model")
    scaled = graph.with_nodes(nodes, types, constants)
    return replace(model, graph=scaled, source=None), tuple(n.name for n in put_in.values())


def broadcast_factors(graph: OnnxGraph, factors: Factors) -> dict[str, Array]:
    """Return the factors of each tensor in a shape that broadcasts to the tensor, such as [1, c, 1, 1].

    `graph`: a graph with these factors.
    """
    return _shape_factors(factors, Channels(graph)) if factors else {}


def _shape_factors(factors: Factors, channels: Channels) -> dict[str, Array]:
    return {name: f.reshape(channels.shape(name)) for name, f in factors.items()}


def _fault(name: str, factors: Array, graph: OnnxGraph, graph_channels: Channels) -> str | None:
    """Return what is wrong with the factors of a tensor; None where nothing is."""
    if name not in graph.types or name in graph.constants:
        return f"factors: the model has no tensor {name!r}; repair it again"
    channels = math.prod(graph_channels.shape(name))
    if factors.shape != (channels,) or not np.isfinite(factors).all() or factors.min(initial=1.0) <= 0:
        return f"factors of {name!r}: are {factors.size} numbers; its {channels} channels need one above 0 each"
    return None


def _same(node: OnnxNode, factors: Factors) -> bool:
    """Return whether the output of a node that passes factors on carries factors too."""
    return node.outputs[0] in factors


def _undone(name: str, factors: Array, constants: dict[str, Array], types: dict[str, TensorType]) -> OnnxNode:
    """Return a Mul that takes the factors out of a tensor; its constant and types are added to the mappings."""
    t = types[name]
    inverse, plain = f"{name}/inverse factors", f"{name}/without factors"
    constants[inverse] = (1 / factors).astype(np.float32)
    types[inverse], types[plain] = TensorType(constants[inverse].shape, "float32"), t
    return Node(plain, OnnxOp("Mul"), (name, inverse), (plain,))


def _scale_node(
    node: OnnxNode, role: Roles, factors: Factors, graph: OnnxGraph, constants: dict[str, Array], types: dict[str, TensorType]
) -> OnnxNode:
    """Return the node with its constants as the factors of its input and output ask; new constants and types are added to the
    mappings."""
    out = factors.get(node.outputs[0])
    brought = factors.get(node.inputs[0]) if node.inputs and node.inputs[0] in role.takes else None
    if out is None and brought is None:
        return node
    if out is not None and not role.makes and not role.passes:
        raise InternalError(f"{node.name} ({node.op.op_type}) cannot make {node.outputs[0]!r} with factors")
    if out is not None and role.passes:
        _agree(node, out, factors, graph)
    names = list(node.inputs)
    for index, value in _new_constants(node, out, brought, graph).items():
        names[index] = f"{node.name}/{node.inputs[index]} with factors"
        constants[names[index]] = value.astype(np.float32)
        types[names[index]] = TensorType(value.shape, "float32")
    return replace(node, inputs=tuple(names))


def _agree(node: OnnxNode, out: Array, factors: Factors, graph: OnnxGraph) -> None:
    """Raise InternalError where the factors of a node's inputs do not amount to those of its output.

    `out`: factors that the output carries.
    """

    def one(a: Array, b: Array) -> Array:
        wide = np.broadcast_shapes(a.shape, b.shape)
        if not np.allclose(*(np.broadcast_to(x, wide) for x in (a, b)), rtol=_SAME, atol=0):
            raise InternalError(f"{node.name}: its operands and its output have different factors")
        return np.broadcast_to(a, wide)

    read = [n for n in node.inputs if n not in graph.constants]
    come = propagate_pattern(node, graph, factors, one) if all(n in factors for n in read) else None
    one(out, np.full((1,) * out.ndim, np.nan) if come is None else come ** float(power(node, graph)))


def _new_constants(node: OnnxNode, out: Array | None, brought: Array | None, graph: OnnxGraph) -> dict[int, Array]:
    """Return the node's new constants by their place among the inputs."""
    kind = node.op.op_type
    constants_by_place = {i: graph.constants[n].astype(np.float64) for i, n in enumerate(node.inputs) if n in graph.constants}
    if kind in WEIGHTED:
        weights = _weight_view(node, constants_by_place[1])
        if brought is not None:
            weights /= _inputs_of(node, brought.ravel(), weights.shape)
        if out is not None:
            weights *= out.reshape(-1, *(1,) * (weights.ndim - 1))
        new_constants = {1: constants_by_place[1]}
        if 2 in constants_by_place and out is not None:
            new_constants[2] = np.broadcast_to(constants_by_place[2], (*constants_by_place[2].shape[:-1], out.size)) * out.ravel()
        return new_constants
    if out is None:
        return {}
    if kind == "LayerNormalization":
        return {i: np.broadcast_to(v, out.size) * out.ravel() for i, v in constants_by_place.items()}
    if kind in SUMS:
        return {i: v * out for i, v in constants_by_place.items()}
    return {}


def _weight_view(node: OnnxNode, weights: Array) -> Array:
    """Return a weighted node's constant as [o, i, ...], a view of it."""
    if node.op.op_type == "Conv" or (node.op.op_type == "Gemm" and node.op.attributes.get("transB", 0)):
        return weights
    return weights.T


def _inputs_of(node: OnnxNode, factors: Array, shape: Sequence[int]) -> Array:
    """Return the factors of the inputs that each weight of [o, i, ...] is multiplied with."""
    groups = int(node.op.attributes.get("group", 1)) if node.op.op_type == "Conv" else 1
    by_group = np.repeat(factors.reshape(groups, shape[1]), shape[0] // groups, axis=0)
    return by_group.reshape(shape[0], shape[1], *(1,) * (len(shape) - 2))


def weights_of(node: OnnxNode, graph: OnnxGraph) -> Array:
    """Return the weights of a weighted node as float64[o, i, ...]."""
    return _weight_view(node, graph.constants[node.inputs[1]].astype(np.float64))


def by_input(node: OnnxNode, magnitudes: Array, inputs: int) -> Array:
    """Return float64[i], the largest magnitude that each input channel of a weighted node is multiplied with.

    `magnitudes`: float64[o, i / groups] of its weights.
    `inputs`: number of input channels.
    """
    groups = int(node.op.attributes.get("group", 1)) if node.op.op_type == "Conv" else 1
    return magnitudes.reshape(groups, -1, magnitudes.shape[1]).max(1).reshape(inputs)
