"""Write layers that sum codes so that a runtime computes the sums exactly, and brings them to codes as the machine does.

A sum of codes is an integer, which float32 holds up to 2^24, in whatever order it is added up. Bias, scale and rounding
behind it are float64 and give whole steps of the output, so the QuantizeLinear behind them rounds nothing.
`real_rounding` expresses how a machine rounds sums to codes, as one formula of real numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import HALF_UP_RULES, Rounding
from toolchain.errors import InternalError
from toolchain.export.qdq_writer import Array, Writer
from toolchain.ir.graph import Graph, Node, OnnxGraph, OnnxNode, OnnxOp, TensorType
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.layout import NCHW
from toolchain.ops.kit.operator import operator_of
from toolchain.ops.pool.integer_pool import IntegerAveragePool

_FIRST_BITS = 31  # behind them DOUBLE_ROUND rounds a first time
_MAX_EXACT_INTEGER = 1 << 24  # float32 has all whole numbers up to it
_MAX_EXACT_MEAN_SUM = 1 << 21  # the sum that a mean is of, after two roundings of float32, is less than a half from it
_CLAMPS = ("Clip", "Relu")


@dataclass(frozen=True)
class _Sum:
    """A sum of codes in a layer.

    `inputs`: inputs with which the model's operator makes sums of codes; for a mean of `count` codes, their mean.
    `bias`: int64[c], or None.
    """

    inputs: tuple[str, ...]
    requant: Requant
    rounding: RealRounding
    bias: Array | None = None
    count: int = 1


@dataclass(frozen=True)
class ExactSums:
    """Writes layers that sum codes into a `Writer`.

    `integer`: the chip's integer graph.
    `readers`: consumers of the model's tensors.
    """

    writer: Writer
    integer: Graph
    readers: Mapping[str, Sequence[OnnxNode]]

    def write(self, node: OnnxNode, layer: Node, output: str) -> bool:
        """Write the nodes that make `output`, real numbers on whole steps. Return False, with nothing written, where that
        cannot be.

        That is where the layer is no sum of codes, exceeds float32's integers, rounds to even, or has other codes than are
        written.
        `node`: of the model, `layer`: the same on the chip.
        """
        tensor = self._find_coded_tensor(node.outputs[0])
        if (
            tensor is None
            or not self._has_same_codes(tensor, layer.outputs[0])
            or not self._has_same_codes(node.inputs[0], layer.inputs[0])
        ):
            return False
        layer_sum = self._sum(node, layer)
        if layer_sum is None:
            return False
        rounding = layer_sum.rounding
        name, kind = node.name, self.writer.source.types[node.outputs[0]]
        wide = TensorType(kind.shape, "float64")

        def add_step(step: str, op_type: str, *inputs: str) -> str:
            return self.writer.add_node(f"{name}/{step}", op_type, inputs, wide)

        def constant(step: str, value: Array) -> str:
            """Add a constant.

            `value`: [c], along the channels, or of any one number.
            """
            shape = (-1, *(1,) * (len(kind.shape) - 2)) if value.size > 1 else ()
            return self.writer.constant(f"{name}/{step}", value.astype(np.float64).reshape(shape))

        summed = self.writer.fresh(f"{name}/sums")
        self.writer.types[summed] = kind
        self.writer.nodes.append(replace(node, inputs=layer_sum.inputs, outputs=(summed,)))
        sums = self.writer.add_node(f"{name}/sums64", "Cast", (summed,), wide, to=TensorProto.DOUBLE)
        if layer_sum.count > 1:  # a mean, of which float32 has rounded the last bits
            sums = add_step("whole", "Round", add_step("total", "Mul", sums, constant("count", np.array(layer_sum.count))))
        if layer_sum.bias is not None:
            sums = add_step("biased", "Add", sums, constant("bias", layer_sum.bias))
        steps = add_step("steps", "Mul", sums, constant("factor", rounding.factor))
        offset = np.array(rounding.offset)
        if layer_sum.requant.low >= layer_sum.requant.zero_point:  # what is below zero is clamped whatever it is rounded to
            offset = offset + rounding.away
        elif rounding.away.any():
            steps = add_step(
                "nudged", "Add", steps, add_step("away", "Mul", add_step("sign", "Sign", sums), constant("nudge", rounding.away))
            )
        steps = add_step("floor", "Floor", add_step("raised", "Add", steps, constant("offset", offset)))
        scale = np.float32(self.writer.coded[tensor].quant.scale)
        real = add_step("real", "Mul", steps, constant("scale", np.array(scale)))
        self.writer.types[output] = kind
        self.writer.nodes.append(Node(f"{name}/output", OnnxOp("Cast", {"to": TensorProto.FLOAT}), (real,), (output,)))
        return True

    def _find_coded_tensor(self, name: str) -> str | None:
        """Return the first tensor with codes from this one on, behind clamps that the chip's layer has fused; None: there is
        none.
        """
        while name not in self.writer.coded:
            readers = self.readers.get(name, ())
            if len(readers) != 1 or name in self.writer.source.outputs or readers[0].op.op_type not in _CLAMPS:
                return None
            (name,) = readers[0].outputs
        return name

    def _has_same_codes(self, tensor: str, chip_tensor: str) -> bool:
        """Return whether the chip's tensor has the codes that are written for the model's tensor."""
        kind, coded = self.integer.types[chip_tensor], self.writer.coded.get(tensor)
        return coded is not None and (kind.quant, kind.dtype) == (coded.quant, coded.dtype)

    def _sum(self, node: OnnxNode, layer: Node) -> _Sum | None:
        """Return the sum of a Conv, Gemm or average pool; None for other layers, and where the sum cannot be exact."""
        if isinstance(layer.op, IntegerConvolution) and node.op.op_type in ("Conv", "Gemm"):
            return self._products(node, layer)
        if isinstance(layer.op, IntegerAveragePool) and len(layer.op.requants) == 1:
            return self._mean(node, layer)
        return None

    def _products(self, node: OnnxNode, layer: Node) -> _Sum | None:
        """Return the sum of products, its weights written as codes; None where it exceeds float32's integers or the
        accumulators.
        """
        op = operator_of(layer, IntegerConvolution)
        codes, bias = weight_codes(node, layer, self.integer, self.writer.source), self.integer.constants[layer.inputs[2]]
        largest = np.abs(codes.astype(np.int64)).reshape(len(codes), -1).sum(1) * self._largest(layer)
        rounding, overflow = real_rounding(op.requant), 1 << (op.accumulator_bits - 1)
        if rounding is None or largest.max() > _MAX_EXACT_INTEGER or (largest + np.abs(bias)).max() >= overflow:
            return None
        x, name = self._in_steps(node), f"{node.name}/weights"
        if op.group:  # beyond 8 bits
            weights = self.writer.constant(name, codes.astype(np.float32))
        else:
            weights = self.writer.add_quantized_constant(name, codes, np.array(1), np.array(0, codes.dtype))
        return _Sum((x, weights), op.requant, rounding, bias)

    def _mean(self, node: OnnxNode, layer: Node) -> _Sum | None:
        """Return the sum of an average pool; None where it exceeds what a float32 mean leaves exact."""
        ((count, requant),) = operator_of(layer, IntegerAveragePool).requants
        rounding = real_rounding(requant)
        if rounding is None or count * self._largest(layer) > _MAX_EXACT_MEAN_SUM:
            return None
        return _Sum((self._in_steps(node), *node.inputs[1:]), requant, rounding, count=count)

    def _largest(self, layer: Node) -> int:
        """Return the largest magnitude of an input code less its zero point."""
        kind = self.integer.types[layer.inputs[0]]
        ends = np.iinfo(kind.dtype)
        assert kind.quant is not None
        return max(int(ends.max) - kind.quant.zero_point, kind.quant.zero_point - int(ends.min))

    def _in_steps(self, node: OnnxNode) -> str:
        """Return the layer's input as codes less their zero point, by a DequantizeLinear of scale one."""
        codes, zero = self.writer.codes[node.inputs[0]]
        one = self.writer.constant(f"{node.name}/one", np.asarray(1, np.float32))
        kind = self.writer.source.types[node.inputs[0]]
        return self.writer.add_node(f"{node.name}/input", "DequantizeLinear", (codes, one, zero), kind)


def weight_codes(node: OnnxNode, layer: Node, integer: Graph, source: OnnxGraph) -> Array:
    """Return the weight codes of a convolution in the layout of the model's Conv or Gemm."""
    codes = operator_of(layer, IntegerConvolution).whole_weights(integer.constants[layer.inputs[1]])
    if node.op.op_type == "Gemm":
        if not node.op.attributes["transB"]:
            raise InternalError(f"{node.name}: a Gemm of the normal form has its weights as [n, k]")
        return codes.reshape(codes.shape[0], -1)
    return np.ascontiguousarray(codes.transpose(NCHW).reshape(source.types[node.inputs[1]].shape))


@dataclass(frozen=True)
class RealRounding:
    """A rounding rule: a sum's code, before zero point and clamp, is floor(sum * factor + offset + sign(sum) * away).

    The rule is exact in float64 where factor's shift and the codes have 52 bits together.
    Otherwise it is exact but for sums that are within 2^-36 of the next code.
    `factor`, `away`: float64[1] or [c].
    """

    factor: Array
    offset: float
    away: Array


def real_rounding(requant: Requant) -> RealRounding | None:
    """Return how a requantization rounds, as one formula; None for those that wrap, and for roundings to even."""
    multiplier, shift = requant.integer_form
    tie = np.ldexp(0.5, -shift)  # half of what products of whole numbers differ by
    offset, away = 0.5, np.zeros(shift.shape)
    match requant.rounding:
        case Rounding.DOUBLE_ROUND:
            away = np.where(shift > _FIRST_BITS, np.ldexp(0.5, _FIRST_BITS - shift), 0)
        case Rounding.HALF_AWAY:
            away = np.minimum(tie, 0.25)  # whole products have no halves, and 0.5 would reach the next code
        case Rounding.TRUNCATE:
            away = tie - 0.5
        case Rounding.FLOOR:
            offset = 0.0
        case rounding:
            if rounding not in HALF_UP_RULES:
                return None
    factor = np.ldexp(multiplier.astype(np.float64), -shift)
    return None if requant.wrap else RealRounding(factor, offset, away)
