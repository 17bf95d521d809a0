"""Why a layer loses what it loses, and what can be done: each finding has a cause that was measured and a remedy that exists."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.parameters import quant_range
from toolchain.errors import percent
from toolchain.ir.graph import Quant
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat
from toolchain.ops.elementwise.integer import IntegerBinary
from toolchain.ops.lookup import Lookup
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.report.advice import suggest_advice, weight_type_of
from toolchain.report.comparison_blocks import ComparisonBlock
from toolchain.report.findings import LOST_DB, AdviceContext, Cause, LayerError
from toolchain.report.layer_errors import LayerErrorSums, LayerMeasurements, has_wrapped, weight_noise
from toolchain.report.layer_types import types_of
from toolchain.report.noise import decibels

CEILING_DB = 90.0  # what is better, or exact, counts as this
FINE_STEPS = 2.0**16  # by how much the noise of an 8-bit tensor falls at 16 bits
MASK = -1000.0  # an additive mask says it with numbers below
_CREST = 64.0  # span over median magnitude: beyond, half the values have 4 codes (a normal distribution has about 12)
_CLIPPED = 0.001  # of a tensor's values
_WIDE = 4.0  # span of the codes over that of the values


@dataclass(frozen=True)
class _Shares:
    """Noise over signal, by where it comes from; rest: the inputs' rounding and the arithmetic."""

    alone: float
    clipped: float
    rounded: float
    weights: float | None

    @property
    def rest(self) -> float:
        return max(self.alone - self.clipped - self.rounded - (self.weights or 0.0), 0.0)

    @property
    def largest(self) -> str:
        parts = {"clipped": self.clipped, "rounded": self.rounded, "weights": self.weights or 0.0, "rest": self.rest}
        return max(parts, key=lambda k: parts[k])


def _shares(sums: LayerErrorSums, weights: float | None) -> _Shares:
    own, signal = sums.own, sums.own.signal
    if signal == 0:
        return _Shares(math.inf if sums.alone else 0.0, 0.0, 0.0, weights)
    clipped = own.clipped_noise / signal
    return _Shares(sums.alone / signal, clipped, max(own.noise / signal - clipped, 0.0), weights)


def measure_without_cause(found: LayerMeasurements, block: ComparisonBlock) -> LayerError:
    """The figures that cost nothing more; its cause is not known yet."""
    return _row(found, block, found.sums[block.tensor], None)


def diagnose(found: LayerMeasurements, block: ComparisonBlock, quantized: AdviceContext) -> LayerError:
    weights = weight_noise(found, block)
    row = _row(found, block, found.sums[block.tensor], weights)
    cause, why = _cause(found, block, weights, quantized)
    return _with_cause(row, cause, why, suggest_advice(row, cause, found, quantized))


def _with_cause(row: LayerError, cause: Cause, why: str, remedy: str) -> LayerError:
    return LayerError(**{**row.__dict__, "cause": cause, "why": why, "remedy": remedy})


def _row(found: LayerMeasurements, block: ComparisonBlock, sums: LayerErrorSums, weights: float | None) -> LayerError:
    network, shares = found.network, _shares(sums, weights)
    node, signal = block.layer, sums.own.signal
    given = "host" if network.shown[block.tensor].model in network.made_by_host else "input"
    return LayerError(
        layer=None if node is None else node.name,
        op=given if node is None else type(node.op).__name__,
        nodes=() if node is None else node.sources,
        tensor=network.shown[block.tensor].model,
        name=network.model.name(network.shown[block.tensor].model),
        types=types_of(block.feeds, (block.tensor,), block.nodes, network.integer),
        alone_db=decibels(1.0, shares.alone) if signal else decibels(0.0, sums.alone),
        own_db=decibels(signal, sums.own.noise),
        accumulated_db=None if sums.accumulated is None else decibels(signal, sums.accumulated),
        weights_db=None if weights is None else decibels(1.0, weights),
        activations_db=decibels(1.0, max(shares.alone - (weights or 0.0), shares.clipped + shares.rounded)),
        at_int16_db=_at_int16(found, block, shares),
        clipped_share=sums.own.clipped / sums.own.count if sums.own.count else 0.0,
        effect_db=None,
        cause=None,
        why="",
        remedy="",
        position=network.blocks.index(block),
        block=block,
    )


def _at_int16(found: LayerMeasurements, block: ComparisonBlock, shares: _Shares) -> float:
    """dB of the block with 16 bits in the place of 8 and a range that holds its values. What is below half a step of 16 bits
    is lost there too."""
    steps = FINE_STEPS if not is_fine(found, block) else 1.0
    return 0.0 if is_silent(found, block) else decibels(1.0, max(shares.alone - shares.clipped, 0.0) / steps)


def is_fine(found: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Whether its tensor's codes have more than 8 bits already."""
    return CodeType(found.network.integer.types[block.tensor].dtype).bits > 8


def is_silent(found: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Whether its tensor's values are below half a step of 16 bits."""
    steps = 1.0 if is_fine(found, block) else math.sqrt(FINE_STEPS)
    return found.sums[block.tensor].own.rms < found.network.quant(block.tensor).scale / steps / 2


def _cause(
    found: LayerMeasurements, block: ComparisonBlock, weights: float | None, quantized: AdviceContext
) -> tuple[Cause, str]:
    sums = found.sums[block.tensor]
    if sums.alone == 0:
        return "nothing lost", "its codes hold what float has"
    if keeps_all(found, block):
        return "nothing lost", "it makes codes of codes, and differs by less than rounding to its own would cost"
    shares = _shares(sums, weights)
    quant = found.network.quant(block.tensor)
    if shares.largest in ("clipped", "rounded"):
        numerics = quantized.chip.numerics.of(CodeType(found.network.integer.types[block.tensor].dtype))
        return _of_scale(sums, quant, shares.largest == "clipped", numerics)
    if shares.largest == "weights":
        numerics = quantized.chip.numerics
        scales = "a scale a channel" if numerics.weights_per_channel else "one scale for all channels"
        # No share of the error: rounded inputs may cancel a part of it, and it is of the loudest sample alone.
        alone = f"{decibels(1.0, weights or 0.0):.1f} dB by themselves, on one sample"
        return "weight rounding", f"weights rounded to {weight_type_of(block, quantized.chip)} with {scales} leave {alone}"
    return _of_arithmetic(found, block)


def keeps_all(found: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Whether float's tensor and what it is made of are codes already, as in a model that came quantized, and the block's error
    is below that of rounding to its codes, a twelfth of a squared step: a few ties that fell to the other side."""
    sums, step = found.sums[block.tensor], found.network.quant(block.tensor).scale
    levels = (decibels(sums.own.signal, sums.own.noise), *_feed_levels(found, block).values())
    return sums.alone == 0 or (min(levels) > CEILING_DB and sums.alone <= sums.own.count * step**2 / 12)


def _of_scale(sums: LayerErrorSums, quant: Quant, clipped: bool, numerics: Numerics) -> tuple[Cause, str]:
    """numerics: where codes are of the tensor's type."""
    own, held = sums.own, quant_range(quant, numerics)
    codes, seen = f"[{held.low:.4g}, {held.high:.4g}]", f"[{own.low:.4g}, {own.high:.4g}]"
    if clipped:
        return "clipped tail", f"{percent(own.clipped / own.count)} of its values, in {seen}, lie outside its codes' {codes}"
    reach = max(own.high, 0.0) - min(own.low, 0.0)
    if held.span > _WIDE * reach:
        return "range wider than its values", f"its codes cover {codes}, its values lie in {seen}"
    if held.span > _CREST * own.usual:
        masks = own.low <= MASK and own.high < -own.low / _CREST  # one of the ends alone is far off
        mask = "; values of a mask are among them" if masks else ""
        return (
            "range dominated by few values",
            f"its codes cover {codes} for values of {own.usual:.3g} (median): few of them set its scale{mask}",
        )
    return "coarse output scale", f"a step of its codes is {quant.scale:.3g}, the rms of its values {own.rms:.3g}"


def _of_arithmetic(found: LayerMeasurements, block: ComparisonBlock) -> tuple[Cause, str]:
    if has_wrapped(found, block):
        return "accumulator overflow", "wider accumulators give other codes"
    sums, level = found.sums[block.tensor], min(_feed_levels(found, block).values(), default=CEILING_DB)
    best = "its operands are exact" if level >= CEILING_DB else f"its operands have {level:.1f} dB or more"
    ops = [n.op for n in block.nodes]
    if level < decibels(sums.own.signal, sums.alone) + LOST_DB:
        return "input rounding", best
    if any(isinstance(op, IntegerBinary) and op.kind in ("add", "sub") for op in ops):
        return "cancelling operands", f"{best}, but cancel: what is left is small beside their rounding"
    if any(isinstance(op, IntegerConvolution | IntegerMatrixProduct) for op in ops):
        return "cancelling operands", f"{best}, but its products cancel: their sum is small beside the rounding of its input"
    if any(isinstance(op, Lookup) for op in ops):
        return "steep function", f"{best}, and the function is steep where they lie"
    return "input rounding", best


def _feed_levels(found: LayerMeasurements, block: ComparisonBlock) -> dict[str, float]:
    """dB of each feed's own rounding."""
    return {f: decibels(found.sums[f].own.signal, found.sums[f].own.noise) for f in block.feeds if f in found.sums}


def find_blamed_input(found: LayerMeasurements, block: ComparisonBlock, row: LayerError) -> str | None:
    """The feed whose own rounding is all that this block loses; None where the block itself loses it."""
    feeds = _feed_levels(found, block)
    worst = min(feeds, key=lambda f: feeds[f], default=None)
    if worst is None or not (block.moves or row.cause in ("cancelling operands", "steep function", "input rounding")):
        return None
    if feeds[worst] <= row.alone_db + LOST_DB:
        return worst
    # The energy of few large values hides what the others lose, and what is clipped; codes beyond all values could be finer.
    hidden = (_few_set_it, _is_wide) if row.cause == "steep function" and not _at_ends(found, block) else _ODD
    return next((f for f in feeds if any(odd(found, f) for odd in hidden)), None)


def find_range_source(found: LayerMeasurements, block: ComparisonBlock) -> str | None:
    """The tensor of a Concat whose range, which is wider than all that it joins, is the block's too."""
    integer, name = found.network.integer, block.tensor
    joined = (n.outputs[0] for n in integer.nodes if isinstance(n.op, IntegerConcat) and name in n.inputs)
    alike = (y for y in joined if y in found.sums and found.network.quant(y) == found.network.quant(name))
    return next((y for y in alike if _is_wide(found, y)), None)


def _at_ends(found: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Whether most of what a function loses is where it reads the first or the last code, as clipped values are."""
    kept = found.kept[0]
    right, made = kept.codes[block.tensor], found.outputs(block, kept).get(block.tensor)
    read = next((kept.codes[f] for f in block.feeds if f in kept.codes), None)
    if made is None or read is None or read.shape != right.shape:
        return True
    off = np.square(made.astype(np.float64) - right)
    limits = np.iinfo(read.dtype)
    return float(np.sum(off, where=(read == limits.min) | (read == limits.max))) >= float(off.sum()) / 2


def _few_set_it(found: LayerMeasurements, name: str) -> bool:
    return _span(found, name) > _CREST * found.sums[name].own.usual > 0 and not _is_wide(found, name)


def _is_wide(found: LayerMeasurements, name: str) -> bool:
    own = found.sums[name].own
    return _span(found, name) > _WIDE * (max(own.high, 0.0) - min(own.low, 0.0))


def _is_clipped(found: LayerMeasurements, name: str) -> bool:
    own = found.sums[name].own
    return own.clipped > _CLIPPED * own.count and own.clipped_noise > own.noise / 2


_ODD = (_few_set_it, _is_wide, _is_clipped)


def _span(found: LayerMeasurements, name: str) -> float:
    """Of the codes of a tensor, in real numbers."""
    kind = found.network.integer.types[name]
    return found.network.quant(name).scale * float(np.iinfo(kind.dtype).max - np.iinfo(kind.dtype).min)
