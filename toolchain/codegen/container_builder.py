"""Assemble a `Container`, the content of `model.npu`, at the end of a build.

`build_container` takes compiled segments. `reference_container` makes one without programs, for the integer reference
alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.codegen.link import port_at
from toolchain.codegen.model import Container, HostSubgraph, IoType, Port, Region, state_of
from toolchain.frontend import NormalModel, extract
from toolchain.ir.graph import Graph, Node, OnnxOp, Origin
from toolchain.isa import Machine
from toolchain.passes.partition import Segment, partition_graph
from toolchain.passes.select import Selection


def build_container(
    name: str,
    model: NormalModel,
    selection: Selection,
    machine: Machine,
    graph: Graph,
    compiled: Sequence[Region | HostSubgraph],
) -> Container:
    """Return the container of one entry point.

    `name`: name of the model. `model`: the canonical form, for inputs, outputs and bound values. `selection`: for the
    nodes on the host with their reasons. `graph`: the integer graph, of which the chip's nodes are kept. `compiled`:
    compiled segments in the order in which they run. States are no inputs or outputs of the container.
    """
    lasting = {n for state in graph.states for n in state.pair}
    inputs, outputs = (
        tuple(IoType(n, model.types[n].shape, model.types[n].dtype) for n in names if n not in lasting)
        for names in (model.graph.inputs, model.graph.outputs)
    )
    fallbacks = tuple((f.node, f.op, f.reason) for f in selection.fallbacks)
    return Container(name, machine, inputs, outputs, tuple(compiled), fallbacks, _chip_graph(graph, model), model.bound)


def reference_container(model: NormalModel, selection: Selection, machine: Machine, graph: Graph) -> Container:
    """Return a container without programs, which a Session runs with backend="reference" only."""
    compiled = [_make_reference_region(graph, s) if s.on_chip else build_host_subgraph(model, s) for s in partition_graph(graph)]
    return build_container(graph.name, model, selection, machine, graph, compiled)


def build_host_subgraph(model: NormalModel, segment: Segment) -> HostSubgraph:
    """Return a host segment as a serialized ONNX model, cut out of the canonical form."""
    proto = extract(model, segment.inputs, segment.outputs)
    return HostSubgraph(
        proto.SerializeToString(deterministic=True), segment.inputs, segment.outputs, tuple(n.name for n in segment.nodes)
    )


def _make_reference_region(graph: Graph, segment: Segment) -> Region:
    """Return a region without a program, whose ports lie one after the other from address 0."""
    ports: dict[str, Port] = {}
    end = 0
    state_tensors = {state.present_tensor for state in graph.states}
    for name in (*segment.inputs, *(n for n in segment.outputs if n not in state_tensors)):
        if name not in ports:
            ports[name] = port_at(end, name, graph)
            end += ports[name].size_bytes
    region_states = [state for state in graph.states if state.present_tensor in segment.outputs]
    states = tuple(state_of(s, ports[s.past]) for s in region_states)
    inputs = tuple(ports[n] for n in segment.inputs if n not in {s.past for s in region_states})
    outputs = tuple(ports[n] for n in segment.outputs if n in ports)
    return Region(b"", (), inputs, outputs, end, tuple(n.name for n in segment.nodes), (), (), 0, 0, states=states)


def _chip_graph(graph: Graph, model: NormalModel) -> Graph:
    """Return the graph of the chip's nodes, without inputs and outputs. Origins name tensors as the user's file does."""
    nodes: list[Node] = [n for n in graph.nodes if not isinstance(n.op, OnnxOp)]
    named = {n for node in nodes for n in (*node.inputs, *node.outputs)}
    produced_tensors = {n for node in nodes for n in node.outputs}
    origin_by_tensor = {
        n: Origin(model.name(o.tensor), o.layout) if n in produced_tensors else o for n, o in graph.origins.items() if n in named
    }
    return Graph(
        graph.name,
        tuple(nodes),
        (),
        (),
        {n: t for n, t in graph.types.items() if n in named},
        {n: c for n, c in graph.constants.items() if n in named},
        origin_by_tensor,
    )
