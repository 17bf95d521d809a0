"""From float operators with calibrated ranges to integer operators with explicit requantization."""

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
from toolchain.passes.assign import assign_qparams, assign_types, find_shared_concat_parts, get_file_type
from toolchain.passes.quantize_context import QuantizeContext, ScaleOutOfReach, find_type_substitutes, lower_node
from toolchain.passes.saturation_ranges import get_calibrated_ranges, narrow_ranges

_WIDEST = 2.0**8  # more would leave an 8-bit tensor no codes


def quantize(graph: Graph, chip: Chip, given: Quantization) -> Graph:
    """graph: as selected and clamped, of a model that carries its factors already. Host nodes stay.

    Where a requantization would need a larger scale than the machine has, or an operator asks for it, the output takes a wider
    range. Raises CompileError: no scale that the machine has would do, or the tensor's scale is given.
    """
    given = given.levelled
    seen = get_calibrated_ranges(graph, given.ranges)
    adopted = find_shared_concat_parts([n for n in graph.nodes if not isinstance(n.op, OnnxOp)], graph)
    factors, asked, types = dict[str, float](), dict[str, Range](), assign_types(graph, chip, given.types)
    others = find_type_substitutes(graph, chip)

    def quants_of(instead: Mapping[str, Range]) -> dict[str, Quant]:
        return assign_qparams(graph, chip, types, given.ranges, instead, given.types, given.over_sequences)

    told = narrow_ranges(graph, seen, types, quants_of)
    calibrated = {**seen, **told}
    while True:
        widened = {**told, **_widened(calibrated, factors, asked)}
        quants = quants_of(widened)
        scope = QuantizeContext(
            graph, chip, types, quants, given.layers, given.offsets, given.held, given.weight_types, calibrated
        )
        scope.seen_as = {
            target: _seen_as(target, lacking, graph, scope, given, widened)
            for target, lacking in others.items()
            if not lacking.isdisjoint(types.values())
        }
        try:
            integer = _quantized(graph, scope)
        except _Widen as wider:
            factors[wider.tensor] = factors.get(wider.tensor, 1.0) * wider.factor
            if factors[wider.tensor] > _WIDEST or wider.tensor not in calibrated:
                raise CompileError(str(wider)) from None
            continue
        before = dict(asked)
        for name, values in scope.wider.items():
            whole = adopted.get(name, name)
            if whole in calibrated:
                asked[whole] = asked.get(whole, calibrated[whole]).union(values)
        if asked == before:
            return integer


def _seen_as(
    target: CodeType,
    others: Collection[CodeType],
    graph: Graph,
    scope: QuantizeContext,
    told: Quantization,
    widened: Mapping[str, Range],
) -> Mapping[str, Quant]:
    """Scales and zero points where tensors of the other types have codes of `target`: of a given scale, those that hold its
    range."""
    types = {name: target if codes in others else codes for name, codes in scope.types.items()}
    held = dict(told.ranges)
    for name, codes in scope.types.items():
        tensor = graph.origins[name].tensor
        given = told.ranges.get(tensor)
        if codes in others and not codes.is_wide and isinstance(given, Quant):
            held[tensor] = quant_range(given, scope.chip.numerics.of(get_file_type(tensor, codes, told.types)))
    return assign_qparams(graph, scope.chip, types, held, widened, told.types, told.over_sequences)


def _widened(calibrated: Mapping[str, Range], factors: Mapping[str, float], asked: Mapping[str, Range]) -> dict[str, Range]:
    found = dict(asked)
    for name, factor in factors.items():
        r = found.get(name, calibrated[name])
        found[name] = Range(r.low * factor, r.high * factor)
    return found


class _Widen(CompileError):
    """`tensor` needs a scale `factor` times larger, which the machine can be asked for."""

    def __init__(self, fault: ScaleOutOfReach, tensor: str):
        super().__init__(str(fault))
        self.tensor, self.factor = tensor, float(2.0 ** np.ceil(np.log2(fault.excess)))


def _quantized(graph: Graph, scope: QuantizeContext) -> Graph:
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
        try:
            made = lower_node(node, scope)
        except ScaleOutOfReach as fault:
            if not 1 < fault.excess < np.inf:
                raise
            raise _Widen(fault, adopted.get(node.outputs[0], node.outputs[0])) from None
        _type_inner(made, node, types, origins, scope)
        nodes += made
    for name, value in scope.constants.items():
        types[name] = TensorType(value.shape, str(value.dtype))
    return graph.with_nodes(nodes, types, scope.constants, origins)


def _type_inner(
    made: list[Node], node: Node, types: dict[str, TensorType], origins: dict[str, Origin], scope: QuantizeContext
) -> None:
    """Tensors that quantization put between nodes: shape of their source where no other is said."""
    for inner in made:
        name = inner.outputs[0]
        if name not in types:
            quant, codes = scope.inners[name]
            shape = scope.shapes[name] if name in scope.shapes else types[inner.inputs[0]].shape
            types[name] = TensorType(shape, codes.value, quant)
            origins[name] = Origin(scope.graph.origins[node.outputs[0]].tensor, INNER)
