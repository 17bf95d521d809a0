"""The error that each layer adds: its integers fed with float's tensors, rounded to its input codes, against float."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.calibrate import observe
from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.sums.conv import conv2d
from quant.masks import masked_tensors
from toolchain.errors import InternalError
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.ir.range_constraints import ClippedRange
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.convolution.rules import Convolution
from toolchain.ops.elementwise.integer import IntegerBinary
from toolchain.ops.kit.layout import channels_last, channels_second
from toolchain.ops.kit.operator import NpuOp, operator_of
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.passes.saturation_ranges import SaturationRange
from toolchain.report.comparison_blocks import ComparisonBlock, FloatCounterpart
from toolchain.report.fidelity import real_values
from toolchain.report.noise import RoundingError, noise_energy
from toolchain.runtime.ports import in_type

Array = NDArray[Any]
Codes = Mapping[str, Array]
KEPT = 3  # samples


@dataclass(frozen=True)
class ErrorNetwork:
    """What is measured. integer: nothing fused behind its layers; chosen: the same in float, as selected; blocks, shown: of
    the integer graph (report.blocks); silent: by chip tensor, what of it tells its readers nothing; ended: the model's tensors
    that a quantized model ends where their codes do; factors: what channels of the file's tensors are multiplied by in `model`,
    in whose numbers nothing is judged; each broadcasts to its tensor."""

    model: NormalModel
    integer: Graph
    chosen: Graph
    shown: Mapping[str, FloatCounterpart]
    blocks: tuple[ComparisonBlock, ...]
    silent: Mapping[str, SaturationRange]
    ended: frozenset[str]
    factors: Mapping[str, Array] = field(default_factory=dict[str, Array])

    def unscaled(self, block: ComparisonBlock) -> Array | None:
        """float32: what makes the block's tensor the file's again; None: nothing."""
        factors = self.factors.get(self.shown[block.tensor].model)
        return None if factors is None else (1 / factors).astype(np.float32)

    def counted(self, block: ComparisonBlock, x: Array) -> Array:
        """float's values of the block's tensor, as far as they tell its readers anything, and mathematics leaves them."""
        silence, within = self.silent.get(block.tensor), self.model.inner.get(self.shown[block.tensor].model)
        if isinstance(within, ClippedRange):
            x = np.clip(x, within.low, within.high, dtype=x.dtype)
        if self.shown[block.tensor].model in self.ended:
            x = np.clip(x, *self.ends(block.tensor), dtype=x.dtype)
        return x if silence is None else silence.clip_to_effective(x)

    def ends(self, name: str) -> tuple[float, float]:
        """Of a tensor's codes, real."""
        quant, (low, high) = self.quant(name), CodeType(self.integer.types[name].dtype).limits
        return (low - quant.zero_point) * quant.scale, (high - quant.zero_point) * quant.scale

    def name(self, block: ComparisonBlock) -> str:
        """The file's, of the tensor that a block makes."""
        return self.model.name(self.shown[block.tensor].model)

    def quant(self, name: str) -> Quant:
        found = self.integer.types[name].quant
        assert found is not None
        return found

    @cached_property
    def masks(self) -> frozenset[str]:
        """Tensors of the model in which minus infinity masks."""
        divided = self.model.divided
        return masked_tensors(self.model.proto if divided is None else divided.whole)

    @cached_property
    def made_by_host(self) -> frozenset[str]:
        return frozenset(n for node in self.integer.nodes if not isinstance(node.op, NpuOp) for n in node.outputs)


@dataclass
class LayerErrorSums:
    """Of one block, over the samples: its tensor's own rounding, and the noise of its integers alone and in the network.
    channels: least and largest code of each, of a convolution."""

    own: RoundingError = field(default_factory=RoundingError)
    alone: float = 0.0
    accumulated: float | None = None
    channels: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class SampleRecord:
    """A sample, with float's tensors as the codes that blocks are fed with; loud: the energy of the model's outputs on it; made:
    by block's tensor, what the block made of these codes, where that is kept."""

    sample: Sample
    codes: dict[str, Array]
    loud: float = 0.0
    made: Mapping[str, Codes] = field(default_factory=dict[str, "Codes"])


@dataclass
class LayerMeasurements:
    """Sums by the blocks' tensors. kept: the samples whose outputs hold most, most first, for what is measured on few."""

    network: ErrorNetwork
    sums: dict[str, LayerErrorSums]
    samples: int = 0
    kept: list[SampleRecord] = field(default_factory=list)

    def outputs(self, block: ComparisonBlock, kept: SampleRecord, nodes: Mapping[str, Node] | None = None) -> dict[str, Array]:
        """The codes of what a block makes on a sample, fed with float's tensors; nodes: put in their places."""
        if nodes is None and block.tensor in kept.made:
            return dict(kept.made[block.tensor])
        taken = replace(block, nodes=tuple((nodes or {}).get(n.name, n) for n in block.nodes))
        return evaluate_block(taken, self.network.integer, kept.codes)


def evaluate_block(block: ComparisonBlock, graph: Graph, codes: Codes) -> dict[str, Array]:
    """The codes of every tensor that the block makes of `codes`."""
    made: dict[str, Array] = {}
    for node in block.nodes:
        inputs = [made[n] if n in made else codes[n] if n in codes else graph.constants[n] for n in node.inputs if n]
        made[node.outputs[0]] = operator_of(node, NpuOp).reference(inputs)
    return made


def measure_layers(network: ErrorNetwork, samples: Iterable[tuple[Sample, Codes]]) -> LayerMeasurements:
    """samples: few, each with the codes that the network gives its tensors on it, or none. One sample is held at a time."""
    found = LayerMeasurements(
        network, {b.tensor: LayerErrorSums(RoundingError(network.shown[b.tensor].model in network.masks)) for b in network.blocks}
    )
    state = _Pass(found)
    names = dict.fromkeys(network.shown[b.tensor].model for b in network.blocks)
    sinks = {name: _Sink(name, state) for name in names}
    model = network.model
    observe(model.proto, state.told(samples), sinks, computed_by=model, few_runs=True, divided=model.divided)
    return found


@dataclass(frozen=True)
class _Sink:
    name: str
    state: _Pass

    def update(self, x: Array) -> None:
        self.state.seen(self.name, x)


class _Pass:
    """What is known of the sample at hand: float's tensors as codes, those of the network, and who waits for what."""

    def __init__(self, found: LayerMeasurements) -> None:
        self._found, self._network = found, found.network
        self._by_model: dict[str, list[ComparisonBlock]] = {}
        for block in self._network.blocks:
            self._by_model.setdefault(self._network.shown[block.tensor].model, []).append(block)
        self._waiting: list[tuple[ComparisonBlock, Array]] = []
        self._codes: dict[str, Array] = {}
        self._ran: dict[str, Array] = {}
        self._made: dict[str, Codes] = {}
        self._sample: Sample = {}
        self._loud = 0.0

    def told(self, samples: Iterable[tuple[Sample, Codes]]) -> Iterator[Sample]:
        for sample, codes in samples:
            self._sample, self._codes, self._ran, self._made, self._loud = sample, {}, dict(codes), {}, 0.0
            yield sample
            self._finish()

    def seen(self, name: str, x: Array) -> None:
        if name in self._network.model.graph.outputs:
            self._loud += float(np.sum(np.square(x), dtype=np.float64))
        for block in self._by_model[name]:
            shown, kind = self._network.shown[block.tensor], self._network.integer.types[block.tensor]
            quant, counted = self._network.quant(block.tensor), self._network.counted(block, x)
            codes = self._found.sums[block.tensor].own.codes(counted, quant, kind.dtype, self._network.unscaled(block))
            self._codes[block.tensor] = _laid_out(codes, shown.layout).reshape(kind.shape)
            self._waiting.append((block, counted))
        # A block's feeds are before its tensor in the order of the network, and mostly in float's.
        left = []
        for block, x in self._waiting:
            if all(f in self._codes for f in block.feeds):
                self._judge(block, x)
            else:
                left.append((block, x))
        self._waiting = left

    def _judge(self, block: ComparisonBlock, x: Array) -> None:
        sums, graph = self._found.sums[block.tensor], self._network.integer
        made = self._made[block.tensor] = evaluate_block(block, graph, self._codes)
        if made:
            sums.alone += self._noise(block, made[block.tensor], x)
            if block.layer is not None and isinstance(block.layer.op, IntegerConvolution):
                sums.channels = _widened(sums.channels, made[block.layer.outputs[0]])
        else:
            sums.alone = sums.own.noise
        if self._ran:
            sums.accumulated = (sums.accumulated or 0.0) + self._noise(block, self._accumulated(block), x)

    def _accumulated(self, block: ComparisonBlock) -> Array:
        """What the network gives: tensors inside of what was fused are not among its codes, and are made again; what is given to
        it and lies there otherwise has the codes of the sample."""
        if block.tensor not in self._ran:
            made = evaluate_block(block, self._network.integer, self._ran)
            self._ran |= made or {block.tensor: self._codes[block.tensor]}
        return self._ran[block.tensor]

    def _noise(self, block: ComparisonBlock, codes: Array, x: Array) -> float:
        shown, quant = self._network.shown[block.tensor], self._network.quant(block.tensor)
        straight = codes.transpose(channels_second(codes.ndim)) if shown.layout == "nhwc" else codes
        masks, unscaled = shown.model in self._network.masks, self._network.unscaled(block)
        return noise_energy(x, straight.reshape(x.shape), quant, masks, unscaled)

    def _finish(self) -> None:
        if self._waiting:
            raise InternalError(f"tensors that nothing fed: {', '.join(b.tensor for b, _ in self._waiting)}")
        kept = [*self._found.kept, SampleRecord(self._sample, self._codes, self._loud, self._made)]
        first, *others = sorted(kept, key=lambda k: -k.loud)[:KEPT]
        self._found.kept = [first, *(replace(k, made={}) for k in others)]
        self._found.samples += 1


def _laid_out(codes: Array, layout: str) -> Array:
    return np.ascontiguousarray(codes.transpose(channels_last(codes.ndim))) if layout == "nhwc" else codes


def _widened(known: tuple[Array, Array] | None, codes: Array) -> tuple[Array, Array]:
    """codes: [..., c]."""
    rows = codes.reshape(-1, codes.shape[-1])
    low, high = rows.min(0), rows.max(0)
    return (low, high) if known is None else (np.minimum(known[0], low), np.maximum(known[1], high))


# --- what is measured of single blocks, on the samples that are kept


def weight_noise(found: LayerMeasurements, block: ComparisonBlock) -> float | None:
    """The noise that rounded weights alone leave in the block's tensor, as a share of its signal; None without weights.

    The errors of the weights are convolved as weights of their own, in 8 bits of the largest; what the layer clamps is let
    out.
    """
    node = block.layer
    if node is None or not isinstance(node.op, IntegerConvolution):
        return None
    given = next((n for n in found.network.chosen.nodes if n.name == node.name), None)
    if given is None or not isinstance(given.op, Convolution):
        return None
    kept = found.kept[0]
    made = found.outputs(block, kept)
    x = made[node.inputs[0]] if node.inputs[0] in made else kept.codes[node.inputs[0]]
    y = made[node.outputs[0]]
    noise = _weight_error(found.network, node, given, x)
    inside = (y > node.op.requant.low) & (y < node.op.requant.high)
    quant = found.network.quant(node.outputs[0])
    # float's, where it is known in front of what moves it: what the layer makes may be noise as large
    right = kept.codes[block.tensor] if block.tensor == node.outputs[0] else y
    real = (right.astype(np.float32) - np.float32(quant.zero_point)) * np.float32(quant.scale)
    unscaled = found.network.unscaled(block)
    if unscaled is not None:  # a number for each channel, which are last here
        real, noise = real * unscaled.ravel(), noise * unscaled.ravel()
    signal = float(np.sum(real * real, dtype=np.float64))
    energy = float(np.sum(noise * noise, where=inside, dtype=np.float64))
    return energy / signal if signal else 0.0


def _weight_error(network: ErrorNetwork, node: Node, given: Node, x: Array) -> Array:
    """float64: x convolved with what rounding took from the weights, in the layer's order."""
    op = node.op
    assert isinstance(op, IntegerConvolution)
    weights = network.chosen.constants[given.inputs[1]].astype(np.float64)
    codes = op.whole_weights(network.integer.constants[node.inputs[1]])
    quant = network.quant(node.inputs[0])
    scales = op.requant.real_scale * network.quant(node.outputs[0]).scale / quant.scale
    lost = codes * scales.reshape(-1, 1, 1, 1) - weights
    steps = np.abs(lost).reshape(len(lost), -1).max(1, initial=0.0) / 127
    steps = np.where(steps > 0, steps, 1.0)
    rounded = np.rint(lost / steps.reshape(-1, 1, 1, 1)).astype(np.int8)
    sums = conv2d(
        x,
        rounded,
        strides=op.strides,
        dilations=op.dilations,
        pads=op.pads,
        groups=op.groups,
        x_zero_point=op.x_zero_point,
        accumulator_bits=64,
    )
    return sums * (steps * quant.scale)


def has_wrapped(found: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Whether wider accumulators, or saturation, give the block other codes."""
    wide: dict[str, Node] = {}
    for node in block.nodes:
        op: Any = node.op
        if isinstance(op, IntegerConvolution | IntegerMatrixProduct):
            wide[node.name] = replace(node, op=replace(op, accumulator_bits=64, requant=replace(op.requant, wrap=False)))
        elif isinstance(op, IntegerBinary) and op.out_requant.wrap:
            wide[node.name] = replace(node, op=replace(op, out_requant=replace(op.out_requant, wrap=False)))
    if not wide:
        return False
    kept = found.kept[0]
    return not np.array_equal(found.outputs(block, kept)[block.tensor], found.outputs(block, kept, wide)[block.tensor])


def alone_values(found: LayerMeasurements, block: ComparisonBlock, kept: SampleRecord) -> Array:
    """What the codes of the block, fed with float's tensors, stand for: in the model's order, shape and type."""
    shown = found.network.shown[block.tensor]
    codes = found.outputs(block, kept).get(block.tensor, kept.codes[block.tensor])
    kind = found.network.model.types[shown.model]
    return in_type(real_values(codes, found.network.integer, block.tensor, shown.layout).reshape(kind.shape), kind.dtype)
