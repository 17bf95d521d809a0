"""Weights of twice a machine's bits: the sum of two products, of their upper and of their lower plane."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.groups import WeightScaling
from quant.fixed_point.core.numerics import Numerics
from quant.observe import Range
from quant.parameters import BiasQuant, WeightQuant, activation_quant, bias_quant, requantized, weight_quant
from quant.parameters.codes import weight_code_range
from toolchain.ir.graph import Node, Quant
from toolchain.ops.elementwise.integer import IntegerBinary
from toolchain.ops.elementwise.rules import sum_requants
from toolchain.ops.kit.operator import Array
from toolchain.ops.kit.quant_scope import QuantScope

_SHARES = 8.0


class Planes(NamedTuple):
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


def planes(w: Array, bias: Array | None, x: Quant, numerics: Numerics, name: str) -> Planes:
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
    return Planes(upper, bias_quant(None, rest, requantized(rest, nothing, scales, numerics), x, numerics, name=name))


class Between(NamedTuple):
    """A tensor between the products and their sum."""

    name: str
    quant: Quant
    codes: CodeType


def between(node: Node, found: Planes, x: Quant, ends: tuple[float, float], scope: QuantScope) -> tuple[Between, Between]:
    """What the planes make, upper and lower, in the finest codes. ends: of the output. Where the upper one saturates the output
    does so too, but where the lower one adds more than its reach."""
    reach = found.reach(x, scope.codes(node.inputs[0]), max(map(abs, ends)))
    shape = scope.graph.types[node.outputs[0]].shape
    codes = max(scope.chip.operand_types, key=lambda t: t.bits)
    numerics = scope.chip.numerics.of(codes)
    ranges = {"upper plane": Range(ends[0] - reach, ends[1] + reach), "lower plane": Range(-reach, reach)}
    made: list[Between] = []
    for what, held in ranges.items():
        quant = activation_quant(held, numerics)
        name = scope.inner(scope.own_name(f"{node.outputs[0]}: {what}"), quant, codes, shape)
        made.append(Between(name, quant, codes))
    return made[0], made[1]


def summed(node: Node, parts: tuple[Between, Between], y: Quant, limits: tuple[int, int], scope: QuantScope) -> Node:
    """The sum of both, which makes the node's output."""
    a, b = parts
    own = Node(node.name, node.op, (a.name, b.name), node.outputs, node.sources)
    r = sum_requants(own, (a.quant, b.quant, y), "add", *limits, scope)
    op = IntegerBinary("add", a.quant.zero_point, b.quant.zero_point, r.left_shift, r.q_requant, r.r_requant, r.out_requant)
    return Node(node.name, op, own.inputs, node.outputs, node.sources)
