"""Widen the ranges of tensors that a quantized model leaves in float, for values beyond those that calibration showed."""

from __future__ import annotations

from collections.abc import Mapping

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from toolchain.ops.kit.operator import FloatOp, operator_of
from toolchain.repair.network import Network

_ROOM = 4.0  # docs/quantized_models.md: times the calibrated range


def add_room(ranges: Mapping[str, Range], network: Network, types: Mapping[str, CodeType]) -> dict[str, Range]:
    """Return the ranges; those of tensors that a quantized model leaves in float reach four times as far, if codes have more
    than 8 bits.

    They reach no farther than the function that computes the tensor does, and never less far than calibration showed.

    `ranges`: calibrated ranges by tensor of the model.
    `types`: types of codes by tensor, at least of those in float.
    """
    fine = {n for n in network.selection.float_tensors & ranges.keys() if types[n].bits > 8}
    roomy = {n: Range(min(r.low, _ROOM * r.low), max(r.high, _ROOM * r.high)) if n in fine else r for n, r in ranges.items()}
    for node in (n for n in network.selection.graph.nodes if isinstance(n.op, FloatOp)):
        y, x = (network.origins[n].tensor if n in network.origins else "" for n in (node.outputs[0], node.inputs[0]))
        if y not in fine or x not in roomy:
            continue
        low, high = operator_of(node, FloatOp).reach(roomy[x])
        calibrated, wide = ranges[y], roomy[y]
        roomy[y] = Range(
            wide.low if low is None else max(wide.low, min(calibrated.low, low)),
            wide.high if high is None else min(wide.high, max(calibrated.high, high)),
        )
    return roomy
