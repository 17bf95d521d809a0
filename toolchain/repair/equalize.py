"""Equalization: channels of very unequal size share a scale better when each is multiplied by a factor of its own.

The factors of the tensors between two layers are found from the weights before and behind them, or from the tensors themselves
where weights have a scale for each channel. Relu, pools, sums with one another and depthwise layers let factors through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from quant.calibrate import calibrate, default_observer, observe
from quant.repair.step import Outcome, Quantization
from quant.sample import Sample
from quant.structure import adjust_ranges
from toolchain.errors import counted
from toolchain.ir.graph import OnnxGraph, OnnxNode, OnnxOp
from toolchain.repair.factors import Array, Roles, by_input, channel_axis, clamp_bound, reach, roles, weights_of
from toolchain.repair.judge import EVERY, TRIED_ON, Judge
from toolchain.repair.network import Network, Progress

SWEEPS = 8  # over all groups: what one takes from a layer its neighbours see in the next
MOST = 2.0**6  # between the largest and the smallest factor of a tensor, and 1
_LEAST = 2.0**-10  # of the largest: smaller channels count as this large


@dataclass
class Group:
    """Tensors that carry the same factors: `makers` take them into their weights, `takers` out again; bounds: the Clips
    between them, by their input; undone: nodes of the host that read them through a product."""

    tensors: list[str] = field(default_factory=list)
    makers: list[OnnxNode] = field(default_factory=list)
    takers: list[tuple[OnnxNode, str]] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    host_reads: bool = False
    sound: bool = True
    chip_makers: bool = False


@dataclass(frozen=True)
class _Aim:
    """Factors are sizes behind ** after / sizes before ** before. by_weights: before them the weights that make a channel
    count, where all channels of a layer share a scale; else what was seen of it."""

    by_weights: bool
    before: float
    after: float


_AIMS = (_Aim(True, 0.5, 0.5), _Aim(False, 0.5, 0.5), _Aim(False, 0.5, 0.0), _Aim(False, 1.0, 0.0))


def equalize(network: Network, before: Quantization, samples: Iterable[Sample], progress: Progress) -> Outcome:
    """Factors for all groups of tensors between layers of the chip, and the ranges of the tensors that carry them: of several
    ways to weigh what lies before and behind, the best on a few samples."""
    groups = [g for g in find_groups(network) if g.makers and g.takers]
    if not groups:
        return Outcome(before)
    seen = channel_peaks(network, [t for g in groups for t in g.tensors], samples, progress)
    judge = Judge(list(islice(samples, 0, EVERY * TRIED_ON, EVERY)))
    found = [Outcome(before)]
    levels = [judge.verdict(network, before).decibels]
    for aim in _AIMS:
        if aim.by_weights and network.chip.numerics.weights_per_channel:
            continue
        factors = _balanced(groups, network.model.graph, seen, aim)
        found.append(_with_factors(network, before, factors, (), samples, progress))
        through = network.through(Quantization({}, factors=factors))
        levels.append(judge.verdict(through, found[-1].quantization).decibels)
    return found[int(np.argmax(levels))]


def free_ends(network: Network, before: Quantization, samples: Iterable[Sample], progress: Progress) -> Outcome:
    """Sums that only the host reads stay on the host, and what layers leave for the host alone has its channels in full: a
    scale for all of them would be lost on what the chip never sees."""
    hosted = _hosted_sums(network)
    base = network.through(replace(before, factors={}, hosted=hosted)) if hosted else network
    groups = [g for g in find_groups(base) if g.chip_makers and g.host_reads and not g.takers]
    if not hosted and not groups:
        return Outcome(before)
    seen = channel_peaks(base, [t for g in groups for t in g.tensors], samples, progress)
    factors = {t: f for g in groups for f in [_levelled(seen, g, base.model.graph)] if f is not None for t in g.tensors}
    return _with_factors(network, before, factors, hosted, samples, progress)


def _with_factors(
    network: Network,
    before: Quantization,
    factors: Mapping[str, Array],
    hosted: tuple[str, ...],
    samples: Iterable[Sample],
    progress: Progress,
) -> Outcome:
    """network: gone through what `before` has; factors come on top of it."""
    if not factors and not hosted:
        return Outcome(before)
    scaled = network.through(Quantization({}, factors=factors, hosted=(*before.hosted, *hosted)))
    numerics = network.chip.numerics
    tensors = scaled.tensors
    ranges = calibrate(
        scaled.model.proto,
        samples,
        tensors,
        observer=default_observer(numerics),
        numerics=numerics,
        progress=lambda done, total: progress("ranges of channels", done, total),
        computed_by=scaled.model,
        divided=scaled.model.divided,
    )
    adjusted = adjust_ranges(scaled.model.proto, ranges, scaled.model.divided, scaled.model.name)
    together = {**before.factors, **{t: f * before.factors.get(t, 1.0) for t, f in factors.items()}}
    found = {**adjusted.ranges, **scaled.selection.given}
    made = replace(before, ranges=found, factors=together, hosted=(*before.hosted, *hosted), layers={})
    said = [f"channels of {counted(len(factors), 'tensor')} are scaled"] if factors else []
    said += [f"on the host, since only the host reads them: {', '.join(hosted)}"] if hosted else []
    return Outcome(made, notes=(*said, *adjusted.notes))


# --- groups


def find_groups(network: Network) -> list[Group]:
    """Groups of the model's tensors, in its order, that something on the chip makes or reads. What else the host does with one
    of them gets it without its factors."""
    graph, chip = network.model.graph, _chip_nodes(network)
    found = {node.name: _role(node, graph, node.name in chip) for node in graph.nodes}
    roots = _roots(graph, found)
    groups: dict[str, Group] = {}
    producers, consumers = graph.producers(), graph.consumers()
    for name in roots:
        group = groups.setdefault(roots[name], Group())
        group.tensors.append(name)
        made = producers.get(name)
        given = made is None or name in graph.outputs or graph.types[name].dtype != "float32" or not graph.types[name].shape
        if made is None or given or not (found[made.name].makes or found[made.name].alike):
            group.sound = False
        elif found[made.name].makes:
            group.makers.append(made)
            group.chip_makers |= made.name in chip
        elif (bound := clamp_bound(made, graph)) is not None:
            group.bounds.append(bound)
        for reader in consumers.get(name, ()):
            role = found[reader.name]
            if name in role.takes:
                group.takers.append((reader, name))
            elif name not in role.alike:
                group.sound &= reader.name not in chip
                group.host_reads = True
    return [g for g in groups.values() if g.sound]


def _role(node: OnnxNode, graph: OnnxGraph, on_chip: bool) -> Roles:
    """On the host only what need not be told of factors, or takes them for nothing."""
    role = roles(node, graph)
    return role if on_chip or node.op.op_type in ("LayerNormalization", "Reshape") else Roles()


def _roots(graph: OnnxGraph, found: Mapping[str, Roles]) -> dict[str, str]:
    """Tensor -> the one that stands for its group."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for node in graph.nodes:
        for name in found[node.name].alike:
            parent[root(name)] = root(node.outputs[0])
    named = dict.fromkeys(n for node in graph.nodes for n in (*node.inputs, *node.outputs) if n and n not in graph.constants)
    return {name: root(name) for name in named}


def _chip_nodes(network: Network) -> frozenset[str]:
    """The nodes of the normal form that the chip runs."""
    hosted = {s for n in network.selection.graph.nodes if isinstance(n.op, OnnxOp) for s in (n.name, *n.sources)}
    return frozenset(n.name for n in network.model.graph.nodes if hosted.isdisjoint((n.name, *n.sources)))


def _hosted_sums(network: Network) -> tuple[str, ...]:
    """The model's nodes of sums on the chip that the host alone reads."""
    graph, chip = network.model.graph, _chip_nodes(network)
    consumers = graph.consumers()
    found: list[str] = []
    for node in graph.nodes:
        if node.op.op_type not in ("Add", "Sub") or node.name not in chip or node.outputs[0] in graph.outputs:
            continue
        readers = consumers.get(node.outputs[0], ())
        two = not any(n in graph.constants for n in node.inputs)
        if two and readers and all(r.name not in chip for r in readers):
            found += node.sources or (node.name,)
    return tuple(dict.fromkeys(found))


# --- sizes of channels


class _Peaks:
    """The largest magnitude of each channel."""

    def __init__(self) -> None:
        self.peaks: Array | None = None

    def update(self, x: Array) -> None:
        axis = channel_axis(x.ndim)
        found = np.maximum(
            x.max(tuple(i for i in range(x.ndim) if i != axis)), -x.min(tuple(i for i in range(x.ndim) if i != axis))
        )
        self.peaks = found.astype(np.float64) if self.peaks is None else np.maximum(self.peaks, found)


def channel_peaks(network: Network, tensors: Sequence[str], samples: Iterable[Sample], progress: Progress) -> dict[str, Array]:
    """float64[c] of each tensor, over all samples."""
    sinks = {name: _Peaks() for name in tensors if network.model.types[name].shape}
    if not sinks:
        return {}
    model = network.model
    observe(
        model.proto,
        samples,
        sinks,
        progress=lambda done, total: progress("channels", done, total),
        computed_by=model,
        divided=model.divided,
    )
    return {name: sink.peaks for name, sink in sinks.items() if sink.peaks is not None}


def _levelled(seen: Mapping[str, Array], group: Group, graph: OnnxGraph) -> Array | None:
    """Factors that make all channels of a group as large as its largest."""
    peaks = np.max([seen[t] for t in group.tensors if t in seen], axis=0)
    return _within(peaks.max() / np.maximum(peaks, peaks.max() * _LEAST), group, graph) if peaks.max() > 0 else None


def _balanced(groups: Sequence[Group], graph: OnnxGraph, seen: Mapping[str, Array], aim: _Aim) -> dict[str, Array]:
    layers = {
        n.name: n for g in groups for n in (*g.makers, *(taker for taker, _ in g.takers)) if n.op.op_type != "LayerNormalization"
    }
    sizes = {name: _magnitudes(node, graph) for name, node in layers.items()}
    total = [np.ones(seen[g.tensors[0]].size) for g in groups]
    for _ in range(SWEEPS):
        for at, group in enumerate(groups):
            peaks = np.max([seen[t] for t in group.tensors if t in seen], axis=0) * total[at]
            writers = [sizes[n.name].max(1) for n in group.makers if n.name in sizes]
            made = _relative(writers) if aim.by_weights and writers else _relative([peaks])
            read = _relative([by_input(n, sizes[n.name], peaks.size) for n, _ in group.takers])
            wanted = total[at] * read**aim.after / made**aim.before
            chosen = _within(wanted, group, graph)
            step, total[at] = chosen / total[at], chosen
            for node in group.makers:
                if node.name in sizes:
                    sizes[node.name] = sizes[node.name] * step[:, None]
            for node, _ in group.takers:
                sizes[node.name] = sizes[node.name] / _spread(node, step, sizes[node.name].shape)
    return {t: f for g, f in zip(groups, total) if np.ptp(f) > 0 for t in g.tensors}


def _magnitudes(node: OnnxNode, graph: OnnxGraph) -> Array:
    """float64[o, i / groups]: the largest weight of each pair of channels."""
    weights = np.abs(weights_of(node, graph))
    return weights.reshape(*weights.shape[:2], -1).max(2)


def _spread(node: OnnxNode, factors: Array, shape: tuple[int, ...]) -> Array:
    groups = int(node.op.attributes.get("group", 1)) if node.op.op_type == "Conv" else 1
    return np.repeat(factors.reshape(groups, shape[1]), shape[0] // groups, axis=0)


def _relative(sizes: Sequence[Array]) -> Array:
    """The largest of each channel, each array's largest being 1."""
    return np.max([np.maximum(s / max(s.max(), 1e-30), _LEAST) for s in sizes], axis=0)


def _within(factors: Array, group: Group, graph: OnnxGraph) -> Array:
    """Of one size in the middle, none beyond MOST. Where clamps lie between, 1 for the channels that some data may bring to
    them, and for the others no more than keeps them clear of it: so the clamp moves, and no output changes."""
    if not group.bounds:
        middle = np.exp(np.log(factors).mean())
        return np.clip(factors / middle, 1 / MOST, MOST)
    bound = min(group.bounds)
    peaks = np.max([reach(n, graph) for n in group.makers], axis=0)
    clear = (peaks > 0) & (peaks <= bound)
    middle = np.exp(np.log(factors[~clear] if not clear.all() else factors).mean())
    room = bound / np.where(clear, peaks, bound)
    return np.where(clear, np.clip(factors / middle, 1 / MOST, np.minimum(MOST, room)), 1.0)
