"""Find the cause of each layer's quantization error, and the advice that reduces it.

The error report calls `diagnose` for a block on finished measurements (report.layer_errors). The block's noise is split into
clipped values, rounded values, weights and the rest. The largest of these leads to one of the causes of report.findings.
`find_blamed_input` and `find_range_source` pass the blame on to another tensor. All levels are in dB of SQNR.

Constants: `CEILING_DB` stands for any better level, an exact one too. A mask adds numbers below `MASK` to what it hides.
`NOISE_RATIO_8_TO_16` is the energy of rounding noise at 8 bits over that at 16, whose steps are 2**8 times smaller.
A tensor can only be called clipped where more than a share `_CLIPPED` of its values is.
Its range is wide where it is over `_WIDE` times what the values span.
Few values set the range where it is over `_SPAN_OVER_MEDIAN` times the median magnitude: half the values then have 4 codes.
With a normal distribution they have about 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from quant.fidelity import decibels
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.parameters import quant_range
from toolchain.errors import percent
from toolchain.ir.graph import Quant
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.lookup import Lookup
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.report.advice import suggest_advice, weight_type_of
from toolchain.report.comparison_blocks import ComparisonBlock
from toolchain.report.findings import LOST_DB, Advice, AdviceContext, Cause, LayerError
from toolchain.report.layer_errors import LayerErrorSums, LayerMeasurements, has_wrapped, weight_noise
from toolchain.report.layer_types import types_of

CEILING_DB = 90.0  # what is better, or exact, counts as this
NOISE_RATIO_8_TO_16 = 2.0**16  # energy of the rounding noise at 8 bits over that at 16: steps are 2**8 times as large
MASK = -1000.0  # an additive mask says it with numbers below
_SPAN_OVER_MEDIAN = (
    64.0  # of the codes, over the median magnitude: beyond, half the values have 4 codes (a normal distribution has about 12)
)
_CLIPPED = 0.001  # of a tensor's values
_WIDE = 4.0  # span of the codes over that of the values


@dataclass(frozen=True)
class _Shares:
    """Shares of a block's noise, each divided by the signal's energy: all of it, clipped values, rounded values, weights.

    `weights` is None for a block without weights. `rest` is due to rounded inputs and arithmetic.
    """

    total: float
    clipped: float
    rounded: float
    weights: float | None

    @property
    def rest(self) -> float:
        """Return the share that clipped values, rounded values and weights leave, at least 0."""
        return max(self.total - self.clipped - self.rounded - (self.weights or 0.0), 0.0)

    @property
    def largest(self) -> str:
        """Return the name of the largest share."""
        parts = {"clipped": self.clipped, "rounded": self.rounded, "weights": self.weights or 0.0, "rest": self.rest}
        return max(parts, key=lambda k: parts[k])


def _shares(sums: LayerErrorSums, weights: float | None) -> _Shares:
    """Return the shares of a block's noise. Without a signal any noise is an infinite share."""
    rounding_error, signal = sums.rounding_error, sums.rounding_error.signal
    if signal == 0:
        return _Shares(math.inf if sums.alone else 0.0, 0.0, 0.0, weights)
    clipped = rounding_error.clipped_noise / signal
    return _Shares(sums.alone / signal, clipped, max(rounding_error.noise / signal - clipped, 0.0), weights)


def measure_without_cause(measurements: LayerMeasurements, block: ComparisonBlock) -> LayerError:
    """Return the figures that the measurements already hold, without those of weights. The cause stays None."""
    return _row(measurements, block, measurements.sums[block.tensor], None)


def diagnose(measurements: LayerMeasurements, block: ComparisonBlock, quantized: AdviceContext) -> LayerError:
    """Return the block's figures with the cause of its loss, a sentence that says why, and advice.

    `quantized`: the machine, the file and the options that the advice is for.
    """
    weights = weight_noise(measurements, block)
    row = _row(measurements, block, measurements.sums[block.tensor], weights)
    cause, why = _find_cause(measurements, block, weights, quantized)
    return _with_cause(row, cause, why, suggest_advice(row, cause, measurements, quantized))


def _with_cause(row: LayerError, cause: Cause, why: str, advice: tuple[Advice, ...]) -> LayerError:
    """Return the row with cause, reason and advice; the remedy is the text of the advice."""
    text = ", or ".join(a.text for a in advice)
    return replace(row, cause=cause, why=why, remedy=text, advice=advice)


def _row(measurements: LayerMeasurements, block: ComparisonBlock, sums: LayerErrorSums, weights: float | None) -> LayerError:
    """Return the figures of a block. weights: noise of rounded weights over the signal, None where it was not measured."""
    network, shares = measurements.network, _shares(sums, weights)
    node, signal = block.layer, sums.rounding_error.signal
    source_kind = "host" if network.shown[block.tensor].model in network.made_by_host else "input"
    return LayerError(
        layer=None if node is None else node.name,
        op=source_kind if node is None else type(node.op).__name__,
        nodes=() if node is None else node.sources,
        tensor=network.shown[block.tensor].model,
        name=network.model.name(network.shown[block.tensor].model),
        types=types_of(block.feeds, (block.tensor,), block.nodes, network.integer),
        alone_db=decibels(1.0, shares.total) if signal else decibels(0.0, sums.alone),
        own_db=decibels(signal, sums.rounding_error.noise),
        accumulated_db=None if sums.accumulated is None else decibels(signal, sums.accumulated),
        weights_db=None if weights is None else decibels(1.0, weights),
        activations_db=decibels(1.0, max(shares.total - (weights or 0.0), shares.clipped + shares.rounded)),
        at_int16_db=_at_int16(measurements, block, shares),
        clipped_share=sums.rounding_error.clipped / sums.rounding_error.count if sums.rounding_error.count else 0.0,
        effect_db=None,
        cause=None,
        why="",
        remedy="",
        position=network.positions[block.tensor],
        block=block,
    )


def _at_int16(measurements: LayerMeasurements, block: ComparisonBlock, shares: _Shares) -> float:
    """Return the SQNR in dB that the block would have with 16-bit codes and a range without clipping.

    It is 0 where the rms of the values is below half a step of these codes.
    """
    ratio = NOISE_RATIO_8_TO_16 if not has_wide_codes(measurements, block) else 1.0
    return 0.0 if is_silent(measurements, block) else decibels(1.0, max(shares.total - shares.clipped, 0.0) / ratio)


def has_wide_codes(measurements: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Return whether the codes of the block's tensor have more than 8 bits."""
    return CodeType(measurements.network.integer.types[block.tensor].dtype).bits > 8


def is_silent(measurements: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Return whether the rms of the values of the block's tensor is below half a step of its codes at 16 bits."""
    steps = 1.0 if has_wide_codes(measurements, block) else math.sqrt(NOISE_RATIO_8_TO_16)
    return measurements.sums[block.tensor].rounding_error.rms < measurements.network.quant(block.tensor).scale / steps / 2


def _find_cause(
    measurements: LayerMeasurements, block: ComparisonBlock, weights: float | None, quantized: AdviceContext
) -> tuple[Cause, str]:
    """Return the cause of the block's loss and its reason.

    Of a block that loses something the largest share decides: clipped or rounded values, weights, or the rest.
    `weights`: noise of the rounded weights over the signal; None without weights.
    """
    sums = measurements.sums[block.tensor]
    if sums.alone == 0:
        return "nothing lost", "its codes hold what float has"
    if keeps_all(measurements, block):
        return "nothing lost", "it makes codes of codes, and differs by less than rounding to its own would cost"
    shares = _shares(sums, weights)
    quant = measurements.network.quant(block.tensor)
    if shares.largest in ("clipped", "rounded"):
        numerics = quantized.chip.numerics.of(CodeType(measurements.network.integer.types[block.tensor].dtype))
        return _find_scale_cause(sums, quant, shares.largest == "clipped", numerics)
    if shares.largest == "weights":
        numerics = quantized.chip.numerics
        scales = "a scale a channel" if numerics.weights_per_channel else "one scale for all channels"
        # No share of the error: rounded inputs may cancel a part of it, and it is of one sample alone.
        alone = f"{decibels(1.0, weights or 0.0):.1f} dB by themselves, on one sample"
        return "weight rounding", f"weights rounded to {weight_type_of(block, quantized.chip)} with {scales} leave {alone}"
    return _find_arithmetic_cause(measurements, block)


def keeps_all(measurements: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Return whether the block loses nothing worth naming.

    That holds where its codes are float's, or where its own tensor and all its feeds are codes already in float (above
    CEILING_DB). In the latter case its error must be below that of rounding to its codes, a twelfth of a squared step a value.
    """
    sums, step = measurements.sums[block.tensor], measurements.network.quant(block.tensor).scale
    levels = (decibels(sums.rounding_error.signal, sums.rounding_error.noise), *_feed_levels(measurements, block).values())
    return sums.alone == 0 or (min(levels) > CEILING_DB and sums.alone <= sums.rounding_error.count * step**2 / 12)


def _find_scale_cause(sums: LayerErrorSums, quant: Quant, clipped: bool, numerics: Numerics) -> tuple[Cause, str]:
    """Return the cause of a loss that the scale of the block's tensor explains, and its reason.

    The tests, in order: values are clipped, the range is wider than the values, few values set the range. Else steps are coarse.
    `clipped`: whether clipped values lose more than rounded ones.
    `numerics`: numerics of the tensor's type.
    """
    rounding_error, code_range = sums.rounding_error, quant_range(quant, numerics)
    codes, value_range = (
        f"[{code_range.low:.4g}, {code_range.high:.4g}]",
        f"[{rounding_error.low:.4g}, {rounding_error.high:.4g}]",
    )
    if clipped:
        return (
            "clipped tail",
            f"{percent(rounding_error.clipped / rounding_error.count)} of its values, in {value_range}, lie outside its "
            f"codes' {codes}",
        )
    reach = max(rounding_error.high, 0.0) - min(rounding_error.low, 0.0)
    if code_range.span > _WIDE * reach:
        return "range wider than its values", f"its codes cover {codes}, its values lie in {value_range}"
    if code_range.span > _SPAN_OVER_MEDIAN * rounding_error.usual:
        masks = (
            rounding_error.low <= MASK and rounding_error.high < -rounding_error.low / _SPAN_OVER_MEDIAN
        )  # one of the ends alone is far off
        mask = "; values of a mask are among them" if masks else ""
        return (
            "range dominated by few values",
            f"its codes cover {codes} for values of {rounding_error.usual:.3g} (median): few of them set its scale{mask}",
        )
    return "coarse output scale", f"a step of its codes is {quant.scale:.3g}, the rms of its values {rounding_error.rms:.3g}"


def _find_arithmetic_cause(measurements: LayerMeasurements, block: ComparisonBlock) -> tuple[Cause, str]:
    """Return the cause of a loss that neither the scale nor the weights explain, and its reason.

    The tests, in order: the accumulators wrap, an input is about as noisy as the result, operands or products cancel, a lookup
    table is steep. Else the inputs' rounding is the cause.
    """
    if has_wrapped(measurements, block):
        return "accumulator overflow", "wider accumulators give other codes"
    sums, level = measurements.sums[block.tensor], min(_feed_levels(measurements, block).values(), default=CEILING_DB)
    best = "its operands are exact" if level >= CEILING_DB else f"its operands have {level:.1f} dB or more"
    ops = [n.op for n in block.nodes]
    if level < decibels(sums.rounding_error.signal, sums.alone) + LOST_DB:
        return "input rounding", best
    if any(isinstance(op, IntegerBinary) and op.kind in ("add", "sub") for op in ops):
        return "cancelling operands", f"{best}, but cancel: what is left is small beside their rounding"
    if any(isinstance(op, IntegerConvolution | IntegerMatrixProduct) for op in ops):
        return "cancelling operands", f"{best}, but its products cancel: their sum is small beside the rounding of its input"
    if any(isinstance(op, Lookup) for op in ops):
        return "steep function", f"{best}, and the function is steep where they lie"
    return "input rounding", best


def _feed_levels(measurements: LayerMeasurements, block: ComparisonBlock) -> dict[str, float]:
    """Return the SQNR in dB of each feed of the block after its own rounding; feeds without measurements are left out."""
    return {
        f: decibels(measurements.sums[f].rounding_error.signal, measurements.sums[f].rounding_error.noise)
        for f in block.feeds
        if f in measurements.sums
    }


def find_blamed_input(measurements: LayerMeasurements, block: ComparisonBlock, row: LayerError) -> str | None:
    """Return the feed to blame for the block's loss; None where the block itself loses it.

    Only a block that moves data, or one whose cause is its inputs, can blame a feed. It blames the worst feed if that has not
    LOST_DB more than the block. Else it blames a feed that is clipped, too wide, or scaled by few large values.

    `row`: the figures of the block, with its cause.
    """
    feeds = _feed_levels(measurements, block)
    worst = min(feeds, key=lambda f: feeds[f], default=None)
    if worst is None or not (block.moves or row.cause in ("cancelling operands", "steep function", "input rounding")):
        return None
    if feeds[worst] <= row.alone_db + LOST_DB:
        return worst
    # The energy of few large values hides what the others lose, and what is clipped; codes beyond all values could be finer.
    hidden = (_few_set_it, _is_wide) if row.cause == "steep function" and not _at_ends(measurements, block) else _ODD
    return next((f for f in feeds if any(odd(measurements, f) for odd in hidden)), None)


def find_range_source(measurements: LayerMeasurements, block: ComparisonBlock) -> str | None:
    """Return the output of a Concat that shares the block's qparams and whose codes are far wider than its values; else
    None."""
    integer, name = measurements.network.integer, block.tensor
    joined = (n.outputs[0] for n in integer.nodes if isinstance(n.op, IntegerConcat) and name in n.inputs)
    equal_scaled = (
        y for y in joined if y in measurements.sums and measurements.network.quant(y) == measurements.network.quant(name)
    )
    return next((y for y in equal_scaled if _is_wide(measurements, y)), None)


def _at_ends(measurements: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Return whether at least half of the block's error is where it reads the first or the last code, as of clipped values.

    Return True too where nothing can be compared: the block's codes or its input's are not recorded, or differ in shape.
    """
    record = measurements.records[0]
    right, block_codes = record.codes[block.tensor], measurements.outputs(block, record).get(block.tensor)
    read = next((record.codes[f] for f in block.feeds if f in record.codes), None)
    if block_codes is None or read is None or read.shape != right.shape:
        return True
    off = np.square(block_codes.astype(np.float64) - right)
    limits = np.iinfo(read.dtype)
    return float(np.sum(off, where=(read == limits.min) | (read == limits.max))) >= float(off.sum()) / 2


def _few_set_it(measurements: LayerMeasurements, name: str) -> bool:
    """Return whether few large values set the range of the tensor: its codes span over 64 times the median magnitude.

    Codes that are too wide (`_is_wide`) and tensors of zeros do not count.
    """
    return _span(measurements, name) > _SPAN_OVER_MEDIAN * measurements.sums[name].rounding_error.usual > 0 and not _is_wide(
        measurements, name
    )


def _is_wide(measurements: LayerMeasurements, name: str) -> bool:
    """Return whether the codes of the tensor span more than _WIDE times what its values do, zero included."""
    rounding_error = measurements.sums[name].rounding_error
    return _span(measurements, name) > _WIDE * (max(rounding_error.high, 0.0) - min(rounding_error.low, 0.0))


def _is_clipped(measurements: LayerMeasurements, name: str) -> bool:
    """Return whether clipping makes most of the tensor's rounding noise, on more than _CLIPPED of its values."""
    rounding_error = measurements.sums[name].rounding_error
    return rounding_error.clipped > _CLIPPED * rounding_error.count and rounding_error.clipped_noise > rounding_error.noise / 2


_ODD = (_few_set_it, _is_wide, _is_clipped)


def _span(measurements: LayerMeasurements, name: str) -> float:
    """Return the span of the codes of a tensor, in real numbers."""
    kind = measurements.network.integer.types[name]
    return measurements.network.quant(name).scale * float(np.iinfo(kind.dtype).max - np.iinfo(kind.dtype).min)
