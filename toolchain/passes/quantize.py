"""Turn a graph of float operators with calibrated ranges into one of integer operators with explicit requantization.

It stands between `passes.fuse`'s clamps and the fusion of tables and sums. Types and scales are from `passes.assign`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from quant.parameters import quant_range
from quant.repair.choices import Quantization
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, OnnxOp, Origin, Quant, TensorType
from toolchain.ops.data_movement import ModelConcat
from toolchain.ops.interpolated_tables import BENT
from toolchain.passes.assign import assign_qparams, assign_types, find_shared_concat_parts, get_file_type
from toolchain.passes.quantize_context import QuantizeContext, ScaleOutOfReach, find_type_substitutes, lower_node
from toolchain.passes.quantized_graph import QuantizedGraph
from toolchain.passes.saturation_ranges import get_calibrated_ranges, narrow_ranges

_WIDEST = 2.0**8  # more would leave an 8-bit tensor no codes


def quantize(graph: Graph, chip: Chip, quantization: Quantization, earlier: QuantizedGraph | None = None) -> Graph:
    """Return the graph with integer operators; nodes of the host stay ONNX operators.

    `graph`: as selected and clamped, of a model to which repair's factors of channels were applied.
    `quantization`: ranges or scales by the model's tensors, requested types, and the choices of repair.
    `earlier`: a graph like this one that was quantized for the same machine. Equal convolutions are taken from it, which changes
    nothing but the time.
    An output takes a wider range where a requantization needs a larger scale than the machine has, or an operator asks for
    it.
    Raise CompileError where that needs more than 256 times the range, where the tensor's scale is given, or where a wider
    range does not help.
    """
    quantization = quantization.levelled
    calibrated_ranges = get_calibrated_ranges(graph, quantization.ranges)
    adopted = find_shared_concat_parts([n for n in graph.nodes if not isinstance(n.op, OnnxOp)], graph)
    factors, wider_ranges, types = dict[str, float](), dict[str, Range](), assign_types(graph, chip, quantization.types)
    others = find_type_substitutes(graph, chip)

    assigned: list[tuple[Mapping[str, Range], Mapping[str, Quant]]] = []  # the last ranges, and what they gave

    def quants_of(instead: Mapping[str, Range]) -> Mapping[str, Quant]:
        if not assigned or assigned[0][0] != instead:
            requested = quantization.types, quantization.over_sequences
            assigned[:] = [(dict(instead), assign_qparams(graph, chip, types, quantization.ranges, instead, *requested))]
        return assigned[0][1]

    narrowed_ranges = narrow_ranges(graph, calibrated_ranges, types, quants_of)
    calibrated = {**calibrated_ranges, **narrowed_ranges}
    while True:
        widened = {**narrowed_ranges, **_widen_ranges(calibrated, factors, wider_ranges)}
        quants = quants_of(widened)
        scope = QuantizeContext(
            graph,
            chip,
            types,
            quants,
            quantization.layers,
            quantization.offsets,
            quantization.file_weights,
            quantization.weight_types,
            quantization.compiler_weights,
            calibrated,
        )
        scope.seen_as = {
            target: _get_substitute_quants(target, missing_types, graph, scope, quantization, widened)
            for target, missing_types in others.items()
            if not missing_types.isdisjoint(types.values())
        }
        try:
            integer = _quantize_nodes(graph, scope, earlier)
        except _Widen as wider:
            factors[wider.tensor] = factors.get(wider.tensor, 1.0) * wider.factor
            if factors[wider.tensor] > _WIDEST or wider.tensor not in calibrated:
                raise CompileError(str(wider)) from None
            continue
        before = dict(wider_ranges)
        for name, values in scope.wider.items():
            concat_name = adopted.get(name, name)
            for tensor in _list_widened_with(concat_name, values, graph, quants, calibrated):
                wider_ranges[tensor] = wider_ranges.get(tensor, calibrated[tensor]).union(values)
        if wider_ranges == before:
            return integer


def _list_widened_with(
    name: str, values: Range, graph: Graph, quants: Mapping[str, Quant], calibrated: Mapping[str, Range]
) -> set[str]:
    """Return the calibrated tensors that shall hold these values where the codes of one of them shall.

    They are more than the one where the values are little beyond its range and Concats join tensors at its scale.
    If they parted, they would be rescaled.
    """
    if name not in calibrated:
        return set()
    if calibrated[name].union(values).with_zero().span > (1 + BENT) * calibrated[name].with_zero().span:
        return {name}
    return _list_joined(name, graph, quants) & calibrated.keys()


def _list_joined(name: str, graph: Graph, quants: Mapping[str, Quant]) -> set[str]:
    """Return a tensor with those that Concats join at its scale."""
    concats = [{*n.inputs, *n.outputs} for n in graph.nodes if isinstance(n.op, ModelConcat)]
    joined, pending = {name}, [name]
    while pending:
        tensor = pending.pop()
        more = {t for tensors in concats if tensor in tensors for t in tensors if quants.get(t) == quants.get(name)} - joined
        joined |= more
        pending += sorted(more)
    return joined


def _get_substitute_quants(
    target: CodeType,
    others: Collection[CodeType],
    graph: Graph,
    scope: QuantizeContext,
    quantization: Quantization,
    widened: Mapping[str, Range],
) -> Mapping[str, Quant]:
    """Return the scales and zero points that tensors of the types `others` have in codes of `target`.

    A tensor whose scale is given gets one that holds the same range.
    """
    types = {name: target if codes in others else codes for name, codes in scope.types.items()}
    ranges = dict(quantization.ranges)
    for name, codes in scope.types.items():
        tensor = graph.origins[name].tensor
        file_quant = quantization.ranges.get(tensor)
        if codes in others and not codes.is_wide and isinstance(file_quant, Quant):
            ranges[tensor] = quant_range(file_quant, scope.chip.numerics.of(get_file_type(tensor, codes, quantization.types)))
    return assign_qparams(graph, scope.chip, types, ranges, widened, quantization.types, quantization.over_sequences)


def _widen_ranges(
    calibrated: Mapping[str, Range], factors: Mapping[str, float], wider_ranges: Mapping[str, Range]
) -> dict[str, Range]:
    """Return the ranges with their factors applied, by chip tensor."""
    widened_ranges = dict(wider_ranges)
    for name, factor in factors.items():
        r = widened_ranges.get(name, calibrated[name])
        widened_ranges[name] = Range(r.low * factor, r.high * factor)
    return widened_ranges


class _Widen(CompileError):
    """The error that `tensor` needs a scale `factor` times larger, so that the graph is quantized once more."""

    def __init__(self, fault: ScaleOutOfReach, tensor: str):
        super().__init__(str(fault))
        self.tensor, self.factor = tensor, float(2.0 ** np.ceil(np.log2(fault.excess)))


def _quantize_nodes(graph: Graph, scope: QuantizeContext, earlier: QuantizedGraph | None) -> Graph:
    """Return the graph with integer nodes. Raise _Widen where an output needs a larger scale than the machine has."""
    quants = scope.quants
    adopted = find_shared_concat_parts([n for n in graph.nodes if not isinstance(n.op, OnnxOp)], graph)
    nodes: list[Node] = []
    origins: dict[str, Origin] = {}
    types: dict[str, TensorType] = {
        name: TensorType(graph.types[name].shape, scope.codes(name).value, quant) for name, quant in quants.items()
    }
    for node in graph.nodes:
        if isinstance(node.op, OnnxOp):
            nodes.append(node)
            continue
        earlier_node = None if earlier is None else earlier.find(node, scope)
        try:
            integer_nodes = lower_node(node, scope) if earlier_node is None else [earlier_node]
        except ScaleOutOfReach as fault:
            if not 1 < fault.excess < np.inf:
                raise
            raise _Widen(fault, adopted.get(node.outputs[0], node.outputs[0])) from None
        _type_inner(integer_nodes, node, types, origins, scope)
        nodes += integer_nodes
    for name, value in scope.constants.items():
        types[name] = TensorType(value.shape, str(value.dtype))
    return graph.with_nodes(nodes, types, scope.constants, origins)


def _type_inner(
    integer_nodes: list[Node], node: Node, types: dict[str, TensorType], origins: dict[str, Origin], scope: QuantizeContext
) -> None:
    """Add the types and origins of tensors that quantization put between nodes. Their shape is their source's unless one was
    given.
    """
    for inner in integer_nodes:
        name = inner.outputs[0]
        if name not in types:
            quant, codes = scope.inners[name]
            shape = scope.shapes[name] if name in scope.shapes else types[inner.inputs[0]].shape
            types[name] = TensorType(shape, codes.value, quant)
            origins[name] = Origin(scope.graph.origins[node.outputs[0]].tensor, INNER)
