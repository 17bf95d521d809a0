"""Operands of more bits than an array takes are sums of an upper and a lower plane: products of planes, and the sum of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.weight_scaling import WeightScaling
from quant.observe import Range
from quant.parameters import BiasQuant, WeightQuant, activation_quant, bias_quant, requantize_weight, weight_quant
from quant.parameters.weight_codes import weight_code_range
from toolchain.ir.graph import Node, Quant
from toolchain.ops.convolution.input_bit_slices import LEFT, BitSlice
from toolchain.ops.elementwise.integer import IntegerBinary
from toolchain.ops.elementwise.rules import sum_requants
from toolchain.ops.kit.operator import Array
from toolchain.ops.kit.quant_context import QuantContext

_SHARES = 8.0


class WeightBitSlices(NamedTuple):
    """w = upper + lower. Each plane has codes and scales of its own; the bias is the upper's."""

    upper: BiasQuant
    lower: BiasQuant

    def reach(self, x: Quant, codes: CodeType, largest: float) -> float:
        """What the lower plane adds to an output at most, in magnitude: its share of the weights, eight times, of outputs up to
        `largest`, or half of what inputs that all lie at an end of their codes add in the mean of all signs, where that is more;
        never above what any input adds."""
        most = float(np.max(self.lower.peak * self.lower.weight.scales)) * x.scale
        upper, lower = (_norms(plane.weight) for plane in self)
        share = float(np.max(np.divide(lower, upper, out=np.zeros_like(lower), where=upper > 0)))
        end = max(codes.high - x.zero_point, x.zero_point - codes.low) * x.scale
        return min(most, max(_SHARES * share * largest, 0.5 * float(lower.max()) * end))


def _norms(weight: WeightQuant) -> Array:
    """float64[o], of each channel."""
    return np.sqrt(np.square(weight.dequantized().reshape(len(weight.codes), -1)).sum(1))


def slice_weights(w: Array, bias: Array | None, x: Quant, numerics: Numerics, name: str) -> WeightBitSlices:
    """w: float[o, ...]; numerics: with weights of the planes' type. A step of the lower plane is the least by which half a step
    of the upper one lies within its codes; a power of two of it on machines whose scales are such."""
    scaling = WeightScaling(0 if numerics.weights_per_channel else None)
    rounded = weight_quant(w, 0, numerics, scaling=scaling, method="minmax", name=name)
    upper = bias_quant(bias, w, rounded, x, numerics, name=name)
    rest = np.asarray(w, np.float64) - upper.weight.dequantized()
    parts = 2 * weight_code_range(numerics.weight)[1]
    parts = 2 ** int(np.log2(parts)) if numerics.scale.kind == "pow2" else parts
    scales = upper.weight.scales / parts
    nothing = WeightQuant(np.zeros(w.shape, np.int8), scales, 0)
    return WeightBitSlices(
        upper, bias_quant(None, rest, requantize_weight(rest, nothing, scales, numerics), x, numerics, name=name)
    )


class SliceProduct(NamedTuple):
    """Of a plane of the input, or all of it, and a plane of the weights, or all of them: how much it adds to an output at most,
    in magnitude; of the upper planes nobody asks."""

    name: str
    x: BitSlice
    weights: BiasQuant
    reach: float = 0.0


def with_lower_input(upper: SliceProduct, lower: BitSlice, bias: Array | None, numerics: Numerics, name: str) -> SliceProduct:
    """What the lower plane of the input adds: to the product of the upper one, by the same weights, with what that leaves of the
    bias."""
    own = upper.weights.weight
    w = own.dequantized()
    left = None if bias is None else np.asarray(bias, np.float64) - upper.weights.codes * upper.x.quant.scale * own.scales
    reach = LEFT * upper.x.quant.scale * float(np.abs(w).reshape(len(w), -1).sum(1).max())
    return SliceProduct("lower input", lower, bias_quant(left, w, own, lower.quant, numerics, name=name), reach)


class SliceResult(NamedTuple):
    """What a product makes: its tensor, with the scale and type of its codes."""

    name: str
    quant: Quant
    codes: CodeType


def quantize_slice_products(
    node: Node, products: Sequence[SliceProduct], limits: tuple[int, int], scope: QuantContext
) -> list[SliceResult]:
    """What each makes, the upper one first, in the finest codes of an operand; in wide ones the upper one where the input has
    these, all where the output has. limits: of the output's codes. Where the upper one saturates the output does so too, but
    where the lower ones add more than their reach."""
    y, codes = scope.quant(node.outputs[0]), scope.codes(node.outputs[0])
    added = sum(p.reach for p in products[1:])
    ends = [(limit - y.zero_point) * y.scale / 2.0**codes.spare_bits for limit in limits]
    finest, widest = (max(types, key=lambda t: t.bits) for types in (scope.chip.operand_types, scope.chip.code_types))
    upper = widest if codes.is_wide or scope.codes(node.inputs[0]).is_wide else finest
    lower = widest if codes.is_wide else finest
    made = [_made(node, "upper plane", Range(ends[0] - added, ends[1] + added), upper, scope)]
    return [*made, *(_made(node, f"{p.name} plane", Range(-p.reach, p.reach), lower, scope) for p in products[1:])]


def _made(node: Node, what: str, held: Range, codes: CodeType, scope: QuantContext) -> SliceResult:
    quant = activation_quant(held, scope.chip.numerics.of(codes))
    shape = scope.graph.types[node.outputs[0]].shape
    return SliceResult(scope.inner(scope.own_name(f"{node.outputs[0]}: {what}"), quant, codes, shape), quant, codes)


def sum_slice_products(
    node: Node, products: Sequence[SliceProduct], parts: Sequence[SliceResult], limits: tuple[int, int], scope: QuantContext
) -> list[Node]:
    """The sums of what the products make, the last of which makes the node's output: first that of what adds little."""
    upper, lower, *others = parts
    nodes = list[Node]()
    for other in others:
        reach = sum(p.reach for p in products[1:])
        both = _made(node, "lower planes", Range(-reach, reach), lower.codes, scope)
        inner = Node(f"{node.name}.lower planes", node.op, (lower.name, other.name), (both.name,), node.sources)
        nodes.append(_sum(inner, both.codes.limits, scope))
        lower = both
    own = Node(node.name, node.op, (upper.name, lower.name), node.outputs, node.sources)
    return [*nodes, _sum(own, limits, scope)]


def _sum(node: Node, limits: tuple[int, int], scope: QuantContext) -> Node:
    a, b, y = (scope.quant(n) for n in (*node.inputs, *node.outputs))
    r = sum_requants(node, (a, b, y), "add", *limits, scope)
    op = IntegerBinary("add", a.zero_point, b.zero_point, r.left_shift, r.q_requant, r.r_requant, r.out_requant)
    return replace(node, op=op)
