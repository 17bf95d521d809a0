"""Compensate the bias of sums and averages on machines that round down or toward zero, by other zero points.

It is a step of a repair (`offsets`), and follows every choice of ranges, since the offsets depend on scales.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.rounding import Rounding
from quant.repair.choices import Offset, Quantization, StepOutcome
from quant.repair.rounding_offsets import mean_offset, sum_offset
from toolchain.ir.graph import Graph, Node
from toolchain.ops.elementwise.select_elementwise import Binary
from toolchain.ops.kit.operator import clamp_codes
from toolchain.ops.pool.select_pool import AveragePool
from toolchain.repair.network import Network, Progress


def offset_zero_points(
    network: Network, quantization: Quantization, samples: Iterable[Sample], progress: Progress
) -> StepOutcome:
    """Return the quantization with an Offset for each Add, Sub and average whose rounding would leave it low.

    It comes back unchanged where there are none, and with a note where the machine has no zero points. The samples are not
    read; it has the parameters of a step.
    """
    if network.chip.numerics.symmetric_activations:
        return StepOutcome(quantization, notes=("offsets: the machine has no zero points (numerics.symmetric_activations)",))
    integer, offsets = network.integer(quantization), dict[str, Offset]()
    for node in network.graph.nodes:
        if isinstance(node.op, Binary) and node.op.kind in ("add", "sub"):
            offset = _of_sum(node, node.op, network, integer)
        elif isinstance(node.op, AveragePool):
            offset = _of_average(node, node.op, network, integer)
        else:
            continue
        offsets |= {} if offset is None else {node.name: offset}
    return StepOutcome(replace(quantization, offsets={**quantization.offsets, **offsets}) if offsets else quantization)


def _of_average(node: Node, op: AveragePool, network: Network, integer: Graph) -> Offset | None:
    """Return the offset of an average; None where the machine rounds it to nearest, padding counts, or no offset helps."""
    x, y = (integer.types[n] for n in (node.inputs[0], node.outputs[0]))
    array = op.as_convolution(x.shape[3], network.chip)
    rounding = network.chip.numerics.rounding_of("convolution" if array else "average_pool")
    padded = op.count_padding and any(op.geometry.pads)  # what padding holds would not move with the others
    if padded or rounding not in (Rounding.FLOOR, Rounding.TRUNCATE):
        return None
    assert x.quant is not None and y.quant is not None
    input_codes, output_codes = CodeType(x.dtype), CodeType(y.dtype)
    low = clamp_codes(op.activation, y.quant, output_codes)[0]
    zeros = x.quant.zero_point, y.quant.zero_point
    return mean_offset(rounding, x.quant.scale / y.quant.scale, *zeros, low, input_codes.limits, output_codes.limits)


def _of_sum(node: Node, op: Binary, network: Network, integer: Graph) -> Offset | None:
    """Return the offset of a sum or difference; None where the machine rounds it to nearest or no offset helps."""
    numerics, y = network.chip.numerics, integer.types[node.outputs[0]].quant
    rounding = numerics.rounding_of(op.kind)
    if rounding not in (Rounding.FLOOR, Rounding.TRUNCATE):
        return None
    assert y is not None
    codes, signs = CodeType(integer.types[node.outputs[0]].dtype), (1, -1 if op.kind == "sub" else 1)
    quants = [None if n in network.graph.constants else integer.types[n].quant for n in node.inputs]
    steps = [0.0 if q is None else sign * q.scale / y.scale for q, sign in zip(quants, signs, strict=True)]
    zeros = [0 if q is None else q.zero_point for q in quants]
    return sum_offset(rounding, steps, zeros, y.zero_point, clamp_codes(op.activation, y, codes)[0], codes.limits)
