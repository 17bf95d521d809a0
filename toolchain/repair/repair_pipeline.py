"""Run the steps of a repair in their fixed order, and keep each only where samples that no step saw gain by it.

STEPS lists them for both efforts. A step takes a network, a quantization and samples, and returns another quantization
(`StepOutcome`). Then the integer network is run on the held-out samples (repair.evaluate_outputs), which decides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from quant.fit_sample import Sample
from quant.repair.choices import Alternative, Gain, Measure, Quantization, StepOutcome
from toolchain.errors import CompileError, format_count
from toolchain.repair.compensate_rounding import offset_zero_points
from toolchain.repair.equalize import equalize, free_ends
from toolchain.repair.evaluate_outputs import (
    LEAST_GAIN_DB,
    PART_GAIN_DB,
    OutputEvaluator,
    OutputQuality,
    compare_worst_parts,
    format_gain,
)
from toolchain.repair.network import Network, Progress, Step
from toolchain.repair.observers import choose_observers
from toolchain.repair.probability_sums import LEAST_GAIN_DB as PROBABILITY_GAIN_DB
from toolchain.repair.probability_sums import host_probability_sums
from toolchain.repair.sample_folds import join_folds
from toolchain.repair.solve_types import FAST_MACS, solve_types
from toolchain.repair.weight_rounding import compensate_input_error, correct_biases, round_layer_weights

Effort = Literal["none", "fast", "full"]
FEW_SWEEPS, SWEEPS = 2, 16  # of codes in turn, by the fast and the full effort; few layers take more than ten until none changes
POOR_PART_DB, GOOD_PART_DB = 20.0, 40.0  # docs/repair.md: parts below them get wider codes, by the fast and the full effort
EFFORTS: tuple[Effort, ...] = ("none", "fast", "full")


@dataclass(frozen=True)
class RepairStep:
    """A step of a repair.

    `name`: as reports print it. A step has an entry for each effort where its parameters differ.
    `run`: the function that makes the step's choice.
    `verdicts`: its duration, as a number of evaluations of the held-out samples.
    `efforts`: efforts that run it.
    `instead_of`: a step that makes the same choices in another way. The better of the two is kept, if its gain over the quality
    before both is no chance.
    `by_layer`: it takes `leave`, the layers that it is not to touch.
    `finds_ranges`: it takes `measured`, all samples, to measure its final ranges on.
    `least_db`: gain of the outputs in dB that it must reach to be kept.
    `below_db`: it runs only where a part of the held-out outputs has less dB.
    `remeasures`: it takes `remeasure`, the function that measures the ranges of earlier steps.
    `is_for_parts`: the gain of the worst part that gains keeps it too, if the outputs' mean gains nothing.
    """

    name: str
    run: Step
    verdicts: int = 10
    efforts: tuple[Effort, ...] = ("fast", "full")
    instead_of: str | None = None
    by_layer: bool = False
    finds_ranges: bool = False
    least_db: float = LEAST_GAIN_DB
    below_db: float = math.inf
    remeasures: bool = False
    is_for_parts: bool = False


OBSERVERS_STEP = RepairStep("observers", choose_observers, 10, finds_ranges=True)
STEPS: tuple[RepairStep, ...] = (
    RepairStep("sums of probabilities", host_probability_sums, 2, finds_ranges=True, least_db=PROBABILITY_GAIN_DB),
    RepairStep("region ends", free_ends, 2, finds_ranges=True),
    RepairStep("equalization", equalize, 6, finds_ranges=True),
    OBSERVERS_STEP,
    RepairStep(
        "types",
        partial(solve_types, most_macs=FAST_MACS),
        20,
        ("fast",),
        finds_ranges=True,
        remeasures=True,
        below_db=POOR_PART_DB,
        is_for_parts=True,
    ),
    RepairStep("types", solve_types, 20, ("full",), finds_ranges=True, remeasures=True, below_db=GOOD_PART_DB, is_for_parts=True),
    RepairStep("offsets", offset_zero_points, 4),
    RepairStep("rounding", partial(round_layer_weights, sweeps=FEW_SWEEPS), 40, ("fast",), by_layer=True),
    RepairStep("rounding", partial(round_layer_weights, sweeps=SWEEPS), 45, ("full",), by_layer=True),
    RepairStep("answering", partial(compensate_input_error, sweeps=FEW_SWEEPS), 40, ("fast",), "rounding", by_layer=True),
    RepairStep("answering", partial(compensate_input_error, sweeps=SWEEPS), 45, ("full",), "rounding", by_layer=True),
    RepairStep("second pass", partial(compensate_input_error, sweeps=SWEEPS), 45, ("full",), by_layer=True),
    RepairStep("third pass", partial(compensate_input_error, sweeps=SWEEPS), 45, ("full",), by_layer=True),
    RepairStep("bias", correct_biases, 15, by_layer=True),
)


@dataclass(frozen=True)
class StepResult:
    """The result of one step: the mean SQNR over the parts of the outputs on the held-out samples, in dB, before it and with
    it.

    `after_db`: None where the step changed nothing or the machine cannot express it.
    `is_kept`, `why`: whether the step was kept, and the reason.
    `gains`: gains of the layers that it chose for, on the samples it saw; empty where it was not kept.
    `notes`: what it did; `advice`: what the user may ask for instead and the judge would keep, whether it was kept or not.
    """

    step: str
    before_db: float
    after_db: float | None
    is_kept: bool
    why: str
    gains: tuple[Gain, ...] = ()
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the result with the keys of `RepairStepFigures` in the JSON report."""
        gains = [{"layer": g.layer, "before": g.before, "after": g.after} for g in self.gains]
        levels = {"before_db": round(self.before_db, 3), "after_db": None if self.after_db is None else round(self.after_db, 3)}
        return {"step": self.step, "kept": self.is_kept, "why": self.why, **levels, "notes": list(self.notes), "layers": gains}


@dataclass(frozen=True)
class RepairResult:
    """The repaired network.

    `network`: the network with the factors, types and host nodes that `quantization` asks for.
    `tried`: the steps that ran, in order.
    `held_out`: number of samples that judged.
    `quality`: what these samples say of `quantization`.
    `measure`: measures the ranges that go with the choices, of the latest kept step that has such; None: as without repair.
    """

    network: Network
    quantization: Quantization
    tried: tuple[StepResult, ...]
    held_out: int
    quality: OutputQuality
    measure: Measure | None = None

    def list_low_samples(self) -> list[str]:
        """Return a sentence for each output that is good over all samples that judged, and poor in one of them."""
        worst = {p.name: min(self.quality.each[p.name]) for p in self.quality.parts}
        low = [p for p in self.quality.parts if worst[p.name] < POOR_PART_DB <= p.sqnr_db]
        return [
            f"repair: one of the {self.held_out} samples that judged it has {worst[p.name]:.1f} dB at {p.name}, all of them "
            f"{p.sqnr_db:.1f} dB: other data like it may lose as much"
            for p in low
        ]


def run_repair(
    network: Network,
    quantization: Quantization,
    fit_samples: Iterable[Sample],
    held_out: Sequence[Sample] | Iterable[Sample],
    steps: Sequence[RepairStep],
    progress: Progress,
) -> RepairResult:
    """Run the steps one after another and keep those that help. Same samples give the same result.

    A step by layers that harms a part of the outputs is tried once more with the layers before that part left as they are. A
    step that the machine cannot express is not kept; nothing is raised.

    `network`, `quantization`: calibrated, without repair.
    `fit_samples`: samples that steps see; `held_out`: samples that judge them.
    """
    base, judge, tried, without = network, OutputEvaluator(held_out), list[StepResult](), dict[str, OutputQuality]()
    clock = _Clock(steps, progress)
    best = plain = judge.verdict(network, quantization)
    clock.start()
    measure: Measure | None = None
    everything = join_folds(fit_samples, held_out)
    for at, step in enumerate(steps):
        if best.weakest_db >= step.below_db:
            continue
        earlier = without.get(step.instead_of or "")
        told_to = clock.within(at)
        extra = {"measured": everything} if step.finds_ranges else {}
        extra |= {"remeasure": measure} if step.remeasures else {}
        run = partial(step.run, network, quantization, fit_samples, told_to, **extra)
        attempt = partial(_attempt, base, quantization, step, run, judge, told_to)
        step_attempt = attempt()
        objection, losses = step_attempt.objection(best, earlier), step_attempt.losses(best, plain)
        spared = find_upstream_layers(network, losses) if step.by_layer and losses and objection is None else frozenset[str]()
        if 0 < len(spared) < len(network.weighted):
            step_attempt = attempt(spared)
            objection, losses = step_attempt.objection(best, earlier), step_attempt.losses(best, plain)
        step_result = step_attempt.make_result(best, objection or next(iter(losses.values()), None), len(spared))
        alternative = None if step_attempt.outcome is None else step_attempt.outcome.alternative
        if alternative is not None:
            other = _attempt(base, quantization, step, partial(StepOutcome, alternative.quantization), judge, told_to)
            current = step_attempt.verdict if step_result.is_kept and step_attempt.verdict is not None else best
            if other.objection(best, earlier) is None and not other.losses(best, plain):
                step_result = replace(step_result, advice=other.list_advice(alternative, current))
        tried.append(step_result)
        if step_result.is_kept and step_attempt.outcome is not None and step_attempt.verdict is not None:
            without[step.name] = best
            quantization, best = step_attempt.outcome.quantization, step_attempt.verdict
            network, measure = base.through(quantization), step_attempt.outcome.measure or measure
    return RepairResult(network, quantization, tuple(tried), sum(1 for _ in held_out), best, measure)


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A step that was run: its outcome and the quality of the outputs with it.

    `verdict`: None where there is nothing to judge, for the reason `refusal`.
    `step`: says what it must gain.
    """

    outcome: StepOutcome | None
    verdict: OutputQuality | None
    step: RepairStep
    refusal: str = ""

    def objection(self, best: OutputQuality, without: OutputQuality | None) -> str | None:
        """Return why the step is not kept; None where it gains enough.

        `best`: quality with the steps kept so far.
        `without`: quality before the step that this one stands in for, where that step was kept; else None.
        """
        if self.verdict is None:
            return self.refusal
        if self.step.is_for_parts and self.verdict.gains_in_parts(best):
            return None
        if without is None:
            return self.verdict.objection(best, least_db=self.step.least_db)
        return self.verdict.objection(best, tested=False) or self.verdict.objection(without)

    def losses(self, best: OutputQuality, plain: OutputQuality) -> dict[str, str]:
        """Return the parts of the outputs that the step harms, by tensor of the model, each with a text."""
        return {} if self.verdict is None else self.verdict.losses(best, plain)

    def list_advice(self, alternative: Alternative, current: OutputQuality) -> tuple[str, ...]:
        """Return a sentence on choices that the step's own judge would keep; empty where they gain less than PART_GAIN_DB.

        `alternative`: the choices, which this attempt was of; `current`: quality of what is kept without them.
        """
        if self.verdict is None:
            return ()
        was, after = compare_worst_parts(current.list_levels(), self.verdict.list_levels())
        if max(after - was, self.verdict.decibels - current.decibels) < PART_GAIN_DB or was >= GOOD_PART_DB:
            return ()
        choices = f"{alternative.option} gives {alternative.what}, for {alternative.price}"
        return (f"{choices}: {self.verdict.describe_gain(current)} on the samples that judge repair",)

    def make_result(self, best: OutputQuality, objection: str | None, spared: int) -> StepResult:
        """Return the record of the attempt. objection: why it is not kept, None where it is; spared: number of layers left as
        before."""
        after = None if self.verdict is None else self.verdict.decibels
        notes, gains = ((), ()) if self.outcome is None else (self.outcome.notes, self.outcome.gains)
        spared_note = (
            f", with {format_count(spared, 'layer')} left as before, which parts hang on that would lose" if spared else ""
        )
        gain = "" if self.verdict is None else format_gain(self.verdict.decibels - best.decibels)
        if self.verdict is not None and self.step.is_for_parts:
            gain = self.verdict.describe_gain(best)
        why, is_kept = f"{objection or gain}{spared_note}", objection is None
        return StepResult(self.step.name, best.decibels, after, is_kept, why, gains if is_kept else (), notes)


class _Clock:
    """A reporter of progress: the running step and about how long the remaining steps take.

    The estimate comes from the first verdict before any step has run, then from the duration of the steps.
    """

    def __init__(self, steps: Sequence[RepairStep], progress: Progress) -> None:
        self._steps, self._progress = steps, progress
        self._began = time.monotonic()
        self._verdict_s = 0.0

    def start(self) -> None:
        """Take the time since the clock was made as that of one verdict."""
        self._verdict_s, self._began = time.monotonic() - self._began, time.monotonic()
        left_s = self._verdict_s * sum(s.verdicts for s in self._steps)
        self._progress(f"repair: {len(self._steps)} steps, about {left_s:.0f} s", 0, None)

    def within(self, at: int) -> Progress:
        """Report that step number `at` begins, and return the progress function that it gets."""
        done, remaining_verdicts = (sum(s.verdicts for s in part) for part in (self._steps[:at], self._steps[at:]))
        taken_s = time.monotonic() - self._began
        is_timed = done and taken_s > self._verdict_s  # steps with nothing to do tell nothing
        each_s = taken_s / done if is_timed else self._verdict_s
        label = f"repair {at + 1} of {len(self._steps)}, {self._steps[at].name}, about {each_s * remaining_verdicts:.0f} s left"
        self._progress(label, 0, None)
        return lambda stage, count, total: self._progress(f"{label}: {stage}", count, total)


def _attempt(
    base: Network,
    before: Quantization,
    step: RepairStep,
    run: Callable[..., StepOutcome],
    judge: OutputEvaluator,
    progress: Progress,
    spared: frozenset[str] = frozenset(),
) -> _Attempt:
    """Run a step and evaluate its outcome; a CompileError becomes a refusal.

    `base`: the network before all steps.
    `run`: calls the function of `step`, which starts from `before`.
    `spared`: layers that the step leaves as they are.
    """
    try:
        outcome = run(**{"leave": spared} if spared else {})
        if outcome.quantization is before:
            return _Attempt(outcome, None, step, "it finds nothing to change")
        progress(f"judge {step.name}", 0, None)
        verdict = judge.verdict(base.through(outcome.quantization), outcome.quantization)
        return _Attempt(outcome, verdict, step)
    except CompileError as fault:
        return _Attempt(None, None, step, f"the machine cannot express it: {fault}")


def find_upstream_layers(network: Network, tensors: Iterable[str]) -> frozenset[str]:
    """Return the layers with weights that any of these tensors of the model depends on."""
    graph, producers = network.graph, network.graph.producers()
    target_tensors, reached = set(tensors), set[str]()
    waiting = [*target_tensors, *(name for name, origin in graph.origins.items() if origin.tensor in target_tensors)]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        producer = producers.get(name)
        waiting += producer.inputs if producer is not None else [graph.origins[name].tensor] if name in graph.origins else []
    return frozenset(n.name for n in network.weighted if reached.intersection(n.outputs))
