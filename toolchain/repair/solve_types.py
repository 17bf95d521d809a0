"""Choose wider codes for the tensors whose rounding costs the outputs most, as far as a budget of cycles has room.

It is the step `types` of a repair. Each tensor is rounded by itself in the float network, and the noise of every part of every
output is measured. Tensors come in the order of the noise that they take for their price. The cost model says how many of them
are within the budget, and runs of the integers how many of those are needed (repair.type_trials).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log10
from typing import Any

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.float_session import FloatSession
from quant.part_sums import PartSums
from quant.repair.choices import Alternative, Gain, Measure, Quantization, StepOutcome
from quant.structural_ranges import AdjustedRanges
from toolchain.errors import CompileError, format_count, percent
from toolchain.frontend import NormalModel
from toolchain.frontend.source_names import MOVES
from toolchain.ir.graph import INNER, Quant
from toolchain.repair.evaluate_outputs import PART_GAIN_DB, SAME_DB, OutputEvaluator, list_softmaxes, pick_trial_samples
from toolchain.repair.network import Network, Progress
from toolchain.repair.norm_streams import list_norm_streams
from toolchain.repair.type_trials import TypeTrials, get_operator, measure_ranges_of_types
from toolchain.report.host_metrics import MACS
from toolchain.report.model_with_tensor import ModelWithTensor, list_ends

MAX_SLOWDOWN = 1.1  # docs/repair.md: times the cycles of the network without wider codes
_SAMPLES, _ELEMENTS = 4, 1 << 25  # docs/repair.md: of which sensitivity is measured, fewer of networks with more elements
_MACS_A_BYTE = 64  # docs/repair.md: products that cost what a byte costs, in the order of tensors alone
_COARSE_LOSS = 0.01  # docs/repair.md: codes leave 20 dB of the median row
DEAR_MACS = 1e10  # docs/repair.md: beyond them norms come first: MiniLM has 2e11, and measuring took 380 CPU s
FAST_MACS = 1e12  # docs/repair.md: a detector has 6e11, which take 30 CPU s
_MEASURED_MACS = 2e11  # docs/repair.md: products for which a sample more is measured: some 10 CPU s
_GOOD_DB = 20.0  # docs/repair.md: of the outputs by corrected biases, which rounding mends without wider codes
_LEAST_SHARE = 0.001  # docs/repair.md: of the noise of all tensors: what adds less comes last
_NAMED = 6  # docs/repair.md: tensors in a note


def solve_types(
    network: Network,
    before: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    measured: Iterable[Sample] | None = None,
    remeasure: Measure | None = None,
    dear_macs: float = DEAR_MACS,
    most_macs: float = inf,
) -> StepOutcome:
    """Return the quantization with the machine's next wider codes for some tensors.

    Networks whose tensors are dear to measure get them around norms that read rows of unlike size, where they have such.

    `dear_macs`: products of the network times its tensors, beyond which measuring is dear.
    `most_macs`: the same, beyond which nothing is measured.
    `measured`: the samples that ranges are measured on; None means `samples`.
    `remeasure`: gives the ranges of `before` of other samples, where an earlier step chose them.
    """
    wide = find_wider_type(network)
    count_cycles = network.count_cycles
    if wide is None or count_cycles is None or network.max_slowdown <= 1:
        return StepOutcome(before)
    few = pick_trial_samples(samples)
    choice = _choose_candidates(network, before, few, progress, (dear_macs, most_macs))
    if not choice.order:
        return StepOutcome(before)
    biases_on = few if choice.hides_behind_biases else ()
    trials = TypeTrials(network, before, wide, choice.list_members(), (OutputEvaluator(few), count_cycles), biases_on)
    trials.measure_ranges(samples if measured is None else measured)
    count, levels = trials.solve(progress, network.max_slowdown)
    alternative = _find_alternative(trials, len(choice.order), count, progress)
    if not count:
        return StepOutcome(before, alternative=alternative)
    quantization = trials.get_tried(count)
    gains = tuple(Gain(network.model.name(s.tensor), s.loss, 0.0) for s in choice.order[:count])
    note = _describe(network, choice, count, trials, levels)
    compose = None if remeasure is None else _compose(network, quantization, remeasure)
    return StepOutcome(quantization, gains=gains, notes=(note,), measure=compose, alternative=alternative)


@dataclass(frozen=True)
class _Sensitivity:
    """The loss of one tensor's rounding: the noise of all parts of the outputs, each over the part's signal.

    `tensor`: for an operator in steps, its output; then the loss is that of all its tensors.
    """

    tensor: str
    loss: float


@dataclass(frozen=True)
class _Candidates:
    """The candidates for wider codes, in the order in which they are taken.

    `groups`: the tensors of each candidate, by its name.
    `is_estimated`: losses are estimates of norms that read rows of unlike size; others are noise of the outputs.
    `hides_behind_biases`: what they give shows only where the biases take out what weights shift.
    """

    order: list[_Sensitivity]
    groups: Mapping[str, Sequence[str]]
    is_estimated: bool
    hides_behind_biases: bool = False

    def list_members(self) -> list[tuple[str, Sequence[str]]]:
        """Return the name and the tensors of each candidate, in order."""
        return [(s.tensor, self.groups[s.tensor]) for s in self.order]


def _choose_candidates(
    network: Network, before: Quantization, few: Sequence[Sample], progress: Progress, limits: tuple[float, float]
) -> _Candidates:
    """Return the norms that read rows of unlike size where tensors are dear to measure, else the tensors as measured.

    `limits`: products of the network times its tensors, beyond which measuring is dear, and beyond which none is measured.
    """
    groups, (dear_macs, most_macs) = list_groups(network), limits
    macs = sum(map(len, groups.values())) * _count_macs(network)
    if macs > dear_macs:
        low, high = network.chip.numerics.activation.limits
        free = {*network.chip_tensors}.difference(_list_pinned(network), network.selection.types)
        streams = list_norm_streams(network.model, groups, free, few[:_SAMPLES], high - low + 1)
        if any(s.loss > _COARSE_LOSS for s in streams):
            order = [_Sensitivity(s.output, s.loss) for s in streams]
            return _Candidates(order, {s.output: s.tensors for s in streams}, is_estimated=True)
    if macs > most_macs or not groups:
        return _Candidates([], {}, is_estimated=True)
    shows = _is_worth_measuring(network, before, groups, few, ())
    hides = not shows and _is_worth_measuring(network, before, groups, few, few)
    if macs > dear_macs and not (shows or hides):
        return _Candidates([], {}, is_estimated=True)
    sensitivities = _measure_all(network, before, groups, few[: count_measured_samples(macs)], progress)
    return _Candidates(_order(network, sensitivities, groups), groups, is_estimated=False, hides_behind_biases=hides)


def _is_worth_measuring(
    network: Network,
    before: Quantization,
    groups: Mapping[str, Sequence[str]],
    few: Sequence[Sample],
    biases_on: Sequence[Sample],
) -> bool:
    """Return whether wider codes for all groups give a part of the outputs enough decibels to look for those that matter.

    None are needed where outputs are good by corrected biases alone.

    `biases_on`: as in `TypeTrials`.
    """
    wide, count_cycles = find_wider_type(network), network.count_cycles
    if wide is None or count_cycles is None:
        return False
    trials = TypeTrials(network, before, wide, list(groups.items()), (OutputEvaluator(few), count_cycles), biases_on)
    trials.measure_ranges(few[:_SAMPLES], few_runs=True)
    if biases_on and trials.find_worst_output(0) >= _GOOD_DB:
        return False
    return trials.find_largest_gain(len(groups)) >= PART_GAIN_DB


def count_measured_samples(macs: float) -> int:
    """Return how many samples the loss of tensors is measured on.

    `macs`: products of the network for one sample, times the number of tensors.
    """
    return max(1, min(_SAMPLES, int(_MEASURED_MACS / max(macs, 1))))


def find_wider_type(network: Network) -> CodeType | None:
    """Return the narrowest activation type of the machine that is wider than its first one, None without one.

    Types of more than 16 bits do not count.
    """
    first, *others = network.chip.code_types
    return min((t for t in others if t.bits > first.bits and not t.is_wide), key=lambda t: t.bits, default=None)


def list_groups(network: Network) -> dict[str, list[str]]:
    """Return the tensors of the first type that the chip holds and nobody gave a type or a scale, in graph order, by group.

    The tensors of an operator in steps are one group, named by the operator's output; every other tensor is a group alone.
    """
    model, first = network.model, network.chip.code_types[0]
    types, producers, pinned = network.code_types, model.graph.producers(), _list_pinned(network)
    groups: dict[str, list[str]] = {}
    for name in (*model.inputs, *(n for node in model.graph.nodes for n in node.outputs)):
        moved = name in producers and producers[name].op.op_type in MOVES
        if types.get(name) is first and name not in pinned and not moved and model.types[name].dtype == "float32":
            groups.setdefault(get_operator(model, name), []).append(name)
    return {output: names for output, names in groups.items() if output not in pinned}


def _list_pinned(network: Network) -> set[str]:
    """Return the tensors that have a type or a scale by the user or the file."""
    model = network.model
    raw = {n for n in (*model.inputs, *model.graph.outputs) if model.name(n) in network.raw_ports}
    return {*network.types, *network.selection.file_ranges} | raw


def _measure_all(
    network: Network, before: Quantization, groups: Mapping[str, Sequence[str]], samples: Sequence[Sample], progress: Progress
) -> list[_Sensitivity]:
    """Return the loss of each group: the sum of its tensors' losses on a few samples."""
    model, candidates = network.model, [name for names in groups.values() for name in names]
    integer = network.integer(before)
    quants: dict[str, Quant] = {}
    for name, origin in integer.origins.items():
        quant = integer.types[name].quant if name in integer.types else None
        if origin.layout != INNER and quant is not None:
            quants.setdefault(origin.tensor, quant)
    elements = sum(model.types[n].elements for n in candidates) + 1
    chosen = samples[: max(1, _ELEMENTS // elements)]
    ends, measured = list_ends(model.graph), [n for n in candidates if n in quants]
    session = FloatSession(model, [*ends, *measured], few_runs=True)
    rows = [dict(zip((*ends, *measured), session.run(sample), strict=True)) for sample in chosen]
    limits = network.chip.numerics.activation.limits
    loss_by_tensor, pairs = dict.fromkeys(candidates, 0.0), list(zip(chosen, rows, strict=True))
    for at, tensor in enumerate(measured):
        progress("measure the loss of each tensor", at, len(measured))
        loss_by_tensor[tensor] = _measure_loss(network, tensor, quants[tensor], limits, ends, pairs)
    losses = {output: sum(loss_by_tensor[n] for n in names) for output, names in groups.items()}
    return [_Sensitivity(output, loss) for output, loss in losses.items()]


def _measure_loss(
    network: Network,
    tensor: str,
    quant: Quant,
    limits: tuple[int, int],
    ends: Sequence[str],
    rows: Sequence[tuple[Sample, Mapping[str, np.ndarray]]],
) -> float:
    """Return the noise over the signal of all parts of the outputs, summed, with one tensor alone rounded to its codes.

    An output of a Softmax counts by the logarithms of its probabilities, as where it is judged.

    `limits`: least and largest code. `rows`: samples with float's values of the tensor and of the ends.
    """
    model = network.model
    within = tensor in model.inputs
    session = FloatSession(model if within else ModelWithTensor(model, tensor), ends, few_runs=True)
    sums, in_logs = {name: PartSums() for name in ends}, {s.output: s.take_logs for s in list_softmaxes(network)}
    for sample, values in rows:
        codes = np.clip(np.rint(values[tensor].astype(np.float64) / quant.scale) + quant.zero_point, *limits)
        rounded = ((codes - quant.zero_point) * quant.scale).astype(np.float32)
        for name, got in zip(ends, session.run({**sample, tensor: rounded}), strict=True):
            judged = in_logs.get(name, np.asarray)
            sums[name].update(judged(values[name]), judged(got))
    return float(sum(s.list_noise_ratios().sum() for s in sums.values()))


def _order(network: Network, sensitivities: Sequence[_Sensitivity], groups: Mapping[str, Sequence[str]]) -> list[_Sensitivity]:
    """Return the groups with the largest loss for their price first; empty where nothing loses.

    Groups with less than a thousandth of all loss come last. They too may be wider, since conversions between types take
    cycles.
    """
    total, price_by_tensor = sum(s.loss for s in sensitivities), _price_tensors(network)
    price = {output: sum(price_by_tensor[n] for n in names) for output, names in groups.items()}
    order = sorted(sensitivities, key=lambda s: (s.loss < _LEAST_SHARE * total, -s.loss / price[s.tensor], s.tensor))
    return order if total else []


def _count_macs(network: Network) -> int:
    """Return the products of the network for one sample."""
    return sum(_count_node_macs(network.model, node) for node in network.model.proto.graph.node)


def _count_node_macs(model: NormalModel, node: Any) -> int:
    """Return the products of an ONNX node for one sample; 0 for an operator without any."""
    if node.op_type not in MACS:
        return 0
    inputs, outputs = ([model.types[n].shape if n else () for n in side] for side in (node.input, node.output))
    return MACS[node.op_type](node, inputs, outputs)


def _price_tensors(network: Network) -> dict[str, float]:
    """Return what a byte more an element costs, by tensor: its transfers, and products whose operand it is."""
    model, prices = network.model, dict[str, float]()
    for name in (*model.inputs, *(n for node in model.graph.nodes for n in node.outputs if n)):
        prices[name] = float(model.types[name].elements)
    for node in model.proto.graph.node:
        macs = _count_node_macs(model, node) / _MACS_A_BYTE
        for name in node.input:
            if name in prices:
                prices[name] += model.types[name].elements + macs
    return prices


def _compose(network: Network, quantization: Quantization, remeasure: Measure) -> Measure:
    """Return the measure of an earlier step's ranges, with those of wider codes."""
    widened = network.with_types(quantization.types)

    def measure(samples: Iterable[Sample]) -> AdjustedRanges:
        adjusted, ranges = remeasure(samples), measure_ranges_of_types(widened, widened.requested_types, samples)
        narrow = {*widened.tensors}.difference(quantization.types)
        earlier = {n: r for n, r in adjusted.ranges.items() if n in narrow}
        return replace(adjusted, ranges={**ranges, **earlier})

    return measure


def _find_alternative(trials: TypeTrials, most: int, count: int, progress: Progress) -> Alternative | None:
    """Return what the step would choose if the budget had room for all groups; None where that is no more than it chooses.

    A build with that budget makes the same trials, so that it chooses the same.

    `most`: number of groups; `count`: how many the step chooses.
    """
    if count == most:
        return None
    try:
        budget = trials.find_budget(most)
        larger_count, _ = trials.solve(progress, budget)
        if larger_count <= count:
            return None
        quantization, slowdown = trials.get_tried(larger_count), trials.get_slowdown(larger_count)
    except CompileError:  # the machine cannot express it
        return None
    tensors = f"{format_count(trials.count_tensors(larger_count), 'tensor')} in {trials.wide}"
    price = f"{slowdown:.2f} times the cycles that the plan expects"
    return Alternative(quantization, tensors, price, f"--max-slowdown {budget:.2f}")


def _describe(network: Network, candidates: _Candidates, count: int, trials: TypeTrials, levels: tuple[float, float]) -> str:
    """Return the note on the chosen tensors: their share of the noise, dB and the cycles.

    `levels`: of the worst part that gains, before and after. Where another part is worse, it is told too.
    """
    chosen, total = candidates.order[:count], sum(s.loss for s in candidates.order)
    named = [s for s in chosen if s.loss >= _LEAST_SHARE * total][:_NAMED] or chosen[:1]
    kind, shares = "tensor", [f"{network.model.name(s.tensor)} ({percent(s.loss / total)} of the noise)" for s in named]
    if candidates.is_estimated:
        levels_in_rows = [f"{network.model.name(s.tensor)} ({-10 * log10(s.loss):.0f} dB in the median row)" for s in named]
        kind, shares = "norm", [f"the sums and steps of {text}" for text in levels_in_rows]
    more = f" and {format_count(len(chosen) - len(named), f'more {kind}')}" if len(chosen) > len(named) else ""
    (before_db, after_db), worst_db = levels, trials.find_worst_of_all(count)
    other = f", one that does not has {worst_db:.1f}" if worst_db < after_db - SAME_DB else ""
    price = f"{trials.get_slowdown(count):.2f} times the cycles that the plan expects"
    return (
        f"codes of {trials.wide} for {', '.join(shares)}{more}: the worst part that gains has {after_db:.1f} dB for "
        f"{before_db:.1f}{other}, in {price}; --type, or type: in a file of --quant, says other"
    )
