"""What of a model that is quantized already the machine could not keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quant.fixed_point.core.codes import CodeType
from quant.given import narrowest_weight, rounded_anew, scales_now, stored_codes
from toolchain.errors import counted
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.ir.stored import Stored
from toolchain.ops.convolution.rules import Convolution
from toolchain.ops.matrix_product import MatrixProduct


def rounded_anew_notes(
    graph: Graph, layers: Sequence[Node], stored: Mapping[str, Stored], asked: Mapping[str, CodeType], chip: Chip
) -> list[str]:
    """layers: those of the selected graph that have weights; stored: by node of the model; asked: types of weights, by layer.
    A sentence for each reason for which codes of weights are not the file's."""
    reasons: dict[str, int] = {}
    for node in (*layers, *(n for n in graph.nodes if isinstance(n.op, MatrixProduct))):
        found = [stored[s] for s in node.sources or (node.name,) if s in stored and stored[s].product]
        if len(found) != 1:
            continue
        why = _of_product(node, graph, found[0], chip)
        if isinstance(node.op, Convolution):
            weights = graph.constants[node.inputs[1]]
            groups = node.op.can_be_grouped(weights.shape)
            codes = asked.get(node.name) or narrowest_weight(found[0], chip.numerics, groups=groups)
            why = rounded_anew(found[0], chip.numerics.with_weights(codes), scales_now(weights, 0, found[0]))
        if why is not None:
            reasons[why] = reasons.get(why, 0) + 1
    return [f"weights of {counted(n, 'layer')} are rounded anew, {chip.name} has {why}" for why, n in sorted(reasons.items())]


def _of_product(node: Node, graph: Graph, how: Stored, chip: Chip) -> str | None:
    """Of a constant that is one operand of a MatMul, an activation to the chip."""
    value = next((graph.constants[n] for n in node.inputs if n in graph.constants), None)
    kinds = (chip.numerics.of(codes) for codes in chip.operand_types)
    if value is None or any(stored_codes(value, how, numerics) is not None for numerics in kinds):
        return None
    return "one scale for a constant that has matrices of its own along a batch dimension"
