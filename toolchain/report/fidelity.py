"""Measure how far the integer network is from the float one, in dB of SQNR, over runs of the same samples.

A build calls `fidelity` at its end, and repair feeds `OutputMeasurements` run by run while it compares variants. Compared are
each float output and each operand of a Concat that reaches an output unchanged. One such tensor is a `FidelityPart`, with
figures of its slices, its single indices and its scores. Nothing is judged here: report.part_verdicts decides which parts are
poor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np

from quant.fidelity import POOR_SQNR_DB, ErrorSums, Fidelity, decibels
from quant.float_session import FloatSession
from quant.part_sums import PartSums, TensorSlice
from quant.producer_links import SHAPE_OPS, Links
from toolchain.codegen import Container, Port
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph, OnnxGraph
from toolchain.ops.data_movement import IntegerConcat, ModelConcat
from toolchain.runtime import Run
from toolchain.runtime.ports import to_real

Sample = Mapping[str, np.ndarray]
Factors = Mapping[str, np.ndarray]
UNSCALED: Factors = MappingProxyType({})


FEWEST_FOR_MEANS = 8  # docs/accuracy.md: samples from which on a channel's mean is known well enough to be no signal
SILENT = 1e6  # docs/accuracy.md: times the energy of a sample is less than the mean: nobody hears it
QUIET = 100.0  # docs/accuracy.md: times the energy of a sample is less than the mean: it is no sample to be judged alone
SURE_VALUES = 64  # docs/repair.md: of an index whose figure is within 1 dB of that of all data
LOW_DB = 30.0  # docs/accuracy.md: a part below it is named
SCORE_LEVELS = (0.25, 0.5)  # a score that never passes the first has found nothing
SAME_SCORES = (
    0.9  # docs/accuracy.md: F1 of scores above these levels: the rest of the error is that of small scores, which nobody reads
)
_SCORES = ("Sigmoid", "HardSigmoid", "Softmax")


@dataclass(frozen=True)
class ScoreAgreement:
    """A count of scores that are above a level, summed over both SCORE_LEVELS and all values.

    `both`: scores above the level in the float and in the integer network.
    `one`: scores above it in exactly one of the two.
    `real`: scores above it in float, whatever the integer network has.
    """

    both: int = 0
    one: int = 0
    real: int = 0

    @property
    def f1(self) -> float:
        """Return the F1 score of the integer network against float, from 0 to 1; 1 where no score is above a level in
        either."""
        return 2 * self.both / (2 * self.both + self.one) if self.both + self.one else 1.0

    def __add__(self, other: ScoreAgreement) -> ScoreAgreement:
        return ScoreAgreement(self.both + other.both, self.one + other.one, self.real + other.real)


@dataclass(frozen=True)
class QuietSample:
    """The worst of the samples that are too quiet to be judged alone, and no silence.

    `index`: its index among the samples that judge. `sqnr_db`: its level.
    `times_smaller`: the rms of all samples over its own.
    """

    index: int
    sqnr_db: float
    times_smaller: float


@dataclass(frozen=True)
class FidelityPart(Fidelity):
    """The figures of one output, of one operand of a Concat, or of one slice of these, over all samples.

    `tensor`: the model tensor that the figure describes.
    `steps_of`: for one step of a sequence, the name that all steps share; else None.
    `outputs`: outputs of the model that hold the part.
    `varying_db`: SQNR where the mean of each channel is no signal. It is None where the means are not known or nothing varies.
    `worst_sample_db`: the least SQNR of one sample. Samples of less than a hundredth of the mean energy are left out.
    `standard_error_db`: of `sqnr_db`, from leaving out each sample in turn. It is None where that is not finite.
    `sample_levels`: the SQNR of each sample in order, infinite of those with less than a millionth of the mean energy.
    `quiet`: the worst of the samples that `worst_sample_db` leaves out; None where there is none, or it is silence.
    `slices`: parts of the tensor whose values are of unlike size, each along one axis.
    `weak`: indices of each axis below LOW_DB, of any size, the axis with the worst first.
    `peak`: the largest value in float, with its sign.
    `scores`: agreement of scores, None where the tensor holds something else.
    `size_ratio`: of a slice, the rms of the largest slice over its own; else 1.
    """

    tensor: str
    steps_of: str | None = None
    outputs: tuple[str, ...] = ()
    varying_db: float | None = None
    worst_sample_db: float = math.inf
    standard_error_db: float | None = None
    sample_levels: tuple[float, ...] = ()
    quiet: QuietSample | None = None
    slices: tuple[TensorSlice, ...] = ()
    weak: tuple[TensorSlice, ...] = ()
    peak: float = math.inf
    scores: ScoreAgreement | None = None
    size_ratio: float = 1.0

    @property
    def judged_db(self) -> float:
        """Return the SQNR in dB that the part is judged by: the lesser of `sqnr_db` and `varying_db`, where the latter is
        known."""
        return self.sqnr_db if self.varying_db is None else min(self.sqnr_db, self.varying_db)

    @property
    def weakest_db(self) -> float:
        """Return the least of the levels that `list_levels` returns, in dB."""
        return min(self.list_levels().values())

    def list_levels(self) -> dict[str, float]:
        """Return SQNRs in dB by key: the part by its name, each of `slices`, and each entry of `weak` with at least SURE_VALUES
        values.

        An entry of `weak` counts by its worst index. The keys are `NAME: slice I` and `NAME: axis A`. An axis without indices
        below LOW_DB has no key.
        """
        slices = {f"{self.name}: slice {i}": s.sqnr_db for i, s in enumerate(self.slices)}
        weak = {f"{self.name}: axis {s.axis}": s.worst_db for s in self.weak if s.values >= SURE_VALUES}
        return {self.name: self.judged_db, **slices, **weak}

    @property
    def keeps_scores(self) -> bool:
        """Return whether the part holds scores alone (no value above 1), some are above a level in float, and F1 is at least
        SAME_SCORES."""
        agreement = self.scores
        return agreement is not None and self.peak <= 1 and agreement.real > 0 and agreement.f1 >= SAME_SCORES

    @property
    def holds_nothing(self) -> bool:
        """Return whether the part holds scores and none passes the lower of SCORE_LEVELS in float: nothing was detected."""
        return self.scores is not None and self.peak <= SCORE_LEVELS[0]

    def list_slices(self) -> list[FidelityPart]:
        """Return `slices` as parts of their own, without those where `holds_nothing` is true. Their cosine is 1, as it is not
        known."""
        parts = [self._slice(s) for s in self.slices]
        return [part for part in parts if not part.holds_nothing]

    def list_weak_slices(self) -> list[TensorSlice]:
        """Return the entries of `weak`, without those whose scores show that nothing was detected."""
        return [part for part in self.weak if not self._slice(part).holds_nothing]

    def _slice(self, part: TensorSlice) -> FidelityPart:
        """Return a slice as a part of its own, with the figures that are known of it."""
        return FidelityPart(
            part.label(self.name),
            part.sqnr_db,
            1.0,
            math.nan,
            math.nan,
            tensor=self.tensor,
            outputs=self.outputs,
            varying_db=part.varying_db,
            peak=part.peak,
            scores=None if self.scores is None else ScoreAgreement(),
            size_ratio=part.size_ratio,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures of the part for the JSON report. JSON has no infinity, so an exact figure is None, as an unknown
        one is."""
        slices = [{"part": s.label(self.name), "sqnr_db": _finite(s.sqnr_db), "rms": s.rms} for s in self.slices]
        return {
            **super().as_json(),
            "varying_sqnr_db": _finite(self.varying_db),
            "worst_sample_db": _finite(self.worst_sample_db),
            "standard_error_db": self.standard_error_db,
            "parts": slices,
        }


def _finite(value: float | None) -> float | None:
    """Return the figure; None for an infinite one and for NaN."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Fidelities:
    """The fidelity of the outputs and of the operands of their Concats over all samples.

    `levels`: for each sample in order, the SQNR in dB of the output that suffers most; infinite without float outputs.
    """

    outputs: list[FidelityPart]
    concats: list[FidelityPart]
    levels: list[float]


@dataclass(frozen=True)
class _Operand:
    """An operand of a Concat, as a tensor of both networks.

    `label`: Concat, index and tensor, as the report names it.
    `tensor`: its tensor of the model; `code`: the chip's tensor, in the order `layout`.
    `steps_of`, `outputs`: as in `FidelityPart`.
    """

    label: str
    tensor: str
    layout: str
    code: str
    steps_of: str | None
    outputs: tuple[str, ...]


class _TensorSums:
    """A collection of the error sums of one tensor over samples.

    `scores`: the tensor holds scores, so agreement is counted too.
    `keep`: the sums by index of each sample stay in `each_parts`, which is empty otherwise.
    """

    def __init__(self, scores: bool, keep: bool) -> None:
        self._keep = keep
        self.error, self.parts = ErrorSums(), PartSums()
        self.each_db: list[float] = []
        self.each_parts: list[PartSums] = []
        self._energies: list[float] = []
        self._noises: list[float] = []
        self._scores = ScoreAgreement() if scores else None

    def update(self, reference: np.ndarray, got: np.ndarray) -> None:
        """Add the errors of one sample. `reference`: float's values; `got`: those of the integer network, of the same shape."""
        error, parts = ErrorSums(), PartSums()
        error.update(reference, got)
        parts.update(reference, got)
        self.error.add(error)
        self.parts.add(parts)
        self.each_db.append(error.sqnr_db)
        self._energies.append(error.signal)
        self._noises.append(error.noise)
        if self._keep:
            self.each_parts.append(parts)
        if self._scores is not None:
            for level in SCORE_LEVELS:
                self._scores += _agreement(reference > level, got > level)

    @property
    def worst_sample_db(self) -> float:
        """Return the least SQNR in dB of a sample, infinite without any. Samples of less than 1 / QUIET of the mean energy are
        left out."""
        return min(self._list_sample_levels(QUIET), default=math.inf)

    @property
    def quiet(self) -> QuietSample | None:
        """Return the worst of the samples with less than 1 / QUIET and more than 1 / SILENT of the mean energy; None without
        any."""
        mean = sum(self._energies) / max(len(self._energies), 1)
        quiet = [i for i, energy in enumerate(self._energies) if mean / SILENT < energy <= mean / QUIET]
        if not quiet:
            return None
        worst = min(quiet, key=lambda i: self.each_db[i])
        return QuietSample(worst, self.each_db[worst], math.sqrt(mean / self._energies[worst]))

    @property
    def standard_error_db(self) -> float | None:
        """Return the standard error of the SQNR in dB, from leaving out each sample in turn; None where one is all that has
        error."""
        signal, noise = sum(self._energies), sum(self._noises)
        without = np.array([decibels(signal - s, noise - n) for s, n in zip(self._energies, self._noises)])
        if len(without) < 2 or not np.isfinite(without).all():
            return None
        return float(np.sqrt((len(without) - 1) * np.var(without)))

    def _list_sample_levels(self, quiet: float) -> tuple[float, ...]:
        """Return the SQNR in dB of each sample, infinite of those with less than 1 / `quiet` of the mean energy."""
        least = sum(self._energies) / max(len(self._energies), 1) / quiet
        return tuple(db if energy > least else math.inf for db, energy in zip(self.each_db, self._energies))

    def part(
        self, name: str, tensor: str, steps_of: str | None, outputs: tuple[str, ...], means: PartSums | None
    ) -> FidelityPart:
        """Return the figures so far. means: sums whose means are no signal; None: these sums, from FEWEST_FOR_MEANS samples
        on."""
        if means is None and self.parts.updates >= FEWEST_FOR_MEANS:
            means = self.parts
        return FidelityPart(
            **self.error.fidelity(name).__dict__,
            tensor=tensor,
            steps_of=steps_of,
            outputs=outputs,
            varying_db=None if means is None else self.parts.varying_db(means),
            worst_sample_db=self.worst_sample_db,
            standard_error_db=self.standard_error_db,
            sample_levels=self._list_sample_levels(SILENT),
            quiet=self.quiet,
            slices=tuple(self.parts.slices(means)),
            weak=tuple(self.parts.list_weak_slices(LOW_DB, means)),
            peak=self.parts.peak,
            scores=self._scores,
        )


def _agreement(real: np.ndarray, chip: np.ndarray) -> ScoreAgreement:
    """Count agreement at one level. real, chip: bool arrays of one shape, True where a score is above it."""
    both, real_count = int(np.count_nonzero(real & chip)), int(np.count_nonzero(real))
    return ScoreAgreement(both, real_count + int(np.count_nonzero(chip)) - 2 * both, real_count)


class OutputMeasurements:
    """A collector of error sums of the integer network's outputs and Concat operands against float.

    Call `update` for each run; the lists and figures are of the runs so far. Integer outputs of the model are not compared.

    `container`: container of the integer network.
    `parts`: operands to compare, by the name of the Concat's node.
    `states`: what the chip keeps for the next run counts as an output.
    `factors`: factors of the channels of operands, which are divided out before the comparison; each broadcasts to its tensor.
    `scores`: tensors of the model that hold scores (`find_scores`).
    `keep`: sums of each sample are kept, which `list_levels` needs for slices.

    The attribute `tensors` names the model's tensors whose float values `update` needs, in a fixed order.
    """

    def __init__(
        self,
        container: Container,
        parts: Mapping[str, Sequence[OutputOperand]],
        *,
        states: bool = False,
        factors: Factors = UNSCALED,
        scores: Collection[str] = (),
        keep: bool = False,
    ) -> None:
        outputs = [t.name for t in container.outputs if np.dtype(t.dtype).kind == "f"]
        outputs += dict.fromkeys(state.output for _, state in container.states) if states else []
        self._graph, self._factors = container.graph, factors
        self._operands = _operands(container.graph, parts)
        self._output_sums = {name: _TensorSums(name in scores, keep) for name in outputs}
        self._part = {o.label: _TensorSums(o.tensor in scores, keep) for o in self._operands}
        self.tensors = tuple(dict.fromkeys([*outputs, *(o.tensor for o in self._operands)]))  # of the float network's tensors

    def update(self, values: Mapping[str, np.ndarray], run: Run) -> None:
        """Add a run to the sums.

        `values`: float values on the same sample, by name, of every tensor in `tensors`.
        `run`: the run of the integer network, with its codes.
        """
        for name, sums in self._output_sums.items():
            sums.update(values[name], run.outputs[name] if name in run.outputs else run.real[name])
        for o in self._operands:
            chip_values, factors = real_values(run.codes[o.code], self._graph, o.code, o.layout), self._factors.get(o.tensor, 1)
            self._part[o.label].update(values[o.tensor] / factors, chip_values / factors)

    def list_outputs(self, means: Mapping[str, PartSums] = MappingProxyType({})) -> list[FidelityPart]:
        """Return the fidelity of each output. means: sums of more samples by tensor, whose means are no signal."""
        return [sums.part(n, n, None, (n,), means.get(n)) for n, sums in self._output_sums.items()]

    def list_operands(self, means: Mapping[str, PartSums] = MappingProxyType({})) -> list[FidelityPart]:
        """Return the fidelity of each operand of the outputs' Concats. means: as of `list_outputs`."""
        return [self._part[o.label].part(o.label, o.tensor, o.steps_of, o.outputs, means.get(o.tensor)) for o in self._operands]

    def list_levels(self, part: FidelityPart) -> list[float]:
        """Return the SQNR in dB of each sample, in the order of the updates.

        `part`: an output, an operand, or a slice of an output. A slice has levels only where sums of each sample are kept.
        """
        sums = self._output_sums.get(part.name) or self._part.get(part.name)
        if sums is not None:
            return sums.each_db
        sums = self._output_sums[part.tensor]
        chosen = next(s for s in sums.parts.slices() if s.label(part.tensor) == part.name)
        return [parts.sqnr_db(chosen) for parts in sums.each_parts]

    def may_hide_in_means(self) -> bool:
        """Return whether a part falls below a level only where the means of its channels over these samples are no signal.

        The levels are those of POOR parts and LOW_DB. Few samples do not settle it: the caller then takes means of more.
        """
        return any(_hides_in_means(s) for s in (*self._output_sums.values(), *self._part.values()) if s.parts.updates)

    @property
    def sample_levels(self) -> list[float]:
        """Return for each sample the SQNR in dB of the output that suffers most; empty without float outputs."""
        each = [sums.each_db for sums in self._output_sums.values()]
        return [min(levels) for levels in zip(*each)]


def fidelity(
    model: NormalModel,
    container: Container,
    runs: Iterable[tuple[Sample, Run]],
    parts: Mapping[str, Sequence[OutputOperand]],
    *,
    few: bool = False,
    factors: Factors = UNSCALED,
    others: Iterable[Sample] = (),
) -> Fidelities:
    """Run the model in float on each sample and return the fidelity of the integer runs over all of them.

    `runs`: samples with their runs of the integer reference. They are read once, and one is in memory at a time.
    `parts`: operands to compare, by the name of the Concat's node (`list_output_operands`).
    `few`: there are so few runs that a session of onnxruntime which starts fast is cheaper than one that runs fast.
    `factors`: as in `OutputMeasurements`.
    `others`: further samples, of which 16 at most are run in float. Means of channels are taken of them where `runs` are fewer
    than FEWEST_FOR_MEANS and the means may decide.
    """
    measured = OutputMeasurements(container, parts, factors=factors, scores=find_scores(model.graph))
    session, count = FloatSession(model, measured.tensors, few_runs=few), 0
    for sample, run in runs:
        measured.update(dict(zip(measured.tensors, session.run(sample))), run)
        count += 1
    means = _measure_means(session, measured, others) if 0 < count < FEWEST_FOR_MEANS else {}
    return Fidelities(measured.list_outputs(means), measured.list_operands(means), measured.sample_levels or [math.inf] * count)


def _measure_means(session: FloatSession, measured: OutputMeasurements, samples: Iterable[Sample]) -> dict[str, PartSums]:
    """Return sums of float's tensors over at most 16 of these samples, by tensor.

    The result is empty where the means cannot decide (`may_hide_in_means`) or there are fewer than FEWEST_FOR_MEANS samples.
    """
    if not measured.may_hide_in_means():
        return {}
    sums = {name: PartSums() for name in measured.tensors}
    for sample in islice(samples, 2 * FEWEST_FOR_MEANS):
        for name, x in zip(measured.tensors, session.run(sample)):
            sums[name].update(x, x)
    return sums if all(s.updates >= FEWEST_FOR_MEANS for s in sums.values()) else {}


def find_scores(graph: OnnxGraph) -> frozenset[str]:
    """Return the tensors that hold scores from 0 to 1: results of Sigmoid, HardSigmoid and Softmax, and products of scores.

    A score times a constant is a score too. A tensor that is copied or joined from one with scores counts also where it holds
    other values beside them.
    """
    scores = set[str]()
    for node in graph.nodes:
        kind, read = node.op.op_type, [n in scores for n in node.inputs if n and n not in graph.constants]
        if kind in _SCORES or (kind in SHAPE_OPS and any(read)) or (kind == "Mul" and read and all(read)):
            scores.update(node.outputs)
    return frozenset(scores)


@dataclass(frozen=True)
class OutputOperand:
    """An operand of a Concat whose values reach outputs of the model unchanged.

    `tensor`: its tensor of the model; `layout`: the chip's order of it; `outputs`: those outputs.
    """

    tensor: str
    layout: str
    outputs: tuple[str, ...]


def list_output_operands(
    model: NormalModel, chosen: Graph, origins: Mapping[str, tuple[str, str]]
) -> dict[str, list[OutputOperand]]:
    """Return the operands of each Concat that reaches an output unchanged, by the name of its node.

    A Concat that only feeds another one is left out.

    `chosen`: the graph behind `select`, with the chip's float operators.
    `origins`: (model tensor, layout) by tensor of `chosen`.
    """
    links, constants = Links(model.proto.graph), frozenset(model.graph.constants)
    operands = dict[str, list[OutputOperand]]()
    for node in (n for n in chosen.nodes if isinstance(n.op, ModelConcat)):
        outputs = links.find_reached_outputs(origins[node.outputs[0]][0], constants)
        if outputs:
            operands[node.name] = [OutputOperand(*origins[name], outputs) for name in node.inputs]
    return operands


def _hides_in_means(sums: _TensorSums) -> bool:
    """Return whether something is called poor or low only where the means of channels count as no signal."""
    part, varying = (sums.part("", "", None, (), means) for means in (None, sums.parts))
    if any(p.judged_db < POOR_SQNR_DB <= p.sqnr_db for p in (varying, *varying.list_slices())):
        return True
    return varying.judged_db < LOW_DB <= part.judged_db or _list_indices(varying) != _list_indices(part)


def _list_indices(part: FidelityPart) -> list[tuple[int, tuple[int, ...]]]:
    return [(weak.axis, weak.indices) for weak in part.list_weak_slices()]


def _operands(graph: Graph, parts: Mapping[str, Sequence[OutputOperand]]) -> list[_Operand]:
    """Return the operands of the Concats in `parts` that the integer graph has; one tensor at several of them is a step of a
    sequence."""
    joins = [n for n in graph.nodes if isinstance(n.op, IntegerConcat) and n.name in parts]
    located_parts = [(n, i, graph.origins[n.inputs[i]].tensor, part) for n in joins for i, part in enumerate(parts[n.name])]
    steps = Counter(name for name, _ in {(name, part.tensor) for _, _, name, part in located_parts})
    return [
        _Operand(
            f"{n.name}[{i}] {part.tensor}", part.tensor, part.layout, n.inputs[i], name if steps[name] > 1 else None, part.outputs
        )
        for n, i, name, part in located_parts
    ]


def real_values(codes: np.ndarray, graph: Graph, name: str, layout: str) -> np.ndarray:
    """Return the real values (scale * (code - zero point)) of the codes of a chip tensor, in the model's order of dimensions.

    `layout`: the chip's order, such as `nhwc`. The tensor must have qparams in the graph.
    """
    kind = graph.types[name]
    assert kind.quant is not None
    return to_real(codes, Port(name, name, layout, 0, kind.shape, kind.dtype, kind.quant.scale, kind.quant.zero_point))
