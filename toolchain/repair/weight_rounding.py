"""Choose codes of weights and biases layer by layer, as steps of a repair (toolchain.repair.repair_pipeline).

Each layer reads what the repaired layers before it give in integers, on samples. Its weights are rounded to second order (GPTQ)
against the float output, and its bias takes out the mean error that is left. `Codes` says what becomes of a layer's codes: they
stay (`keep`), are rounded (`round`), or also compensate the error of the layer's inputs (`answer`).
"""

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
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.kit.operator import Array, operator_of
from toolchain.passes.quantize_context import node_scope
from toolchain.passes.saturation_ranges import SaturationRange, find_saturation_ranges
from toolchain.repair.layerwise_reference import pick_resident_samples, run_layerwise
from toolchain.repair.network import Network, Progress
from toolchain.repair.sampled_rows import FloatRows, Rows, SampledRows, sample_rows
from toolchain.repair.weight_scale_search import ScaleSearch

Codes = Literal["keep", "round", "answer"]  # what becomes of a layer's codes
_EXACT_IN_FLOAT32 = 1 << 24
_JUDGING = 3  # one sample of so many says how far the Hessian of the others is believed (docs/repair.md)


def round_layer_weights(
    network: Network,
    quantization: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    sweeps: int = 0,
    leave: Collection[str] = (),
) -> StepOutcome:
    """Return the quantization with the weights of every layer that `sample_rows` lists rounded to second order, and its bias
    corrected.

    The outcome has the gain of each layer on these samples, and no new ranges.

    `sweeps`: how often at most all codes are looked at again in turn after the rounding.
    `leave`: layers to leave as they are.
    """
    return _layer_by_layer("rounding", network, quantization, samples, progress, "round", sweeps, leave)


def compensate_input_error(
    network: Network,
    quantization: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    sweeps: int = 0,
    leave: Collection[str] = (),
) -> StepOutcome:
    """Return the same as `round_layer_weights`, for weights that first move to compensate the error of their layer's inputs.

    That pays where codes are few. Where they are many, it may follow the samples more than the network.
    """
    return _layer_by_layer("answering", network, quantization, samples, progress, "answer", sweeps, leave)


def correct_biases(
    network: Network, quantization: Quantization, samples: Iterable[Sample], progress: Progress, *, leave: Collection[str] = ()
) -> StepOutcome:
    """Return the quantization with the bias corrected of every layer that `sample_rows` lists, and codes as they are.

    The quantization comes back unchanged where every such bias was corrected already.
    """
    if all(quantization.layers.get(name, AS_IN_THE_MODEL).bias is not None for name in sample_rows(network, quantization, 1)):
        return StepOutcome(quantization)
    return _layer_by_layer("bias", network, quantization, samples, progress, "keep", 0, leave)


def _layer_by_layer(
    name: str,
    network: Network,
    quantization: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    codes: Codes,
    sweeps: int,
    leave: Collection[str],
) -> StepOutcome:
    """Return the quantization with the chosen parameters of each layer, walking once over the network in its order.

    Layers in `leave`, those without sampled rows, and those whose input codes no array takes keep their parameters.
    """
    resident = pick_resident_samples(network, quantization, samples)
    rows_by_layer = sample_rows(network, quantization, resident.first.size)
    if resident.later.size:
        late = sample_rows(network, quantization, resident.every.size)
        rows_by_layer = {name: late[name] if name in resident.joining_nodes else place for name, place in rows_by_layer.items()}
    integer = network.integer(quantization)
    # of layers that see other codes than their tensor has, which are no tensor of the model, weights stay as they are
    array_types = network.chip.array_types
    rows_by_layer = {
        n: p for n, p in rows_by_layer.items() if integer.types[p.node.inputs[0]].dtype in array_types and n not in leave
    }
    float_rows, gains = FloatRows(network, resident.every, rows_by_layer), list[Gain]()
    silent = find_saturation_ranges(network.graph, integer, quantization.ranges)

    def choose(node: Node, live: Mapping[str, Sequence[Array]]) -> LayerParameters:
        if node.name not in rows_by_layer:
            return quantization.layers.get(node.name, AS_IN_THE_MODEL)
        progress(name, len(gains), len(rows_by_layer))
        looked_at = _LayerData(integer, rows_by_layer[node.name], live, float_rows)
        layer = _Layer(network, quantization, integer, looked_at, silent.get(node.outputs[0]))
        chosen, gain = layer.chosen(quantization.layers.get(node.name, AS_IN_THE_MODEL), codes, sweeps)
        gains.append(gain)
        return chosen

    layers = run_layerwise(network, quantization, resident, choose)
    return StepOutcome(
        replace(quantization, layers=layers),
        tuple(gains),
        (f"repair, {name}: chosen on {format_count(resident.every.size, 'sample')}",),
    )


@dataclass(frozen=True, eq=False)
class _TrialLayer:
    """A layer under trial parameters: its operator, its weights with scales, its sums and its outputs at the sampled places.

    The sums are int64[rows, o] with the bias, the outputs float64[rows, o].
    """

    op: IntegerConvolution
    weight: WeightQuant
    sums: Array
    output: Array


class _LayerData:
    """The integer and float rows that a layer reads at its sampled places, over all samples.

    `rows`: float32[g, n, k], in integers, less the zero point.
    `real`: the same in float, None where that is unknown.
    `addend_gap`: float32[n, o], by how much the integers of the addend of the layer's output should be more. None: no addend.
    """

    def __init__(self, integer: Graph, place: SampledRows, live: Mapping[str, Sequence[Array]], float_rows: FloatRows) -> None:
        self.place, self.samples = place, len(live.get(place.read, ()))  # none of a constant
        self.rows, self.real = self._read(integer, place, live), float_rows.take(place)
        self.addend_gap: Array | None = None
        other = place.addend
        if other is None or other.tensor is None:
            return
        real = float_rows.take(other)
        quant = integer.types[other.read].quant
        if real is not None and quant is not None and other.read in live:
            self.addend_gap = real[0] - np.float32(quant.scale) * self._read(integer, other, live)[0]

    def _read(self, integer: Graph, place: SampledRows, live: Mapping[str, Sequence[Array]]) -> Array:
        """Return float32[g, n, k] of the integer rows of a plan over all samples, less the zero point."""
        quant, rows = integer.types[place.read].quant, Rows(place, self.samples)
        assert quant is not None
        for index, codes in enumerate(live.get(place.read, ())):
            rows.put(codes, index, quant.zero_point)
        return rows.all


class _Layer:
    """One convolution with the rows that it reads, in integers and in float; it tries parameters and measures their error."""

    def __init__(
        self, network: Network, quantization: Quantization, integer: Graph, layer_data: _LayerData, silent: SaturationRange | None
    ) -> None:
        """Prepare the layer. silent: saturation range of its output, None without one."""
        self._network, self._quantization, self._place = network, quantization, layer_data.place
        node = layer_data.place.node
        self._op = operator_of(node, Convolution)
        x, y = integer.types[node.inputs[0]], integer.types[node.outputs[0]]
        assert x.quant is not None and y.quant is not None
        self._x, self._y, self._dtype = x.quant, y.quant, np.dtype(y.dtype)
        self._types = {node.inputs[0]: CodeType(x.dtype), node.outputs[0]: CodeType(y.dtype)}
        self._w = network.graph.constants[node.inputs[1]].astype(np.float64)
        bias = (*node.inputs, "", "")[2]
        self._bias = network.graph.constants[bias].astype(np.float64).reshape(-1) if bias else np.zeros(len(self._w))
        self._rows, self._samples, self._addend_gap = layer_data.rows, layer_data.samples, layer_data.addend_gap
        self._real = (
            None if layer_data.real is None else np.divide(layer_data.real, np.float32(self._x.scale), out=layer_data.real)
        )
        self._largest = float(max(self._rows.max(initial=0), -self._rows.min(initial=0)))
        self._silent = silent
        self._target = self._float_output()

    def chosen(self, parameters: LayerParameters, codes: Codes, sweeps: int) -> tuple[LayerParameters, Gain]:
        """Return new parameters and their gain. The bias is always corrected; the codes change unless `codes` is `keep`."""
        trial = before = self._quantize_layer(parameters)
        chosen = parameters
        if codes != "keep":
            chosen = LayerParameters(self._round_weights(before, codes == "answer", sweeps), parameters.bias)
            trial = self._quantize_layer(chosen)
        target_mean = self._target.mean(0) / self._y.scale
        shift = bias_shift(trial.sums, trial.op.requant, self._dtype, self._y.zero_point, target_mean)
        bias = self._bias if chosen.bias is None else chosen.bias
        chosen = replace(chosen, bias=bias + shift * self._x.scale * trial.weight.scales)
        after = self._error(self._output(trial.sums + shift, trial.op))
        return chosen, Gain(self._place.node.name, self._error(before.output), after)

    def _float_output(self) -> Array:
        """Return the float output of the layer as float64[rows, o], plus the gap of the integers of a sum's other operand.

        Where the float input is unknown, the output follows from the integer input.
        """
        rows = self._rows if self._real is None else self._real
        sums = self._products(rows, self._w.astype(np.float32)).astype(np.float64) * self._x.scale + self._bias
        low, high = self._op.activation
        clamped = sums if low is None and high is None else np.clip(sums, low, high)
        effective = clamped if self._silent is None else self._silent.clip_to_effective(clamped)
        return effective if self._addend_gap is None else effective + self._addend_gap

    def _compute_output_gap(self, w: Array) -> Array | None:
        """Return by how much the outputs should exceed what `w` makes of the integer input: float32[g, n, o], in steps of the
        input.

        Then the outputs, and the sums that they enter, equal those of float. Return None where the float input is unknown.
        """
        if self._real is None:
            return None
        gap = np.matmul(self._real - self._rows, w.transpose(0, 2, 1).astype(np.float32))
        if self._addend_gap is not None:
            gap += (self._addend_gap / np.float32(self._x.scale)).reshape(gap.shape[1], len(w), -1).transpose(1, 0, 2)
        return gap

    def _products(self, rows: Array, w: Array) -> Array:
        """Return the products of rows [g, n, k] and weights as [n, o], in the type of `w`."""
        groups, count, k = rows.shape
        each = np.matmul(rows.astype(w.dtype, copy=False), w.reshape(groups, -1, k).transpose(0, 2, 1))
        return each.transpose(1, 0, 2).reshape(count, -1)

    def _sums(self, codes: Array) -> Array:
        """Return the exact sums int64[rows, o] of the rows and these codes, without bias."""
        largest = self._rows.shape[2] * self._largest * float(np.abs(codes).max(initial=0))
        exact = np.float32 if largest < _EXACT_IN_FLOAT32 else np.float64
        return self._products(self._rows, codes.astype(exact)).astype(np.int64)

    def _quantize_layer(self, chosen: LayerParameters) -> _TrialLayer:
        """Return the layer quantized with these parameters, with its sums and outputs at the sampled places."""
        node, network = self._place.node, self._network
        quants = {node.inputs[0]: self._x, node.outputs[0]: self._y}
        scope = node_scope(network.graph, network.chip, self._types, quants, self._quantization, node, chosen)
        weight = self._op.weights(node, scope).weight
        integer_node = self._op.quantize(node, scope)[0]
        sums = self._sums(weight.integers)
        sums += scope.constants[integer_node.inputs[2]]
        op = operator_of(integer_node, IntegerConvolution)
        return _TrialLayer(op, weight, sums, self._output(sums, op))

    def _output(self, sums: Array, op: IntegerConvolution) -> Array:
        """Return the real outputs float64[rows, o] of these sums."""
        codes = requantize(sums, op.requant, self._dtype).astype(np.float64)
        return (codes - self._y.zero_point) * self._y.scale

    def _error(self, output: Array) -> float:
        """Return the mean squared error of the outputs over the mean square of float's."""
        return float(np.mean((output - self._target) ** 2) / max(np.mean(self._target**2), np.finfo(np.float64).tiny))

    def _round_weights(self, before: _TrialLayer, answering: bool, sweeps: int) -> WeightQuant:
        """Return the weights with codes rounded to second order and scales fitted to them."""
        weight = before.weight
        groups, _, k = self._rows.shape
        w = self._w.reshape(groups, -1, k)
        limits = weight_code_range(before.op.weight_type)
        hessian, target = self._compute_target(w, weight, limits, answering)
        sought = ScaleSearch(target, hessian, limits, sweeps, self._network.chip.numerics, self._x.scale / self._y.scale)
        if k <= FEW:
            weight = sought.resize_scales(weight)
        return sought.fit_scales(sought.round_codes(weight))

    def _compute_target(self, w: Array, weight: WeightQuant, limits: tuple[int, int], answering: bool) -> tuple[Array, Array]:
        """Return the damped Hessian of all rows, and the weights that rounding aims at.

        Damping, and how far the weights move, are fitted on most samples and chosen by what serves the others best.
        """
        output_gap = self._compute_output_gap(w) if answering else None
        if self._samples < _JUDGING:
            return add_damping(moments(self._rows, output_gap).hessian, LEAST), w
        *others, unseen = (self._moments(output_gap, first) for first in range(_JUDGING))
        fit_moments = reduce(Moments.join, others)
        each, least = (v.reshape(w.shape) for v in weight.steps())
        damping = best_damping(w - least, each, fit_moments, unseen, *limits)
        pull = None if output_gap is None else best_pull(fit_moments, unseen)
        together = fit_moments.join(unseen)
        return add_damping(together.hessian, damping), w if pull is None else w + fit_weight_change(together, pull)

    def _moments(self, output_gap: Array | None, first: int) -> Moments:
        """Return the moments of every _JUDGING-th sample, starting with `first`."""

        def of(x: Array) -> Array:
            return x.reshape(len(x), self._samples, -1, x.shape[2])[:, first::_JUDGING]

        return moments(of(self._rows), None if output_gap is None else of(output_gap))
