"""List the weights of a quantized model whose codes the machine could not keep, with the reasons, for the notes of a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quant.file_qparams import explain_requantization, get_current_scales, get_file_codes, holds_codes, narrowest_weight
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from toolchain.errors import format_count
from toolchain.hw.chip import Chip
from toolchain.ir.file_quantization import FileWeights, find_file_weights
from toolchain.ir.graph import Graph, Node
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.matrix_product import MatrixProduct


def list_requantized_weights(
    graph: Graph, layers: Sequence[Node], stored: Mapping[str, FileWeights], weight_types: Mapping[str, CodeType], chip: Chip
) -> list[str]:
    """Return a sentence for each reason why codes of weights are not the file's, with the number of layers; empty for none.

    `graph`: the selected graph with float weights.
    `layers`: its layers that have weights; MatrixProducts are looked at too.
    `stored`: file weights by node of the model.
    `weight_types`: types of weights that were chosen, by layer.
    """
    reasons: dict[str, int] = {}
    for node in (*layers, *(n for n in graph.nodes if isinstance(n.op, MatrixProduct))):
        how = _file_codes(node, stored)
        why = None if how is None else _explain_requantization(node, graph, how, weight_types, chip)
        if why is not None:
            reasons[why] = reasons.get(why, 0) + 1
    return [
        f"weights of {format_count(n, 'layer')} are rounded anew, {chip.name} has {why}" for why, n in sorted(reasons.items())
    ]


def _in_planes(how: FileWeights, numerics: Numerics, chip: Chip) -> str:
    """Return a hint, to be put behind the reason, that two bit slices would keep the file's codes; empty where they would not.

    Activations must have as many bits, since coarser ones lose what the slices keep.
    """
    finest = max(codes.bits for codes in chip.operand_types)
    wide = next((t for t, plane in numerics.wide_weights.items() if plane is numerics.weight and t.bits <= finest), None)
    if wide is None or not holds_codes(how, wide):
        return ""
    return f"; --type WEIGHTS={wide}, by their name in the file, takes them in two planes"


def has_file_codes(
    node: Node, graph: Graph, stored: Mapping[str, FileWeights], weight_types: Mapping[str, CodeType], chip: Chip
) -> bool:
    """Return whether a layer's weights are the file's own codes; False for weights that the file does not quantize.

    The parameters are those of `list_requantized_weights`.
    """
    how = _file_codes(node, stored)
    return how is not None and _explain_requantization(node, graph, how, weight_types, chip) is None


def _file_codes(node: Node, stored: Mapping[str, FileWeights]) -> FileWeights | None:
    """Return how the file stores the one weight operand of a node; None where it does not quantize it."""
    product_weights = [s for s in find_file_weights(node, stored) if s.product]
    return product_weights[0] if len(product_weights) == 1 else None


def _explain_requantization(
    node: Node, graph: Graph, how: FileWeights, weight_types: Mapping[str, CodeType], chip: Chip
) -> str | None:
    """Return why the codes of a node's weights change, as the end of a sentence; None where they stay."""
    if not isinstance(node.op, Convolution):
        return _of_product(node, graph, how, chip)
    weights = graph.constants[node.inputs[1]]
    groups = node.op.can_be_grouped(weights.shape)
    codes = weight_types.get(node.name) or narrowest_weight(how, chip.numerics, groups=groups)
    if codes in chip.numerics.wide_weights:  # two planes hold them as near as twice the bits come
        return None
    numerics = chip.numerics.with_weights(codes)
    why = explain_requantization(how, numerics, get_current_scales(weights, 0, how))
    if why is None or how.groups is not None or holds_codes(how, codes):
        return why
    return f"{why}{_in_planes(how, numerics, chip)}"


def _of_product(node: Node, graph: Graph, how: FileWeights, chip: Chip) -> str | None:
    """Return why a constant operand of a MatMul, which is an activation to the chip, is requantized, or None."""
    value = next((graph.constants[n] for n in node.inputs if n in graph.constants), None)
    kinds = (chip.numerics.of(codes) for codes in chip.operand_types)
    if value is None or any(get_file_codes(value, how, numerics) is not None for numerics in kinds):
        return None
    return "one scale for a constant that has matrices of its own along a batch dimension"
