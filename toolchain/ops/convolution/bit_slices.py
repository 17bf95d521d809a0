"""Compute with weights of more bits than an array takes: they are the sum of an upper bit slice and lower ones, called
planes.

`select_convolution` makes a product of each plane and sums them. `input_bit_slices` cuts the input in the same way.
"""

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
from toolchain.ops.convolution.input_bit_slices import LOWER_RANGE_STEPS, BitSlice
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.elementwise.select_elementwise import sum_requants
from toolchain.ops.kit.operator import Array
from toolchain.ops.kit.quant_context import QuantContext

_SHARES = 8.0


class WeightSlicing(NamedTuple):
    """A plan for slicing weights.

    `codes`: type of each slice. `most`: the most slices. `tolerance`: the error at which no further slice is made.
    """

    codes: CodeType
    most: int = 1
    tolerance: float = 0.0


class WeightBitSlices(NamedTuple):
    """Sliced weights: w = upper + the sum of the lower planes, the coarsest first.

    Each plane has codes and scales of its own; the bias is the upper's.
    """

    upper: BiasQuant
    lower: tuple[BiasQuant, ...]

    def reach(self, number: int, x: Quant, codes: CodeType, largest: float) -> float:
        """Return the largest magnitude that lower plane `number` is taken to add to an output.

        It is eight times the lower plane's share of the weights, for outputs up to `largest`.
        If larger, it is half of the sum for inputs that all lie at an end of their codes, in the mean of all signs.
        It is never above what any input could make it add.
        `x`, `codes`: qparams and type of the input.
        """
        plane = self.lower[number]
        most = float(np.max(plane.peak * plane.weight.scales)) * x.scale
        upper, lower = _norms(self.upper.weight), _norms(plane.weight)
        share = float(np.max(np.divide(lower, upper, out=np.zeros_like(lower), where=upper > 0)))
        end = max(codes.high - x.zero_point, x.zero_point - codes.low) * x.scale
        return min(most, max(_SHARES * share * largest, 0.5 * float(lower.max()) * end))


def _norms(weight: WeightQuant) -> Array:
    """Return the Euclidean norm of each channel's weights, float64[o]."""
    return np.sqrt(np.square(weight.dequantize().reshape(len(weight.codes), -1)).sum(1))


def needs_slices(w: Array, x: CodeType, numerics: Numerics, name: str) -> bool:
    """Return whether weights that the compiler makes are rounded more coarsely than the codes that they multiply.

    `x`: type of these codes.
    `numerics`: with the weights' type. `name`: for messages.
    """
    if x.bits <= numerics.weight.bits:
        return False
    error = np.abs(weight_quant(w, 0, numerics, name=name).dequantize() - w).max(initial=0)
    return bool(error > tolerate_error(w, x))


def tolerate_error(w: Array, x: CodeType) -> float:
    """Return the error of weights that is no coarser than codes of type `x`."""
    return float(np.abs(w).max(initial=0)) / 2**x.bits


def slice_weights(
    w: Array, bias: Array | None, x: Quant, numerics: Numerics, name: str, slicing: WeightSlicing
) -> WeightBitSlices:
    """Return the weights in planes, as many as the tolerance needs and at most `slicing.most`.

    A step of a lower plane is the least by which half a step of the one above lies within its codes.
    On machines whose scales are powers of two, it is a power of two less than the step above.
    `w`: float[o, ...]. `bias`: float[o] or None. `x`: qparams of the input.
    `numerics`: with weights of the planes' type.
    """
    scaling = WeightScaling(0 if numerics.weights_per_channel else None)
    rounded = weight_quant(w, 0, numerics, scaling=scaling, method="minmax", name=name)
    upper = bias_quant(bias, w, rounded, x, numerics, name=name)
    rest, scales = np.asarray(w, np.float64) - upper.weight.dequantize(), upper.weight.scales
    parts = 2 * weight_code_range(numerics.weight)[1]
    parts = 2 ** int(np.log2(parts)) if numerics.scale.kind == "pow2" else parts
    lower: list[BiasQuant] = []
    while len(lower) < slicing.most - 1 and np.abs(rest).max(initial=0) > slicing.tolerance:
        scales = scales / parts
        nothing = WeightQuant(np.zeros(w.shape, np.int8), scales, 0)
        rounded = requantize_weight(rest, nothing, scales, numerics)
        lower.append(bias_quant(None, rest, rounded, x, numerics, name=name))
        rest = rest - lower[-1].weight.dequantize()
    return WeightBitSlices(upper, tuple(lower))


class SliceProduct(NamedTuple):
    """A product of a plane of the input, or all of it, and a plane of the weights, or all of them.

    `reach`: largest magnitude that it is taken to add to an output; unused for the upper planes.
    """

    name: str
    x: BitSlice
    weights: BiasQuant
    reach: float = 0.0


def with_lower_input(upper: SliceProduct, lower: BitSlice, bias: Array | None, numerics: Numerics, name: str) -> SliceProduct:
    """Return the product of the lower input plane, which adds to the product of the upper one by the same weights.

    Its bias is the rest of the bias that the upper product leaves.
    """
    upper_weights = upper.weights.weight
    w = upper_weights.dequantize()
    remaining_bias = (
        None if bias is None else np.asarray(bias, np.float64) - upper.weights.codes * upper.x.quant.scale * upper_weights.scales
    )
    reach = LOWER_RANGE_STEPS * upper.x.quant.scale * float(np.abs(w).reshape(len(w), -1).sum(1).max())
    return SliceProduct(
        "lower input", lower, bias_quant(remaining_bias, w, upper_weights, lower.quant, numerics, name=name), reach
    )


class SliceResult(NamedTuple):
    """A result of a product: its tensor, with the scale and type of its codes."""

    name: str
    quant: Quant
    codes: CodeType


def quantize_slice_products(
    node: Node, products: Sequence[SliceProduct], limits: tuple[int, int], scope: QuantContext
) -> list[SliceResult]:
    """Register and return the tensor of each product's result, the upper one first, in the finest codes of an operand.

    The upper one has 32-bit codes where the input has these, and all have them where the output does.
    Where the upper one saturates the output does so too, unless the lower ones add more than their reach.
    `limits`: of the output's codes.
    """
    y, codes = scope.quant(node.outputs[0]), scope.codes(node.outputs[0])
    added = sum(p.reach for p in products[1:])
    ends = [(limit - y.zero_point) * y.scale / 2.0**codes.spare_bits for limit in limits]
    finest, widest = (max(types, key=lambda t: t.bits) for types in (scope.chip.operand_types, scope.chip.code_types))
    upper = widest if codes.is_wide or scope.codes(node.inputs[0]).is_wide else finest
    lower = widest if codes.is_wide else finest
    results = [_make_slice_result(node, "upper plane", Range(ends[0] - added, ends[1] + added), upper, scope)]
    return [
        *results,
        *(_make_slice_result(node, f"{p.name} plane", Range(-p.reach, p.reach), lower, scope) for p in products[1:]),
    ]


def _make_slice_result(node: Node, what: str, value_range: Range, codes: CodeType, scope: QuantContext) -> SliceResult:
    """Register a tensor for a result in this range and return it. `what`: its name in words."""
    quant = activation_quant(value_range, scope.chip.numerics.of(codes))
    shape = scope.graph.types[node.outputs[0]].shape
    return SliceResult(scope.inner(scope.own_name(f"{node.outputs[0]}: {what}"), quant, codes, shape), quant, codes)


def sum_slice_products(
    node: Node, products: Sequence[SliceProduct], parts: Sequence[SliceResult], limits: tuple[int, int], scope: QuantContext
) -> list[Node]:
    """Return the nodes that sum the results `parts`, of which the last makes the node's output; small addends are summed
    first.
    """
    upper, lower, *others = parts
    nodes = list[Node]()
    for number, other in enumerate(others, 1):
        what = "lower planes" if number == 1 else f"lower planes {number}"
        reach = sum(p.reach for p in products[1:])
        both = _make_slice_result(node, what, Range(-reach, reach), lower.codes, scope)
        inner = Node(f"{node.name}.{what}", node.op, (lower.name, other.name), (both.name,), node.sources)
        nodes.append(_sum(inner, both.codes.limits, scope))
        lower = both
    sum_node = Node(node.name, node.op, (upper.name, lower.name), node.outputs, node.sources)
    return [*nodes, _sum(sum_node, limits, scope)]


def _sum(node: Node, limits: tuple[int, int], scope: QuantContext) -> Node:
    """Return the node as an `IntegerBinary` that adds its two inputs. `limits`: clamp of the codes."""
    a, b, y = (scope.quant(n) for n in (*node.inputs, *node.outputs))
    r = sum_requants(node, (a, b, y), "add", *limits, scope)
    op = IntegerBinary("add", a.zero_point, b.zero_point, r.left_shift, r.q_requant, r.r_requant, r.out_requant)
    return replace(node, op=op)
