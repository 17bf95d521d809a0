"""Fuse operators into the one before them, where one node alone reads its result.

Clamps are fused on the float graph, before quantization. On the integer graph, any producer takes over a multiple: a Reshape that
keeps shape and codes and gives the codes another scale.
Tables and residual sums are fused into convolutions alone, where the machine can apply them as the sums leave the array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeGuard

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, OnnxOp, Operator
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.kit.operator import FloatOp, Layer, operator_of
from toolchain.ops.kit.residual import Residual
from toolchain.ops.lookup import Lookup
from toolchain.ops.permutation import Reshape
from toolchain.ops.scalar_functions import clip_bounds
from toolchain.ops.unary import Unary


def fuse_clamps(graph: Graph, has_two_scales: Callable[[str, str], bool] = lambda x, y: False) -> Graph:
    """Return the float graph with each Relu and Clip behind a convolution, sum, product or average as bounds of that
    operator. The clamp must be its only reader.

    `has_two_scales`: takes a clamp's input and output; True keeps them two tensors, each rounded to a scale of its own.
    """
    producers, consumers = graph.producers(), graph.consumers()
    fused: dict[str, Node] = {}
    removed_nodes: set[str] = set()
    for node in graph.nodes:
        if not isinstance(node.op, Unary):
            continue
        bounds, producer = clip_bounds(node.op.function), producers.get(node.inputs[0])
        if bounds is None or producer is None or not graph.read_once(producer.outputs[0], consumers):
            continue
        if not can_clamp(producer.op) or producer.name in fused or has_two_scales(node.inputs[0], node.outputs[0]):
            continue
        op = producer.op.add_clamp(bounds)
        fused[producer.name] = Node(producer.name, op, producer.inputs, node.outputs, _sources(producer, node))
        removed_nodes.add(node.name)
    return graph.with_nodes(fused.get(n.name, n) for n in graph.nodes if n.name not in removed_nodes)


def _sources(*nodes: Node) -> tuple[str, ...]:
    """Return the model's nodes that these nodes stand for, each once."""
    return tuple(dict.fromkeys(source for node in nodes for source in node.sources))


def can_clamp(op: Operator) -> TypeGuard[FloatOp]:
    """Return whether bounds can be applied on the operator's own output."""
    return isinstance(op, FloatOp) and op.takes_clamp


def fuse_scales(graph: Graph) -> Graph:
    """Return the integer graph without Reshapes to the same shape whose codes get another scale or zero point.

    The producer makes the output itself, with the same parameters. A producer on the host, a tensor with other readers and a
    state stay as they are.
    """
    producers, consumers = graph.producers(), graph.consumers()
    fused: dict[str, Node] = {}
    removed_nodes: set[str] = set()
    for node in graph.nodes:
        if not isinstance(node.op, Reshape) or graph.types[node.inputs[0]].shape != node.op.shape:
            continue
        (x,), (y,) = node.inputs, node.outputs
        producer = producers.get(x)
        if producer is None or isinstance(producer.op, OnnxOp) or graph.types[x].quant == graph.types[y].quant:
            continue
        if (
            producer.name in fused
            or not graph.read_once(x, consumers)
            or any(x in (s.past, s.present_tensor) for s in graph.states)
        ):
            continue
        fused[producer.name] = replace(producer, outputs=(y,), sources=_sources(producer, node))
        removed_nodes.add(node.name)
    return graph.with_nodes(fused.get(n.name, n) for n in graph.nodes if n.name not in removed_nodes)


def fuse_tables(graph: Graph, chip: Chip) -> Graph:
    """Return the integer graph with each Lookup behind a convolution fused into it, where `engines.mac.post` has table and
    the Lookup is the only reader."""
    producers, consumers = graph.producers(), graph.consumers()
    fused: dict[str, Node] = {}
    removed_nodes: set[str] = set()
    for node in graph.nodes:
        if not isinstance(node.op, Lookup):
            continue
        producer = producers.get(node.inputs[0])
        if producer is None or not isinstance(producer.op, IntegerConvolution) or producer.op.table is not None:
            continue
        if not graph.read_once(producer.outputs[0], consumers) or not _can_have("table", producer, graph, chip):
            continue
        op = replace(producer.op, table=node.op.table)
        fused[producer.name] = Node(producer.name, op, producer.inputs, node.outputs, _sources(producer, node))
        removed_nodes.add(node.name)
    return graph.with_nodes(fused.get(n.name, n) for n in graph.nodes if n.name not in removed_nodes)


def fuse_residuals(graph: Graph, chip: Chip) -> Graph:
    """Return the integer graph with sums of a convolution and a tensor of the same shape fused into the convolution.

    It needs add in `engines.mac.post`, a single group, an output of four dimensions of the sum's type, and no other reader of the
    convolution. Of two convolutions the later one takes the sum. The addend becomes the convolution's last input, and must be
    computed: constants stay sums.
    """
    producers, consumers = graph.producers(), graph.consumers()
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    fused: dict[str, Node] = {}
    removed_nodes: set[str] = set()
    for node in graph.nodes:
        if not isinstance(node.op, IntegerBinary) or node.op.kind != "add":
            continue
        choices = [
            (producers[n], i)
            for i, n in enumerate(node.inputs)
            if n in producers
            and _takes_residual(producers[n], graph, chip)
            and graph.types[n].dtype == graph.types[node.outputs[0]].dtype
            and graph.read_once(n, consumers)
            and not (i and chip.numerics.sums_in_float32("add"))  # what leaves the array is the operand that is added last
        ]
        choices = [c for c in choices if _same_shape(node, graph) and c[0].name not in removed_nodes]
        if not choices:
            continue
        # The later of two convolutions, so that nothing is computed before its operands.
        producer, index = max(choices, key=lambda c: position[c[0].name])
        op = replace(operator_of(producer, IntegerConvolution), residual=_residual(node.op, index))
        inputs = (*producer.inputs, node.inputs[1 - index])
        fused[node.name] = Node(producer.name, op, inputs, node.outputs, _sources(producer, node))
        removed_nodes.add(producer.name)
    return graph.with_nodes(fused.get(n.name, n) for n in graph.nodes if n.name not in removed_nodes)


def _can_have(post: str, node: Node, graph: Graph, chip: Chip) -> bool:
    return operator_of(node, IntegerConvolution).can_have(post, Layer(node, graph.types, graph.constants, chip))


def _takes_residual(node: Node, graph: Graph, chip: Chip) -> bool:
    """Return whether the node is a convolution that can take a residual sum as an epilogue."""
    op = node.op
    if not isinstance(op, IntegerConvolution) or op.residual is not None:
        return False
    return op.groups == 1 and len(graph.types[node.outputs[0]].shape) == 4 and _can_have("add", node, graph, chip)


def _same_shape(node: Node, graph: Graph) -> bool:
    """Return whether a sum has two different computed operands, each of its output's shape."""
    shapes = {graph.types[n].shape for n in (*node.inputs, *node.outputs)}
    return len(shapes) == 1 and not graph.constants.keys() & set(node.inputs) and len(set(node.inputs)) == 2


def _residual(op: IntegerBinary, index: int) -> Residual:
    """Return the sum as an epilogue, where the convolution makes its operand number `index`."""
    assert op.a_requant is not None and op.b_requant is not None
    zero, requants = (op.a_zero_point, op.b_zero_point), (op.a_requant, op.b_requant)
    return Residual(zero[index], zero[1 - index], op.left_shift, requants[index], requants[1 - index], op.out_requant)
