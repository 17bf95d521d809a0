"""Explain which keys of the machine's YAML determined a layer: how it is cut, which slow way it runs, why it stands alone.

The explanation of nodes (report.explain) calls `find_bottlenecks` with the decoded programs. A sentence begins with the key, so
that a reader knows what to change. It begins with "chosen for speed" where no key required it, or with the level of the build
where that did. A layer without operations of its own gets a sentence without a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toolchain.codegen import Container, Region
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.machine import (
    TABLE_FUNCTIONS,
    Convolution,
    Copy,
    Depthwise,
    Emit,
    InstructionStream,
    MachineOp,
    MatrixProduct,
    Signal,
    Space,
    Table,
    Wait,
    find_function_rate,
)
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.kit.operator import Layer, MoveOp, operator_of
from toolchain.ops.lookup import Lookup
from toolchain.ops.pool.geometry import Geometry
from toolchain.ops.pool.integer_pool import IntegerMaxPool
from toolchain.ops.pool.select_pool import beyond_pools
from toolchain.report.tiling_causes import explain_convolution_tiling, explain_product_tiling, pair

_POOLS = ("AveragePool", "GlobalAveragePool", "ReduceMean")


def find_bottlenecks(
    container: Container, flows: Sequence[InstructionStream | None], operators: Mapping[str, str], resident: bool
) -> dict[str, tuple[str, ...]]:
    """Return the sentences of every layer that has any, by its name, without duplicates.

    `flows`: operations of each segment, in order; None for host subgraphs.
    `operators`: ONNX operator of each node of the model.
    `resident`: the build's level keeps tensors in SRAM between layers.
    """
    chip, graph = container.machine.chip, container.graph
    nodes, producers, consumers = {n.name: n for n in graph.nodes}, graph.producers(), graph.consumers()
    sentences_by_layer: dict[str, tuple[str, ...]] = {}
    for region, flow in zip(container.segments, flows, strict=True):
        if not isinstance(region, Region) or flow is None:
            continue
        own_ranges = _list_own_ranges(region)
        for info, ops in zip(region.layers, _by_layer(region, flow)):
            node = nodes.get(info.name)
            if node is None:
                continue
            sentences = [*_of_operator(node, graph, chip, ops), *_explain_separate_pass(node, graph, chip, producers, consumers)]
            sentences += _averages([operators.get(s, "") for s in info.sources], node, graph, chip)
            sentences += _find_spills(own_ranges, chip, ops, resident)
            if sentences:
                sentences_by_layer[info.name] = tuple(dict.fromkeys(sentences))
    return sentences_by_layer


def _by_layer(region: Region, flow: InstructionStream) -> list[list[MachineOp]]:
    """Return the operations of each layer, without signals and waits, and of a loop those of the first iteration alone."""
    ops_by_layer: list[list[MachineOp]] = [[] for _ in region.layers]
    layers: list[int] = region.layers_of(flow).tolist()
    for index, (op, layer) in enumerate(zip(flow, layers)):
        if layer >= 0 and not isinstance(op, Signal | Wait) and not any(i for i, _ in flow.iterations[index]):
            ops_by_layer[layer].append(op)
    return ops_by_layer


def _of_operator(node: Node, graph: Graph, chip: Chip, ops: Sequence[MachineOp]) -> list[str]:
    """Return the sentences that follow from the operator and its own operations: cuts, rates of tables, chains of pools."""
    if isinstance(node.op, MoveOp) and not ops:
        return ["nothing to move: what is beside it reads or writes it where it lies"]
    deep = [op for op in ops if isinstance(op, Depthwise)]
    dense = [op for op in ops if isinstance(op, Convolution)]
    products = [op for op in ops if isinstance(op, MatrixProduct)]
    if isinstance(node.op, IntegerConvolution) and (deep or dense):
        ended = [op for op in ops if isinstance(op, Emit) or getattr(op, "emit", 0)]
        return explain_convolution_tiling(node, graph, chip, deep or dense, ended)
    if products:
        return explain_product_tiling(node, graph, chip, products)
    if any(isinstance(op, Table) for op in ops):
        return _rates(chip, [op for op in ops if isinstance(op, Table)])
    stages = [n for n in graph.nodes if isinstance(n.op, IntegerMaxPool) and n.sources == node.sources]
    if isinstance(node.op, IntegerMaxPool) and any(
        {n.inputs[0], node.inputs[0]} & {n.outputs[0], node.outputs[0]} for n in stages
    ):
        return [f"limits.pool.max_kernel={pair(chip.limits.pool.max_kernel)}: a chain of smaller windows"]
    return []


def _rates(chip: Chip, ops: Sequence[Table]) -> list[str]:
    """Return sentences that say at which of several rates the tables run."""
    if chip.functions.isdisjoint(TABLE_FUNCTIONS.keys() - {"table"}):
        return []
    sentences = list[str]()
    for op in ops:
        unit = op.unit_in(chip)
        name = find_function_rate(op.function.name.lower(), unit.vector.functions)
        if name is None:
            continue  # the program's check refuses it
        rate = unit.vector.functions[name]
        what = "no single function with a rate of its own" if name == "table" else "the rate of this function"
        passes = f", passes: {rate.passes}" if rate.passes > 1 else ""
        sentences.append(f"{unit.key}.functions.{name}={{lanes: {rate.lanes}, startup: {rate.startup}{passes}}}: {what}")
    return sentences


def _explain_separate_pass(
    node: Node, graph: Graph, chip: Chip, producers: Mapping[str, Node], consumers: Mapping[str, Sequence[Node]]
) -> list[str]:
    """Return why a function or sum behind a convolution is no epilogue of it; empty where it is not behind one or nothing
    forbids it."""
    if isinstance(node.op, Lookup):
        kind = "table"
    elif isinstance(node.op, IntegerBinary) and node.op.kind == "add":
        kind = "add"
    else:
        return []
    convolution_outputs = [n for n in node.inputs if n in producers and isinstance(producers[n].op, IntegerConvolution)]
    convolution_outputs = [n for n in convolution_outputs if graph.read_once(n, consumers)]
    layers = [Layer(producers[n], graph.types, graph.constants, chip) for n in convolution_outputs]
    capable_outputs = [
        n for n, layer in zip(convolution_outputs, layers) if operator_of(layer.node, IntegerConvolution).can_have(kind, layer)
    ]
    if kind == "add" and capable_outputs == [node.inputs[1]] and chip.numerics.sums_in_float32(kind):
        rounding = "numerics.per_op.add" if kind in chip.numerics.per_op else "numerics.rounding"
        return [f"{rounding} is fp32_rne: an array adds to its own result, and of this sum the other operand is added last"]
    if not layers or capable_outputs:
        return []
    what = "function" if kind == "table" else "sum"
    reason = f"{chip.key('mac_array')}.post has no {kind}"
    if any(kind in unit.array.post for unit in chip.workers("mac_array")):
        reason += " on an array that can do the rest"
    return [f"{reason}: the {what} is a pass of its own over the convolution's output"]


def _averages(kinds: Sequence[str], node: Node, graph: Graph, chip: Chip) -> list[str]:
    """Return why an average is computed as a depthwise convolution with ones; empty for any other layer.

    `kinds`: ONNX operators of the nodes that the layer stands for.
    """
    if not isinstance(node.op, IntegerConvolution) or not any(kind in _POOLS for kind in kinds):
        return []
    if not np.all(graph.constants[node.inputs[1]] == 1):
        return []
    if "average_pool" not in chip.functions:
        return [f"{chip.key('vector')}.functions has no average_pool: a depthwise convolution with ones"]
    channels, *kernel, _ = graph.constants[node.inputs[1]].shape
    geometry = Geometry((kernel[0], kernel[1]), node.op.strides, node.op.pads, node.op.dilations)
    why = beyond_pools(geometry, channels, chip) or "numerics.scale.kind=pow2 divides by powers of two alone"
    return [f"{why}: a depthwise convolution with ones"]


def _list_own_ranges(region: Region) -> np.ndarray:
    """Return int64[2, ranges]: first address and end in DRAM of each constant and port of the region."""
    ranges = [(address, address + len(data)) for address, data in region.constants]
    ranges += [(port.address, port.address + port.size_bytes) for port in region.ports]
    return np.array(ranges, np.int64).reshape(-1, 2).T


def _find_spills(own_ranges: np.ndarray, chip: Chip, ops: Sequence[MachineOp], resident: bool) -> list[str]:
    """Return why tensors of the layer wait in DRAM; empty where none does.

    A copy is such a spill if its address in DRAM is neither a constant's nor a port's of the region.
    `own_ranges`: as `_list_own_ranges` returns them.
    """
    starts, ends = own_ranges

    def elsewhere(address: int) -> bool:
        return not bool(((starts <= address) & (address < ends)).any())

    copies = [op for op in ops if isinstance(op, Copy)]
    into = any(c.source_space == Space.DRAM and elsewhere(c.source_address) for c in copies)
    out_of = any(c.destination_space == Space.DRAM and elsewhere(c.destination_address) for c in copies)
    ways = [*(["an input waits in DRAM"] if into else []), *(["its output goes to DRAM"] if out_of else [])]
    if not ways:
        return []
    if not resident:
        return [f"below -O1: {', '.join(ways)}, for nothing stays in SRAM between layers"]
    return [f"memories.sram.size={chip.sram.size}: {', '.join(ways)}, no room to keep it"]
