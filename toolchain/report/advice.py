"""What can be done about what a layer loses: options and keys that exist, for this machine and this way of calibrating."""

from __future__ import annotations

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat
from toolchain.ops.kit.operator import NpuOp
from toolchain.report.comparison_blocks import ComparisonBlock
from toolchain.report.findings import LOST_DB, AdviceContext, Cause, LayerError
from toolchain.report.layer_errors import LayerMeasurements

_TOGETHER = 3  # nodes that are worth naming


def suggest_advice(row: LayerError, cause: Cause, found: LayerMeasurements, quantized: AdviceContext) -> str:
    numerics, own = quantized.chip.numerics, found.sums[row.block.tensor].own
    host = " and ".join(f"--host-node {n}" for n in _hosted(row, found))
    if cause == "nothing lost":
        return ""
    ways: list[str] = []
    if cause == "weight rounding":
        if weight_type_of(row.block, quantized.chip) is CodeType.INT4:
            ways.append(_wider_weights(row, quantized.chip))
        elif not numerics.weights_per_channel:
            ways.append("numerics.weights_per_channel: true in the machine's file")
        more = {None: "fast", "none": "fast", "fast": "full"}.get(quantized.repair)
        ways += [f"--repair {more}"] if quantized.given is None and more else []
    elif cause == "accumulator overflow":
        ways.append(f"engines.mac.accumulators.bits above {numerics.accumulator_bits} in the machine's file")
        ways += ["numerics.overflow: saturate"] if numerics.wraps else []
    elif cause in ("clipped tail", "range wider than its values", "range dominated by few values"):
        ways.append(_other_range(row, cause, own.low, own.high, quantized))
    ways += [host] if host else []
    fine = cause not in ("weight rounding", "clipped tail", "accumulator overflow")
    codes = CodeType(found.network.integer.types[row.block.tensor].dtype)
    if codes.bits == 8 and fine and row.at_int16_db > row.alone_db + LOST_DB:
        named = f"--type {_typed(row, found)}=int16"
        ways.append(named if CodeType.INT16 in numerics.types else "numerics.activation: int16 in the machine's file")
    return ", or ".join(w for w in ways if w)


def _hosted(row: LayerError, found: LayerMeasurements) -> tuple[str, ...]:
    """The nodes without which the chip does not lose it: what reads operands that are joined reads them at the one scale of the
    whole, wherever they are joined. None where these are many."""
    layer = row.block.layer
    if layer is None or not isinstance(layer.op, IntegerConcat):
        return row.nodes[:2]
    graph = found.network.integer
    readers = [n for n in graph.consumers().get(layer.outputs[0], ()) if isinstance(n.op, NpuOp)]
    together = tuple(dict.fromkeys((*row.nodes, *(s for n in readers for s in n.sources))))
    return together if len(together) <= _TOGETHER else ()


def _typed(row: LayerError, found: LayerMeasurements) -> str:
    """The tensor whose type it is: an operand that is joined has the codes of the whole, and between the steps of an operator one
    step is worth little without the others."""
    layer, network = row.block.layer, found.network
    undivided = network.model.undivided
    if undivided is not None and row.tensor not in undivided.types and row.nodes:
        return row.nodes[0]
    if layer is None or not isinstance(layer.op, IntegerConcat) or layer.outputs[0] not in network.shown:
        return row.name
    return network.model.name(network.shown[layer.outputs[0]].model)


def weight_type_of(block: ComparisonBlock, chip: Chip) -> CodeType:
    """Of its weights; the machine's first where it has none."""
    found = [n.op.weight_type for n in block.nodes if isinstance(n.op, IntegerConvolution)]
    return found[0] if found else chip.numerics.weight


def _wider_weights(row: LayerError, chip: Chip) -> str:
    wide = max(chip.weight_types, key=lambda t: t.bits)
    if wide is CodeType.INT4:
        return "numerics.weight: int8 in the machine's file"
    return f"weights: {{{row.layer}: {{type: {wide}}}}} in the file of --quant, and no --type of them"


def _other_range(row: LayerError, cause: Cause, low: float, high: float, quantized: AdviceContext) -> str:
    if quantized.given is not None and row.tensor in quantized.given:
        if cause == "range dominated by few values":
            return f"narrow low and high of {row.name} in the file of --quant"
        return f"low: {low:.4g}, high: {high:.4g} for {row.name} in the file of --quant"
    if cause == "clipped tail":
        other = "" if quantized.observer == "minmax" else "--observer minmax, or "
        return f"{other}--calib with samples in which {row.name} reaches as far"
    if cause == "range dominated by few values" and quantized.observer == "minmax":
        return "--observer mse"
    return ""
