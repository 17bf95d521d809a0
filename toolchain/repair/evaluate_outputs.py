"""How far a quantized network is from float on samples that no step saw: what decides whether a step is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from quant.fit_sample import Sample
from quant.float_session import FloatSession
from quant.producer_links import Links
from quant.repair.choices import Quantization
from toolchain.errors import format_count
from toolchain.ir.graph import INNER, Graph, OnnxOp
from toolchain.ir.states import StatePair
from toolchain.ops.data_movement import ModelConcat
from toolchain.repair.network import Network
from toolchain.repair.sample_folds import LEAST_JUDGES, Fold, spread_over
from toolchain.report.fidelity import FidelityPart, Measured, real_values
from toolchain.runtime import Run

CEILING_DB = 60.0  # beyond it a part counts as exact: what is gained there is nobody's gain
FLOOR_DB = -20.0
LEAST_GAIN_DB = 0.05  # a step that gains less is not worth what it changes
CHANCE = 2.0  # standard errors of the mean gain of the samples: what is within them may be chance
MOST_LOST_DB = 0.5  # by one part, whatever the others gain
MOST_DOUBTED_DB = 1.0  # that a part's mean sample may lose as far as its standard error tells
LEAST_PROBABILITY = 1e-9  # smaller ones are as good as this
TRIED_ON = 8  # samples, by steps that choose between ways...
EVERY = 3  # ...one of so many that they see, where it is not known how many there are, so that like ones do not fill the trial
_SAME = 1e-4  # of the largest magnitude: states that differ by less are the same, computed in another order
_KEPT_BYTES = 64 << 20  # of float's values that stay in memory


@dataclass(frozen=True)
class OutputQuality:
    """SQNR of each output and of each operand of a Concat that an output is made of: `parts` over all samples, `each` by its
    name, dB of every sample."""

    parts: tuple[FidelityPart, ...]
    each: Mapping[str, tuple[float, ...]]

    @property
    def decibels(self) -> float:
        """The mean over the parts."""
        return float(np.mean([_held(p.sqnr_db) for p in self.parts])) if self.parts else CEILING_DB

    def objection(self, before: OutputQuality, *, tested: bool = True) -> str | None:
        """Why this is no better than `before`, or None where it is. What only one of them has is not compared. tested: a paired
        test over the samples says too whether the gain is more than chance."""
        pairs = self._pairs(before)
        if not pairs:
            return "no output to judge it by"
        gain = float(np.mean([after - was for _, was, after in pairs]))
        if gain < LEAST_GAIN_DB:
            return format_gain(gain)
        chance = _by_chance(np.mean([self._gains(before, name) for name, *_ in pairs], axis=0)) if tested else None
        return None if chance is None else f"{format_gain(gain)}, {chance}"

    def losses(self, before: OutputQuality, plain: OutputQuality) -> dict[str, str]:
        """Why it may not be, by the tensor of each part that this takes something from: MOST_LOST_DB of what it had `before`, or
        so much that it is not sure to be as good as `plain`, whatever the others gain."""
        fallen = [(name, was, after) for name, was, after in self._pairs(before) if after < was - MOST_LOST_DB]
        fallen += [(name, was, after) for name, was, after in self._pairs(plain) if after < was - LEAST_GAIN_DB]
        found = {name: f"{name} falls from {was:.2f} to {after:.2f} dB" for name, was, after in reversed(fallen)}
        for name, *_ in self._pairs(plain):
            mean, error = _mean_and_error(self._gains(plain, name))
            if mean - error < -MOST_DOUBTED_DB:
                found.setdefault(name, f"{name} may fall: {mean:+.2f} dB a sample, with a standard error of {error:.2f}")
        return {p.tensor: found[p.name] for p in self.parts if p.name in found}

    def _pairs(self, before: OutputQuality) -> list[tuple[str, float, float]]:
        """Of parts that both have: name, dB before and here."""
        earlier = {p.name: _held(p.sqnr_db) for p in before.parts}
        return [(p.name, earlier[p.name], _held(p.sqnr_db)) for p in self.parts if p.name in earlier]

    def _gains(self, before: OutputQuality, name: str) -> NDArray[np.float64]:
        """dB of each sample."""
        return np.subtract(self.each[name], before.each[name])


def pick_trial_samples(samples: Iterable[Sample]) -> list[Sample]:
    """Those that a step chooses between ways by: of what it sees some that are spread over the whole, where that is known, since
    sequences begin in silence and data often lies in the order of its kinds."""
    if isinstance(samples, Fold) and samples.count is not None:
        return list(spread_over(samples, TRIED_ON))
    return list(islice(samples, 0, EVERY * TRIED_ON, EVERY))


def _by_chance(gains: NDArray[np.float64]) -> str | None:
    """gains: dB of each sample. Why they may come from the choice of samples; None where their mean is beyond CHANCE standard
    errors."""
    if gains.size < LEAST_JUDGES:
        return f"on {format_count(gains.size, 'sample')}: it takes {LEAST_JUDGES} to tell"
    mean, error = _mean_and_error(gains)
    return None if mean > CHANCE * error else f"which may be chance: {mean:.2f} dB a sample, with a standard error of {error:.2f}"


def _mean_and_error(gains: NDArray[np.float64]) -> tuple[float, float]:
    """The standard error of the mean; 0 of a single sample."""
    return float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(gains.size) if gains.size > 1 else 0.0


def _held(decibels: float) -> float:
    return FLOOR_DB if math.isnan(decibels) else min(max(decibels, FLOOR_DB), CEILING_DB)


@dataclass
class OutputEvaluator:
    """samples: the same each time they are iterated. Float's values are computed once for a model, and kept where few.

    Where the model has states they are judged like outputs, and a sample that follows the one before, as its states say, begins
    with what the integers left: what a state loses comes back at every later step.

    An output that a Softmax makes is judged by the logarithms of its probabilities, of the chip's by the scores that it reads.
    Probabilities themselves hang on the few places where two classes are near each other: of the strings of a recognizer some are
    at 5 dB and others at 40, and no gain of a step is beyond chance.
    """

    samples: Iterable[Sample]
    _values: dict[int, tuple[object, list[dict[str, np.ndarray]]]] = field(default_factory=dict)

    def verdict(self, network: Network, quantization: Quantization) -> OutputQuality:
        """By the integer reference. Raises CompileError: the machine cannot express the quantization."""
        session, states = network.session(quantization), _Sequence(network.model.states)
        told, softmaxes = _told_parts(network), _softmaxes(network)
        measured, each = Measured(session.container, told, states=True), dict[str, list[float]]()
        wanted = tuple(dict.fromkeys([*measured.wanted, *(s.scores for s in softmaxes)]))
        for sample, values in self._with_values(network, wanted):
            run = session.run_detailed(states.begun(sample))
            states.ended(values, run)
            for softmax in softmaxes:
                real, own = softmax.judged(values, run, session.container.graph)
                values = {**values, softmax.output: real}
                run = replace(run, outputs={**run.outputs, softmax.output: own})
            alone = Measured(session.container, told, states=True)
            for sums in (measured, alone):
                sums.update(values, run)
            for part in (*alone.outputs, *alone.concats):
                each.setdefault(part.name, []).append(_held(part.sqnr_db))
        return OutputQuality((*measured.outputs, *measured.concats), {name: tuple(levels) for name, levels in each.items()})

    def _with_values(self, network: Network, wanted: Sequence[str]) -> Iterable[tuple[Sample, Mapping[str, np.ndarray]]]:
        model = network.model
        if id(model) in self._values:
            yield from zip(self.samples, self._values[id(model)][1], strict=True)
            return
        session, kept, room = FloatSession(model, wanted), list[dict[str, np.ndarray]](), _KEPT_BYTES
        for sample in self.samples:
            values = dict(zip(wanted, session.run(sample), strict=True))
            room -= sum(v.nbytes for v in values.values())
            if room >= 0:
                kept.append(values)
            yield sample, values
        if room >= 0:
            self._values = {id(model): (model, kept)}  # of the latest model alone; held, so that its id stays its own


class _Sequence:
    """The states of integers from sample to sample, as far as one follows the other."""

    def __init__(self, pairs: Sequence[StatePair]) -> None:
        self._pairs = pairs
        self._real: dict[str, np.ndarray] = {}  # by the input that they are next: float's, and the integers'
        self._own: dict[str, np.ndarray] = {}

    def begun(self, sample: Sample) -> Sample:
        follows = bool(self._real) and all(_alike(sample[name], value) for name, value in self._real.items())
        return {**sample, **self._own} if follows else sample

    def ended(self, values: Mapping[str, np.ndarray], run: Run) -> None:
        self._real = {pair.past: values[pair.present] for pair in self._pairs}
        self._own = {pair.past: run.real[pair.present] for pair in self._pairs}


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=0, atol=_SAME * float(np.abs(b).max(initial=0)))


@dataclass(frozen=True)
class _Softmax:
    """That makes an output of the model. hosted: by the host, whose probabilities are exact; the chip's are codes, most of them
    0."""

    output: str
    scores: str
    axis: int
    hosted: bool

    def judged(self, values: Mapping[str, np.ndarray], run: Run, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        """What float's and the integers' outputs are judged by. graph: of the integers."""
        if self.hosted:
            return self._in_logs(values[self.output]), self._in_logs(run.outputs[self.output])
        real = values[self.scores]
        for code, origin in graph.origins.items():
            if origin.tensor == self.scores and origin.layout != INNER and code in run.codes:
                own = real_values(run.codes[code], graph, code, origin.layout)
                if own.shape == real.shape:  # and not its rows alone
                    return self._from_scores(real), self._from_scores(own)
        return values[self.output], run.outputs[self.output]

    def _in_logs(self, probabilities: np.ndarray) -> np.ndarray:
        return self._less_mean(np.log(np.maximum(probabilities, LEAST_PROBABILITY)))

    def _from_scores(self, scores: np.ndarray) -> np.ndarray:
        """The same as from probabilities but for the least of them."""
        least = math.log(LEAST_PROBABILITY)
        return self._less_mean(np.maximum(scores - scores.max(self.axis, keepdims=True), least))

    def _less_mean(self, logarithms: np.ndarray) -> np.ndarray:
        """The mean along the axis says nothing."""
        return logarithms - logarithms.mean(self.axis, keepdims=True)


def _softmaxes(network: Network) -> list[_Softmax]:
    model = network.model.undivided or network.model
    hosted = {n.outputs[0] for n in network.selection.graph.nodes if isinstance(n.op, OnnxOp)}
    return [
        _Softmax(n.outputs[0], n.inputs[0], n.op.attributes.get("axis", -1), n.outputs[0] in hosted)
        for n in model.graph.nodes
        if n.op.op_type == "Softmax" and n.outputs[0] in network.model.graph.outputs
    ]


def _told_parts(network: Network) -> dict[str, list[tuple[str, str]]]:
    """Of the Concats that reach an output as they are: what is small in an output is judged by itself."""
    graph = Links(network.model.proto.graph)
    constants = frozenset(network.model.graph.constants)
    return {
        node.name: [network.origins[name] for name in node.inputs]
        for node in network.selection.graph.nodes
        if isinstance(node.op, ModelConcat) and graph.outputs_reached(network.origins[node.outputs[0]][0], constants)
    }


def format_gain(decibels: float) -> str:
    """In words."""
    return f"the outputs {'gain' if decibels >= 0 else 'lose'} {abs(decibels):.2f} dB"
