"""Select convolution of any group, stride, dilation and padding for the MAC array, and quantize it. Gemm is its 1x1 case.

The output is y[n, h, w, o] = act(bias[o] + sum of the products).
A product is x[n, h sh + ky dh - top, w sw + kx dw - left, i] w[o, ky, kx, i].
`Convolution` is the float operator, with the methods of `FloatOp`. Its `quantize` makes one `IntegerConvolution`, or several
that are summed where weights or input have more bits than the array takes (bit slices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quant.file_qparams import get_file_weights, narrowest_weight
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.weight_scaling import WeightScaling
from quant.parameters import (
    BiasQuant,
    WeightQuant,
    bias_compensation,
    bias_quant,
    check_chosen_weight,
    expressible_weight,
    product_scale,
    weight_quant,
)
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.ops.convolution.bit_slices import (
    SliceProduct,
    SliceResult,
    WeightSlicing,
    needs_slices,
    quantize_slice_products,
    slice_weights,
    sum_slice_products,
    tolerate_error,
    with_lower_input,
)
from toolchain.ops.convolution.input_bit_slices import BitSlice, slice_input, supports_bit_slices
from toolchain.ops.convolution.integer_convolution import IntegerConvolution, exceeds_max_pad
from toolchain.ops.data_movement import Pad
from toolchain.ops.kit.operator import Array, FloatOp, clamp_codes
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.window import pair_of
from toolchain.ops.permutation import Reshape

Bounds = tuple[float | None, float | None]
Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class Convolution(FloatOp):
    """A float convolution of x[n, h, w, i], w[o, kh, kw, i / groups] and bias[o] (or ''). `pads` are top, left, bottom,
    right.

    `activation`: bounds on the output. Weights must be constant; the input may have 32-bit codes where the machine can slice
    them.
    """

    strides: tuple[int, int]
    pads: Pads
    dilations: tuple[int, int]
    groups: int
    activation: Bounds = (None, None)

    @property
    def takes_clamp(self) -> bool:
        return self.activation == (None, None)

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot run it: weights are computed, or no array has types that programs can use. None: it can."""
        if node.inputs[1] not in graph.constants:
            return "its weights are computed, not constant"
        if not chip.pairs:
            return f"no array that programs can use has types of numerics ({chip.key('mac_array')}.types)"
        return None

    def operand_types(self, node: Node, graph: Graph, chip: Chip) -> tuple[CodeType, ...]:
        """Return the types that the arrays multiply."""
        return chip.array_types

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return whether the input may have 32-bit codes, which the machine must then cut into bit slices."""
        return supports_bit_slices(chip)

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: the output may have 32-bit codes."""
        return True

    def weights(self, node: Node, scope: QuantContext) -> BiasQuant:
        """Return the weights and bias in integers, for an input without 32-bit codes.

        The weights are those that repair chose, the file's own codes, or rounded to nearest. Raise CompileError where a
        requested type is none that an array takes with the input's.
        """
        x = BitSlice(node.inputs[0], scope.quant(node.inputs[0]), scope.codes(node.inputs[0]))
        return self._weights(node, scope, x, self._weight_type(node, x.codes, scope))

    def _weights(self, node: Node, scope: QuantContext, x: BitSlice, codes: CodeType) -> BiasQuant:
        """Return weights of the type `codes` and the bias in integers, for this input or its upper bit slice."""
        weights, chosen = scope.graph.constants[node.inputs[1]], scope.layer(node)
        numerics = scope.chip.numerics.of(x.codes).with_weights(codes)
        bias = self._bias(node, scope)
        if chosen.weight is None:
            w, bias = self._quantize_weights(node, weights, bias, scope, x, chosen.scaling, numerics)
        else:
            w = check_chosen_weight(chosen.weight, weights, numerics, name=node.name)
            weights = w.dequantize()
        return bias_quant(bias, weights, w, x.quant, numerics, name=node.name)

    def _bias(self, node: Node, scope: QuantContext) -> Array | None:
        """Return the bias, float[o]: what repair chose, else the node's; None where it has none."""
        chosen, name = scope.layer(node).bias, (*node.inputs, "", "")[2]
        return chosen if chosen is not None or not name else scope.graph.constants[name]

    def _weight_type(self, node: Node, codes: CodeType, scope: QuantContext) -> CodeType:
        """Return the weight type, out of those that an array takes with the input's type `codes`.

        It is the user's, else the narrowest that holds a quantized file's own codes, else the first.
        Raise CompileError where no array takes the user's, in one slice or two.
        """
        chip, user_type = scope.chip, scope.weight_type(node)
        how = scope.find_file_weights(node, product=True)
        array_types = chip.weights_for(codes)
        if user_type is not None and user_type not in array_types and not self._plane(user_type, array_types, scope):
            reason = f"{chip.key('mac_array')}.types has {codes} activations with {', '.join(array_types)} weights"
            raise CompileError(f"node {node.name}: {user_type} weights and an input of {codes}: {reason}; ask for one of these")
        if user_type is not None or how is None or scope.layer(node).scaling is not None:
            return user_type or array_types[0]
        groups = self.can_be_grouped(scope.graph.constants[node.inputs[1]].shape)
        return narrowest_weight(how, replace(chip.numerics, weight=array_types[0], more_weights=array_types[1:]), groups=groups)

    def _plane(self, user_type: CodeType, array_types: Sequence[CodeType], scope: QuantContext) -> CodeType | None:
        """Return the type of each of the two bit slices that weights of this type are; None where the machine does not take
        them so.
        """
        plane = scope.chip.numerics.wide_weights.get(user_type)
        return plane if plane in array_types and "add" in scope.chip.functions else None

    def choose_slicing(self, node: Node, codes: CodeType, scope: QuantContext) -> WeightSlicing:
        """Return into how many bit slices the weights are cut that multiply an input of type `codes`; mostly it is one.

        A type of twice the bits of an array's weights is two slices.
        Weights that the compiler makes have as many as the bits of the input need.
        """
        chip, chosen, weight_type = scope.chip, scope.layer(node), self._weight_type(node, codes, scope)
        plane = self._plane(weight_type, chip.weights_for(codes), scope)
        if plane is not None:
            return WeightSlicing(plane, 2)
        if not scope.has_compiler_weights(node) or chosen.weight is not None or chosen.scaling is not None:
            return WeightSlicing(weight_type)
        w, numerics = scope.graph.constants[node.inputs[1]], chip.numerics.of(codes).with_weights(weight_type)
        if "add" not in chip.functions or not needs_slices(w, codes, numerics, node.name):
            return WeightSlicing(weight_type)
        return WeightSlicing(weight_type, -(-codes.bits // weight_type.bits), tolerate_error(w, codes))

    def _quantize_weights(
        self,
        node: Node,
        w: Array,
        bias: Array | None,
        scope: QuantContext,
        x: BitSlice,
        scaling: WeightScaling | None,
        numerics: Numerics,
    ) -> tuple[WeightQuant, Array | None]:
        """Return the codes of the weights, and the bias in all its bits.

        Codes are the file's own where it has them and no scaling is requested. Raise CompileError for groups that the kernel
        cannot have.
        """
        how, groups = scope.find_file_weights(node, product=True), self.can_be_grouped(w.shape)
        file_weights = None
        if how is not None and scaling is None and (groups or how.groups is None):
            file_weights = get_file_weights(w, 0, how, numerics, node.name)
        if how is not None and how.bias is not None and bias is not None and np.array_equal(how.bias.astype(np.float32), bias):
            bias = how.bias
        if file_weights is not None:
            return file_weights, bias
        if scaling is not None and scaling.group and not groups:
            raise CompileError(
                f"{node.name}: groups of {scaling.group} weights are of 1x1 kernels over all channels, its kernel is "
                f"{w.shape[1]}x{w.shape[2]} over 1 / {self.groups} of them; give it `scales: channel`"
            )
        scaling = numerics.scaling_of(0, w.shape[3], groups) if scaling is None else scaling
        ratio = x.quant.scale / scope.quant(node.outputs[0]).scale
        return expressible_weight(w, weight_quant(w, 0, numerics, scaling=scaling, name=node.name), ratio, numerics), bias

    def can_be_grouped(self, shape: tuple[int, ...]) -> bool:
        """Return whether weights of this shape may be quantized in groups: a 1x1 kernel over all channels.

        Neighbours along the reduction then stay neighbours in every tile.
        """
        return self.groups == 1 and shape[1:3] == (1, 1)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the nodes that cut the input into bit slices, the integer convolutions, and the nodes that sum them.

        Mostly it is one convolution alone.
        """
        y, numerics = scope.quant(node.outputs[0]), scope.numerics(node.outputs[0])
        limits = clamp_codes(self.activation, y, numerics.activation)
        nodes, slices = slice_input(node.inputs[0], scope)
        slicing = self.choose_slicing(node, slices[0].codes, scope)
        products = self._products(node, scope, slices, slicing, limits)
        if len(products) == 1:
            parts = [SliceResult(node.outputs[0], y, numerics.activation)]
            return [*nodes, self._product(node, scope, node.name, products[0], slicing.codes, parts[0], limits)]
        parts = quantize_slice_products(node, products, limits, scope)
        nodes += [
            self._product(node, scope, f"{node.name}.{p.name}", p, slicing.codes, part, part.codes.limits)
            for p, part in zip(products, parts, strict=True)
        ]
        return [*nodes, *sum_slice_products(node, products, parts, limits, scope)]

    def _products(
        self,
        node: Node,
        scope: QuantContext,
        slices: Sequence[BitSlice],
        slicing: WeightSlicing,
        limits: tuple[int, int],
    ) -> list[SliceProduct]:
        """Return one product, or one for each bit slice of weights or input, that of the upper slices first.

        Products of two lower slices are left out: they are below what either slice lacks.
        """
        x, y = slices[0], scope.quant(node.outputs[0])
        numerics = scope.chip.numerics.of(x.codes).with_weights(slicing.codes)
        if slicing.most == 1:
            products = [SliceProduct("upper", x, self._weights(node, scope, x, slicing.codes))]
        else:
            self._refuse_in_planes(node, scope, slicing.codes)
            constant, bias = scope.graph.constants[node.inputs[1]], self._bias(node, scope)
            w = slice_weights(constant, bias, x.quant, numerics, node.name, slicing)
            largest = (
                max(abs(limit - y.zero_point) for limit in limits) * y.scale / 2.0 ** scope.codes(node.outputs[0]).spare_bits
            )
            products = [SliceProduct("upper", x, w.upper)]
            for number, lower in enumerate(w.lower):
                name = f"lower {number + 1}" if number else "lower"
                products.append(SliceProduct(name, x, lower, w.reach(number, x.quant, x.codes, largest)))
        if len(slices) > 1:
            products.append(with_lower_input(products[0], slices[1], self._bias(node, scope), numerics, node.name))
        return products

    def _refuse_in_planes(self, node: Node, scope: QuantContext, plane: CodeType) -> None:
        """Raise CompileError where weights that are cut into slices have codes from repair, or scales of groups."""
        chosen = scope.layer(node)
        group = 0 if chosen.scaling is None else chosen.scaling.group
        if chosen.weight is not None or group:
            what = f"groups of {group}" if group else "codes that repair chose"
            raise CompileError(f"{node.name}: {what} and weights in two planes of {plane}; give it one of these")

    def _product(
        self,
        node: Node,
        scope: QuantContext,
        name: str,
        product: SliceProduct,
        weight_type: CodeType,
        result: SliceResult,
        limits: tuple[int, int],
    ) -> Node:
        """Return the integer convolution of one product.

        `limits`: limits of the codes that it makes.
        """
        x, b, numerics = product.x.quant, product.weights, scope.chip.numerics.of(result.codes)
        scale = product_scale(x.scale, b.weight.scales, result.quant.scale, numerics)
        peak = b.peak if len(b.weight.scales) > 1 else b.peak.max()
        low, high = limits
        requant = scope.requant(
            scale, "convolution", result.codes, result.quant.zero_point, low, high, where=node.name, peak=peak
        )
        offset = bias_compensation(requant.real_scale, result.quant, numerics, clamp_low=low, peak=b.peak, name=node.name)
        integer = IntegerConvolution(
            self.strides,
            self.pads,
            self.dilations,
            self.groups,
            x.zero_point,
            numerics.accumulator_bits,
            weight_type,
            requant if requant.zero_point == offset.output_zero_point else replace(requant, zero_point=offset.output_zero_point),
            None,
            None,
            b.weight.groups,
        )
        names = (
            product.x.name,
            scope.constant(f"{name}.weights", b.weight.codes),
            scope.constant(f"{name}.bias", b.codes.astype(np.int64) + offset.offsets),
        )
        return Node(name, integer, names, (result.name,), node.sources)


def convolution(scope: SelectionContext) -> None:
    """Select a Conv. Refuse computed weights, and windows that are not over rows and columns.

    Padding beyond the machine's limit becomes a Pad before it.
    """
    x, w = scope.node.inputs[:2]
    bias = scope.node.inputs[2] if len(scope.node.inputs) > 2 else ""
    weights = scope.value(w)
    if weights is None or (bias and scope.value(bias) is None):
        return scope.refuse("its weights or bias are computed, not constant")
    if weights.ndim != 4:
        return scope.refuse(f"{weights.ndim - 2}-dimensional windows; the chip has rows and columns")
    a = scope.attributes
    pads = tuple(int(p) for p in a.get("pads", (0, 0, 0, 0)))
    op = Convolution(pair_of(a, "strides"), (pads[0], pads[1], pads[2], pads[3]), pair_of(a, "dilations"), int(a.get("group", 1)))
    source = scope.read(x, "nhwc")
    if exceeds_max_pad(op.pads, op.groups, scope.shape(x)[1], weights.shape[0], scope.chip):
        source, op = _add_padding(scope, source, op)
    names = (source, scope.constant(f"{w}@nhwc", np.ascontiguousarray(weights.transpose(0, 2, 3, 1))), bias)
    return scope.emit(op, names, "nhwc")


def _add_padding(scope: SelectionContext, source: str, op: Convolution) -> tuple[str, Convolution]:
    """Add a Pad with the operator's padding; return its output and the operator without padding."""
    top, left, bottom, right = op.pads
    n, h, w, c = scope.types[source].shape
    around = Pad((0, top, left, 0), (0, bottom, right, 0), 0.0)
    shape = (n, h + top + bottom, w + left + right, c)
    padded = scope.step("padded", around, (source,), shape, like=source, sources=())
    return padded, Convolution(op.strides, (0, 0, 0, 0), op.dilations, op.groups)


def gemm(scope: SelectionContext) -> None:
    """Select a Gemm, x[m, k] w[n, k]^T + b, as a 1x1 convolution over m columns. Refuse computed weights and other attributes."""
    x, w = scope.node.inputs[:2]
    bias = scope.node.inputs[2] if len(scope.node.inputs) > 2 else ""
    weights, values = scope.value(w), scope.value(bias) if bias else None
    if weights is None or (bias and values is None):
        return scope.refuse("its weights or bias are computed, not constant")
    a = scope.attributes
    if a.get("transA", 0) or float(a.get("alpha", 1.0)) != 1.0 or float(a.get("beta", 1.0)) != 1.0:
        return scope.refuse("alpha, beta or transA is not the default")
    if not a.get("transB", 0):
        weights = weights.T
    n, k = weights.shape
    m = scope.shape(x)[0]
    source = scope.read(x, "plain")
    rows = Reshape((1, 1, m, k))
    wide = scope.step("rows", rows, (source,), (1, 1, m, k), like=source, sources=())
    names = [wide, scope.constant(f"{w}@nhwc", np.ascontiguousarray(weights.reshape(n, 1, 1, k))), ""]
    if values is not None:
        names[2] = scope.constant(f"{bias}@row", np.broadcast_to(values.reshape(-1), (n,)).copy())
    product = scope.add_main_step("product", Convolution((1, 1), (0, 0, 0, 0), (1, 1), 1), tuple(names), (1, 1, m, n))
    return scope.emit(Reshape((m, n)), (product,), "plain")


RULES = {"Conv": Rule(convolution, "nhwc"), "Gemm": Rule(gemm)}
