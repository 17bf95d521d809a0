"""Sums of machines that round down or toward zero, set right on average by the zero points they are given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.rounding import Rounding
from quant.repair.offsets import sum_offset
from quant.repair.step import Offset, Outcome, Quantization
from quant.sample import Sample
from toolchain.ir.graph import Graph, Node
from toolchain.ops.elementwise.rules import Binary
from toolchain.ops.kit.operator import clamp_codes
from toolchain.repair.network import Network, Progress


def offset_sums(network: Network, given: Quantization, samples: Iterable[Sample], progress: Progress) -> Outcome:
    """An Offset for each Add and Sub whose rounding would leave it low, where the machine has zero points; needs no samples."""
    if network.chip.numerics.symmetric_activations:
        return Outcome(given, notes=("offsets: the machine has no zero points (numerics.symmetric_activations)",))
    integer = network.integer(given)
    sums = [(n, n.op) for n in network.graph.nodes if isinstance(n.op, Binary) and n.op.kind in ("add", "sub")]
    found = {n.name: offset for n, op in sums if (offset := _offset(n, op, network, integer)) is not None}
    return Outcome(replace(given, offsets={**given.offsets, **found}) if found else given)


def _offset(node: Node, op: Binary, network: Network, integer: Graph) -> Offset | None:
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
