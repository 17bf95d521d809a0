"""Choose wider codes for the tensors whose rounding costs the outputs most, as far as a budget of cycles has room.

Each tensor is rounded by itself in the float network, and the noise of every part of every output is measured. Tensors come in
the order of the noise that they take for their price. The cost model says how many of them are within the budget. The integers
say how many of those are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from quant.calibrate import calibrate, default_observer
from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.float_session import FloatSession
from quant.observe import Range
from quant.part_sums import PartSums
from quant.repair.choices import Gain, Measure, Quantization, StepOutcome
from quant.structural_ranges import AdjustedRanges, adjust_ranges
from toolchain.errors import CompileError, format_count, percent
from toolchain.frontend import NormalModel
from toolchain.frontend.source_names import MOVES
from toolchain.ir.graph import INNER, Quant
from toolchain.repair.compensate_rounding import offset_zero_points
from toolchain.repair.evaluate_outputs import OutputEvaluator, pick_trial_samples
from toolchain.repair.network import CycleCounter, Network, Progress
from toolchain.report.host_metrics import MACS
from toolchain.report.model_with_tensor import ModelWithTensor, list_ends

MAX_SLOWDOWN = 1.1  # docs/repair.md: times the cycles of the network without wider codes
_SAMPLES, _ELEMENTS = 4, 1 << 25  # docs/repair.md: of which sensitivity is measured, fewer of networks with more elements
_MACS_A_BYTE = 64  # docs/repair.md: products that cost what a byte costs, in the order of tensors alone
_SAME_DB = 0.5  # docs/repair.md: of the worst part: half as many tensors that lose no more are preferred
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
    most_macs: float = inf,
) -> StepOutcome:
    """Return the quantization with the machine's next wider codes for some tensors.

    `most_macs`: of all runs in which one tensor is rounded, a sample each; where they have more, nothing is tried.
    `measured`: the samples that ranges are measured on; None means `samples`.
    `remeasure`: gives the ranges of `before` of other samples, where an earlier step chose them.
    """
    wide = find_wider_type(network)
    count_cycles = network.count_cycles
    if wide is None or count_cycles is None or network.max_slowdown <= 1:
        return StepOutcome(before)
    groups = list_groups(network)
    if sum(map(len, groups.values())) * _count_macs(network) > most_macs:
        return StepOutcome(before)
    few = pick_trial_samples(samples)
    sensitivities = _measure_all(network, before, groups, few, progress)
    order = _order(network, sensitivities, groups)
    trials = TypeTrials(network, before, wide, [s.tensor for s in order], (OutputEvaluator(few), count_cycles))
    trials.measure_ranges(samples if measured is None else measured)
    count, levels = trials.solve(progress)
    if not count:
        return StepOutcome(before)
    quantization, total = trials.quantize(count), sum(s.loss for s in sensitivities)
    gains = tuple(Gain(network.model.name(s.tensor), s.loss, 0.0) for s in order[:count])
    note = _describe(network, order[:count], total, wide, levels, trials.get_slowdown(count))
    compose = None if remeasure is None else _compose(network, quantization, remeasure)
    return StepOutcome(quantization, gains=gains, notes=(note,), measure=compose)


@dataclass(frozen=True)
class _Sensitivity:
    """The loss of one tensor's rounding: the noise of all parts of the outputs, each over the part's signal.

    `tensor`: for an operator in steps, its output; then the loss is that of all its tensors.
    """

    tensor: str
    loss: float


def find_wider_type(network: Network) -> CodeType | None:
    """Return the narrowest activation type of the machine that is wider than its first one, and no wide type."""
    first, *others = network.chip.code_types
    return min((t for t in others if t.bits > first.bits and not t.is_wide), key=lambda t: t.bits, default=None)


def list_groups(network: Network) -> dict[str, list[str]]:
    """Return tensors of the first type that the chip holds and nobody gave a type or a scale, in graph order.
    Those of an operator in steps are one group, by the operator's output.
    """
    model, first = network.model, network.chip.code_types[0]
    types, producers = network.code_types, model.graph.producers()
    pinned = {*network.types, *network.selection.file_ranges}
    pinned |= {n for n in (*model.inputs, *model.graph.outputs) if model.name(n) in network.raw_ports}
    groups: dict[str, list[str]] = {}
    for name in (*model.inputs, *(n for node in model.graph.nodes for n in node.outputs)):
        moved = name in producers and producers[name].op.op_type in MOVES
        if types.get(name) is first and name not in pinned and not moved and model.types[name].dtype == "float32":
            groups.setdefault(_get_operator(model, name), []).append(name)
    return {output: names for output, names in groups.items() if output not in pinned}


def _get_operator(model: NormalModel, tensor: str) -> str:
    """Return the output of the operator that a tensor is a step of, or the tensor itself."""
    output = tensor.partition(": ")[0]
    is_step = model.undivided is not None and tensor not in model.undivided.types and output in model.undivided.types
    return output if is_step else tensor


def _measure_all(
    network: Network, before: Quantization, groups: Mapping[str, Sequence[str]], samples: Sequence[Sample], progress: Progress
) -> list[_Sensitivity]:
    """Return the losses of all groups."""
    model, candidates = network.model, [name for names in groups.values() for name in names]
    integer = network.integer(before)
    quants: dict[str, Quant] = {}
    for name, origin in integer.origins.items():
        quant = integer.types[name].quant if name in integer.types else None
        if origin.layout != INNER and quant is not None:
            quants.setdefault(origin.tensor, quant)
    elements = sum(model.types[n].elements for n in candidates) + 1
    chosen = samples[: max(1, min(_SAMPLES, _ELEMENTS // elements))]
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
    model = network.model
    within = tensor in model.inputs
    session = FloatSession(model if within else ModelWithTensor(model, tensor), ends, few_runs=True)
    sums = {name: PartSums() for name in ends}
    for sample, values in rows:
        codes = np.clip(np.rint(values[tensor].astype(np.float64) / quant.scale) + quant.zero_point, *limits)
        rounded = ((codes - quant.zero_point) * quant.scale).astype(np.float32)
        for name, got in zip(ends, session.run({**sample, tensor: rounded}), strict=True):
            sums[name].update(values[name], got)
    return float(sum(s.list_noise_ratios().sum() for s in sums.values()))


def _order(network: Network, sensitivities: Sequence[_Sensitivity], groups: Mapping[str, Sequence[str]]) -> list[_Sensitivity]:
    """Return the groups with the largest loss for their price first; last those that matter little. They too may be wider, since
    conversions between types take cycles."""
    total, price_by_tensor = sum(s.loss for s in sensitivities), _price_tensors(network)
    price = {output: sum(price_by_tensor[n] for n in names) for output, names in groups.items()}
    order = sorted(sensitivities, key=lambda s: (s.loss < _LEAST_SHARE * total, -s.loss / price[s.tensor], s.tensor))
    return order if total else []


def _count_macs(network: Network) -> int:
    """Return the products of the network for one sample."""
    return sum(_count_node_macs(network.model, node) for node in network.model.proto.graph.node)


def _count_node_macs(model: NormalModel, node: Any) -> int:
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


class TypeTrials:
    """The trials of the first so many groups of an order: what they cost in cycles, and what they leave of the worst part."""

    def __init__(
        self,
        network: Network,
        before: Quantization,
        wide: CodeType,
        order: Sequence[str],
        measures: tuple[OutputEvaluator, CycleCounter],
    ) -> None:
        self._network, self._before, self._wide, self._order = network, before, wide, order
        self._judge, self._counter = measures
        self._ranges: Mapping[str, Range | Quant] = {}
        self._cycles: dict[int, int] = {}

    def measure_ranges(self, samples: Iterable[Sample]) -> None:
        """Measure the ranges of all groups in their wider codes."""
        if self._order:
            network = self._widen(len(self._order))
            self._ranges = _measure_ranges(network, network.said_types, samples)

    def quantize(self, count: int) -> Quantization:
        """Return the quantization with wider codes for the first groups. Raise CompileError where the machine has none."""
        network = self._widen(count)
        wider = [n for n in network.types if n not in self._network.types]
        ranges = {**self._ranges, **self._before.ranges, **{n: self._ranges[n] for n in wider if n in self._ranges}}
        range_by_tensor = {n: r for n, r in ranges.items() if n in {*network.tensors}} | network.get_model_ranges(
            network.said_types
        )
        types = {**self._before.types, **{n: network.types[n] for n in wider}}
        chosen = replace(self._before, ranges=range_by_tensor, types=types)
        if not chosen.offsets:
            return chosen
        return offset_zero_points(network, replace(chosen, offsets={}), (), self._ignore_progress).quantization

    def _ignore_progress(self, *_: object) -> None:
        return None

    def _widen(self, count: int) -> Network:
        """Return the network with wider codes of the first groups."""
        groups = {*self._order[:count]}
        network = self._network.with_types(dict.fromkeys(groups, self._wide))
        first = network.chip.code_types[0]
        inner = [n for n, codes in network.code_types.items() if codes is first and _get_operator(network.model, n) in groups]
        return network.with_types(dict.fromkeys((n for n in inner if n not in network.types), self._wide))

    def solve(self, progress: Progress) -> tuple[int, tuple[float, float]]:
        """Return how many groups of the order to widen, 0 for none, and the worst part in dB before and after."""
        before_db = self.measure_worst_db(0)
        count = self._find_most_within_budget(progress)
        level = self.measure_worst_db(count) if count else before_db
        best = level
        while count > 1 and self._is_within_budget(count // 2):
            half = self.measure_worst_db(count // 2)
            if half < best - _SAME_DB or half <= before_db + _SAME_DB:
                break
            count, level, best = count // 2, half, max(half, best)
        return (count if level > before_db + _SAME_DB else 0), (before_db, level)

    def get_slowdown(self, count: int) -> float:
        """Return the cycles with the first groups over those without."""
        return self.count_cycles(count) / max(self.count_cycles(0), 1)

    def _find_most_within_budget(self, progress: Progress) -> int:
        least, most = 0, len(self._order)
        count = most
        while least < most:
            progress("cycles of wider codes", most - least, None)
            if self._is_within_budget(count):
                least = count
            else:
                most = count - 1
            count = (least + most + 1) // 2
        return least

    def _is_within_budget(self, count: int) -> bool:
        try:
            return self.count_cycles(count) <= self._network.max_slowdown * self.count_cycles(0)
        except CompileError:  # the machine cannot express it
            return False

    def count_cycles(self, count: int) -> int:
        """Return the expected cycles with the first groups wider. Raise CompileError."""
        if count not in self._cycles:
            self._cycles[count] = self._counter(self._widen(count), self.quantize(count))
        return self._cycles[count]

    def measure_worst_db(self, count: int) -> float:
        """Return dB of the worst part with the first groups wider."""
        return self._judge.verdict(self._widen(count), self.quantize(count)).weakest_db


def _measure_ranges(network: Network, types: Mapping[str, CodeType], samples: Iterable[Sample]) -> Mapping[str, Range]:
    """Return the ranges of the network's tensors in the codes of these types, by the machine's own observer."""
    model, numerics = network.model, network.chip.numerics
    ranges = calibrate(
        model.proto,
        samples,
        network.tensors,
        observer=default_observer(numerics),
        numerics=numerics,
        others={name: numerics.of(codes) for name, codes in types.items()},
        computed_by=model,
        divided=model.divided,
    )
    return adjust_ranges(model.proto, ranges, model.divided, model.name).ranges


def _compose(network: Network, quantization: Quantization, remeasure: Measure) -> Measure:
    """Return the measure of an earlier step's ranges, with those of wider codes."""
    widened = network.with_types(quantization.types)

    def measure(samples: Iterable[Sample]) -> AdjustedRanges:
        adjusted, ranges = remeasure(samples), _measure_ranges(widened, widened.said_types, samples)
        earlier = {n: r for n, r in adjusted.ranges.items() if n in widened.tensors and n not in quantization.types}
        return replace(adjusted, ranges={**ranges, **earlier})

    return measure


def _describe(
    network: Network,
    chosen: Sequence[_Sensitivity],
    total: float,
    wide: CodeType,
    levels: tuple[float, float],
    slowdown: float,
) -> str:
    named = [s for s in chosen if s.loss >= _LEAST_SHARE * total][:_NAMED] or chosen[:1]
    shares = [f"{network.model.name(s.tensor)} ({percent(s.loss / total)} of the noise)" for s in named]
    more = f" and {format_count(len(chosen) - len(named), 'more tensor')}" if len(chosen) > len(named) else ""
    before_db, after_db = levels
    return (
        f"codes of {wide} for {', '.join(shares)}{more}: the worst part has {after_db:.1f} dB for {before_db:.1f}, in "
        f"{slowdown:.2f} times the cycles; --type, or type: in a file of --quant, says other"
    )
