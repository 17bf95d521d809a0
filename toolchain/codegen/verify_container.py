"""Check a compiled file that was read: its regions, its integer graph and its machine must be consistent.

`codegen.container` calls it, so that simulator, reference and reports may rely on it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager

import numpy as np

from toolchain.codegen.model import HostSubgraph, Region, State
from toolchain.errors import ProgramError, first_line
from toolchain.ir.graph import Graph
from toolchain.isa import Machine
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import Layer


def verify_container(segments: Sequence[Region | HostSubgraph], graph: Graph, machine: Machine) -> None:
    """Raise ProgramError with the first fault; host subgraphs are not looked at.

    `segments`: in the order of a run. Each port must be computed from constants and tensors that its region or an earlier
    one reads or makes. All tensors of nodes need a type, and convolutions must fit their tensors. Each layer's result
    must lie inside its memory.
    """
    _check_graph(segments, graph)
    _check_operators(graph, machine)
    _check_results(segments, graph, machine)


@contextmanager
def reading_layers() -> Generator[None]:
    """Return a context in which errors of deriving figures from a file's layers and tensors become a ProgramError.

    Arithmetic, lookup, type, value, attribute and assertion errors do. Reports ask more of layers than a run does.
    """
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as fault:
        raise ProgramError(f"graph: its layers do not fit its tensors: {first_line(fault)}; build it again") from fault


def _check_graph(segments: Sequence[Region | HostSubgraph], graph: Graph) -> None:
    """Raise ProgramError where a region's node reads a tensor before it is made, or a port or state is made by none."""
    produced_tensors = set(graph.constants)
    nodes = {n.name for n in graph.nodes}
    for region in segments:
        if not isinstance(region, Region):
            continue
        produced_tensors.update(region.read)
        region_nodes = set(region.nodes)
        missing = next((n for n in region.nodes if n not in nodes), None)
        if missing is not None:
            raise ProgramError(f"graph: has no node {missing!r}, which a region holds")
        for node in (n for n in graph.nodes if n.name in region_nodes):
            undefined = next((n for n in node.inputs if n and n not in produced_tensors), None)
            if undefined is not None:
                raise ProgramError(f"graph: node {node.name!r} reads {undefined!r} before it is made")
            produced_tensors.update(node.outputs)
        for port in region.outputs:
            if port.tensor not in produced_tensors:
                raise ProgramError(f"graph: no node makes the port {port.model!r}")
        for state in region.states:
            _check_state(state, graph, produced_tensors)


def _check_state(state: State, graph: Graph, produced_tensors: Collection[str]) -> None:
    """Raise ProgramError where a state is not made, or is left in another type than the next run reads."""
    name = state.port.model
    if state.present_tensor not in produced_tensors or state.present_tensor not in graph.types:
        raise ProgramError(f"graph: no node makes the state {name!r}")
    read, left_type = (graph.types.get(n) for n in (state.port.tensor, state.present_tensor))
    if read is not None and read != left_type:
        raise ProgramError(f"graph: the state {name!r} is left in another type than it is read in")


def _check_operators(graph: Graph, machine: Machine) -> None:
    """Raise ProgramError where a node's tensor has no type, or a convolution does not fit its tensors."""
    for node in graph.nodes:
        missing = next((n for n in (*node.inputs, *node.outputs) if n and n not in graph.types), None)
        if missing is not None:
            raise ProgramError(f"graph: node {node.name!r} names {missing!r}, which has no type")
        if isinstance(node.op, IntegerConvolution):
            try:
                node.op.macs(Layer(node, graph.types, graph.constants, machine.chip))
            except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
                reason = f"lacks {fault}" if isinstance(fault, KeyError) else str(fault)
                raise ProgramError(f"graph: node {node.name!r} does not fit its tensors: {reason}") from None


def _check_results(segments: Sequence[Region | HostSubgraph], graph: Graph, machine: Machine) -> None:
    """Raise ProgramError where a layer's result is not its node's output, or does not lie inside its memory."""
    output_by_node = {n.name: n.outputs[0] for n in graph.nodes}
    for region in (s for s in segments if isinstance(s, Region)):
        sizes = {s.name: s.memory.size for s in machine.chip.spaces} | {"dram": region.dram_bytes}
        for layer, result in ((i.name, i.result) for i in region.layers if i.result is not None):
            if output_by_node.get(layer) != result.tensor:
                raise ProgramError(f"layer {layer!r}: its result {result.tensor!r} is not what its node makes")
            kind = graph.types[result.tensor]
            if len(result.strides) != len(kind.shape):
                raise ProgramError(f"layer {layer!r}: {len(result.strides)} strides for {len(kind.shape)} dimensions")
            if result.granule and len(kind.shape) != 4:
                raise ProgramError(f"layer {layer!r}: its result is in granules with {len(kind.shape)} dimensions")
            try:
                shape, strides = result.get_storage(kind)
            except ValueError as fault:
                raise ProgramError(f"layer {layer!r}: {fault}") from None
            reach = sum((n - 1) * stride for n, stride in zip(shape, strides))
            if result.address + reach + np.dtype(kind.dtype).itemsize > sizes[result.space]:
                raise ProgramError(f"layer {layer!r}: its result at {result.address:#x} reaches outside {result.space}")
