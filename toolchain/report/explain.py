"""Explain where every node of the model went and what the compiler added, as `npu-build --explain` prints it.

`explain_nodes` makes rows for the JSON report (`NodeFigures` of report.figure_types), from the compiled container and the
figures of its layers. Why a layer costs what it does comes from report.bottlenecks. _OF_A_LAYER are the figures that a node's
row takes from its layer. Nodes of QUANTIZERS become no layer, since they only give a tensor its scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolchain.codegen import Container
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.machine import InstructionStream
from toolchain.machine.parameters.description import OPEN_LIMIT
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.convolution.parameters import is_depthwise
from toolchain.ops.data_movement import IntegerPad
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.kit.layout import channels_last
from toolchain.ops.kit.operator import operator_of
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.report.bottlenecks import find_bottlenecks

Row = dict[str, Any]
_OF_A_LAYER = ("steps_of", "engine", "cycles", "segment", "operations", "input_types", "output_types", "weight_type")
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def explain_nodes(
    nodes: Sequence[tuple[str, str]],
    layers: Iterable[Mapping[str, Any]],
    container: Container,
    flows: Sequence[InstructionStream | None],
    host: Mapping[str, str],
    resident: bool,
) -> list[Row]:
    """Return a row for every node of the model, in its order, and for every layer that the compiler added.

    A row has the keys of `NodeFigures`. Its cycles and operations are those of the whole layer, which several nodes may share.
    The key `made_by` is "model", or "compiler" for a layer that the model does not have. Such a row stands before the node that
    it serves.

    `nodes`: (name, operator) of the model's own nodes, in its order.
    `layers`: layers of the report.
    `flows`: operations of each segment as the front end dispatches them; None for host subgraphs.
    `host`: reason why a node runs on the host, by node.
    `resident`: whether the build's level keeps tensors in SRAM between layers; `find_bottlenecks` needs it for its reasons.
    """
    layers = list(layers)
    why = find_bottlenecks(container, flows, dict(nodes), resident)
    owner = {source: layer for layer in layers for source in layer["sources"]}
    views = {source for node in container.graph.nodes if isinstance(node.op, Reshape) for source in node.sources}
    rows = [_row(name, op, owner.get(name), name in views, host.get(name), why) for name, op in nodes]
    return _with_made(rows, layers, container, why)


def _row(
    name: str,
    op: str,
    layer: Mapping[str, Any] | None,
    view: bool,
    refusal: str | None,
    why: Mapping[str, Sequence[str]],
) -> Row:
    """Return the row of a node of the model.

    `layer`: the layer that computes it, None where there is none.
    `view`: it only gives bytes another shape.
    `refusal`: why the host computes it or a part of it, None where it does not.
    `why`: reasons of the layers' cost, by layer.
    """
    row = {"node": name, "op": op, "engine": "none", "layer": None, "cycles": 0, "reason": "", "made_by": "model"}
    row |= {"steps_of": None, "segment": None, "operations": None, "input_types": [], "output_types": [], "weight_type": None}
    if refusal is not None and layer is None:
        return {**row, "engine": "host", "cycles": None, "reason": refusal}
    if layer is not None:
        first = layer["sources"][0] == name
        part = () if layer["name"] == name else (f"part of {layer['name']}",)
        host_notes = () if refusal is None else (f"in part on the host: {refusal}",)
        reasons = "; ".join([*part, *host_notes, *(why.get(layer["name"], ()) if first else ())])
        return {**row, **_figures(layer), "layer": layer["name"], "reason": reasons}
    if view:
        return {**row, "reason": "the same bytes under another shape"}
    if op in QUANTIZERS:
        return {**row, "reason": "says the scale of a tensor, which keeps it, or of a constant"}
    return {**row, "reason": "folded away: constant, without effect, or merged into another node"}


def _figures(layer: Mapping[str, Any]) -> Row:
    """Return those figures of a layer that its nodes' rows have too."""
    return {key: layer[key] for key in _OF_A_LAYER}


def _with_made(
    rows: list[Row], layers: Sequence[Mapping[str, Any]], container: Container, why: Mapping[str, Sequence[str]]
) -> list[Row]:
    """Return the rows with a row added for every layer without a node of the model, before the first node of the next layer.

    A node that several layers make gets a row for each of them but the last.
    """
    before: dict[str, list[Row]] = {}
    waiting: list[Row] = []
    shown = {row["layer"] for row in rows}
    for layer in layers:
        if layer["sources"]:
            before.setdefault(layer["sources"][0], []).extend(waiting)
            waiting = []
        if layer["name"] in shown:
            continue
        step = f"a step of {layer['sources'][0]}" if layer["sources"] else _purpose(layer["name"], container)
        reasons = "; ".join([step, *why.get(layer["name"], ())])
        figures = {"node": layer["name"], "op": layer["op"], "layer": layer["name"], **_figures(layer)}
        row = {**figures, "reason": f"made by the compiler: {reasons}", "made_by": "compiler"}
        (before[layer["sources"][0]] if layer["sources"] else waiting).append(row)
    return [row for model_row in rows for row in (*before.get(model_row["node"], ()), model_row)] + waiting


def _purpose(name: str, container: Container) -> str:
    """Return the purpose of a layer that no node of the model stands for."""
    chip, graph = container.machine.chip, container.graph
    node = next(n for n in graph.nodes if n.name == name)
    kind = type(node.op).__name__
    state = next((s.port.model for _, s in container.states if s.present_tensor == node.outputs[0]), None)
    if state is not None:
        return f"leaves state {state} where the next run reads it"
    if isinstance(node.op, IntegerPad) and not any((*node.op.before, *node.op.after)):
        return f"keeps tensor {graph.shown(node.inputs[0])} until all states are read"
    if kind == "IntegerPad":
        return f"padding written out, beyond {_pad_limit(node, graph, chip)}"
    if kind == "Rescale" and any(isinstance(n.op, IntegerPad) for n in graph.consumers().get(node.outputs[0], ())):
        return f"brings tensor {graph.shown(node.inputs[0])} to a scale that holds the value put around it"
    if kind == "Rescale" and graph.types[node.inputs[0]].dtype != (output_type := graph.types[node.outputs[0]].dtype):
        return f"makes {output_type} codes of tensor {graph.shown(node.inputs[0])}"
    if kind == "Rescale":
        return f"brings tensor {graph.shown(node.inputs[0])} to the scale of what it is joined with"
    if isinstance(node.op, IntegerBinary) and node.op.kind == "sub":
        return f"makes {graph.types[node.outputs[0]].dtype} codes of what those leave of tensor {graph.shown(node.inputs[0])}"
    if isinstance(node.op, Transpose):
        order = "channels last" if node.op.perm == channels_last(len(node.op.perm)) else "the model's order"
        return f"tensor {graph.shown(node.outputs[0])} in {order}, as its reader takes it"
    return "serves the next node"


def _pad_limit(pad: Node, graph: Graph, chip: Chip) -> str:
    """Return the limit of the machine that makes this padding a layer of its own, with key and value."""
    reader = graph.consumers()[pad.outputs[0]][0]
    while not isinstance(reader.op, IntegerConvolution):  # rescaled in between
        reader = graph.consumers()[reader.outputs[0]][0]
    outputs, _, _, reduction = graph.constants[reader.inputs[1]].shape
    groups = operator_of(reader, IntegerConvolution).groups
    deep = is_depthwise(groups, reduction * groups, outputs, chip)
    section = "depthwise" if deep else "convolution"
    limit = getattr(chip.limits, section).max_pad
    if limit is None:
        return f"the {OPEN_LIMIT:,} that an instruction can say"
    return f"limits.{section}.max_pad=[{limit[0]}, {limit[1]}]"
