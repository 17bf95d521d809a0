"""Why a layer loses what it loses, and what can be done: each finding has a cause that was measured and a remedy that exists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.observe import Range
from quant.parameters import quant_range
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Quant
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.elementwise import IntegerBinary
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.ops.unary import Lookup
from toolchain.report.blocks import Block
from toolchain.report.layer_errors import Measured, Sums, weight_noise, wrapped
from toolchain.report.layer_types import LayerTypes, types_of
from toolchain.report.noise import decibels

Cause = Literal[
    "clipped tail",
    "range dominated by few values",
    "range wider than its values",
    "coarse output scale",
    "weight rounding",
    "cancelling operands",
    "steep function",
    "accumulator overflow",
    "input rounding",
    "nothing lost",
]
CEILING_DB = 90.0  # what is better, or exact, counts as this
FINE_STEPS = 2.0**16  # by how much the noise of an 8-bit tensor falls at 16 bits
MASK = -1000.0  # an additive mask says it with numbers below
_CREST = 64.0  # span over median magnitude: beyond, half the values have 4 codes (a normal distribution has about 12)
_WIDE = 4.0  # span of the codes over that of the values
_LOST_DB = 6.0  # a tensor that has so much more than what is made of it is not to blame


@dataclass(frozen=True)
class Quantized:
    """What the remedies turn on. given: model tensor -> its scale or range in --quant, the file; observer: that chose those
    of calibration; repair: of --repair, what was done beyond it."""

    chip: Chip
    observer: str
    given: Mapping[str, Range | Quant] | None = None
    file: str | None = None
    repair: str | None = None


@dataclass(frozen=True)
class LayerError:
    """Of one block, in dB against float. alone: fed with float's tensors; own: its tensor's rounding; weights: of the rounded
    weights, None without; activations: of the rest; at_int16: alone, with 16 bits for 8; effect: of the worst output, where
    this error alone is put into float, None where that was not tried. clipped_share: of its values, outside its codes.

    layer: the node it is named for, None for a tensor that comes into a region; nodes: the model's own; tensor: the model's;
    types: of float's tensors that it is fed with, of that tensor, and of its weights;
    position: in the order of the network.
    """

    layer: str | None
    op: str
    nodes: tuple[str, ...]
    tensor: str
    types: LayerTypes
    alone_db: float
    own_db: float
    accumulated_db: float | None
    weights_db: float | None
    activations_db: float
    at_int16_db: float
    clipped_share: float
    effect_db: float | None
    cause: Cause | None
    why: str
    remedy: str
    position: int
    block: Block

    def as_json(self) -> dict[str, Any]:
        """JSON has no infinity: what is exact, or tells nothing, gives null."""
        keys = [k for k in self.__dataclass_fields__ if k not in ("block", "types")]
        return {**{k: _finite(getattr(self, k)) for k in keys}, **self.types.as_json()}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return list(value) if isinstance(value, tuple) else value


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


def _shares(sums: Sums, weights: float | None) -> _Shares:
    own, signal = sums.own, sums.own.signal
    if signal == 0:
        return _Shares(math.inf if sums.alone else 0.0, 0.0, 0.0, weights)
    clipped = own.clipped_noise / signal
    return _Shares(sums.alone / signal, clipped, max(own.noise / signal - clipped, 0.0), weights)


def undiagnosed(found: Measured, block: Block) -> LayerError:
    """The figures that cost nothing more; its cause is not known yet."""
    return _row(found, block, found.sums[block.tensor], None)


def diagnosed(found: Measured, block: Block, quantized: Quantized) -> LayerError:
    weights = weight_noise(found, block)
    row = _row(found, block, found.sums[block.tensor], weights)
    cause, why = _cause(found, block, weights, quantized)
    return _with_cause(row, cause, why, _remedy(row, cause, found, quantized))


def _with_cause(row: LayerError, cause: Cause, why: str, remedy: str) -> LayerError:
    return LayerError(**{**row.__dict__, "cause": cause, "why": why, "remedy": remedy})


def _row(found: Measured, block: Block, sums: Sums, weights: float | None) -> LayerError:
    network, shares = found.network, _shares(sums, weights)
    node, signal = block.layer, sums.own.signal
    given = "host" if network.shown[block.tensor].model in network.made_by_host else "input"
    return LayerError(
        layer=None if node is None else node.name,
        op=given if node is None else type(node.op).__name__,
        nodes=() if node is None else node.sources,
        tensor=network.shown[block.tensor].model,
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


def _at_int16(found: Measured, block: Block, shares: _Shares) -> float:
    """dB of the block with 16 bits in the place of 8 and a range that holds its values. What is below half a step of 16 bits
    is lost there too."""
    own, kind = found.sums[block.tensor].own, found.network.integer.types[block.tensor]
    assert kind.quant is not None
    steps = FINE_STEPS if CodeType(kind.dtype).bits == 8 else 1.0
    silent = own.rms < kind.quant.scale / math.sqrt(steps) / 2
    return 0.0 if silent else decibels(1.0, max(shares.alone - shares.clipped, 0.0) / steps)


# --- causes


def _cause(found: Measured, block: Block, weights: float | None, quantized: Quantized) -> tuple[Cause, str]:
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
        return "weight rounding", f"weights rounded to {_weight_type(block, quantized.chip)} with {scales} leave {alone}"
    return _of_arithmetic(found, block)


def keeps_all(found: Measured, block: Block) -> bool:
    """Whether float's tensor and what it is made of are codes already, as in a model that came quantized, and the block's error
    is below that of rounding to its codes, a twelfth of a squared step: a few ties that fell to the other side."""
    sums, step = found.sums[block.tensor], found.network.quant(block.tensor).scale
    levels = (decibels(sums.own.signal, sums.own.noise), *_feed_levels(found, block).values())
    return sums.alone == 0 or (min(levels) > CEILING_DB and sums.alone <= sums.own.count * step**2 / 12)


def _of_scale(sums: Sums, quant: Quant, clipped: bool, numerics: Numerics) -> tuple[Cause, str]:
    """numerics: where codes are of the tensor's type."""
    own, held = sums.own, quant_range(quant, numerics)
    codes, seen = f"[{held.low:.4g}, {held.high:.4g}]", f"[{own.low:.4g}, {own.high:.4g}]"
    if clipped:
        return "clipped tail", f"{_percent(own.clipped / own.count)} of its values, in {seen}, lie outside its codes' {codes}"
    reach = max(own.high, 0.0) - min(own.low, 0.0)
    if held.span > _WIDE * reach:
        return "range wider than its values", f"its codes cover {codes}, its values lie in {seen}"
    if held.span > _CREST * own.usual:
        mask = "; values of a mask are among them" if own.low <= MASK else ""
        return (
            "range dominated by few values",
            f"its codes cover {codes} for values of {own.usual:.3g} (median): few of them set its scale{mask}",
        )
    return "coarse output scale", f"a step of its codes is {quant.scale:.3g}, the rms of its values {own.rms:.3g}"


def _of_arithmetic(found: Measured, block: Block) -> tuple[Cause, str]:
    if wrapped(found, block):
        return "accumulator overflow", "wider accumulators give other codes"
    sums, level = found.sums[block.tensor], min(_feed_levels(found, block).values(), default=CEILING_DB)
    best = "its operands are exact" if level >= CEILING_DB else f"its operands have {level:.1f} dB or more"
    ops = [n.op for n in block.nodes]
    if level < decibels(sums.own.signal, sums.alone) + _LOST_DB:
        return "input rounding", best
    if any(isinstance(op, IntegerBinary) and op.kind in ("add", "sub") for op in ops):
        return "cancelling operands", f"{best}, but cancel: what is left is small beside their rounding"
    if any(isinstance(op, IntegerConvolution | IntegerMatrixProduct) for op in ops):
        return "cancelling operands", f"{best}, but its products cancel: their sum is small beside the rounding of its input"
    if any(isinstance(op, Lookup) for op in ops):
        return "steep function", f"{best}, and the function is steep where they lie"
    return "input rounding", best


def _feed_levels(found: Measured, block: Block) -> dict[str, float]:
    """dB of each feed's own rounding."""
    return {f: decibels(found.sums[f].own.signal, found.sums[f].own.noise) for f in block.feeds if f in found.sums}


def to_blame(found: Measured, block: Block, row: LayerError) -> str | None:
    """The feed whose own rounding is all that this block loses; None where the block itself loses it."""
    feeds = _feed_levels(found, block)
    worst = min(feeds, key=lambda f: feeds[f], default=None)
    if worst is None or not (block.moves or row.cause in ("cancelling operands", "steep function", "input rounding")):
        return None
    if feeds[worst] <= row.alone_db + _LOST_DB:
        return worst
    return next((f for f in feeds if _few_set_it(found, f)), None)  # their energy hides what the others lose


def _few_set_it(found: Measured, name: str) -> bool:
    kind, own = found.network.integer.types[name], found.sums[name].own
    span = found.network.quant(name).scale * float(np.iinfo(kind.dtype).max - np.iinfo(kind.dtype).min)
    return span > _CREST * own.usual > 0 and span <= _WIDE * (max(own.high, 0.0) - min(own.low, 0.0))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


# --- remedies


def _remedy(row: LayerError, cause: Cause, found: Measured, quantized: Quantized) -> str:
    numerics, own = quantized.chip.numerics, found.sums[row.block.tensor].own
    host = " and ".join(f"--host-node {n}" for n in row.nodes[:2])
    if cause == "nothing lost":
        return ""
    ways: list[str] = []
    if cause == "weight rounding":
        if _weight_type(row.block, quantized.chip) is CodeType.INT4:
            ways.append(_wider_weights(row, quantized.chip))
        elif not numerics.weights_per_channel:
            ways.append("numerics.weights_per_channel: true in the machine's file")
        ways += ["--repair full"] if quantized.given is None and quantized.repair != "full" else []
    elif cause == "accumulator overflow":
        ways.append(f"engines.mac.accumulators.bits above {numerics.accumulator_bits} in the machine's file")
        ways += ["numerics.overflow: saturate"] if numerics.wraps else []
    elif cause in ("clipped tail", "range wider than its values", "range dominated by few values"):
        ways.append(_other_range(row, cause, own.low, own.high, quantized))
    ways += [host] if host else []
    fine = cause not in ("weight rounding", "clipped tail", "accumulator overflow")
    codes = CodeType(found.network.integer.types[row.block.tensor].dtype)
    if codes.bits == 8 and fine and row.at_int16_db > row.alone_db + _LOST_DB:
        named = f"--type {row.tensor}=int16"
        ways.append(named if CodeType.INT16 in numerics.types else "numerics.activation: int16 in the machine's file")
    return ", or ".join(w for w in ways if w)


def _weight_type(block: Block, chip: Chip) -> CodeType:
    """Of its weights; the machine's first where it has none."""
    found = [n.op.weight_type for n in block.nodes if isinstance(n.op, IntegerConvolution)]
    return found[0] if found else chip.numerics.weight


def _wider_weights(row: LayerError, chip: Chip) -> str:
    wide = max(chip.weight_types, key=lambda t: t.bits)
    if wide is CodeType.INT4:
        return "numerics.weight: int8 in the machine's file"
    return f"weights: {{{row.layer}: {{type: {wide}}}}} in the file of --quant, and no --type of them"


def _other_range(row: LayerError, cause: Cause, low: float, high: float, quantized: Quantized) -> str:
    if quantized.given is not None and row.tensor in quantized.given:
        if cause == "range dominated by few values":
            return f"narrow low and high of {row.tensor} in the file of --quant"
        return f"low: {low:.4g}, high: {high:.4g} for {row.tensor} in the file of --quant"
    if cause == "clipped tail":
        other = "" if quantized.observer == "minmax" else "--observer minmax, or "
        return f"{other}--calib with samples in which {row.tensor} reaches as far"
    if cause == "range dominated by few values" and quantized.observer == "minmax":
        return "--observer mse"
    return ""
