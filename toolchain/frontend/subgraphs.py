"""Work on graphs that ONNX nodes hold, as of If, Loop and Scan: their names, renamed copies, and their loop-invariant part."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from toolchain.frontend.infer import RANDOM
from toolchain.frontend.read_onnx import graphs_of


def list_captured_names(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that a node's graphs read from outside."""
    return {n for graph in graphs_of(node) for n in free_names(graph)}


def free_names(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that a graph, or a graph inside it, reads from outside."""
    inside = {n for node in graph.node for n in node.output} | {i.name for i in (*graph.initializer, *graph.input)}
    used = {o.name for o in graph.output} | {n for node in graph.node for n in node.input if n}
    for node in graph.node:
        used |= list_captured_names(node)
    return used - inside


def get_defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that the graph's nodes make and its constants, including inner graphs, without its inputs."""
    defined_names = {i.name for i in graph.initializer} | {n for node in graph.node for n in node.output if n}
    for inner in (g for node in graph.node for g in graphs_of(node)):
        defined_names |= get_defined_names(inner) | {i.name for i in inner.input}
    return defined_names


def instantiate_subgraph(graph: onnx.GraphProto, names: Mapping[str, str], called: str = "") -> onnx.GraphProto:
    """Return a copy of the graph that lacks its inputs, with tensors renamed by `names`, in graphs within it too.

    `called`: prefix of the names of its nodes; "" keeps them.
    """
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    del copy.input[:]
    _rename(copy, names)
    for node in copy.node if called else ():
        node.name = f"{called}/{node.name or node.op_type}"
    return copy


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.initializer, *graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        for inner in graphs_of(node):
            _rename(inner, names)


def split_invariant(graph: onnx.GraphProto) -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """Return (once, each): the nodes that do not depend on the graph's inputs, with its constants, and the other nodes.

    `once` gives out every tensor that it makes, and its constants; `each` has the graph's outputs.
    Random operators, and nodes whose graphs hold one, are in `each`.
    """
    once, each = onnx.GraphProto(name=graph.name, initializer=graph.initializer), onnx.GraphProto(name=graph.name)
    remaining_nodes = list(graph.node)
    changing = {i.name for i in graph.input} | {name for n in remaining_nodes if _is_random(n) for name in n.output if name}
    while True:
        changing_nodes = [n for n in remaining_nodes if not changing.isdisjoint((*n.input, *list_captured_names(n)))]
        more = {name for n in changing_nodes for name in n.output if name}  # "" is an output left out, and no tensor
        if more <= changing:
            break
        changing |= more
    for node in remaining_nodes:
        (each if not changing.isdisjoint(node.output) else once).node.append(node)
    each.output.extend(graph.output)
    once.output.extend(onnx.ValueInfoProto(name=n) for n in sorted({n for node in once.node for n in node.output if n}))
    once.output.extend(onnx.ValueInfoProto(name=i.name) for i in graph.initializer)
    return once, each


def _is_random(node: onnx.NodeProto) -> bool:
    """Return whether the node draws random numbers, or a node of its graphs does."""
    return node.op_type in RANDOM or any(_is_random(n) for graph in graphs_of(node) for n in graph.node)
