"""Give the channels of an output scales of their own, where one scale for all loses a channel.

The last product's weights are divided by the scales, and the host multiplies again and adds the offset while it converts codes.
It is the last step of repair.place_port_nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.numerics import Numerics
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType
from toolchain.passes.port_nodes import CodedProduct
from toolchain.repair.network import Network
from toolchain.repair.port_noise import PartLevels, measure_parts, round_to_codes, run_float

_LOW_DB = 30.0  # docs/accuracy.md: of the worst channel by one scale
CHANNEL_GAIN_DB = 6.0  # docs/accuracy.md: a bit
_LEAST_SPAN = 1e-6  # docs/accuracy.md: of a channel, as a share of its magnitude: below it a channel is constant
_UNSEEN = 16  # docs/accuracy.md: times as many values as were seen, whose largest has room
_MOST_ROOM = 1.9  # docs/accuracy.md: from 2 on a power of two that is half as large covers the channel again, without room


@dataclass(frozen=True)
class ChannelScale:
    """A scale for each channel of a product, and an offset where no Relu follows: real = scale * chip's + offset.

    Both are float32[c, 1, ...]; `offset` is None behind a clamp.
    """

    scale: np.ndarray
    offset: np.ndarray | None


def scale_outputs(network: Network, products: Sequence[CodedProduct], samples: Iterable[Sample]) -> Network:
    """Return the network with scales by channel for those products that lose a channel behind one scale and gain by scales.

    Products whose type or scale the user or the file gives stay, and so do all of a model that is quantized already. Where a
    sample is not finite, nothing changes.

    `products`: products whose codes the chip hands to the host.
    """
    model = network.model
    fixed = {*network.selection.file_ranges, *network.types}
    free = {p.tensor: p for p in products if fixed.isdisjoint((p.tensor, p.product.outputs[0]))}
    values = run_float(model, [*free], samples) if free and not model.stored else None
    scales, reasons = dict[str, ChannelScale](), dict[str, str]()
    if values is None:
        return network
    for name, product in free.items():
        candidate = measure_scale(values[name], product.clamp is None)
        chip, host = _compare(name, values[name], candidate, network.chip.numerics)
        if host.improves_on(chip, _LOW_DB, CHANNEL_GAIN_DB) and host.keeps(chip):
            scales[name], reasons[name] = candidate, _give_reason(model.name(product.port), candidate, chip, host)
    if not scales:
        return network
    undivided = None if model.undivided is None else _scale_model(model.undivided, free, scales)
    network = replace(network, model=replace(_scale_model(model, free, scales), undivided=undivided))
    for name, reason in reasons.items():
        network = network.host((_name_product(name), _name_sum(name)), reason)
    return network


def is_poor_product(values: np.ndarray, name: str, numerics: Numerics, limit_db: float) -> bool:
    """Return whether the codes of one scale for all channels leave a part of these values below `limit_db`."""
    return measure_parts({name: values}, {name: round_to_codes(values, numerics)}).worst < limit_db


def _give_reason(port: str, scale: ChannelScale, chip: PartLevels, host: PartLevels) -> str:
    operations = 1 if scale.offset is None else 2
    return (
        f"part of the conversion of output {port}: with a scale for each channel the worst has {host.worst:.1f} dB, and "
        f"{chip.worst:.1f} with one for all; costs the host {operations} operation{'s' if operations > 1 else ''} an element; "
        f"--raw-port {port} keeps one scale"
    )


def _compare(name: str, exact: np.ndarray, scale: ChannelScale, numerics: Numerics) -> tuple[PartLevels, PartLevels]:
    """Return the levels by one scale, and by one for each channel."""
    offset = 0.0 if scale.offset is None else scale.offset
    coded = round_to_codes((exact - offset) / scale.scale, numerics)
    host = measure_parts({name: exact}, {name: coded * scale.scale + offset})
    return measure_parts({name: exact}, {name: round_to_codes(exact, numerics)}), host


def measure_scale(values: np.ndarray, has_offset: bool) -> ChannelScale:
    """Return the scales that bring each channel into [-1, 1], with room for values of other data.

    Of k times as many values the largest is ln(k n) / ln(n) times that of n, where the tail is exponential.

    `values`: float32[samples, n, c, ...].
    `has_offset`: the scale is centred on the channel's own range.
    """
    others = (0, 1, *range(3, values.ndim))
    low, high = (np.squeeze(v, (0, 1)) for v in (values.min(others, keepdims=True), values.max(others, keepdims=True)))
    most = np.maximum(np.abs(low), np.abs(high))
    room = min(1 + math.log(_UNSEEN) / math.log(max(values.size / values.shape[2], 2)), _MOST_ROOM)
    span = room * ((high - low) / 2 if has_offset else most)
    floor = np.maximum(_LEAST_SPAN * most, np.float32(1e-30))
    # What is constant has the offset alone. Where all were zero other data may have a value, which one scale for all would keep.
    constant = np.maximum(most + (most == 0) * most.max(), 1e-3)
    scale = cast("np.ndarray", np.where(span > floor, span, constant))
    return ChannelScale(scale.astype(np.float32), ((low + high) / 2).astype(np.float32) if has_offset else None)


def _name_codes(tensor: str) -> str:
    return f"{tensor}/in codes"


def _name_constant(tensor: str, part: str) -> str:
    """Return a name that no constant has that the frontend makes."""
    return f"{_name_codes(tensor)}/{part}"


def _name_product(tensor: str) -> str:
    return f"{tensor}/scaled by channel"


def _name_sum(tensor: str) -> str:
    return f"{tensor}/offset by channel"


def _scale_model(model: NormalModel, products: Mapping[str, CodedProduct], scales: Mapping[str, ChannelScale]) -> NormalModel:
    """Return the model with a product and a sum behind the products of `scales`. Their outputs keep their names and values."""
    graph = model.graph
    types, constants, new_nodes = dict(graph.types), dict(graph.constants), dict[str, list[OnnxNode]]()
    for name, scale in scales.items():
        node, clamp = products[name].product, products[name].clamp
        last = codes = _name_codes(node.outputs[0])
        nodes_of = [_divide(node, codes, scale, graph, types, constants)]
        new_nodes[node.name] = nodes_of
        if clamp is not None:
            last = _name_codes(name)
            nodes_of = [Node(clamp.name, clamp.op, (codes,), (last,), clamp.sources)]
            new_nodes[clamp.name] = nodes_of
        nodes_of += _multiply(name, last, scale, types, constants)
    nodes = [new for node in graph.nodes for new in new_nodes.get(node.name, [node])]
    coded = {t for n in scales for t in (n, products[n].product.outputs[0])}
    names = {**model.source_name_by_tensor, **{_name_codes(n): model.name(n) for n in coded}}
    # The file itself lacks the new tensors.
    return replace(model, graph=graph.with_nodes(nodes, types, constants), source=None, source_name_by_tensor=names)


def _divide(
    node: OnnxNode,
    codes: str,
    scale: ChannelScale,
    graph: OnnxGraph,
    types: dict[str, TensorType],
    constants: dict[str, np.ndarray],
) -> OnnxNode:
    """Return a product with weights and bias divided by the scales, whose output `codes` fills its range.

    Constants and types are added to the mappings.
    """
    name, read = node.outputs[0], node.inputs[0]
    transposed = node.op.op_type == "Conv" or node.op.attributes.get("transB", 0)
    weights = graph.constants[node.inputs[1]].astype(np.float64)
    by_channel = scale.scale.ravel().astype(np.float64)
    by_channel_of_weights = by_channel.reshape(-1, *(1,) * (weights.ndim - 1)) if transposed else by_channel
    bias = graph.constants[node.inputs[2]].astype(np.float64) if len(node.inputs) > 2 and node.inputs[2] else 0.0
    beta = node.op.attributes.get("beta", 1.0) if node.op.op_type == "Gemm" else 1.0
    offset = 0.0 if scale.offset is None else scale.offset.ravel() / beta
    add_constant(_name_constant(name, "weights"), weights / by_channel_of_weights, types, constants)
    add_constant(_name_constant(name, "bias"), (bias - offset) / by_channel, types, constants)
    types[codes] = types[name]
    return Node(node.name, node.op, (read, _name_constant(name, "weights"), _name_constant(name, "bias")), (codes,), node.sources)


def _multiply(
    name: str, codes: str, scale: ChannelScale, types: dict[str, TensorType], constants: dict[str, np.ndarray]
) -> list[OnnxNode]:
    """Return the host's nodes that multiply by the scales and add the offset; constants and types are added to the mappings."""
    add_constant(_name_constant(name, "scale"), scale.scale, types, constants)
    types[codes] = types[name]
    if scale.offset is None:
        return [Node(_name_product(name), OnnxOp("Mul"), (codes, _name_constant(name, "scale")), (name,))]
    add_constant(_name_constant(name, "offset"), scale.offset, types, constants)
    scaled = _name_product(name)
    types[scaled] = types[name]
    return [
        Node(scaled, OnnxOp("Mul"), (codes, _name_constant(name, "scale")), (scaled,)),
        Node(_name_sum(name), OnnxOp("Add"), (scaled, _name_constant(name, "offset")), (name,)),
    ]


def add_constant(name: str, value: np.ndarray, types: dict[str, TensorType], constants: dict[str, np.ndarray]) -> None:
    """Add a constant as float32, and its type, to the mappings."""
    constants[name] = value.astype(np.float32)
    types[name] = TensorType(constants[name].shape, "float32")
