"""Judge how accurate a compiled model is: run it and float on samples, compare, name layers to blame, try remedies, apply the
gate.

`evaluate_accuracy` is the last step of a build, behind the check of bits (judging.verify_build). It returns the accuracy's part
of the JSON report, warnings, notes and the failures for which the build is refused. It raises for none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Literal

import numpy as np

from quant.fit_sample import Sample
from quant.float_session import FloatSession
from quant.producer_links import SHAPE_OPS
from toolchain.codegen import Container
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph
from toolchain.report.advice import advise_host
from toolchain.report.error_page import finding_text
from toolchain.report.error_report import ErrorNetwork, ErrorReport, Worst, error_report, worst_layers
from toolchain.report.fidelity import Fidelities, FidelityPart, OutputOperand, fidelity
from toolchain.report.findings import (
    FINE_GAIN_DB,
    Advice,
    AdviceContext,
    LayerError,
    StepAdvice,
    TriedAdvice,
    choose_trial,
    format_trials,
)
from toolchain.report.gate import Evaluation, Gate, Score, failures, run_evaluation
from toolchain.report.part_verdicts import PartVerdict, is_low, judge_parts, list_quiet_notes, output_lines
from toolchain.report.report_text import RANDOM
from toolchain.runtime import Run, Session

JudgedOn = Literal["random inputs", "calibration", "held out", "calib", "judge", "repeated"]
FEW = 4  # samples that a build is judged on where nobody asks for more...
FEW_HELD_OUT = 8  # ...and of those that were held out for it, which are no more


@dataclass(frozen=True)
class JudgedNetwork:
    """An integer network whose outputs are compared with float's, and the session that runs it."""

    container: Container
    session: Session


def _try_none(part: FidelityPart, candidates: Sequence[Advice]) -> list[TriedAdvice]:
    """Try no remedy and return no trials."""
    return []


@dataclass(frozen=True)
class AccuracyInput:
    """The network that is judged, the samples that judge it, and what is needed to blame layers and to try remedies.

    `model`: the canonical float model.
    `judged`: the network that the figures are of. On held-out samples it is one whose calibration did not see them.
    `reference`: the session of the integer network that is written, whose layers are looked at.
    `network`: the same for errors of layers.
    `quantized`: the machine and the options that advice is for.
    `parts`: operands that outputs hold, by the Concat's node.
    `samples`: samples to judge on, which start afresh each time that they are iterated.
    `on`: where they come from.
    `sample_count`: the number of samples; None where it is not known.
    `places`: index of each of the samples in the user's data; empty where they are all of these.
    `others`: further samples, for means of channels alone.
    `try_advice`: tries remedies on an output part and returns what each gains.
    `steps`: advice to leave to the host what the chip computes in steps.
    """

    model: NormalModel
    judged: JudgedNetwork
    reference: Session
    network: ErrorNetwork
    quantized: AdviceContext
    parts: Mapping[str, Sequence[OutputOperand]]
    samples: Iterable[Sample]
    on: JudgedOn
    sample_count: int | None = None
    others: Iterable[Sample] = ()
    places: Sequence[int] = ()
    try_advice: Callable[[FidelityPart, Sequence[Advice]], list[TriedAdvice]] = _try_none
    steps: Sequence[StepAdvice] = ()


@dataclass(frozen=True)
class AccuracyResult:
    """The result of the accuracy evaluation.

    `figures`: figures as in the JSON report, from `outputs` to `score`.
    `warnings`: sentences for the user, on poor parts and on layers.
    `failures`: sentences of the gate, each with what to do; empty where the build passes.
    `errors`: error report of all layers; None where none was requested.
    `notes`: sentences on parts that are far from float where that may not matter, and on steps better left to the host.
    """

    figures: dict[str, Any]
    warnings: tuple[str, ...]
    failures: tuple[str, ...]
    errors: ErrorReport | None
    notes: tuple[str, ...] = ()


def evaluate_accuracy(
    subject: AccuracyInput, first: tuple[Sample, Run], gate: Gate, evaluation: Evaluation | None, reported: bool
) -> AccuracyResult:
    """Measure the accuracy of a build, judge it by the gate, and return the result; nothing is raised for a low one.

    With a gate all samples are run; else the first FEW, or FEW_HELD_OUT of held-out ones. On random inputs no layers are
    blamed.

    `first`: the first sample with the run of the judged network on it; the other samples are run here.
    `evaluation`: the user's function; None without one.
    `reported`: whether the error report of all layers is requested.
    Raise CompileError where the user's function raises, or returns something else than (number, bool).
    """
    few = None if gate else FEW_HELD_OUT if subject.on == "held out" else FEW
    runs = ((s, subject.judged.session.run_detailed(s)) for s in islice(subject.samples, 1, few))
    runs = _CountedRuns(chain([first], runs), evaluation is not None)
    measured = fidelity(
        subject.model,
        subject.judged.container,
        runs,
        subject.parts,
        few=not gate,
        factors=subject.network.factors,
        others=subject.others,
    )
    real, graph = subject.on != RANDOM, subject.model.graph
    suspected = any(p.poor for p in (*measured.outputs, *measured.concats))
    suspected = suspected or any(v.poor for v in judge_parts(measured.outputs, measured.concats, (), ()))
    network, levels = subject.network, measured.levels
    worst = worst_layers(network, subject.samples, levels, subject.quantized, poor=suspected) if real else None
    verdicts = [] if worst is None else _judge(measured, graph, worst)
    errors = _errors(subject) if reported else None
    score = None if evaluation is None else _score(evaluation, subject, runs)
    gated_parts = _parts_by_kind(measured)
    short = gate.shortfalls(gated_parts)
    failed = bool(short) or (score is not None and not score.passed)
    findings = (errors or _errors(subject)).findings if failed else ()
    trials = _Trials(subject, measured.outputs)
    blamed = [(sentence, trials.blame(part, findings)) for sentence, part in short]
    poor = {v.part.name for v in verdicts if v.poor}
    figures = {
        "outputs": [{**p.as_json(), "steps_of": p.steps_of, "poor": p.name in poor} for p in measured.outputs],
        "concats": [{**p.as_json(), "steps_of": p.steps_of, "poor": p.name in poor} for p in measured.concats],
        "poor_parts": [{"part": v.part.name, "poor": v.poor, "why": v.why} for v in verdicts],
        "judged_on": subject.on,
        "judged_samples": runs.run_count,
        "samples_to_judge": subject.sample_count,
        "sample_sqnr_db": [level if math.isfinite(level) else None for level in measured.levels],
        "worst_layers": [],
        "worst_samples": 0 if worst is None else worst.samples,
        "score": None if score is None else {"function": score.function, "value": score.value, "passed": score.passed},
    }
    layers = () if worst is None else worst.layers if errors is None else errors.findings
    lines = [(v, _with_blame(v, sentence, trials, layers) + v.low_text) for v, sentence in output_lines(verdicts)]
    steps = [] if worst is None else trials.try_steps(worst.silent)
    figures["worst_layers"] = [] if worst is None else [trials.with_tried(w).as_json() for w in worst.layers]
    if errors is not None:
        errors = replace(errors, findings=tuple(map(trials.with_tried, errors.findings)))
    quiet = list_quiet_notes(measured.outputs, measured.concats, worst.silent, partial(_name_sample, subject)) if worst else []
    layer_warnings = errors.warnings if errors is not None else worst.warnings if worst is not None else ()
    return AccuracyResult(
        figures,
        (*(line for v, line in lines if v.warns), *gate.list_low_parts(gated_parts), *layer_warnings),
        tuple(failures(blamed, score, findings[0] if findings else None)),
        errors,
        (*(line for v, line in lines if not v.warns), *quiet, *steps),
    )


def _name_sample(subject: AccuracyInput, index: int) -> str:
    """Return how the user finds a sample that judges: its index in the data, from 0."""
    option = "--judge" if subject.on == "judge" else "--calib"
    return f"sample {subject.places[index] if subject.places else index} of {option}"


def _parts_by_kind(measured: Fidelities) -> dict[str, Sequence[FidelityPart]]:
    """Return the parts that the gate compares, by the word that its sentences use."""
    slices = [s for part in measured.outputs for s in part.list_slices()]
    return {"output": measured.outputs, "concat operand": measured.concats, "part": slices}


def _judge(measured: Fidelities, graph: Graph, worst: Worst) -> list[PartVerdict]:
    """Return the verdicts on all parts that are far from float."""
    parts = (*measured.outputs, *measured.concats)
    lost = {p.name for p in parts if p.poor and not worst.lost.isdisjoint(_find_upstream_tensors(graph, p.tensor))}
    return judge_parts(measured.outputs, measured.concats, lost, worst.silent)


def _with_blame(verdict: PartVerdict, sentence: str, trials: _Trials, findings: Sequence[LayerError]) -> str:
    """Return the sentence on an output with the layer to blame for its poor part, and the remedies that were tried.

    A slice of unlike size has no such layer: its output's one scale is too coarse for it.
    """
    if not verdict.warns:
        return sentence
    to_blame = trials.blame(verdict.part, findings if verdict.poor and verdict.kind != "part" else ())
    if verdict.kind == "part":
        sentence += f"; its values are {verdict.part.size_ratio:.3g} times smaller than others of {verdict.part.tensor}"
    if to_blame is not None:
        return f"{sentence}; {finding_text(to_blame)}"
    return "; ".join(filter(None, (sentence, trials.text_of(verdict.part))))


class _Trials:
    """The remedies tried on each output; each output is tried once, and later parts of it get the same text."""

    def __init__(self, subject: AccuracyInput, outputs: Sequence[FidelityPart]) -> None:
        self._subject, self._outputs = subject, {part.name: part for part in outputs}
        self._text_by_output: dict[str, str] = {}
        self._tried_by_layer: dict[str, str] = {}
        self._untried_steps = list(subject.steps)

    def blame(self, part: FidelityPart, findings: Sequence[LayerError]) -> LayerError | None:
        """Return the first finding that the part depends on, with what its remedies gave; None where there is none.

        The first call for an output tries remedies on it, also without a finding: the finding's, steps, and the part's last
        nodes on the host.
        """
        finding = _blame(self._subject.model.graph, part.tensor, findings)
        output = next((name for name in part.outputs if name in self._outputs), None)
        if output is not None and output not in self._text_by_output:
            steps = self._take_steps(part, True)
            in_steps = {advice.text for advice in steps}
            ends = [advice for advice in self._list_ends(part) if advice.text not in in_steps]
            candidates = [*(r for r in (finding.advice if finding else ()) if r.can_be_tried), *steps, *ends]
            candidates = list({r.text: r for r in candidates}.values())
            self._text_by_output[output] = format_trials(self._subject.try_advice(self._outputs[output], candidates))
        if finding is None:
            return None
        self._tried_by_layer.setdefault(finding.name, self._text_by_output.get(output or "", ""))
        return self.with_tried(finding)

    def try_steps(self, silent: Collection[str]) -> list[str]:
        """Return a sentence for each output that gains by leaving steps to the host, or keeps its accuracy in much less time.

        Outputs that are not low must gain FINE_GAIN_DB. Each remedy is tried on the lowest output that depends on it.

        `silent`: tensors whose values 16 bits cannot hold.
        """
        sentences: list[str] = []
        for part in sorted(self._outputs.values(), key=lambda part: part.judged_db):
            low = is_low(part, silent)
            candidates = self._take_steps(part, low)
            trials = self._subject.try_advice(part, candidates) if candidates else []
            trials = [trial for trial in trials if low or trial.is_faster or trial.gain_db >= FINE_GAIN_DB]
            if choose_trial(trials) is not None:
                sentences.append(f"output {part.name}: of operators that the chip computes in steps, {format_trials(trials)}")
        return sentences

    def _take_steps(self, part: FidelityPart, low: bool) -> list[Advice]:
        """Return remedies for steps that a part depends on, and drop them from those that are left to try.

        Of a part that is not low only those that are always tried are taken.
        """
        upstream = _find_upstream_tensors(self._subject.model.graph, part.tensor)
        read = [steps for steps in self._untried_steps if not upstream.isdisjoint(steps.tensors)]
        chosen = [steps for steps in read if low or steps.is_always_tried]
        self._untried_steps = [steps for steps in self._untried_steps if steps not in chosen]
        return [steps.advice for steps in chosen]

    def text_of(self, part: FidelityPart) -> str:
        """Return what remedies gave on the part's output; an empty text where none was tried."""
        return next((self._text_by_output[name] for name in part.outputs if name in self._text_by_output), "")

    def with_tried(self, finding: LayerError) -> LayerError:
        """Return the finding with the text of what its remedies gave."""
        return replace(finding, tried=self._tried_by_layer.get(finding.name, ""))

    def _list_ends(self, part: FidelityPart) -> list[Advice]:
        """Return two remedies: the host computes the node that makes the part; it computes the node before that too."""
        producers, names, tensor = self._subject.model.graph.producers(), list[str](), part.tensor
        candidates: list[Advice] = []
        while tensor in producers and len(candidates) < 2:
            node = producers[tensor]
            names += node.sources or (node.name,)
            if node.op.op_type not in SHAPE_OPS:
                candidates.append(advise_host(tuple(dict.fromkeys(names))))
            tensor = next((n for n in node.inputs if n in producers), "")
        return candidates


def _errors(subject: AccuracyInput) -> ErrorReport:
    """Return the error report of the written network over all samples; it is expensive."""
    sample_codes = ((s, subject.reference.run_detailed(s).codes) for s in subject.samples)
    return error_report(subject.network, sample_codes, subject.quantized)


class _CountedRuns(Iterator[tuple[Sample, Run]]):
    """An iterator over runs that counts them and, with `keep`, stores samples and outputs."""

    def __init__(self, runs: Iterator[tuple[Sample, Run]], keep: bool) -> None:
        self._runs, self._keep, self.run_count = runs, keep, 0
        self.samples: list[Sample] = []
        self.outputs: list[dict[str, np.ndarray]] = []

    def __next__(self) -> tuple[Sample, Run]:
        sample, run = next(self._runs)
        self.run_count += 1
        if self._keep:
            self.samples.append(sample)
            self.outputs.append(run.outputs)
        return sample, run


def _score(evaluation: Evaluation, subject: AccuracyInput, runs: _CountedRuns) -> Score:
    """Run the user's function on float's and the integer network's outputs of the stored samples, and return its answer."""
    names = [t.name for t in subject.judged.container.outputs]
    session = FloatSession(subject.model, names)
    real = [dict(zip(names, session.run(s))) for s in runs.samples]
    return run_evaluation(evaluation, real, runs.outputs, runs.samples)


def _find_upstream_tensors(graph: Graph, tensor: str) -> set[str]:
    """Return the names of the tensors that `tensor` depends on, and its own."""
    upstream = {tensor}
    for node in reversed(graph.nodes):
        if upstream.intersection(node.outputs):
            upstream.update(n for n in node.inputs if n)
    return upstream


def _blame(graph: Graph, tensor: str, findings: Sequence[LayerError]) -> LayerError | None:
    """Return the first finding whose tensor is `tensor` or one that it depends on; None without any."""
    upstream = _find_upstream_tensors(graph, tensor)
    return next((f for f in findings if f.tensor in upstream), None)
