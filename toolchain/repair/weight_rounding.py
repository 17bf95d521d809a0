"""Codes of weights and biases chosen layer by layer: each layer reads what the repaired layers before it give in integers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requantization import requantize
from quant.parameters import WeightQuant, weight_code_range
from quant.repair.bias import bias_shift
from quant.repair.choices import AS_IN_THE_MODEL, Gain, LayerParameters, Quantization, StepOutcome
from quant.repair.damping import LEAST, add_damping, best_damping, best_pull, fit_weight_change
from quant.repair.gptq_rounding import FEW
from quant.repair.moments import Moments, moments
from toolchain.errors import format_count
from toolchain.ir.graph import Graph, Node
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.convolution.rules import Convolution
from toolchain.ops.kit.operator import Array, operator_of
from toolchain.passes.quantize_context import node_scope
from toolchain.passes.saturation_ranges import SaturationRange, find_saturation_ranges
from toolchain.repair.layerwise_reference import pick_resident_samples, run_layerwise
from toolchain.repair.network import Network, Progress
from toolchain.repair.sampled_rows import FloatRows, Rows, SampledRows, sample_rows
from toolchain.repair.weight_scale_search import ScaleSearch

Codes = Literal["keep", "round", "answer"]  # what becomes of a layer's codes
_EXACT_IN_FLOAT32 = 1 << 24
_JUDGING = 3  # one sample of so many says how far the Hessian of the others is believed


def round_layer_weights(
    network: Network,
    given: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    sweeps: int = 0,
    leave: Collection[str] = (),
) -> StepOutcome:
    """Second-order rounding of every layer's weights, then its bias, so that the next layer reads what is right on average.
    sweeps: of `round_weights`; leave: layers that are not touched."""
    return _layer_by_layer("rounding", network, given, samples, progress, "round", sweeps, leave)


def compensate_input_error(
    network: Network,
    given: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    sweeps: int = 0,
    leave: Collection[str] = (),
) -> StepOutcome:
    """The same for weights that first were moved to answer for what is wrong with their layer's inputs: `answer`. That pays
    where codes are few; where they are many, it may follow the samples more than the network."""
    return _layer_by_layer("answering", network, given, samples, progress, "answer", sweeps, leave)


def correct_biases(
    network: Network, given: Quantization, samples: Iterable[Sample], progress: Progress, *, leave: Collection[str] = ()
) -> StepOutcome:
    """Every layer's bias alone; nothing where all were corrected with the codes already."""
    if all(given.layers.get(name, AS_IN_THE_MODEL).bias is not None for name in sample_rows(network, given, 1)):
        return StepOutcome(given)
    return _layer_by_layer("bias", network, given, samples, progress, "keep", 0, leave)


def _layer_by_layer(
    name: str,
    network: Network,
    given: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    codes: Codes,
    sweeps: int,
    leave: Collection[str],
) -> StepOutcome:
    held = pick_resident_samples(network, given, samples)
    found = sample_rows(network, given, held.first.size)
    if held.later.size:
        late = sample_rows(network, given, held.every.size)
        found = {name: late[name] if name in held.behind else place for name, place in found.items()}
    integer = network.integer(given)
    # of layers that see other codes than their tensor has, which are no tensor of the model, weights stay as they are
    known = network.chip.array_types
    found = {n: p for n, p in found.items() if integer.types[p.node.inputs[0]].dtype in known and n not in leave}
    float_rows, gains = FloatRows(network, held.every, found), list[Gain]()
    silent = find_saturation_ranges(network.graph, integer, given.ranges)

    def choose(node: Node, live: Mapping[str, Sequence[Array]]) -> LayerParameters:
        if node.name not in found:
            return given.layers.get(node.name, AS_IN_THE_MODEL)
        progress(name, len(gains), len(found))
        looked_at = _Seen(integer, found[node.name], live, float_rows)
        layer = _Layer(network, given, integer, looked_at, silent.get(node.outputs[0]))
        chosen, gain = layer.chosen(given.layers.get(node.name, AS_IN_THE_MODEL), codes, sweeps)
        gains.append(gain)
        return chosen

    layers = run_layerwise(network, given, held, choose)
    return StepOutcome(
        replace(given, layers=layers), tuple(gains), (f"repair, {name}: chosen on {format_count(held.every.size, 'sample')}",)
    )


@dataclass(frozen=True, eq=False)
class _Made:
    """A layer under some parameters: its operator, weights with their scales, int64[rows, o] of sums with the bias and
    float64[rows, o] of output at its places."""

    op: IntegerConvolution
    weight: WeightQuant
    sums: Array
    output: Array


class _Seen:
    """What a layer reads at its places, over all samples.

    rows: float32[g, n, k], in integers, less the zero point; real: in float, None where that is not known. beside: float32[n, o],
    by how much the integers of what its output is added to should be more, None where there is no such thing.
    """

    def __init__(self, integer: Graph, place: SampledRows, live: Mapping[str, Sequence[Array]], float_rows: FloatRows) -> None:
        self.place, self.samples = place, len(live.get(place.read, ()))  # none of a constant
        self.rows, self.real = self._read(integer, place, live), float_rows.take(place)
        self.beside: Array | None = None
        other = place.beside
        if other is None or other.tensor is None:
            return
        real = float_rows.take(other)
        quant = integer.types[other.read].quant
        if real is not None and quant is not None and other.read in live:
            self.beside = real[0] - np.float32(quant.scale) * self._read(integer, other, live)[0]

    def _read(self, integer: Graph, place: SampledRows, live: Mapping[str, Sequence[Array]]) -> Array:
        quant, found = integer.types[place.read].quant, Rows(place, self.samples)
        assert quant is not None
        for index, codes in enumerate(live.get(place.read, ())):
            found.put(codes, index, quant.zero_point)
        return found.all


class _Layer:
    """One convolution with what it reads, at its places over all samples, in integers and in float."""

    def __init__(
        self, network: Network, given: Quantization, integer: Graph, seen: _Seen, silent: SaturationRange | None
    ) -> None:
        """silent: of its output."""
        self._network, self._given, self._place = network, given, seen.place
        node = seen.place.node
        self._op = operator_of(node, Convolution)
        x, y = integer.types[node.inputs[0]], integer.types[node.outputs[0]]
        assert x.quant is not None and y.quant is not None
        self._x, self._y, self._dtype = x.quant, y.quant, np.dtype(y.dtype)
        self._types = {node.inputs[0]: CodeType(x.dtype), node.outputs[0]: CodeType(y.dtype)}
        self._w = network.graph.constants[node.inputs[1]].astype(np.float64)
        bias = (*node.inputs, "", "")[2]
        self._bias = network.graph.constants[bias].astype(np.float64).reshape(-1) if bias else np.zeros(len(self._w))
        self._rows, self._samples, self._beside = seen.rows, seen.samples, seen.beside
        self._real = None if seen.real is None else np.divide(seen.real, np.float32(self._x.scale), out=seen.real)
        self._largest = float(max(self._rows.max(initial=0), -self._rows.min(initial=0)))
        self._silent = silent
        self._target = self._float_output()

    def chosen(self, given: LayerParameters, codes: Codes, sweeps: int) -> tuple[LayerParameters, Gain]:
        made = before = self._made(given)
        chosen = given
        if codes != "keep":
            chosen = LayerParameters(self._rounded(before, codes == "answer", sweeps), given.bias)
            made = self._made(chosen)
        wanted = self._target.mean(0) / self._y.scale
        shift = bias_shift(made.sums, made.op.requant, self._dtype, self._y.zero_point, wanted)
        bias = self._bias if chosen.bias is None else chosen.bias
        chosen = replace(chosen, bias=bias + shift * self._x.scale * made.weight.scales)
        after = self._error(self._output(made.sums + shift, made.op))
        return chosen, Gain(self._place.node.name, self._error(before.output), after)

    def _float_output(self) -> Array:
        """float64[rows, o]: what float makes of what it reads (where that is not known, of what the integers read), and with it
        what the integers of a sum's other operand lack."""
        rows = self._rows if self._real is None else self._real
        sums = self._products(rows, self._w.astype(np.float32)).astype(np.float64) * self._x.scale + self._bias
        low, high = self._op.activation
        clamped = sums if low is None and high is None else np.clip(sums, low, high)
        heard = clamped if self._silent is None else self._silent.clip_to_effective(clamped)
        return heard if self._beside is None else heard + self._beside

    def _lacking(self, w: Array) -> Array | None:
        """float32[g, n, o]: by how much its outputs should be more than `w` makes of what it reads, so that they, and what they
        are added to, are float's, in steps of its input; None where float's input is not known."""
        if self._real is None:
            return None
        found = np.matmul(self._real - self._rows, w.transpose(0, 2, 1).astype(np.float32))
        if self._beside is not None:
            found += (self._beside / np.float32(self._x.scale)).reshape(found.shape[1], len(w), -1).transpose(1, 0, 2)
        return found

    def _products(self, rows: Array, w: Array) -> Array:
        """[rows, o], in w's type."""
        groups, count, k = rows.shape
        each = np.matmul(rows.astype(w.dtype, copy=False), w.reshape(groups, -1, k).transpose(0, 2, 1))
        return each.transpose(1, 0, 2).reshape(count, -1)

    def _sums(self, codes: Array) -> Array:
        """int64[rows, o], exact: in float32 while no sum of products can go beyond its whole numbers."""
        largest = self._rows.shape[2] * self._largest * float(np.abs(codes).max(initial=0))
        exact = np.float32 if largest < _EXACT_IN_FLOAT32 else np.float64
        return self._products(self._rows, codes.astype(exact)).astype(np.int64)

    def _made(self, chosen: LayerParameters) -> _Made:
        node, network = self._place.node, self._network
        quants = {node.inputs[0]: self._x, node.outputs[0]: self._y}
        scope = node_scope(network.graph, network.chip, self._types, quants, self._given, node, chosen)
        weight = self._op.weights(node, scope).weight
        made = self._op.quantize(node, scope)[0]
        sums = self._sums(weight.whole)
        sums += scope.constants[made.inputs[2]]
        op = operator_of(made, IntegerConvolution)
        return _Made(op, weight, sums, self._output(sums, op))

    def _output(self, sums: Array, op: IntegerConvolution) -> Array:
        codes = requantize(sums, op.requant, self._dtype).astype(np.float64)
        return (codes - self._y.zero_point) * self._y.scale

    def _error(self, output: Array) -> float:
        return float(np.mean((output - self._target) ** 2) / max(np.mean(self._target**2), np.finfo(np.float64).tiny))

    def _rounded(self, before: _Made, answering: bool, sweeps: int) -> WeightQuant:
        weight = before.weight
        groups, _, k = self._rows.shape
        w = self._w.reshape(groups, -1, k)
        limits = weight_code_range(before.op.weight_type)
        hessian, wanted = self._seen(w, weight, limits, answering)
        sought = ScaleSearch(wanted, hessian, limits, sweeps, self._network.chip.numerics, self._x.scale / self._y.scale)
        if k <= FEW:
            weight = sought.sized(weight)
        return sought.fitted(sought.rounded(weight))

    def _seen(self, w: Array, weight: WeightQuant, limits: tuple[int, int], answering: bool) -> tuple[Array, Array]:
        """The Hessian of all rows, damped, and the weights that are wanted; by damping and pull that serve the samples best which
        judge, by what the others show."""
        lacking = self._lacking(w) if answering else None
        if self._samples < _JUDGING:
            return add_damping(moments(self._rows, lacking).hessian, LEAST), w
        *others, unseen = (self._moments(lacking, first) for first in range(_JUDGING))
        seen = reduce(Moments.joined, others)
        each, least = (v.reshape(w.shape) for v in weight.steps())
        damping = best_damping(w - least, each, seen, unseen, *limits)
        pull = None if lacking is None else best_pull(seen, unseen)
        together = seen.joined(unseen)
        return add_damping(together.hessian, damping), w if pull is None else w + fit_weight_change(together, pull)

    def _moments(self, lacking: Array | None, first: int) -> Moments:
        """Of every _JUDGING-th sample, from the first on."""

        def of(x: Array) -> Array:
            return x.reshape(len(x), self._samples, -1, x.shape[2])[:, first::_JUDGING]

        return moments(of(self._rows), None if lacking is None else of(lacking))
