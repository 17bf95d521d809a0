"""Export the quantized network as ONNX that other tools run: QuantizeLinear and DequantizeLinear at every chip tensor.

Layers that add up codes are written so that a runtime rounds them as the machine does (`toolchain.export.exact_sums`).
With `nearest`, and where that cannot be, kernels for codes round once: weights have scales, biases are int32 where they can
be.
Other layers stay operators of floats between two roundings, and tensors of 32-bit codes stay floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import Rounding
from toolchain.export.exact_sums import ExactSums, weight_codes
from toolchain.export.qdq_writer import Array, CodedTensor, Writer
from toolchain.export.transposed_convolution import PhasedModel, split_phases
from toolchain.frontend import NormalModel
from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, OnnxGraph, OnnxNode, OnnxOp, Quant
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.kit.layout import NCHW
from toolchain.ops.kit.operator import operator_of

Origins = Mapping[str, tuple[str, str]]  # chip tensor -> (model tensor, layout)
_MOVES = ("Reshape", "Transpose")
_LOST_HALF = (Rounding.FLOOR, Rounding.TRUNCATE)  # roundings that biases make up for, which no other runtime does


def qdq_model(model: NormalModel, integer: Graph, chosen: Graph, origins: Origins, chip: Chip, nearest: bool = False) -> bytes:
    """Return the network as the bytes of an ONNX file. Weights beside uint8 activations are uint8; for the rest see
    `qdq_graph`.
    """
    from quant.exact_weights import with_exact_weights
    from toolchain.frontend.export_onnx import least_opset, to_proto

    graph = qdq_graph(model, integer, chosen, origins, chip, nearest)
    proto = to_proto(graph, least_opset(graph, model.opset))
    return with_exact_weights(proto).SerializeToString(deterministic=True)


def qdq_graph(
    model: NormalModel, integer: Graph, chosen: Graph, origins: Origins, chip: Chip, nearest: bool = False
) -> OnnxGraph:
    """Return the network as an ONNX graph with QDQ pairs, over the model's tensors.

    `integer`: the integer graph, nothing fused after its layers.
    `chosen`: the same in float, clamps fused.
    `origins`: chip tensor -> (model tensor, layout).
    `nearest`: whether every layer is written as an operator that rounds once, to the nearest, whatever the machine does.
    """
    spread = split_phases(model.graph, chosen, integer)
    graph, coded = spread.graph, _find_coded_tensors(integer, origins, model, spread)
    writer, by_name = Writer(graph, coded), {n.name: n for n in integer.nodes}
    sums = None if nearest else ExactSums(writer, integer, graph.consumers())
    layers = _Layers(writer, sums, integer, chosen, chip)
    for name in graph.inputs:
        if name in coded:
            writer.add_rounding(name, name, writer.fresh(f"{name}/dequantized"))
    for node in graph.nodes:
        layer = by_name.get(node.name)
        on_host = layer is not None and isinstance(layer.op, OnnxOp)  # not by sources: a norm's are also those of its own mean
        layers.take(node, None if on_host else layer, on_host)
    types = {**graph.types, **writer.types}
    base = replace(graph, types=types, constants={**graph.constants, **writer.constants})
    return base.with_nodes(writer.nodes)


def _find_coded_tensors(integer: Graph, origins: Origins, model: NormalModel, spread: PhasedModel) -> dict[str, CodedTensor]:
    """Return the codes that the chip has of each float tensor of the model; 32-bit codes are left out.

    Tensors that the chip only moves, and for which it has no tensor, get the codes of their input.
    """
    chip_outputs = {n for node in integer.nodes if not isinstance(node.op, OnnxOp) for n in node.outputs}
    coded_by_tensor: dict[str, CodedTensor] = {}
    for name, (tensor, layout) in origins.items():
        kind = integer.types.get(name)
        if kind is None or kind.quant is None or layout == INNER or model.types[tensor].dtype != "float32":
            continue
        if CodeType(kind.dtype).is_wide:  # no type of QuantizeLinear; finer than a float32 is
            continue
        # of a tensor that the chip holds in both orders, and reads from the host in none, the codes are the same
        if tensor not in coded_by_tensor or name == tensor:
            made_here = name in chip_outputs or (tensor in coded_by_tensor and coded_by_tensor[tensor].is_chip_output)
            coded_by_tensor[tensor] = CodedTensor(kind.quant, kind.dtype, made_here)
    for tensor, name in spread.chip_tensor_by_name.items():
        kind = integer.types[name]
        if kind.quant is not None and not CodeType(kind.dtype).is_wide:
            coded_by_tensor.setdefault(tensor, CodedTensor(kind.quant, kind.dtype, True))
    for node in spread.graph.nodes:  # of what only moves, the chip may have no tensor; without codes a runtime guesses some
        x, y = node.inputs[0] if node.inputs else "", node.outputs[0]
        if node.op.op_type in _MOVES and x in coded_by_tensor and y not in coded_by_tensor:
            coded_by_tensor[y] = replace(coded_by_tensor[x], is_chip_output=True)
    return coded_by_tensor


@dataclass(frozen=True)
class _Layers:
    """Writes the model's nodes as the chip computes them. `sums`: None where each layer is to round once."""

    writer: Writer
    sums: ExactSums | None
    integer: Graph
    chosen: Graph
    chip: Chip

    def take(self, node: OnnxNode, layer: Node | None, on_host: bool) -> None:
        """Write one node of the model. `layer`: the chip's node of that name, or None."""
        writer = self.writer
        exact = {
            n: writer.fresh(f"{n}/exact")
            for n in node.outputs
            if n in writer.coded and writer.coded[n].is_chip_output and not on_host
        }
        outputs = [exact.get(n, n) for n in node.outputs]
        if layer is None or self.sums is None or not self.sums.write(node, layer, outputs[0]):
            inputs = [self._read(n, on_host) for n in node.inputs]
            if layer is not None:
                self._codes_of(node, layer, inputs)
            writer.nodes.append(Node(node.name, _as_kernels_read(node.op), tuple(inputs), tuple(outputs), node.sources))
        for name, output_name in zip(node.outputs, outputs):
            if name not in writer.coded:
                continue
            if output_name != name:
                writer.types[output_name] = writer.source.types[name]
                writer.add_rounding(name, output_name, name)
            else:  # the host's: it goes on as it is, and the chip reads its codes
                writer.add_rounding(name, name, writer.fresh(f"{name}/dequantized"))

    def _read(self, name: str, on_host: bool) -> str:
        """Return the tensor that a node reads for `name`: itself on the host, its real numbers behind the rounding on the
        chip.
        """
        return name if on_host else self.writer.dequantized.get(name, name)

    # --- constants of layers

    def _codes_of(self, node: OnnxNode, layer: Node, inputs: list[str]) -> None:
        """Replace the constants that a layer has on the chip by the chip's codes, in `inputs`."""
        if isinstance(layer.op, IntegerConvolution) and node.op.op_type in ("Conv", "Gemm"):
            self._weights(node, layer, inputs)
        elif isinstance(layer.op, IntegerBinary):
            self._operand(node, layer, inputs)

    def _weights(self, node: OnnxNode, layer: Node, inputs: list[str]) -> None:
        """Replace weights and bias of a Conv or Gemm in `inputs` by the chip's codes; weights in groups become floats."""
        op = operator_of(layer, IntegerConvolution)
        codes, bias = weight_codes(node, layer, self.integer, self.writer.source), self.integer.constants[layer.inputs[2]]
        x, y = self._quant(layer.inputs[0]), self._quant(layer.outputs[0])
        scales = weight_scales(op.requant, x.scale, y.scale)
        each = scales.size > 1
        zero = np.zeros(scales.size if each else (), codes.dtype)
        name = f"{node.name}/weights"
        scale = scales if each else scales.reshape(())
        if op.group:  # whole numbers beyond 8 bits: groups of them with minima are no type of ONNX
            inputs[1] = self.writer.constant(name, (codes * scales.reshape(-1, *(1,) * (codes.ndim - 1))).astype(np.float32))
        else:
            inputs[1] = self.writer.add_quantized_constant(name, codes, scale, zero, 0 if each else None)
        if len(inputs) > 2 and inputs[2]:
            inputs[2] = self._bias(node, bias, x.scale, np.broadcast_to(scales, bias.shape))

    def _bias(self, node: Node, codes: Array, x_scale: float, scales: Array) -> str:
        """Add the bias as int32 codes where products of 8 bits take them, else as floats; return its name."""
        steps = np.float32(x_scale) * scales
        numerics = self.chip.numerics
        if numerics.rounding_of("convolution") in _LOST_HALF:
            chosen_node = next(n for n in self.chosen.nodes if n.name == node.name)
            codes = np.rint(self.chosen.constants[chosen_node.inputs[2]].astype(np.float64) / steps)
        name = f"{node.name}/bias"
        if numerics.activation.bits != 8 or np.abs(codes).max(initial=0) > np.iinfo(np.int32).max:
            return self.writer.constant(name, (codes * steps).astype(np.float32))
        return self.writer.add_quantized_constant(name, codes.astype(np.int32), steps, np.zeros(steps.shape, np.int32), 0)

    def _operand(self, node: Node, layer: Node, inputs: list[str]) -> None:
        """Replace the constant operand of a sum or product by the codes and scale that the chip has, in `inputs`."""
        at = next((i for i, n in enumerate(layer.inputs) if n in self.integer.constants), None)
        where = next((i for i, n in enumerate(node.inputs) if n in self.writer.source.constants), None)
        if at is None or where is None or self.writer.source.types[node.inputs[where]].dtype != "float32":
            return  # whole numbers stay what they are
        op = operator_of(layer, IntegerBinary)
        codes, shape = self.integer.constants[layer.inputs[at]], self.writer.source.types[node.outputs[0]].shape
        chip_shape = self.integer.types[layer.outputs[0]].shape
        if chip_shape != shape and len(shape) == 4:  # channels last
            codes = codes.reshape((1,) * (4 - codes.ndim) + codes.shape).transpose(NCHW)
        scale = operand_scale(op, at, self._quant(layer.inputs[1 - at]).scale, self._quant(layer.outputs[0]).scale)
        zero = op.a_zero_point if at == 0 else op.b_zero_point
        stored = np.ascontiguousarray(codes)
        inputs[where] = self.writer.add_quantized_constant(f"{node.name}/constant", stored, np.asarray(scale), np.asarray(zero))

    def _quant(self, name: str) -> Quant:
        """Return a chip tensor's scale and zero point, which it must have."""
        quant = self.integer.types[name].quant
        assert quant is not None, name
        return quant


def _as_kernels_read(op: OnnxOp) -> OnnxOp:
    """Return the operator without dilations of one, which onnxruntime's average for codes does not know by name."""
    if op.op_type != "AveragePool" or any(d != 1 for d in op.attributes.get("dilations", ())):
        return op
    return replace(op, attributes={name: value for name, value in op.attributes.items() if name != "dilations"})


def weight_scales(requant: Requant, x_scale: float, y_scale: float) -> Array:
    """Return the scales of weights, float32[1] or [c], that give this requantization.

    It is x_scale * scale / y_scale, in float32 and from left to right as QLinearConv has it.
    It is exact where a float32 gives it, else to a unit in the last place.
    """
    x, y = np.float32(x_scale), np.float32(y_scale)
    scales = (requant.real_scale * float(y) / float(x)).astype(np.float32)
    for near in (np.nextafter(scales, np.float32(0)), np.nextafter(scales, np.float32(np.inf))):
        meets, nearly = (x * scale / y == requant.real_scale for scale in (near, scales))
        scales = np.where(meets & ~nearly, near, scales)
    return scales


def operand_scale(op: IntegerBinary, at: int, other_scale: float, y_scale: float) -> float:
    """Return the scale of the constant operand number `at` of a sum, product or PRelu, derived from its requantizations."""
    if op.kind == "mul":
        return float(op.out_requant.real_scale[0]) * y_scale / other_scale
    assert op.a_requant is not None and op.b_requant is not None
    if op.kind == "prelu":
        return float(op.b_requant.real_scale[0]) * y_scale / other_scale
    mine, others = (op.a_requant, op.b_requant) if at == 0 else (op.b_requant, op.a_requant)
    # both are brought to twice the larger scale: the ratio of what they are multiplied by is that of the scales
    return other_scale * float(mine.real_scale[0]) / float(others.real_scale[0])
