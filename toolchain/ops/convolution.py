"""Convolution of any group, stride, dilation and padding on the MAC array; fully connected layers are its 1x1 case.

y[n, h, w, o] = act(bias[o] + sum x[n, h sh + ky dh - top, w sw + kx dw - left, i] w[o, ky, kx, i]).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quant.parameters import bias_compensation, bias_quant, weight_quant
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.ops.base import QuantScope, clamp_codes
from toolchain.ops.integer_convolution import IntegerConvolution

Bounds = tuple[float | None, float | None]
Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class Convolution:
    """x[n, h, w, i], w[o, kh, kw, i / groups] and bias[o] (or ''). `pads` are top, left, bottom, right."""

    strides: tuple[int, int]
    pads: Pads
    dilations: tuple[int, int]
    groups: int
    activation: Bounds = (None, None)

    def unsupported(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        if node.inputs[1] not in graph.constants:
            return "its weights are computed, not constant"
        mac = chip.engines.mac
        pair = (chip.numerics.activation, chip.numerics.weight)
        if not any((t.activation, t.weight) == pair for t in mac.types):
            return f"engines.mac.types has no {pair[0]} x {pair[1]}"
        return None

    def quantize(self, node: Node, scope: QuantScope) -> list[Node]:
        weights = scope.graph.constants[node.inputs[1]]
        bias_name = (*node.inputs, "", "")[2]
        bias = scope.graph.constants[bias_name] if bias_name else None
        x, y = scope.quant(node.inputs[0]), scope.quant(node.outputs[0])
        numerics, bits = scope.chip.numerics, scope.chip.engines.mac.accumulators.bits
        low, high = clamp_codes(self.activation, y, scope.code_range)
        w = weight_quant(weights, 0, numerics, name=node.name)
        b = bias_quant(bias, weights, w, x, numerics, accumulator_bits=bits, name=node.name)
        scale = x.scale * b.weight.scales / y.scale
        peak = b.peak if len(b.weight.scales) > 1 else b.peak.max()
        requant = scope.requant(scale, "convolution", y.zero_point, low, high, where=node.name, peak=peak)
        offset = bias_compensation(
            requant.real_scale, y, numerics, clamp_low=low, peak=b.peak, accumulator_bits=bits, name=node.name
        )
        integer = IntegerConvolution(
            self.strides,
            self.pads,
            self.dilations,
            self.groups,
            x.zero_point,
            bits,
            replace(requant, zero_point=offset.output_zero_point),
            None,
            None,
        )
        names = (
            node.inputs[0],
            scope.constant(f"{node.name}.weights", b.weight.codes),
            scope.constant(f"{node.name}.bias", b.codes.astype(np.int64) + offset.offsets),
        )
        return [Node(node.name, integer, names, node.outputs, node.sources)]
