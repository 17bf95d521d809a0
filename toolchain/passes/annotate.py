"""Annotate the chip's tensors with what is known of them without data: ranges, types of codes, and which are left in float.

The pass runs behind selection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from toolchain.errors import format_count
from toolchain.frontend import NormalModel
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Quant
from toolchain.ir.range_constraints import ClippedRange, FixedRange, Inner
from toolchain.ops.exact_integers import TRUTH
from toolchain.ops.kit.operator import same_scale
from toolchain.ops.tensor_scatter import ScatterRows
from toolchain.passes.fold_qdq import FoldedQdq, finest_codes
from toolchain.passes.select import Selection


def annotate_selection(selection: Selection, model: NormalModel, folded: FoldedQdq, composed: Graph, chip: Chip) -> Selection:
    """Return the selection with the ranges and types that the file states, or that follow from the operators.

    It sets `file_ranges`, `fixed`, `rounded`, `types`, `float_tensors`, `ended`, `shared` and `notes`.
    `composed`: the graph that was selected from, with the model's tensors.
    """
    known_ranges = get_fixed_ranges(model.inner) | _truths(selection.graph, composed)
    file_ranges = {**known_ranges, **folded.file_ranges}
    float_tensors = _list_float_tensors(model, folded, selection.graph, file_ranges, chip)
    types = {
        **_of_steps(model, selection.graph, chip),
        **_numbers(selection.graph, chip),
        **folded.types,
        **dict.fromkeys(sorted(float_tensors), finest_codes(chip)),
    }
    subject = f"{format_count(len(float_tensors), 'tensor')} that the model leaves in float"
    return replace(
        selection,
        file_ranges=file_ranges,
        fixed=frozenset(known_ranges.keys() - folded.file_ranges),
        rounded=folded.rounded,
        types=types,
        float_tensors=float_tensors,
        ended=folded.ended,
        shared=folded.shared,
        notes=(
            *folded.notes,
            *([f"{finest_codes(chip)} codes for {subject}, where no --type says other"] if float_tensors else []),
        ),
    )


def _list_float_tensors(
    model: NormalModel, folded: FoldedQdq, graph: Graph, file_ranges: Mapping[str, Quant | Range], chip: Chip
) -> frozenset[str]:
    """Return the model's tensors on the chip that a quantized model rounds nowhere, where the chip has finer codes for them.

    What is moved from another tensor has that one's codes, so it is left out.
    """
    if finest_codes(chip) is chip.code_types[0] or not (folded.file_ranges or folded.dynamic or model.stored):
        return frozenset()
    float_tensors = {origin.tensor for origin in graph.origins.values()} - file_ranges.keys() - folded.dynamic
    for node in graph.nodes:
        if same_scale(node.op) and graph.origins[node.inputs[0]].tensor not in float_tensors:
            float_tensors -= {graph.origins[n].tensor for n in node.outputs}
    return frozenset(float_tensors)


def _of_steps(model: NormalModel, graph: Graph, chip: Chip) -> dict[str, CodeType]:
    """Return the finest codes for tensors between steps that ask for them."""
    if finest_codes(chip) is chip.code_types[0]:
        return {}
    chip_tensors = {origin.tensor for origin in graph.origins.values()}
    return dict.fromkeys(sorted(model.finest & chip_tensors), finest_codes(chip))


def _truths(chosen: Graph, model: Graph) -> dict[str, Quant | Range]:
    """Return the range of bools, by the model's tensor, and of integers whose operator states no other.

    `chosen`: with the chip's tensors. `model`: with the model's tensors.
    """
    chip_tensors = {origin.tensor for origin in chosen.origins.values()}
    return {name: TRUTH for name in sorted(chip_tensors) if name in model.types and model.types[name].dtype != "float32"}


def _numbers(graph: Graph, chip: Chip) -> dict[str, CodeType]:
    """Return the type of tensors that say where rows go, by the model's tensor."""
    type_by_tensor: dict[str, CodeType] = {}
    for node in graph.nodes:
        if isinstance(node.op, ScatterRows):
            tensor, codes = graph.origins[node.inputs[2]].tensor, node.op.number_type(graph.types[node.inputs[0]].shape, chip)
            type_by_tensor[tensor] = max(codes, type_by_tensor.get(tensor, codes), key=lambda c: c.bits)
    return type_by_tensor


def get_fixed_ranges(inner: Mapping[str, Inner]) -> dict[str, Quant | Range]:
    """Return the ranges, or qparams, of tensors between steps that follow from the operators, without clipped ones."""
    unclipped = {n: r for n, r in inner.items() if not isinstance(r, ClippedRange)}
    return {n: Range(r.low, r.high) if isinstance(r, FixedRange) else r for n, r in unclipped.items()}
