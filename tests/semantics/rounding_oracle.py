"""Round the tensors of the user's file where the chip rounds them: an oracle that shares no rule with the compiler.

The file's nodes run one by one in onnxruntime; between two nodes a tensor is rounded to the codes that the build
reports for it. Constants that a pointwise operator of the chip reads as codes are rounded too. So is the intermediate result of
a normalization between its product and its sum. The remaining difference from the chip is the rounding inside an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from quant.fixed_point.core.rounding import Rounding
from quant.float_session import WRONG_FUSIONS
from tests.semantics.chip_tensors import Codes

Array = np.ndarray[Any, Any]
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
FACTORS = ("Mul", "PRelu")  # of these the error of a constant grows with what it multiplies
Channels = Mapping[str, tuple[Array, Array | float]]  # tensor -> scale, offset, both by channel
NO_CHANNELS: Channels = MappingProxyType({})
Nearest = Callable[[Array], Array]
HALF = 0.5 + 1e-4  # what float32 leaves of one half is one half


def half_up(x: Array) -> Array:
    return np.floor(x + HALF)


def half_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + HALF), x)


def half_toward_zero(x: Array) -> Array:
    return np.copysign(np.ceil(np.abs(x) - HALF), x)


def nearest(rounding: Rounding) -> tuple[Nearest, ...]:
    """The ways to a code on a machine of this rounding: as it says, toward zero or down where it rounds so, else to the nearest,
    halves to the even code where it names no other; and to the nearest with halves either way, since a ratio of scales such as
    1 / 254 is no multiplier over a power of two: the least that is left of it moves all halves of a tensor toward zero, or all
    away from it."""
    way_by_rounding: dict[Rounding, Nearest] = {
        Rounding.SINGLE_HALF_UP: half_up,
        Rounding.DOUBLE_ROUND: half_away,
        Rounding.TRUNCATE: np.trunc,  # each rounding is half a code off on the whole, which sums of sums add up
        Rounding.FLOOR: np.floor,
    }
    return tuple(dict.fromkeys((way_by_rounding.get(rounding, np.rint), half_toward_zero, half_away)))


def by_chance(seed: int) -> Nearest:
    """Returns what rounds to the code below or above, the nearer one more often: what another order of rounding may do."""
    rng = np.random.default_rng(seed)
    return lambda x: np.floor(x + rng.random(x.shape))


def session(proto: onnx.ModelProto, optimise: bool = True) -> onnxruntime.InferenceSession:
    """Return a session of the file.

    `optimise`: use onnxruntime's own optimizer where it does not break the file. A quantized file is never optimized: outputs
    that are moved to a quantizer would be rounded (1.32, of propagated pairs and of moved Transposes).
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    quantized = any(node.op_type == "DequantizeLinear" for node in proto.graph.node)
    if quantized or not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers, disabled_optimizers=WRONG_FUSIONS)
    except Exception:  # of onnxruntime, whose errors share no base class
        if quantized or not optimise:
            raise
        return session(proto, optimise=False)


class Rounded:
    """A model whose tensors of `codes` are rounded to nearest and saturated, in float64: `Rounded(file, codes, bits,
    nearest).run(feeds)`.

    `bits`: of the codes of constants; those of tensors say their own.
    `nearest`: where ties go. A mean over many ties, finer than they are, is off by their common error.
    `elementwise`: the nodes of the file whose constant operand has its own codes, over its range and zero.
    `channels`: scale and offset by channel that the host takes out behind the codes of a tensor.
    `weight_bits`: bits of the codes to which constant weights are rounded, symmetric per output channel; None: they stay as
    they are.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        codes: Codes,
        bits: int,
        nearest: Nearest = np.rint,
        elementwise: frozenset[str] = frozenset(),
        weight_bits: int | None = None,
        channels: Channels = NO_CHANNELS,
    ):
        self._proto, self._codes, self._elementwise, self._nearest = proto, codes, elementwise, nearest
        self._weight_bits, self._channels = weight_bits, channels
        self._low, self._high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self._nodes: dict[int, onnxruntime.InferenceSession] = {}

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of the file."""
        values, constants = self._values(feeds)
        return [(values | constants)[o.name] for o in self._proto.graph.output]

    def tensors(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All that depends on the inputs, by name."""
        return self._values(feeds)[0]

    def _values(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the values that depend on the inputs, and the constants."""
        constants = {w.name: numpy_helper.to_array(w) for w in self._proto.graph.initializer}
        values: dict[str, Array] = {**constants, **{name: self._round(name, value) for name, value in feeds.items()}}
        for index, node in enumerate(self._proto.graph.node):
            for name, value in zip([n for n in node.output if n], self._compute_node(index, node, values, constants)):
                values[name] = self._round(name, value)
            if node.op_type == "Constant":
                constants[node.output[0]] = values[node.output[0]]
        return {name: value for name, value in values.items() if name not in constants}, constants

    def _round(self, name: str, value: Array) -> Array:
        if name not in self._codes:
            return value
        scale, zero_point, bits = self._codes[name]
        factor, offset = self._channels.get(name, (1.0, 0.0))
        centered = (np.asarray(value, np.float64) - offset) / factor
        code = np.clip(self._nearest(centered / scale) + zero_point, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return np.asarray((code - zero_point) * scale * factor + offset, value.dtype)

    def _round_constant(self, value: Array) -> Array:
        low, high = min(float(value.min()), 0.0), max(float(value.max()), 0.0)
        scale = (high - low) / (self._high - self._low) or 1.0
        zero_point = np.rint(self._low - low / scale)
        code = np.clip(np.rint(np.asarray(value, np.float64) / scale) + zero_point, self._low, self._high)
        return np.asarray((code - zero_point) * scale, value.dtype)

    def _compute_node(
        self, index: int, node: onnx.NodeProto, values: dict[str, Array], constants: dict[str, Array]
    ) -> list[Array]:
        if f"{node.output[0]}/scaled" in self._codes and node.op_type == "BatchNormalization":
            return [self._normalize(node, [values[n] for n in node.input])]
        if node.op_type == "QuantizeLinear" and len(node.input) == 3 and values[node.input[1]].size == 1:
            return [self._quantized(*(np.asarray(values[n]) for n in node.input))]
        if node.op_type in ("Sum", "Mean"):
            return [self._sum_pairwise(node, [values[n] for n in node.input])]
        read = [n for n in dict.fromkeys(node.input) if n]
        node_inputs = {n: np.asarray(values[n]) for n in read if n not in constants}  # a code of a scalar is a number of numpy
        if index not in self._nodes:
            convert = self._round_constant if node.name in self._elementwise and node.op_type in FACTORS else np.asarray
            values_of = {n: convert(constants[n]) for n in read if n in constants} | self._weight(node, constants)
            fixed = [numpy_helper.from_array(value, n) for n, value in values_of.items()]
            inputs = [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                for n, v in node_inputs.items()
            ]
            outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
            graph = helper.make_graph([node], "node", inputs, outputs, fixed)
            alone = helper.make_model(graph, opset_imports=self._proto.opset_import, ir_version=self._proto.ir_version)
            self._nodes[index] = session(alone, optimise=False)
        return [np.asarray(output) for output in self._nodes[index].run(None, node_inputs)]

    def _weight(self, node: onnx.NodeProto, constants: dict[str, Array]) -> dict[str, Array]:
        """The constant weight of a product, rounded to codes of `weight_bits`; nothing where there is none."""
        name = node.input[1] if node.op_type in WEIGHTED else ""
        if self._weight_bits is None or name not in constants:
            return {}
        weight, most = constants[name], 2 ** (self._weight_bits - 1) - 1
        is_transposed = any(a.name == "transB" and a.i for a in node.attribute)
        axis = {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, weight.ndim - (2 if is_transposed else 1))
        others = tuple(a for a in range(weight.ndim) if a != axis)
        scale = np.abs(weight).max(others, keepdims=True) / most
        return {name: np.asarray(self._nearest(weight / np.where(scale == 0, 1, scale)) * scale, weight.dtype)}

    def _quantized(self, x: Array, scale: Array, zero_point: Array) -> Array:
        """As the file says, but for halves: codes of one rounding are halves between those of the next, coarser one."""
        codes = np.asarray(x, np.float64) / scale
        is_half = np.abs(codes - np.floor(codes) - 0.5) < HALF - 0.5
        limits = np.iinfo(zero_point.dtype)
        whole = np.where(is_half, self._nearest(codes), np.rint(codes)) + zero_point
        return np.clip(whole, limits.min, limits.max).astype(zero_point.dtype)

    def _sum_pairwise(self, node: onnx.NodeProto, inputs: list[Array]) -> Array:
        """Two by two, with codes between them, and before they are divided by their number."""
        mean, total = node.op_type == "Mean", inputs[0]
        name = f"{node.output[0]}/sum" if mean else node.output[0]
        for i, x in enumerate(inputs[1:], 2):
            total = np.asarray(total + x, x.dtype)
            total = self._round(name if i == len(inputs) else f"{name}/{i - 2}", total)
        return np.asarray(total / len(inputs), total.dtype) if mean else total

    def _normalize(self, node: onnx.NodeProto, inputs: list[Array]) -> Array:
        """A product and a sum, with codes between them."""
        x, scale, bias, mean, var = inputs
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        factor = scale / np.sqrt(var + epsilon)
        shift = bias - mean * factor
        product, term = (self._round_constant(v).reshape(-1, *[1] * (x.ndim - 2)) for v in (factor, shift))
        return np.asarray(self._round(f"{node.output[0]}/scaled", x * product) + term, x.dtype)
