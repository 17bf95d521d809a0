"""Measure the error that each layer adds by itself: its integer nodes run on float's tensors, against float.

A build's error report calls `measure_layers` on a few samples. Each tensor of the float run is rounded to the codes of the
chip's tensor. Each block (report.comparison_blocks) then runs on these codes, so that no error comes from earlier layers. The
sums go to report.error_report, which ranks the layers, and to report.diagnosis, which finds the causes. The functions below
them (`weight_noise`, `has_wrapped`, `alone_values`) look closer at one block on the samples that are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.calibrate import observe
from quant.decomposed_ranges import get_original
from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.sums.conv import conv2d
from quant.masks import find_masked_tensors
from toolchain.errors import InternalError
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.ir.range_constraints import ClippedRange
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
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
MAX_RECORDS = 3  # samples


@dataclass(frozen=True)
class ErrorNetwork:
    """A network whose layer errors are measured: the float model and the integer graph with what relates their tensors.

    `model`: the canonical float model.
    `integer`: integer graph without fused epilogues.
    `chosen`: the same graph in float, as selected.
    `shown`: float counterpart by chip tensor (report.comparison_blocks).
    `blocks`: the integer graph cut into blocks, in the order of the network.
    `silent`: saturation range by chip tensor, beyond which its consumers notice nothing.
    `ended`: model tensors that a quantized model clips to the range of their codes.
    `factors`: by model tensor, factors of its channels in `model`. They are divided out of every figure; each broadcasts to its
    tensor.
    """

    model: NormalModel
    integer: Graph
    chosen: Graph
    shown: Mapping[str, FloatCounterpart]
    blocks: tuple[ComparisonBlock, ...]
    silent: Mapping[str, SaturationRange]
    ended: frozenset[str]
    factors: Mapping[str, Array] = field(default_factory=dict[str, Array])

    def get_unscaling(self, block: ComparisonBlock) -> Array | None:
        """Return the float32 factor that restores the file's values of the block's tensor; None where it is unscaled."""
        factors = self.factors.get(self.shown[block.tensor].model)
        return None if factors is None else (1 / factors).astype(np.float32)

    def limit_values(self, block: ComparisonBlock, x: Array) -> Array:
        """Return float's values `x` of the block's tensor, clipped to what its consumers can tell apart.

        They are also clipped to a ClippedRange of the tensor, and to its codes where a quantized model clips to these.
        """
        saturation, within = self.silent.get(block.tensor), self.model.inner.get(self.shown[block.tensor].model)
        if isinstance(within, ClippedRange):
            x = np.clip(x, within.low, within.high, dtype=x.dtype)
        if self.shown[block.tensor].model in self.ended:
            x = np.clip(x, *self.ends(block.tensor), dtype=x.dtype)
        return x if saturation is None else saturation.clip_to_effective(x)

    def ends(self, name: str) -> tuple[float, float]:
        """Return the real numbers of the least and of the largest code that the type of a chip tensor holds."""
        quant, (low, high) = self.quant(name), CodeType(self.integer.types[name].dtype).limits
        return (low - quant.zero_point) * quant.scale, (high - quant.zero_point) * quant.scale

    def name(self, block: ComparisonBlock) -> str:
        """Return the name in the user's file of the tensor that a block makes."""
        return self.model.name(self.shown[block.tensor].model)

    def quant(self, name: str) -> Quant:
        """Return the qparams of a chip tensor, which must have some."""
        quant = self.integer.types[name].quant
        assert quant is not None
        return quant

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Return the index in `blocks` of the block that makes each chip tensor."""
        return {block.tensor: index for index, block in enumerate(self.blocks)}

    @cached_property
    def masks(self) -> frozenset[str]:
        """Return the tensors of the model, before operators are decomposed, in which minus infinity stands for a masked
        value."""
        return find_masked_tensors(get_original(self.model.proto, self.model.decomposition))

    @cached_property
    def made_by_host(self) -> frozenset[str]:
        """Return the tensors of the integer graph that host nodes make."""
        return frozenset(n for node in self.integer.nodes if not isinstance(node.op, NpuOp) for n in node.outputs)


@dataclass
class LayerErrorSums:
    """The error sums of one block over the samples, as energies (sums of squares).

    `rounding_error`: error of rounding float's tensor to its codes, with no computation, and its signal.
    `alone`: noise energy of the block fed with float's tensors.
    `accumulated`: noise energy of the block in the network's own run; None where no codes of that run were given.
    `channels`: least and largest code of each channel of a convolution, each [c]; None for other layers.
    """

    rounding_error: RoundingError = field(default_factory=RoundingError)
    alone: float = 0.0
    accumulated: float | None = None
    channels: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class SampleRecord:
    """One sample with float's tensors on it, rounded to the codes that feed the blocks.

    `codes`: by chip tensor.
    `output_energy`: energy (sum of squares) of the model's outputs on it.
    `block_codes`: codes of the tensors that each block makes of `codes`, by the block's tensor. Only the sample with most
    energy has them.
    """

    sample: Sample
    codes: dict[str, Array]
    output_energy: float = 0.0
    block_codes: Mapping[str, Codes] = field(default_factory=dict[str, "Codes"])


@dataclass
class LayerMeasurements:
    """The error sums of all blocks, by the blocks' tensors.

    `samples`: how many samples were measured.
    `records`: at most MAX_RECORDS samples whose outputs have most energy, the largest first, for closer looks at a block.
    """

    network: ErrorNetwork
    sums: dict[str, LayerErrorSums]
    samples: int = 0
    records: list[SampleRecord] = field(default_factory=list[SampleRecord])

    def outputs(self, block: ComparisonBlock, record: SampleRecord, nodes: Mapping[str, Node] | None = None) -> dict[str, Array]:
        """Return the codes of the tensors that a block makes on a sample, fed with float's tensors, by name.

        `nodes`: nodes by name that run in the place of the block's nodes of these names; None: as they are.
        """
        if nodes is None and block.tensor in record.block_codes:
            return dict(record.block_codes[block.tensor])
        replaced_block = replace(block, nodes=tuple((nodes or {}).get(n.name, n) for n in block.nodes))
        return evaluate_block(replaced_block, self.network.integer, record.codes)


def evaluate_block(block: ComparisonBlock, graph: Graph, codes: Codes) -> dict[str, Array]:
    """Run the nodes of a block by the integer reference and return the codes of every tensor that they make, by name.

    `codes`: codes by tensor, at least of the block's feeds. A block without nodes gives an empty dict.
    """
    codes_by_tensor: dict[str, Array] = {}
    for node in block.nodes:
        inputs = [
            codes_by_tensor[n] if n in codes_by_tensor else codes[n] if n in codes else graph.constants[n]
            for n in node.inputs
            if n
        ]
        codes_by_tensor[node.outputs[0]] = operator_of(node, NpuOp).reference(inputs)
    return codes_by_tensor


def measure_layers(network: ErrorNetwork, samples: Iterable[tuple[Sample, Codes]]) -> LayerMeasurements:
    """Measure the errors of all layers on these samples; only `records` keeps some of them.

    `samples`: samples, each with the codes of the network's own run by tensor. Where these are empty, `accumulated` stays None.
    One sample is in memory at a time.
    Raise InternalError where a block's feeds are not among the tensors that float computes.
    """
    measurements = LayerMeasurements(
        network, {b.tensor: LayerErrorSums(RoundingError(network.shown[b.tensor].model in network.masks)) for b in network.blocks}
    )
    state = _Pass(measurements)
    names = dict.fromkeys(network.shown[b.tensor].model for b in network.blocks)
    sinks = {name: _Sink(name, state) for name in names}
    model = network.model
    observe(model.proto, state.yield_samples(samples), sinks, computed_by=model, few_runs=True, decomposition=model.decomposition)
    return measurements


@dataclass(frozen=True)
class _Sink:
    """An observer that hands float's values of one tensor on to the pass."""

    name: str
    state: _Pass

    def update(self, x: Array) -> None:
        """Hand on the values of one sample."""
        self.state.receive_tensor(self.name, x)


class _Pass:
    """The state of the pass over one sample: float's tensors as codes, the network's codes, and the blocks that wait for
    feeds."""

    def __init__(self, measurements: LayerMeasurements) -> None:
        self._measurements, self._network = measurements, measurements.network
        self._by_model: dict[str, list[ComparisonBlock]] = {}
        for block in self._network.blocks:
            self._by_model.setdefault(self._network.shown[block.tensor].model, []).append(block)
        self._waiting: list[tuple[ComparisonBlock, Array]] = []
        self._codes: dict[str, Array] = {}
        self._ran: dict[str, Array] = {}
        self._block_codes: dict[str, Codes] = {}
        self._sample: Sample = {}
        self._output_energy = 0.0

    def yield_samples(self, samples: Iterable[tuple[Sample, Codes]]) -> Iterator[Sample]:
        """Yield the samples for float's run. The state is cleared before each and stored in the measurements behind it."""
        for sample, codes in samples:
            self._sample, self._codes, self._ran, self._block_codes, self._output_energy = sample, {}, dict(codes), {}, 0.0
            yield sample
            self._finish()

    def receive_tensor(self, name: str, x: Array) -> None:
        """Round float's values of one tensor to codes, and measure each block whose feeds are all there now."""
        if name in self._network.model.graph.outputs:
            self._output_energy += float(np.sum(np.square(x), dtype=np.float64))
        for block in self._by_model[name]:
            shown, kind = self._network.shown[block.tensor], self._network.integer.types[block.tensor]
            quant, counted = self._network.quant(block.tensor), self._network.limit_values(block, x)
            codes = self._measurements.sums[block.tensor].rounding_error.codes(
                counted, quant, kind.dtype, self._network.get_unscaling(block)
            )
            self._codes[block.tensor] = _laid_out(codes, shown.layout).reshape(kind.shape)
            self._waiting.append((block, counted))
        # A block's feeds are before its tensor in the order of the network, and mostly in float's.
        pending = list[tuple[ComparisonBlock, Array]]()
        for block, x in self._waiting:
            if all(f in self._codes for f in block.feeds):
                self._judge(block, x)
            else:
                pending.append((block, x))
        self._waiting = pending

    def _judge(self, block: ComparisonBlock, x: Array) -> None:
        """Run one block and add its noise to the sums. x: float's values of its tensor, clipped to what consumers can tell
        apart."""
        sums, graph = self._measurements.sums[block.tensor], self._network.integer
        block_codes = self._block_codes[block.tensor] = evaluate_block(block, graph, self._codes)
        if block_codes:
            sums.alone += self._noise(block, block_codes[block.tensor], x)
            if block.layer is not None and isinstance(block.layer.op, IntegerConvolution):
                sums.channels = _widen_limits(sums.channels, block_codes[block.layer.outputs[0]])
        else:
            sums.alone = sums.rounding_error.noise
        if self._ran:
            sums.accumulated = (sums.accumulated or 0.0) + self._noise(block, self._get_accumulated(block), x)

    def _get_accumulated(self, block: ComparisonBlock) -> Array:
        """Return the network's codes of the block's tensor on this sample.

        A tensor inside a fused operator is not among the codes and is computed again. An input that lies there in another form
        has the codes of the sample.
        """
        if block.tensor not in self._ran:
            block_codes = evaluate_block(block, self._network.integer, self._ran)
            self._ran |= block_codes or {block.tensor: self._codes[block.tensor]}
        return self._ran[block.tensor]

    def _noise(self, block: ComparisonBlock, codes: Array, x: Array) -> float:
        """Return the noise energy of codes of the block's tensor against float's values `x`, as report.noise counts it."""
        shown, quant = self._network.shown[block.tensor], self._network.quant(block.tensor)
        straight = codes.transpose(channels_second(codes.ndim)) if shown.layout == "nhwc" else codes
        masks, unscaled = shown.model in self._network.masks, self._network.get_unscaling(block)
        return noise_energy(x, straight.reshape(x.shape), quant, masks, unscaled)

    def _finish(self) -> None:
        """Store the sample among the records. Raise InternalError where a block still waits."""
        if self._waiting:
            raise InternalError(f"tensors that nothing fed: {', '.join(b.tensor for b, _ in self._waiting)}")
        records = [*self._measurements.records, SampleRecord(self._sample, self._codes, self._output_energy, self._block_codes)]
        first, *others = sorted(records, key=lambda k: -k.output_energy)[:MAX_RECORDS]
        self._measurements.records = [first, *(replace(k, block_codes={}) for k in others)]
        self._measurements.samples += 1


def _laid_out(codes: Array, layout: str) -> Array:
    """Return codes in the model's order as codes in the chip's, contiguous for `nhwc`."""
    return np.ascontiguousarray(codes.transpose(channels_last(codes.ndim))) if layout == "nhwc" else codes


def _widen_limits(limits: tuple[Array, Array] | None, codes: Array) -> tuple[Array, Array]:
    """Return the least and the largest code of each channel, over earlier limits and these codes.

    `limits`: the earlier ones; None before the first codes.
    `codes`: [..., c].
    """
    rows = codes.reshape(-1, codes.shape[-1])
    low, high = rows.min(0), rows.max(0)
    return (low, high) if limits is None else (np.minimum(limits[0], low), np.maximum(limits[1], high))


# --- what is measured of single blocks, on the samples that are kept


def weight_noise(measurements: LayerMeasurements, block: ComparisonBlock) -> float | None:
    """Return the energy of the noise that rounded weights alone leave in the block's tensor, over that of its signal.

    It is measured on the first record, the sample with most output energy. Places that the layer clamps do not count. The
    weights'
    errors are themselves rounded to 8 bits for this, so the figure is approximate. The result is None where the block's layer
    is no
    convolution.
    """
    node = block.layer
    if node is None or not isinstance(node.op, IntegerConvolution):
        return None
    float_node = next((n for n in measurements.network.chosen.nodes if n.name == node.name), None)
    if float_node is None or not isinstance(float_node.op, Convolution):
        return None
    record = measurements.records[0]
    block_codes = measurements.outputs(block, record)
    x = block_codes[node.inputs[0]] if node.inputs[0] in block_codes else record.codes[node.inputs[0]]
    y = block_codes[node.outputs[0]]
    noise = _weight_error(measurements.network, node, float_node, x)
    inside = (y > node.op.requant.low) & (y < node.op.requant.high)
    quant = measurements.network.quant(node.outputs[0])
    # float's, where it is known in front of what moves it: what the layer makes may be noise as large
    right = record.codes[block.tensor] if block.tensor == node.outputs[0] else y
    real = (right.astype(np.float32) - np.float32(quant.zero_point)) * np.float32(quant.scale)
    unscaled = measurements.network.get_unscaling(block)
    if unscaled is not None:  # a number for each channel, which are last here
        real, noise = real * unscaled.ravel(), noise * unscaled.ravel()
    signal = float(np.sum(real * real, dtype=np.float64))
    energy = float(np.sum(noise * noise, where=inside, dtype=np.float64))
    return energy / signal if signal else 0.0


def _weight_error(network: ErrorNetwork, node: Node, float_node: Node, x: Array) -> Array:
    """Return as float64 the convolution of `x` with the rounding error of the weights, in the layer's order."""
    op = node.op
    assert isinstance(op, IntegerConvolution)
    weights = network.chosen.constants[float_node.inputs[1]].astype(np.float64)
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


def has_wrapped(measurements: LayerMeasurements, block: ComparisonBlock) -> bool:
    """Return whether the block's codes change with accumulators of 64 bits that saturate and never wrap.

    They are compared on the first record, the sample with most output energy.
    """
    wide: dict[str, Node] = {}
    for node in block.nodes:
        op: Any = node.op
        if isinstance(op, IntegerConvolution | IntegerMatrixProduct):
            wide[node.name] = replace(node, op=replace(op, accumulator_bits=64, requant=replace(op.requant, wrap=False)))
        elif isinstance(op, IntegerBinary) and op.out_requant.wrap:
            wide[node.name] = replace(node, op=replace(op, out_requant=replace(op.out_requant, wrap=False)))
    if not wide:
        return False
    record = measurements.records[0]
    return not np.array_equal(
        measurements.outputs(block, record)[block.tensor], measurements.outputs(block, record, wide)[block.tensor]
    )


def alone_values(measurements: LayerMeasurements, block: ComparisonBlock, record: SampleRecord) -> Array:
    """Return the real values that the block makes of float's tensors on a sample, in the model's order, shape and type."""
    shown = measurements.network.shown[block.tensor]
    codes = measurements.outputs(block, record).get(block.tensor, record.codes[block.tensor])
    kind = measurements.network.model.types[shown.model]
    return in_type(real_values(codes, measurements.network.integer, block.tensor, shown.layout).reshape(kind.shape), kind.dtype)
