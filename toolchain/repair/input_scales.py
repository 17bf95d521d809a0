"""Give the channels of an input scales of their own, where one scale for all loses a channel and products alone read it.

The host subtracts an offset and divides by the scale while it converts numbers to codes; the products' weights make up for it. It
is the first step of repair.place_port_nodes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.numerics import Numerics
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType
from toolchain.repair.network import Network
from toolchain.repair.port_noise import FEW_SAMPLES, POOR_DB, measure_parts, round_to_codes, run_float
from toolchain.repair.port_scales import CHANNEL_GAIN_DB, ChannelScale, add_constant, measure_scale

_JOINTS = frozenset({"Cast", "Concat"})  # on the host with what scales behind them
_MOVES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


@dataclass(frozen=True)
class ReadProducts:
    """The products by constant weights that read one tensor, an input of the network or what moves make of several.

    `ports`: the inputs. `tensor`: what they read. `joins`: names of the Concats and Casts between.
    `has_offset`: an offset of the tensor can be part of their biases; False where a Conv pads with zeros.
    """

    ports: tuple[str, ...]
    tensor: str
    products: tuple[OnnxNode, ...]
    joins: tuple[str, ...]
    has_offset: bool


def scale_inputs(network: Network, samples: Iterable[Sample], pinned: Collection[str]) -> Network:
    """Return the network with a Sub and a Mul on the host before the products of inputs that lose a channel.

    Values stay, but for float's rounding. Inputs whose type or scale somebody gives stay, and so do all of a model that is
    quantized already. Where a sample is not finite, nothing changes.

    `pinned`: inputs that stay.
    """
    model = network.model
    groups = _find_products(model.graph, {*pinned, *network.selection.file_ranges, *network.types, *network.selection.types})
    scales, levels = dict[str, ChannelScale](), dict[str, tuple[float, float]]()
    # A few samples show which inputs are poor; a channel may be constant in them that is not in all.
    for most in (FEW_SAMPLES, sys.maxsize):
        values = run_float(model, [g.tensor for g in groups], samples, most) if groups and not model.stored else None
        if values is None:
            return network
        scales = {g.tensor: measure_scale(values[g.tensor], g.has_offset) for g in groups}
        levels = {g.tensor: _compare(values[g.tensor], scales[g.tensor], network.chip.numerics) for g in groups}
        groups = [g for g in groups if levels[g.tensor][0] < min(POOR_DB, levels[g.tensor][1] - CHANNEL_GAIN_DB)]
    undivided = None if model.undivided is None else _scale_model(model.undivided, groups, scales)
    network = replace(network, model=replace(_scale_model(model, groups, scales), undivided=undivided))
    for group in groups:
        nodes = _divide(group.tensor, scales[group.tensor], {group.tensor: model.types[group.tensor]}, {})
        reason = _give_reason([*map(model.name, group.ports)], len(nodes), levels[group.tensor])
        network = network.host([*(n.name for n in nodes), *group.joins], reason)
    return network


def _give_reason(ports: Sequence[str], operations: int, levels: tuple[float, float]) -> str:
    return (
        f"part of the conversion of input {', '.join(ports)}: with a scale for each channel the worst has {levels[1]:.1f} dB, "
        f"and {levels[0]:.1f} with one for all; costs the host {operations} operation{'s' if operations > 1 else ''} an element; "
        f"--raw-port {ports[0]} keeps one scale"
    )


def _find_products(graph: OnnxGraph, pinned: Set[str]) -> list[ReadProducts]:
    """Return the products that read inputs, by the tensor that they read.

    Inputs that anything else computes with are left out with all that is joined to them, and so are `pinned` tensors.
    """
    ports = {n: frozenset((n,)) for n in graph.inputs if n not in pinned}
    joins, products, blocked = dict[str, frozenset[str]](), dict[str, list[OnnxNode]](), set[str]()
    for node in graph.nodes:
        read = [n for n in dict.fromkeys(node.inputs) if n in ports]
        if not read:
            continue
        is_joint = node.op.op_type in _JOINTS and set(node.inputs) <= ports.keys()
        if (is_joint or node.op.op_type in _MOVES) and pinned.isdisjoint(node.outputs):
            made_of = frozenset[str]().union(*(ports[n] for n in read))
            joined = frozenset[str]().union(*(joins.get(n, frozenset()) for n in read))
            joined |= {node.name} if is_joint else frozenset()
            ports |= dict.fromkeys(node.outputs, made_of)
            joins |= dict.fromkeys(node.outputs, joined)
        elif _is_product(node, graph):
            products.setdefault(node.inputs[0], []).append(node)
        else:
            blocked.update(*(ports[n] for n in read))
    pads = {t for t, nodes in products.items() if any(any(n.op.attributes.get("pads", ())) for n in nodes)}
    return [
        ReadProducts(tuple(sorted(ports[t])), t, tuple(nodes), tuple(sorted(joins.get(t, ()))), t not in pads)
        for t, nodes in products.items()
        if blocked.isdisjoint(ports[t])
    ]


def _is_product(node: OnnxNode, graph: OnnxGraph) -> bool:
    """Return whether a node is a Gemm, or a Conv in one group, of a tensor by constant weights and a bias."""
    attributes = node.op.attributes
    if graph.types[node.inputs[0]].dtype != "float32" or not all(n in graph.constants for n in node.inputs[1:] if n):
        return False
    if node.op.op_type == "Gemm":
        return not attributes.get("transA", 0) and attributes.get("beta", 1.0) != 0
    return node.op.op_type == "Conv" and attributes.get("group", 1) == 1


def _compare(values: np.ndarray, scale: ChannelScale, numerics: Numerics) -> tuple[float, float]:
    """Return the levels in dB of the worst channel by one scale and by scales of their own; infinite where there are none to
    compare."""
    offset = 0.0 if scale.offset is None else scale.offset
    by_channel = round_to_codes((values - offset) / scale.scale, numerics) * scale.scale + offset
    levels = (
        measure_parts({"": values}, {"": noisy.astype(np.float32)}).part_by_axis.get(("", 2))  # the second axis of one sample
        for noisy in (round_to_codes(values, numerics), by_channel)
    )
    by_one, by_channels = (math.inf if level is None else float(level.min()) for level in levels)
    return by_one, by_channels


def _scale_model(model: NormalModel, groups: Sequence[ReadProducts], scales: Mapping[str, ChannelScale]) -> NormalModel:
    """Return the model with the nodes before each group of products, and the products' weights and biases to match."""
    graph = model.graph
    types, constants = dict(graph.types), dict(graph.constants)
    groups_by_node = {n.name: g for g in groups for n in g.products}
    nodes, scaled = list[OnnxNode](), dict[str, str]()
    for node in graph.nodes:
        group = groups_by_node.get(node.name)
        if group is None:
            nodes.append(node)
            continue
        scale = scales[group.tensor]
        if group.tensor not in scaled:
            new_nodes = _divide(group.tensor, scale, types, constants)
            nodes, scaled[group.tensor] = nodes + new_nodes, new_nodes[-1].outputs[0]
        nodes.append(_multiply_weights(node, scaled[group.tensor], scale, types, constants))
    names = {**model.source_name_by_tensor, **{new: model.name(old) for old, new in scaled.items()}}
    return replace(model, graph=graph.with_nodes(nodes, types, constants), source=None, source_name_by_tensor=names)


def _divide(tensor: str, scale: ChannelScale, types: dict[str, TensorType], constants: dict[str, np.ndarray]) -> list[OnnxNode]:
    """Return the nodes that subtract the offset of a tensor and divide by its scales; types and constants are added."""
    nodes, last = list[OnnxNode](), tensor
    steps = [("Sub", "centred by channel", scale.offset), ("Mul", "scaled by channel", 1 / scale.scale)]
    for kind, what, value in steps:
        if value is None:
            continue
        name = f"{tensor}/{what}"
        add_constant(f"{name}/constant", value, types, constants)
        types[name] = types[tensor]
        nodes.append(Node(name, OnnxOp(kind), (last, f"{name}/constant"), (name,)))
        last = name
    return nodes


def _multiply_weights(
    node: OnnxNode, read: str, scale: ChannelScale, types: dict[str, TensorType], constants: dict[str, np.ndarray]
) -> OnnxNode:
    """Return the product that reads the scaled tensor `read`, with weights times the scales and the offset in its bias."""
    weights, attributes = constants[node.inputs[1]].astype(np.float64), node.op.attributes
    axis = 1 if node.op.op_type == "Conv" or attributes.get("transB", 0) else 0
    summed = (axis, *range(2, weights.ndim))  # all axes but that of the outputs
    by_channel = [1] * weights.ndim
    by_channel[axis] = -1
    scaled = weights * scale.scale.astype(np.float64).reshape(by_channel)
    inputs = [read, f"{node.name}/weights by channel", *node.inputs[2:]]
    add_constant(inputs[1], scaled, types, constants)
    if scale.offset is not None:
        share = attributes.get("alpha", 1.0) / attributes.get("beta", 1.0)
        bias = constants[node.inputs[2]].astype(np.float64) if len(node.inputs) > 2 and node.inputs[2] else 0.0
        sums = (weights * scale.offset.astype(np.float64).reshape(by_channel)).sum(summed)
        inputs = [*inputs[:2], f"{node.name}/bias by channel"]
        add_constant(inputs[2], bias + share * sums, types, constants)
    return Node(node.name, node.op, tuple(inputs), node.outputs, node.sources)
