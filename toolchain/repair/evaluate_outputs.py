"""Measure how far a quantized network is from float on samples that no step saw, which decides whether a step is kept.

The steps of a repair call `OutputEvaluator.verdict` for each variant, and `OutputQuality.objection` and `losses` to compare
two. Levels are in dB of SQNR, cut to FLOOR_DB (-20) to CEILING_DB (60), except for `weakest_db`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from quant.fit_sample import Sample
from quant.float_session import FloatSession
from quant.repair.choices import Quantization
from toolchain.errors import format_count
from toolchain.ir.graph import INNER, Graph, OnnxOp
from toolchain.ir.states import StatePair
from toolchain.repair.network import Network
from toolchain.repair.sample_folds import LEAST_JUDGES, Fold, spread_over
from toolchain.report.fidelity import LOW_DB, FidelityPart, OutputMeasurements, find_scores, list_output_operands, real_values
from toolchain.runtime import Run

CEILING_DB = 60.0  # beyond it a part counts as exact: what is gained there is nobody's gain
FLOOR_DB = -20.0
LEAST_GAIN_DB = 0.05  # a step that gains less is not worth what it changes
CHANCE = 2.0  # standard errors of the samples' mean gain: within them it may be chance (docs/repair.md, a paired test)
MOST_LOST_DB = 0.5  # by one part, whatever the others gain
MOST_DOUBTED_DB = 1.0  # that a part's mean sample may lose as far as its standard error tells (docs/repair.md: why)
LEAST_PROBABILITY = 1e-9  # smaller ones are as good as this
SAME_DB = 0.5  # docs/repair.md: of a part: what gains no more counts as the same
PART_GAIN_DB = 3.0  # docs/repair.md: of a part, by wider codes: half a bit
TRIED_ON = 8  # samples, by steps that choose between ways...
EVERY = 3  # ...one of so many that they see, where it is not known how many there are, so that like ones do not fill the trial
_SAME = 1e-4  # of the largest magnitude: states that differ by less are the same, computed in another order
_KEPT_BYTES = 64 << 20  # of float's values that stay in memory


@dataclass(frozen=True)
class OutputQuality:
    """The quality of each output, and of operands of a Concat that makes it, on the evaluator's samples.

    `parts`: quality over all samples.
    `each`: dB of every sample, by the name of the part.
    """

    parts: tuple[FidelityPart, ...]
    each: Mapping[str, tuple[float, ...]]

    @property
    def decibels(self) -> float:
        """Return the mean SQNR over the parts in dB; CEILING_DB without parts."""
        return float(np.mean([_clamp_decibels(p.sqnr_db) for p in self.parts])) if self.parts else CEILING_DB

    @property
    def weakest_db(self) -> float:
        """Return the least SQNR in dB over the parts, their slices and their indices, not cut; CEILING_DB without parts."""
        return min((p.weakest_db for p in self.parts), default=CEILING_DB)

    def list_levels(self) -> dict[str, float]:
        """Return dB of every part, and of its slices and axes, by key (`FidelityPart.list_levels`)."""
        return {key: db for part in self.parts for key, db in part.list_levels().items()}

    def gains_in_parts(self, before: OutputQuality) -> bool:
        """Return whether the worst part that gains does so by PART_GAIN_DB, while the worst of all loses MOST_LOST_DB at
        most."""
        was, after = compare_worst_parts(before.list_levels(), self.list_levels())
        return after >= was + PART_GAIN_DB and self.weakest_db >= before.weakest_db - MOST_LOST_DB

    def describe_gain(self, before: OutputQuality) -> str:
        """Return the gain of the outputs in dB as a clause, or that of the worst part that gains where it is larger."""
        gain = self.decibels - before.decibels
        was, after = compare_worst_parts(before.list_levels(), self.list_levels())
        return format_gain(gain) if gain >= after - was else f"the worst part that gains has {after:.1f} dB for {was:.1f}"

    def objection(self, before: OutputQuality, *, tested: bool = True, least_db: float = LEAST_GAIN_DB) -> str | None:
        """Return why this is no better than `before` by `least_db`, or None where it is. Only parts that both have are
        compared.

        `tested`: the gain must also be beyond chance, by a paired test over the samples.
        """
        pairs = self._pairs(before)
        if not pairs:
            return "no output to judge it by"
        gain = float(np.mean([after - was for _, was, after in pairs]))
        if gain < least_db:
            return format_gain(gain)
        chance = _by_chance(np.mean([self._gains(before, name) for name, *_ in pairs], axis=0)) if tested else None
        return None if chance is None else f"{format_gain(gain)}{chance}"

    def losses(self, before: OutputQuality, plain: OutputQuality) -> dict[str, str]:
        """Return for each part that is harmed why it is, by the part's tensor.

        A part is harmed if it loses more than MOST_LOST_DB against `before` or LEAST_GAIN_DB against `plain`. It is too if its
        mean sample, less a standard error, is MOST_DOUBTED_DB below that of `plain`. Gains of the other parts do not count.

        `before`: quality with the steps kept so far; `plain`: quality without repair.
        """
        fallen = [(name, was, after) for name, was, after in self._pairs(before) if after < was - MOST_LOST_DB]
        fallen += [(name, was, after) for name, was, after in self._pairs(plain) if after < was - LEAST_GAIN_DB]
        loss_by_part = {name: f"{name} falls from {was:.2f} to {after:.2f} dB" for name, was, after in reversed(fallen)}
        for name, *_ in self._pairs(plain):
            mean, error = _mean_and_error(self._gains(plain, name))
            if mean - error < -MOST_DOUBTED_DB:
                loss_by_part.setdefault(name, f"{name} may fall: {mean:+.2f} dB a sample, with a standard error of {error:.2f}")
        return {p.tensor: loss_by_part[p.name] for p in self.parts if p.name in loss_by_part}

    def _pairs(self, before: OutputQuality) -> list[tuple[str, float, float]]:
        """Return name, dB before and dB here of each part that both have."""
        earlier = {p.name: _clamp_decibels(p.sqnr_db) for p in before.parts}
        return [(p.name, earlier[p.name], _clamp_decibels(p.sqnr_db)) for p in self.parts if p.name in earlier]

    def _gains(self, before: OutputQuality, name: str) -> NDArray[np.float64]:
        """Return the gain in dB of each sample of a part."""
        return np.subtract(self.each[name], before.each[name])


def list_gaining_parts(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return dB before and after of each key that gains more than SAME_DB.

    What has no key behind the change, as an axis without indices below LOW_DB, has LOW_DB there at least.

    `before`, `after`: dB by key of `FidelityPart.list_levels`.
    """
    pairs = {key: (db, after.get(key, max(db, LOW_DB))) for key, db in before.items()}
    return {key: (was, now) for key, (was, now) in pairs.items() if now > was + SAME_DB}


def compare_worst_parts(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """Return the least level in dB before and after, among the parts that `list_gaining_parts` finds.

    Both are CEILING_DB where none gains. A part that no codes mend would hide what all others gain.
    """
    gaining = list_gaining_parts(before, after).values()
    return min((was for was, _ in gaining), default=CEILING_DB), min((now for _, now in gaining), default=CEILING_DB)


def pick_trial_samples(samples: Iterable[Sample]) -> list[Sample]:
    """Return at most eight samples by which a step chooses between alternatives, spread over all of its samples.

    Where their number is not known, every third of the first ones is taken.
    """
    if isinstance(samples, Fold) and samples.count is not None:
        return list(spread_over(samples, TRIED_ON))
    return list(islice(samples, 0, EVERY * TRIED_ON, EVERY))


def _by_chance(gains: NDArray[np.float64]) -> str | None:
    """Return why the gains may come from the choice of samples, as the end of a sentence on the gain over all samples.

    It is None where their mean is beyond CHANCE standard errors.

    `gains`: dB of each sample.
    """
    if gains.size < LEAST_JUDGES:
        return f", on {format_count(gains.size, 'sample')}: it takes {LEAST_JUDGES} to tell"
    mean, error = _mean_and_error(gains)
    if mean > CHANCE * error:
        return None
    if mean <= 0:
        return f" over all samples, but the mean sample loses {abs(mean):.2f} dB"
    return f" over all samples; that of the mean sample, {mean:.2f} dB with a standard error of {error:.2f}, may be chance"


def _mean_and_error(gains: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and its standard error, which is 0 of a single sample."""
    return float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(gains.size) if gains.size > 1 else 0.0


def _clamp_decibels(decibels: float) -> float:
    """Return a level cut to FLOOR_DB to CEILING_DB; NaN counts as FLOOR_DB."""
    return FLOOR_DB if math.isnan(decibels) else min(max(decibels, FLOOR_DB), CEILING_DB)


@dataclass
class OutputEvaluator:
    """An evaluator of quantizations on a fixed set of samples.

    States of a model are judged like outputs. A sample that follows the previous one, as its states say, begins with the states
    that the integers left. An output of a Softmax is judged by the logarithms of its probabilities, since few places decide the
    probabilities themselves.

    `samples`: the same samples each time they are iterated. Float values are computed once for a model, and stay in memory
    where they are small.
    """

    samples: Iterable[Sample]
    _values: dict[int, tuple[object, list[dict[str, np.ndarray]]]] = field(
        default_factory=dict[int, tuple[object, list[dict[str, np.ndarray]]]]
    )

    def verdict(self, network: Network, quantization: Quantization) -> OutputQuality:
        """Run the integer reference on the samples and return the quality of its outputs.

        Raise CompileError where the machine cannot express the quantization.
        """
        session, states = network.session(quantization), _Sequence(network.model.states)
        operands = list_output_operands(network.model, network.selection.graph, network.origins)
        softmaxes = list_softmaxes(network)
        scores = find_scores(network.model.graph) - {s.output for s in softmaxes}
        measured = OutputMeasurements(session.container, operands, states=True, scores=scores, keep=True)
        tensor_names = tuple(dict.fromkeys([*measured.tensors, *(s.scores for s in softmaxes)]))
        for sample, values in self._with_values(network, tensor_names):
            run = session.run_detailed(states.begin_sample(sample))
            states.end_sample(values, run)
            for softmax in softmaxes:
                real, chip_values = softmax.make_judged_arrays(values, run, session.container.graph)
                values = {**values, softmax.output: real}
                run = replace(run, outputs={**run.outputs, softmax.output: chip_values})
            measured.update(values, run)
        outputs, joins = measured.list_outputs(), measured.list_operands()
        parts = (*outputs, *joins)
        return OutputQuality(parts, {p.name: tuple(map(_clamp_decibels, measured.list_levels(p))) for p in parts})

    def _with_values(self, network: Network, tensor_names: Sequence[str]) -> Iterable[tuple[Sample, Mapping[str, np.ndarray]]]:
        """Yield each sample with float's values of these tensors."""
        model = network.model
        if id(model) in self._values:
            yield from zip(self.samples, self._values[id(model)][1], strict=True)
            return
        session, cached_values, room = FloatSession(model, tensor_names), list[dict[str, np.ndarray]](), _KEPT_BYTES
        for sample in self.samples:
            values = dict(zip(tensor_names, session.run(sample), strict=True))
            room -= sum(v.nbytes for v in values.values())
            if room >= 0:
                cached_values.append(values)
            yield sample, values
        if room >= 0:
            self._values = {id(model): (model, cached_values)}  # of the latest model alone; held, so that its id stays its own


class _Sequence:
    """The states that the integers leave from sample to sample, as far as one follows the other."""

    def __init__(self, pairs: Sequence[StatePair]) -> None:
        self._pairs = pairs
        self._real: dict[str, np.ndarray] = {}  # by the input that they are next: float's, and the integers'
        self._chip_states: dict[str, np.ndarray] = {}

    def begin_sample(self, sample: Sample) -> Sample:
        """Return the sample, with the integers' own states where its states are those that float left in the sample before."""
        follows = bool(self._real) and all(_are_equal(sample[name], value) for name, value in self._real.items())
        return {**sample, **self._chip_states} if follows else sample

    def end_sample(self, values: Mapping[str, np.ndarray], run: Run) -> None:
        """Take the states that both networks leave."""
        self._real = {pair.past: values[pair.present] for pair in self._pairs}
        self._chip_states = {pair.past: run.real[pair.present] for pair in self._pairs}


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two states are equal but for the order of computation."""
    return a.shape == b.shape and np.allclose(a, b, rtol=0, atol=_SAME * float(np.abs(b).max(initial=0)))


@dataclass(frozen=True)
class OutputSoftmax:
    """A Softmax that makes an output of the model.

    `output`, `scores`: its tensors.
    `hosted`: the host computes it, with exact probabilities; those of the chip are codes, most of them 0.
    """

    output: str
    scores: str
    axis: int
    hosted: bool

    def make_judged_arrays(self, values: Mapping[str, np.ndarray], run: Run, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        """Return the float and the integer arrays by which this output is judged.

        They are logarithms of probabilities: of a hosted Softmax's own, else of those that the chip's scores have. Where the
        chip holds no scores of float's shape, the outputs themselves are returned.

        `values`, `run`: results of the float and of the integer network; `graph`: the graph of the latter.
        """
        if self.hosted:
            return self.take_logs(values[self.output]), self.take_logs(run.outputs[self.output])
        real = values[self.scores]
        for code, origin in graph.origins.items():
            if origin.tensor == self.scores and origin.layout != INNER and code in run.codes:
                chip_scores = real_values(run.codes[code], graph, code, origin.layout)
                if chip_scores.shape == real.shape:  # and not its rows alone
                    return self._from_scores(real), self._from_scores(chip_scores)
        return values[self.output], run.outputs[self.output]

    def take_logs(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the logarithms of probabilities, less their mean along the axis."""
        return self._less_mean(np.log(np.maximum(probabilities, LEAST_PROBABILITY)))

    def _from_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return the logarithms of the probabilities that these scores have, up to a constant, less their mean along the
        axis."""
        least = math.log(LEAST_PROBABILITY)
        return self._less_mean(np.maximum(scores - scores.max(self.axis, keepdims=True), least))

    def _less_mean(self, logarithms: np.ndarray) -> np.ndarray:
        """Return the logarithms less their mean along the axis, which probabilities do not depend on."""
        return logarithms - logarithms.mean(self.axis, keepdims=True)


def list_softmaxes(network: Network) -> list[OutputSoftmax]:
    """Return each Softmax that directly makes an output of the model.

    One whose scores are no tensor of the model in steps is left out, as behind a Transpose that went into another. Its
    probabilities are judged.
    """
    model = network.model.undivided or network.model
    hosted = {n.outputs[0] for n in network.selection.graph.nodes if isinstance(n.op, OnnxOp)}
    return [
        OutputSoftmax(n.outputs[0], n.inputs[0], n.op.attributes.get("axis", -1), n.outputs[0] in hosted)
        for n in model.graph.nodes
        if n.op.op_type == "Softmax" and n.outputs[0] in network.model.graph.outputs and n.inputs[0] in network.model.types
    ]


def format_gain(decibels: float) -> str:
    """Return a gain or a loss in dB as a clause."""
    return f"the outputs {'gain' if decibels >= 0 else 'lose'} {abs(decibels):.2f} dB"
