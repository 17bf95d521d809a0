"""Equalize channels of very unequal size: each is multiplied by its own factor, so that they share a scale better.

Two steps of a repair are here: `equalize` between chip layers, and `free_ends` for what only the host reads. The factors of the
tensors between two layers follow from the weights of both layers, or from the tensors' own peaks. Depthwise layers and
homogeneous operators pass factors on, to a power. No output of the float network changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quant.calibrate import calibrate, default_observer, observe
from quant.fit_sample import Sample
from quant.repair.choices import Quantization, StepOutcome
from quant.structural_ranges import AdjustedRanges, adjust_ranges
from toolchain.errors import format_count
from toolchain.ir.graph import OnnxGraph, OnnxNode
from toolchain.repair.channel_groups import Group, chip_nodes, find_groups
from toolchain.repair.channel_scaling import Array, by_input, reach, weights_of
from toolchain.repair.evaluate_outputs import OutputEvaluator, pick_trial_samples
from toolchain.repair.float_room import add_room
from toolchain.repair.network import Network, Progress

SWEEPS = 8  # over all groups: what one takes from a layer its neighbours see in the next
MOST = 2.0**6  # between the largest and the smallest factor of a tensor, and 1
_LEAST = 2.0**-10  # of the largest: smaller channels count as this large


@dataclass(frozen=True)
class _Aim:
    """A weighting for factors: sizes at the consumers ** after / sizes at the producers ** before.

    `by_weights`: the size at a producer is that of the weights that make the channel. Otherwise it is the channel's calibrated
    peak.
    """

    by_weights: bool
    before: float
    after: float


_AIMS = (_Aim(True, 0.5, 0.5), _Aim(False, 0.5, 0.5), _Aim(False, 0.5, 0.0), _Aim(False, 1.0, 0.0))


def equalize(
    network: Network,
    before: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    measured: Iterable[Sample] | None = None,
) -> StepOutcome:
    """Return the quantization with factors for all groups of tensors between chip layers, and with new ranges.

    Several weightings of producers and consumers are tried, and none; the best on a few samples wins. Where none is best, or
    there are no groups, the quantization comes back unchanged. New factors drop the `layers` that earlier steps chose.

    `measured`: the samples that the final ranges are measured on; None means `samples`.
    """
    groups = [g for g in find_groups(network) if g.makers and g.takers]
    if not groups:
        return StepOutcome(before)
    peak_by_tensor, few = channel_peaks(network, groups, samples, progress), pick_trial_samples(samples)
    aims = [a for a in _AIMS if not (a.by_weights and network.chip.numerics.weights_per_channel)]
    tried = [{}, *(_balance_groups(groups, network.model.graph, peak_by_tensor, aim) for aim in aims)]
    judge, levels = OutputEvaluator(few), list[float]()
    for factors in tried:
        trial_quantization = apply_factors(network, before, factors, (), "", few, progress).quantization
        levels.append(judge.verdict(network.through(Quantization({}, factors=factors)), trial_quantization).decibels)
    best = tried[int(np.argmax(levels))]
    if not best:
        return StepOutcome(before)
    return apply_factors(network, before, best, (), "", samples if measured is None else measured, progress)


def free_ends(
    network: Network,
    before: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    measured: Iterable[Sample] | None = None,
) -> StepOutcome:
    """Return the quantization with sums that only the host reads on the host, and channels that only the host reads levelled.

    A scale for all channels would be wasted on values that the chip never sees. The quantization comes back unchanged without
    such.

    `measured`: as in `equalize`.
    """
    hosted = _list_hosted_sums(network)
    base = network.through(replace(before, factors={}, hosted=hosted)) if hosted else network
    groups = [g for g in find_groups(base) if g.chip_makers and g.host_reads and not g.takers]
    if not hosted and not groups:
        return StepOutcome(before)
    peak_by_tensor = channel_peaks(base, groups, samples, progress)
    levelled = [(g, _level_group(peak_by_tensor, g, base.model.graph)) for g in groups]
    factors = {name: one for g, f in levelled if f is not None for name, one in g.by_tensor(f).items()}
    if not factors and not hosted:
        return StepOutcome(before)
    reason = "only the host reads them"
    return apply_factors(network, before, factors, hosted, reason, samples if measured is None else measured, progress)


def apply_factors(
    network: Network,
    before: Quantization,
    factors: Mapping[str, Array],
    hosted: tuple[str, ...],
    reason: str,
    samples: Iterable[Sample],
    progress: Progress,
) -> StepOutcome:
    """Return the quantization with more factors and more hosted nodes, and with new ranges of these samples.

    The factors come on top of those of `before`, and parameters of layers are dropped. The outcome can measure ranges of other
    samples too.

    `network`: the network after the changes of `before`.
    `factors`: float64[c] by tensor of the model.
    `hosted`: nodes of the model for the host; `reason`: why they are better there.
    """
    scaled = network.through(Quantization({}, factors=factors, hosted=(*before.hosted, *hosted)))
    numerics = network.chip.numerics

    def measure(others: Iterable[Sample]) -> AdjustedRanges:
        ranges = calibrate(
            scaled.model.proto,
            others,
            scaled.tensors,
            observer=default_observer(numerics),
            numerics=numerics,
            progress=lambda done, total: progress("ranges of channels", done, total),
            computed_by=scaled.model,
            decomposition=scaled.model.decomposition,
        )
        adjusted = adjust_ranges(scaled.model.proto, ranges, scaled.model.decomposition, scaled.model.name)
        return replace(adjusted, ranges=add_room(adjusted.ranges, scaled, scaled.requested_types))

    adjusted = measure(samples)
    together = {**before.factors, **{t: f * before.factors.get(t, 1.0) for t, f in factors.items()}}
    ranges_by_tensor = {**adjusted.ranges, **scaled.selection.file_ranges}
    new_quantization = replace(before, ranges=ranges_by_tensor, factors=together, hosted=(*before.hosted, *hosted), layers={})
    notes = [f"channels of {format_count(len(factors), 'tensor')} are scaled"] if factors else []
    notes += [f"on the host, since {reason}: {', '.join(hosted)}"] if hosted else []
    return StepOutcome(new_quantization, notes=(*notes, *adjusted.notes), measure=measure)


def _list_hosted_sums(network: Network) -> tuple[str, ...]:
    """Return the model's nodes of sums of two tensors that the chip computes and the host alone reads."""
    graph, chip = network.model.graph, chip_nodes(network)
    consumers = graph.consumers()
    source_nodes: list[str] = []
    for node in graph.nodes:
        if node.op.op_type not in ("Add", "Sub") or node.name not in chip or node.outputs[0] in graph.outputs:
            continue
        readers = consumers.get(node.outputs[0], ())
        two = not any(n in graph.constants for n in node.inputs)
        if two and readers and all(r.name not in chip for r in readers):
            source_nodes += node.sources or (node.name,)
    return tuple(dict.fromkeys(source_nodes))


# --- sizes of channels


class _Peaks:
    """The largest magnitude of each channel of one tensor, collected sample by sample in `peaks`, float64[c]; None before the
    first."""

    def __init__(self, shape: Sequence[int]) -> None:
        """Collect the peak of each channel.

        `shape`: shape of one number for each channel, which broadcasts to the tensor's shape.
        """
        self.peaks: Array | None = None
        self._others = tuple(axis for axis, d in enumerate(shape) if d == 1)

    def update(self, x: Array) -> None:
        """Add the peaks of one sample."""
        sample_peaks = np.maximum(x.max(self._others), -x.min(self._others)).ravel()
        self.peaks = sample_peaks.astype(np.float64) if self.peaks is None else np.maximum(self.peaks, sample_peaks)


def channel_peaks(network: Network, groups: Sequence[Group], samples: Iterable[Sample], progress: Progress) -> dict[str, Array]:
    """Return the largest magnitude of each channel over all samples in float: float64[c] of each tensor of the groups."""
    sinks = {name: _Peaks(shape) for group in groups for name, shape in group.shapes.items()}
    if not sinks:
        return {}
    model = network.model
    observe(
        model.proto,
        samples,
        sinks,
        progress=lambda done, total: progress("channels", done, total),
        computed_by=model,
        decomposition=model.decomposition,
    )
    return {name: sink.peaks for name, sink in sinks.items() if sink.peaks is not None}


def _level_group(peak_by_tensor: Mapping[str, Array], group: Group, graph: OnnxGraph) -> Array | None:
    """Return the factors that make all channels of a group as large as its largest; None where all are zero."""
    peaks = group.peaks(peak_by_tensor)
    return _within(peaks.max() / np.maximum(peaks, peaks.max() * _LEAST), group, graph) if peaks.max() > 0 else None


def _balance_groups(
    groups: Sequence[Group], graph: OnnxGraph, peak_by_tensor: Mapping[str, Array], aim: _Aim
) -> dict[str, Array]:
    """Return the factors by tensor that balance producers and consumers, by sweeps over all groups; those of groups that stay
    are left out."""
    layers = {
        n.name: n for g in groups for n in (*g.makers, *(taker for taker, _ in g.takers)) if n.op.op_type != "LayerNormalization"
    }
    sizes = {name: _magnitudes(node, graph) for name, node in layers.items()}
    total = [np.ones(g.size) for g in groups]
    for _ in range(SWEEPS):
        for at, group in enumerate(groups):
            peaks = group.peaks(peak_by_tensor) * total[at]
            writers = [group.largest({n.outputs[0]: sizes[n.name].max(1)}) for n in group.makers if n.name in sizes]
            writer_sizes = _relative(writers) if aim.by_weights and writers else _relative([peaks])
            inputs = [(name, by_input(n, sizes[n.name], group.numbers[name].size)) for n, name in group.takers]
            read = _relative([group.largest({name: size}) for name, size in inputs])
            balanced_factors = total[at] * read**aim.after / writer_sizes**aim.before
            chosen = _within(balanced_factors, group, graph)
            step, total[at] = chosen / total[at], chosen
            for node in group.makers:
                if node.name in sizes:
                    sizes[node.name] = sizes[node.name] * group.of(node.outputs[0], step)[:, None]
            for node, name in group.takers:
                sizes[node.name] = sizes[node.name] / _spread(node, group.of(name, step), sizes[node.name].shape)
    return {name: one for g, f in zip(groups, total) if np.ptp(f) > 0 for name, one in g.by_tensor(f).items()}


def _magnitudes(node: OnnxNode, graph: OnnxGraph) -> Array:
    """Return the largest weight magnitude of each pair of output and input channel, float64[o, i / groups]."""
    weights = np.abs(weights_of(node, graph))
    return weights.reshape(*weights.shape[:2], -1).max(2)


def _spread(node: OnnxNode, factors: Array, shape: tuple[int, ...]) -> Array:
    """Return factors of the input channels as float64[o, i / groups], one for each weight of the layer."""
    groups = int(node.op.attributes.get("group", 1)) if node.op.op_type == "Conv" else 1
    return np.repeat(factors.reshape(groups, shape[1]), shape[0] // groups, axis=0)


def _relative(sizes: Sequence[Array]) -> Array:
    """Return the largest of each channel over arrays that are first divided by their own largest, at least _LEAST."""
    return np.max([np.maximum(s / max(s.max(), 1e-30), _LEAST) for s in sizes], axis=0)


def _within(factors: Array, group: Group, graph: OnnxGraph) -> Array:
    """Return the factors centred on 1, none beyond MOST.

    Where clamps lie between, a channel that some data may bring to the clamp has factor 1. The factor of any other channel
    keeps it clear of the clamp, so that no output changes.
    """
    if not group.bounds:
        middle = np.exp(np.log(factors).mean())
        return np.clip(factors / middle, 1 / MOST, MOST)
    bound = min(group.bounds)
    peaks = group.largest({n.outputs[0]: reach(n, graph) for n in group.makers})
    clear = (peaks > 0) & (peaks <= bound)
    middle = np.exp(np.log(factors[~clear] if not clear.all() else factors).mean())
    room = bound / np.where(clear, peaks, bound)
    return np.where(clear, np.clip(factors / middle, 1 / MOST, np.minimum(MOST, room)), 1.0)
