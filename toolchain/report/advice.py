"""Suggest what to do about a layer's loss: options and keys that exist, for this machine and this way of calibrating.

The module report.diagnosis calls `suggest_advice` with the cause that it found. Advice is not tried here: judging.try_advice
does so. Advice names _TOGETHER nodes to leave to the host at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from quant.calibrate import ObserverName
from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from quant.producer_links import SHAPE_OPS
from toolchain.hw.chip import Chip
from toolchain.ir.graph import OnnxGraph
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat
from toolchain.ops.kit.operator import NpuOp
from toolchain.report.comparison_blocks import ComparisonBlock
from toolchain.report.findings import LOST_DB, Advice, AdviceContext, Cause, LayerError
from toolchain.report.layer_errors import LayerMeasurements

_TOGETHER = 3


def suggest_advice(
    row: LayerError, cause: Cause, measurements: LayerMeasurements, quantized: AdviceContext
) -> tuple[Advice, ...]:
    """Return what may help a layer, the likeliest first; empty where nothing is lost or nothing of the build can help.

    `row`: the layer's figures.
    `cause`: the cause of its loss.
    `measurements`: what was measured of all layers.
    `quantized`: the machine and the options that it was built with.
    """
    numerics, calibrated_range = quantized.chip.numerics, measurements.sums[row.block.tensor].rounding_error
    hosted = _list_nodes_to_host(row, measurements)
    if cause == "nothing lost":
        return ()
    ways: list[Advice] = []
    if cause == "weight rounding":
        if weight_type_of(row.block, quantized.chip) is CodeType.INT4:
            ways.append(Advice(_wider_weights(row, quantized.chip)))
        elif not numerics.weights_per_channel:
            ways.append(Advice("numerics.weights_per_channel: true in the machine's file"))
        more = {None: "fast", "none": "fast", "fast": "full"}.get(quantized.repair)
        ways += [Advice(f"--repair {more}")] if quantized.file_ranges is None and more else []
    elif cause == "accumulator overflow":
        ways.append(Advice(f"engines.mac.accumulators.bits above {numerics.accumulator_bits} in the machine's file"))
        ways += [Advice("numerics.overflow: saturate")] if numerics.wraps else []
    elif cause in ("clipped tail", "range wider than its values", "range dominated by few values"):
        ways += _other_ranges(row, cause, calibrated_range.low, calibrated_range.high, quantized)
    ways += [advise_host(hosted)] if hosted else []
    fine = cause not in ("weight rounding", "clipped tail", "accumulator overflow")
    codes = CodeType(measurements.network.integer.types[row.block.tensor].dtype)
    if codes.bits == 8 and fine and row.at_int16_db > row.alone_db + LOST_DB:
        named = f"{_get_typed_name(row, measurements)}=int16"
        wide = Advice(f"--type {named}", types=(named,))
        ways.append(wide if CodeType.INT16 in numerics.types else Advice("numerics.activation: int16 in the machine's file"))
    return tuple(ways)


def advise_host(nodes: Sequence[str]) -> Advice:
    """Return the advice to leave these nodes of the model to the host."""
    return Advice(" and ".join(f"--host-node {n}" for n in nodes), host_nodes=tuple(nodes))


def _list_nodes_to_host(row: LayerError, measurements: LayerMeasurements) -> tuple[str, ...]:
    """Return the nodes to leave on the host so that the chip does not cause the loss; none where they are more than three.

    Codes of a tensor that enters a region are lost by those who read it. Consumers of joined operands read them at the one
    scale of the result, so they go with the Concat. Of another layer its first two nodes are taken.
    """
    layer, graph = row.block.layer, measurements.network.integer
    if layer is None:
        together = _list_readers(row.tensor, measurements.network.model.graph)
    elif isinstance(layer.op, IntegerConcat):
        readers = [n for n in graph.consumers().get(layer.outputs[0], ()) if isinstance(n.op, NpuOp)]
        together = tuple(dict.fromkeys((*row.nodes, *(s for n in readers for s in n.sources))))
    else:
        return row.nodes[:2]
    return together if len(together) <= _TOGETHER else ()


def _list_readers(tensor: str, graph: OnnxGraph) -> tuple[str, ...]:
    """Return the nodes that read a tensor; behind nodes that only move it, those that read their results too."""
    consumers, moved, names = graph.consumers(), [tensor], dict[str, None]()
    for name in moved:
        for node in consumers.get(name, ()):
            names |= dict.fromkeys(node.sources or (node.name,))
            moved += node.outputs if node.op.op_type in SHAPE_OPS else ()
    return tuple(names)


def _get_typed_name(row: LayerError, measurements: LayerMeasurements) -> str:
    """Return the name for `--type`: the tensor whose type to override, or a node.

    An operand of a Concat has the codes of the result. Between the steps of an operator that was decomposed, all steps are
    named by its node.
    """
    layer, network = row.block.layer, measurements.network
    undivided = network.model.undivided
    if undivided is not None and row.tensor not in undivided.types and row.nodes:
        return row.nodes[0]
    if layer is None or not isinstance(layer.op, IntegerConcat) or layer.outputs[0] not in network.shown:
        return row.name
    return network.model.name(network.shown[layer.outputs[0]].model)


def weight_type_of(block: ComparisonBlock, chip: Chip) -> CodeType:
    """Return the type of the block's weights; the machine's own type of weights where it has none."""
    weight_types = [n.op.weight_type for n in block.nodes if isinstance(n.op, IntegerConvolution)]
    return weight_types[0] if weight_types else chip.numerics.weight


def _wider_weights(row: LayerError, chip: Chip) -> str:
    """Return as text how to get weights of more bits, in the file of `--quant` or in the machine's file."""
    wide = max(chip.weight_types, key=lambda t: t.bits)
    if wide is CodeType.INT4:
        return "numerics.weight: int8 in the machine's file"
    return f"weights: {{{row.layer}: {{type: {wide}}}}} in the file of --quant, and no --type of them"


def _other_ranges(row: LayerError, cause: Cause, low: float, high: float, quantized: AdviceContext) -> list[Advice]:
    """Return advice on a tensor's range: another range in the file of `--quant`, another observer, or other samples."""
    if quantized.file_ranges is not None and row.tensor in quantized.file_ranges:
        if cause == "range dominated by few values":
            return [Advice(f"narrow low and high of {row.name} in the file of --quant")]
        text = f"low: {low:.4g}, high: {high:.4g} for {row.name} in the file of --quant"
        return [Advice(text, ranges={row.tensor: Range(low, high)})]
    if cause == "clipped tail":
        other = [] if quantized.observer == "minmax" else [_observe_by("minmax")]
        return [*other, Advice(f"--calib with samples in which {row.name} reaches as far")]
    if cause == "range dominated by few values" and quantized.observer == "minmax":
        return [_observe_by("mse")]
    return []


def _observe_by(observer: ObserverName) -> Advice:
    return Advice(f"--observer {observer}", observer=observer)
