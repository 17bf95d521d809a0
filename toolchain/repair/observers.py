"""Choose the observer whose range each tensor takes, by the error at the outputs of the network; a step of a repair."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from quant.calibrate import OBSERVERS, ObservedRanges, ObserverName, default_observer, observe_all
from quant.fit_sample import Sample
from quant.observe import Range
from quant.repair.choices import Quantization, StepOutcome
from quant.structural_ranges import AdjustedRanges, adjust_ranges
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.repair.evaluate_outputs import LEAST_GAIN_DB, OutputEvaluator, pick_trial_samples
from toolchain.repair.float_room import add_room
from toolchain.repair.network import Network, Progress

TRIALS = 12  # ways to choose that are looked at
_SAME_RANGE = 0.02  # ranges whose ends differ by less of their span are one

Choice = dict[str, ObserverName]


def choose_observers(
    network: Network,
    before: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    measured: Iterable[Sample] | None = None,
) -> StepOutcome:
    """Return the quantization with the ranges that a search over all observers chooses for each tensor.

    One pass over the samples gives the ranges of all observers. First the best observer for all tensors is taken. Then halves
    and smaller groups of the tensors try the ranges of the others, and keep them where the outputs of a few samples gain. At
    most TRIALS variants are evaluated. Tensors between the steps of a decomposed operator keep the machine's own observer.

    `measured`: the samples of that pass; None means `samples`.
    """
    observations = _observe(network, samples if measured is None else measured, progress)
    search = _Search(network, before, observations, OutputEvaluator(pick_trial_samples(samples)), progress)
    chosen = search.run()
    adjusted = _adjusted(network, observations, chosen)
    counts = {o: sum(c == o for c in chosen.values()) for o in OBSERVERS}
    observer_counts = ", ".join(f"{o} {n}" for o, n in counts.items() if n)

    def measure(others: Iterable[Sample]) -> AdjustedRanges:
        return _adjusted(network, _observe(network, others, progress), chosen)

    new_ranges = {**adjusted.ranges, **network.selection.file_ranges}
    return StepOutcome(
        replace(before, ranges=new_ranges), notes=(f"ranges of tensors: {observer_counts}", *adjusted.notes), measure=measure
    )


def _observe(network: Network, samples: Iterable[Sample], progress: Progress) -> ObservedRanges:
    """Return what the samples show of each tensor, from which every observer's ranges follow."""
    model = network.model
    return observe_all(
        model.proto,
        samples,
        network.tensors,
        progress=lambda done, total: progress("observe", done, total),
        computed_by=model,
        decomposition=model.decomposition,
    )


def _adjusted(network: Network, seen: ObservedRanges, chosen: Choice) -> AdjustedRanges:
    """Return the ranges that the chosen observers give, adjusted as calibration does."""
    model = network.model
    ranges = _mix_ranges({o: seen.ranges(o, network.chip.numerics) for o in set(chosen.values())}, chosen)
    adjusted = adjust_ranges(model.proto, ranges, model.decomposition, model.name)
    return replace(adjusted, ranges=add_room(adjusted.ranges, network, network.requested_types))


def _mix_ranges(ranges: Mapping[ObserverName, Mapping[str, Range]], chosen: Choice) -> dict[str, Range]:
    return {name: ranges[observer][name] for name, observer in chosen.items()}


@dataclass
class _Search:
    """The search for the observers; `run` returns the observer of each tensor."""

    network: Network
    before: Quantization
    observations: ObservedRanges
    judge: OutputEvaluator
    progress: Progress
    _trials: int = 0

    def run(self) -> Choice:
        """Return the observer of each tensor."""
        numerics = self.network.chip.numerics
        ranges: dict[ObserverName, dict[str, Range]] = {o: self.observations.ranges(o, numerics) for o in OBSERVERS}
        spared: Choice = dict.fromkeys(list_inner_tensors(self.network.model), default_observer(numerics))
        uniform: dict[ObserverName, Choice] = {o: {n: spared.get(n, o) for n in ranges[o]} for o in OBSERVERS}
        levels = {o: self._decibels(ranges, uniform[o]) for o in OBSERVERS}
        order = sorted(OBSERVERS, key=lambda o: -levels[o])
        chosen, level = uniform[order[0]], levels[order[0]]
        for other in order[1:]:
            room = TRIALS - self._trials if other == order[-1] else (TRIALS - self._trials + 1) // 2
            chosen, level = self._flip_observers(ranges, chosen, level, other, self._trials + room)
        return chosen

    def _flip_observers(
        self,
        ranges: Mapping[ObserverName, Mapping[str, Range]],
        chosen: Choice,
        level: float,
        other: ObserverName,
        limit: int,
    ) -> tuple[Choice, float]:
        """Let groups of tensors take the other observer's range where that gains, larger groups first, and return choice and
        level.

        `limit`: number of trials, over all calls, at which it ends.
        """
        order = {name: i for i, name in enumerate(self.network.model.types)}
        differing = sorted(
            (n for n, o in chosen.items() if not _is_same_range(ranges[o][n], ranges[other][n])), key=lambda n: (order[n], n)
        )
        groups = deque(_halves(differing))  # the whole was tried already
        while groups and self._trials < limit:
            group = groups.popleft()
            trial: Choice = {**chosen, **dict.fromkeys(group, other)}
            trial_level = self._decibels(ranges, trial)
            if trial_level > level + LEAST_GAIN_DB:
                chosen, level = trial, trial_level
            else:
                groups.extend(_halves(group))
        return chosen, level

    def _decibels(self, ranges: Mapping[ObserverName, Mapping[str, Range]], chosen: Choice) -> float:
        """Return the mean level of the outputs in dB with these observers; -inf where the machine cannot express their
        ranges."""
        self._trials += 1
        self.progress("choose ranges", self._trials, TRIALS)
        model = self.network.model
        adjusted = adjust_ranges(model.proto, _mix_ranges(ranges, chosen), model.decomposition).ranges
        try:
            roomy = add_room(adjusted, self.network, self.network.requested_types)
            trial_ranges = {**roomy, **self.network.selection.file_ranges}
            return self.judge.verdict(self.network, replace(self.before, ranges=trial_ranges)).decibels
        except CompileError:  # the machine cannot express these
            return float("-inf")


def list_inner_tensors(model: NormalModel) -> list[str]:
    """Return the tensors between the steps of decomposed operators, in graph order; empty where none was decomposed.

    The search leaves them alone. A square or a sum that is clipped there is wrong for a rare sample, which a trial may not
    hold.
    """
    if model.undivided is None:
        return []
    return [n for node in model.graph.nodes for n in node.outputs if n not in model.undivided.types]


def _halves(names: list[str]) -> list[list[str]]:
    middle = len(names) // 2
    return [names[:middle], names[middle:]] if middle else []


def _is_same_range(a: Range, b: Range) -> bool:
    """Return whether both ends differ by at most 2 % of the larger span."""
    span = max(a.span, b.span)
    return abs(a.low - b.low) <= _SAME_RANGE * span and abs(a.high - b.high) <= _SAME_RANGE * span
