"""Cut the integer network into blocks that can be compared with float, for the layer errors of report.layer_errors.

Each block makes one tensor that float has, out of tensors that float has. So a layer with steps of its own inside, such as
scalings and moves, is one block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolchain.ir.graph import INNER, Graph, Node, OnnxOp, TensorType
from toolchain.ops.data_movement import IntegerConcat
from toolchain.ops.kit.operator import same_scale
from toolchain.ops.pool.integer_pool import IntegerMaxPool
from toolchain.ops.rescale import Rescale


@dataclass(frozen=True)
class FloatCounterpart:
    """The float tensor that a chip tensor stands for: `model` names it in the model, `layout` is the chip's order of it."""

    model: str
    layout: str


@dataclass(frozen=True)
class ComparisonBlock:
    """A block of integer nodes that makes one tensor which float has too.

    `tensor`: the chip tensor that it makes.
    `feeds`: chip tensors that it reads, constants excluded.
    `nodes`: its nodes in topological order; empty for a tensor that comes into a region.
    `layer`: the node that the block is named for: the last that computes, else its last; None without nodes.
    A block that rescales an operand is named for the Concat that reads it.
    `moves`: it has nodes and none of them computes.
    """

    tensor: str
    feeds: tuple[str, ...]
    nodes: tuple[Node, ...]
    layer: Node | None
    moves: bool


def list_float_counterparts(
    graph: Graph,
    types: Mapping[str, TensorType],
    origins: Mapping[str, tuple[str, str]],
    parts: Mapping[str, Sequence[tuple[str, str]]],
) -> dict[str, FloatCounterpart]:
    """Return the float counterpart of each chip tensor that can be compared, by name.

    Bools and integers can be compared where they enter a region. Those that the chip computes cannot, and lie inside a block.

    `graph`: integer graph without fused epilogues.
    `types`: types of the model's tensors.
    `origins`: (model tensor, layout) by chip tensor.
    `parts`: (model tensor, layout) of each operand by Concat node; its own scale makes an operand another tensor of the chip.
    """
    chip_outputs = {name for node in graph.nodes if not isinstance(node.op, OnnxOp) for name in node.outputs}
    counterparts = {name: FloatCounterpart(*origin) for name, origin in origins.items()}
    for node in graph.nodes:
        if isinstance(node.op, IntegerConcat) and node.name in parts:
            counterparts |= {name: FloatCounterpart(*part) for name, part in zip(node.inputs, parts[node.name])}
    return {
        name: shown
        for name, shown in counterparts.items()
        if shown.layout != INNER
        and name in graph.types
        and graph.types[name].quant is not None
        and types[shown.model].dtype in ("float32", *(("bool", "int32", "int64") if name not in chip_outputs else ()))
    }


def cut_into_blocks(graph: Graph, shown: Mapping[str, FloatCounterpart]) -> list[ComparisonBlock]:
    """Return the blocks: first the tensors that enter a region, then the others in the order of the graph.

    A tensor that depends on something float lacks has no block.
    """
    chip = [n for n in graph.nodes if not isinstance(n.op, OnnxOp)]
    producers = {name: node for node in chip for name in node.outputs}
    joins = {name: n for n in chip if isinstance(n.op, IntegerConcat) for name in n.inputs}
    read = dict.fromkeys(name for n in chip for name in n.inputs if name not in producers and name in shown)
    order = {n.name: i for i, n in enumerate(chip)}
    result = [ComparisonBlock(name, (), (), None, False) for name in read]
    for node in chip:
        if node.outputs[0] in shown:
            block = _block(node, graph, shown, producers, joins, order)
            result += [block] if block is not None else []
    return result


def _block(
    last: Node,
    graph: Graph,
    shown: Mapping[str, FloatCounterpart],
    producers: Mapping[str, Node],
    joins: Mapping[str, Node],
    order: Mapping[str, int],
) -> ComparisonBlock | None:
    """Return the block that ends in `last`; None where it reads something that float lacks, as codes that the host gives."""
    nodes: dict[str, Node] = {}
    feeds: dict[str, None] = {}
    pending = [last]
    while pending:
        node = pending.pop()
        nodes[node.name] = node
        for name in node.inputs:
            if not name or name in graph.constants:
                continue
            if name in shown:
                feeds[name] = None
            elif name not in producers:
                return None
            elif producers[name].name not in nodes:
                pending.append(producers[name])
    inside = sorted(nodes.values(), key=lambda n: order[n.name])
    computing = [n for n in inside if not _moves(n)]
    layer = (computing or inside)[-1]
    if isinstance(layer.op, Rescale) and not layer.sources:
        layer = joins.get(layer.outputs[0], last)
    return ComparisonBlock(last.outputs[0], tuple(feeds), tuple(inside), layer, not computing)


def _moves(node: Node) -> bool:
    """Return whether a node keeps its values: it moves, joins or selects codes."""
    return same_scale(node.op) or isinstance(node.op, IntegerConcat | IntegerMaxPool)
