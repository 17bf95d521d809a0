"""Give the channels of an output scales of their own: the host multiplies and adds what the last product leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from quant.fit_sample import Sample
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType
from toolchain.repair.network import Network
from toolchain.repair.port_noise import find_worst_part, round_to_codes, run_float

_LOW_DB = 30.0  # docs/accuracy.md: of the worst channel by one scale
_GAIN_DB = 6.0  # docs/accuracy.md: a bit
_LEAST_SPAN = 1e-6  # docs/accuracy.md: of a channel, as a share of its magnitude: below it a channel is constant


@dataclass(frozen=True)
class ChannelScale:
    """A scale and an offset for each channel of a product: real = scale * chip's + offset. Both are float32[c, 1, ...]."""

    scale: np.ndarray
    offset: np.ndarray


def scale_outputs(network: Network, products: Mapping[str, str], samples: Iterable[Sample]) -> Network:
    """Return the network with scales by channel for those products that lose a channel behind one scale.

    `products`: tensors that the chip hands to the host, with the output behind each.
    """
    model = network.model
    free = {*products} - network.selection.file_ranges.keys() - network.types.keys()
    names = [n for n in products if n in free]
    values = run_float(model, names, samples) if names and not model.stored else None
    scales, reasons = dict[str, ChannelScale](), dict[str, str]()
    if values is None:
        return network
    for name in names:
        exact = values[name]
        candidate = _measure_scale(exact)
        coded = round_to_codes((exact - candidate.offset) / candidate.scale, network.chip.numerics)
        chip_db = find_worst_part({name: exact}, {name: round_to_codes(exact, network.chip.numerics)})
        host_db = find_worst_part({name: exact}, {name: coded * candidate.scale + candidate.offset})
        if chip_db < _LOW_DB and host_db >= chip_db + _GAIN_DB:
            scales[name] = candidate
            port = model.name(products[name])
            reasons[name] = (
                f"part of the conversion of output {port}: with a scale for each channel the worst has {host_db:.1f} dB, and "
                f"{chip_db:.1f} with one for all; costs the host 2 operations an element; --raw-port {port} keeps one scale"
            )
    if not scales:
        return network
    undivided = None if model.undivided is None else _scale_model(model.undivided, scales)
    network = replace(network, model=replace(_scale_model(model, scales), undivided=undivided))
    for name, reason in reasons.items():
        network = network.host((_name_product(name), _name_sum(name)), reason)
    return network


def _measure_scale(values: np.ndarray) -> ChannelScale:
    """Return the scales that bring each channel to [-1, 1]. `values`: float32[samples, n, c, ...]."""
    others = (0, 1, *range(3, values.ndim))
    low, high = (np.squeeze(v, (0, 1)) for v in (values.min(others, keepdims=True), values.max(others, keepdims=True)))
    span = (high - low) / 2
    floor = np.maximum(_LEAST_SPAN * np.maximum(np.abs(low), np.abs(high)), np.float32(1e-30))
    # What is constant has the offset alone.
    scale = np.where(span > floor, span, np.maximum(np.maximum(np.abs(low), np.abs(high)), 1e-3))
    return ChannelScale(scale.astype(np.float32), ((low + high) / 2).astype(np.float32))


def _name_codes(tensor: str) -> str:
    return f"{tensor}/in codes"


def _name_product(tensor: str) -> str:
    return f"{tensor}/scaled by channel"


def _name_sum(tensor: str) -> str:
    return f"{tensor}/offset by channel"


def _scale_model(model: NormalModel, scales: Mapping[str, ChannelScale]) -> NormalModel:
    """Return the model with a product and a sum behind the products of `scales`. Their outputs keep their names and values."""
    graph = model.graph
    types, constants, nodes = dict(graph.types), dict(graph.constants), list[OnnxNode]()
    for node in graph.nodes:
        scale = scales.get(node.outputs[0])
        nodes += [node] if scale is None else _divide(node, scale, graph, types, constants)
    names = {**model.source_name_by_tensor, **{_name_codes(n): model.name(n) for n in scales}}
    # The file itself lacks the new tensors.
    return replace(model, graph=graph.with_nodes(nodes, types, constants), source=None, source_name_by_tensor=names)


def _divide(
    node: OnnxNode, scale: ChannelScale, graph: OnnxGraph, types: dict[str, TensorType], constants: dict[str, np.ndarray]
) -> list[OnnxNode]:
    """Return a product of codes that fill their range, and the host's nodes that take the scales out again."""
    name, read = node.outputs[0], node.inputs[0]
    transposed = node.op.op_type == "Conv" or node.op.attributes.get("transB", 0)
    weights = graph.constants[node.inputs[1]].astype(np.float64)
    by_channel = scale.scale.ravel().astype(np.float64)
    shape = (-1, *(1,) * (weights.ndim - 1)) if transposed else (1, -1)
    bias = graph.constants[node.inputs[2]].astype(np.float64) if len(node.inputs) > 2 and node.inputs[2] else 0.0
    beta = node.op.attributes.get("beta", 1.0) if node.op.op_type == "Gemm" else 1.0
    new = {
        f"{name}/weights": weights / by_channel.reshape(shape),
        f"{name}/bias": (bias - scale.offset.ravel() / beta) / by_channel,
        f"{name}/scale": scale.scale,
        f"{name}/offset": scale.offset,
    }
    for key, value in new.items():
        constants[key] = value.astype(np.float32)
        types[key] = TensorType(constants[key].shape, "float32")
    chip, scaled = _name_codes(name), _name_product(name)
    types |= {chip: types[name], scaled: types[name]}
    inputs = (read, f"{name}/weights", f"{name}/bias")
    return [
        Node(node.name, node.op, inputs, (chip,), node.sources),
        Node(scaled, OnnxOp("Mul"), (chip, f"{name}/scale"), (scaled,)),
        Node(_name_sum(name), OnnxOp("Add"), (scaled, f"{name}/offset"), (name,)),
    ]
