"""Try wider codes for the first so many groups of tensors in an order: the cycles they take, and the SQNR of the worst part.

The step that chooses types (repair.solve_types) makes the order and asks `TypeTrials.solve` how many groups to widen.
A part is an output, or a slice of one, that is judged by itself. Its level is its SQNR in dB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from quant.calibrate import calibrate, default_observer
from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from quant.repair.choices import Quantization
from quant.structural_ranges import adjust_ranges
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Quant
from toolchain.repair.compensate_rounding import offset_zero_points
from toolchain.repair.evaluate_outputs import CEILING_DB, FLOOR_DB, SAME_DB, OutputEvaluator, OutputQuality, list_gaining_parts
from toolchain.repair.network import CycleCounter, Network, Progress
from toolchain.repair.weight_rounding import correct_biases
from toolchain.report.fidelity import LOW_DB


class TypeTrials:
    """The trials of one order of groups; cycles and levels of each count of groups are computed once.

    `before`: the quantization without wider codes.
    `wide`: the wider type.
    `order`: for each group the output of its operator and the tensors to widen. All steps of the operator get the type; its
    output gets it where it is listed.
    `measures`: evaluates the outputs, and counts cycles.
    `biases_on`: samples that each trial corrects its biases on; without any they stay. Weights that are rounded to nearest
    shift whole channels. The shifts of two layers may cancel, until codes between them change.
    """

    def __init__(
        self,
        network: Network,
        before: Quantization,
        wide: CodeType,
        order: Sequence[tuple[str, Sequence[str]]],
        measures: tuple[OutputEvaluator, CycleCounter],
        biases_on: Sequence[Sample] = (),
    ) -> None:
        self._network, self._before, self.wide, self._order = network, before, wide, order
        self._judge, self._counter = measures
        self._biases_on = biases_on
        self._tried: dict[int, Quantization] = {}
        self._ranges: Mapping[str, Range | Quant] = {}
        self._cycles: dict[int, int] = {}
        self._qualities: dict[int, OutputQuality] = {}

    def measure_ranges(self, samples: Iterable[Sample], *, few_runs: bool = False) -> None:
        """Measure the ranges of the tensors of all groups for their wider codes. It must come before everything else.

        `few_runs`: as in `quant.float_session.open_session`, for a few samples.
        """
        if self._order:
            network = self._widen(len(self._order))
            self._ranges = measure_ranges_of_types(network, network.requested_types, samples, few_runs=few_runs)

    def quantize(self, count: int) -> Quantization:
        """Return the quantization with wider codes for the first `count` groups. Raise CompileError where the machine has
        none."""
        network = self._widen(count)
        wider = [n for n in network.types if n not in self._network.types]
        ranges = {**self._ranges, **self._before.ranges, **{n: self._ranges[n] for n in wider if n in self._ranges}}
        range_by_tensor = {n: r for n, r in ranges.items() if n in {*network.tensors}} | network.get_model_ranges(
            network.requested_types
        )
        types = {**self._before.types, **{n: network.types[n] for n in wider}}
        chosen = replace(self._before, ranges=range_by_tensor, types=types)
        if not chosen.offsets:
            return chosen
        return offset_zero_points(network, replace(chosen, offsets={}), (), self._ignore_progress).quantization

    def get_tried(self, count: int) -> Quantization:
        """Return the quantization that is judged with wider codes for the first `count` groups: with its biases corrected where
        trials do so. Raise CompileError as `quantize` does."""
        if not self._biases_on:
            return self.quantize(count)
        if count not in self._tried:
            plain = self.quantize(count)
            corrected = correct_biases(self._widen(count), plain, self._biases_on, self._ignore_progress)
            self._tried[count] = corrected.quantization
        return self._tried[count]

    def _ignore_progress(self, *_: object) -> None:
        return None

    def _widen(self, count: int) -> Network:
        """Return the network with wider codes of the first groups."""
        operators = {output for output, _ in self._order[:count]}
        tensors = {n for _, group in self._order[:count] for n in group}
        network = self._network.with_types(dict.fromkeys(sorted(tensors), self.wide))
        model, first = network.model, network.chip.code_types[0]
        narrow = [n for n, codes in network.code_types.items() if codes is first]
        inner = [n for n in narrow if n not in operators | tensors and get_operator(model, n) in operators]
        return network.with_types(dict.fromkeys(inner, self.wide))

    def solve(self, progress: Progress, slowdown: float) -> tuple[int, tuple[float, float]]:
        """Return how many groups of the order to widen, 0 for none, and the worst part that gains, in dB before and after.

        It begins with the most groups that the budget of cycles allows, and halves their number. It ends where the parts that
        gain lose SAME_DB in the mean. Parts that gain nothing by wider codes do not count. Groups that raise the mean by no more
        than SAME_DB are not widened; the second level is then that of the trial.

        `slowdown`: the budget, times the cycles without wider codes.
        """
        count = self._find_most_within_budget(progress, slowdown)
        gaining_parts = self._list_gaining_parts(0, count)
        if not gaining_parts:
            worst = min(self.measure_levels(0).values(), default=0.0)
            return 0, (worst, worst)
        before_db, level = (self._find_mean_db(n, gaining_parts) for n in (0, count))
        best = level
        while count > 1 and self._is_within_budget(count // 2, slowdown):
            half = self._find_mean_db(count // 2, gaining_parts)
            if half < best - SAME_DB or half <= before_db + SAME_DB:
                break
            count, level, best = count // 2, half, max(half, best)
        before_worst_db, worst_db = (self._find_worst_db(n, gaining_parts) for n in (0, count))
        return (count if level > before_db + SAME_DB else 0), (before_worst_db, worst_db)

    def find_worst_of_all(self, count: int) -> float:
        """Return the least level of all parts in dB with so many groups, whether they gain or not."""
        return min(self.measure_levels(count).values(), default=CEILING_DB)

    def find_worst_output(self, count: int) -> float:
        """Return the least level of the outputs, as wholes, in dB with so many groups. Raise CompileError as `count_cycles`
        does."""
        quality = self.measure_quality(count)
        levels = quality.list_levels()
        return min((levels[part.name] for part in quality.parts), default=CEILING_DB)

    def find_largest_gain(self, count: int) -> float:
        """Return the decibels of the part that gains most by the first groups, 0 where the machine cannot express them."""
        try:
            before, after = self.measure_levels(0), self.measure_levels(count)
        except CompileError:
            return 0.0
        return max((after[part] - before[part] for part in before if part in after), default=0.0)

    def _list_gaining_parts(self, count: int, other: int) -> list[str]:
        """Return the parts, and what they hold, that gain more than SAME_DB from `count` groups to `other`."""
        return [*list_gaining_parts(self.measure_levels(count), self.measure_levels(other))]

    def _find_worst_db(self, count: int, parts: Sequence[str]) -> float:
        """Return the least level of these parts with so many groups; CEILING_DB without any.

        An axis of which no index is below LOW_DB any more has no level, and counts as LOW_DB.
        """
        return min(self._list_levels(count, parts), default=CEILING_DB)

    def _find_mean_db(self, count: int, parts: Sequence[str]) -> float:
        """Return the mean level of these parts with so many groups, each cut to FLOOR_DB to CEILING_DB.

        A part that hardly gains would otherwise decide for all: it may have what it can get by one group.
        """
        return float(np.clip(self._list_levels(count, parts), FLOOR_DB, CEILING_DB).mean())

    def _list_levels(self, count: int, parts: Sequence[str]) -> list[float]:
        """Return the level in dB of each of these parts with so many groups; LOW_DB for an axis that has none any more."""
        levels = self.measure_levels(count)
        return [levels.get(part, LOW_DB) for part in parts]

    def count_tensors(self, count: int) -> int:
        """Return the number of tensors of the chip that have wider codes with the first groups."""
        return sum(codes is self.wide for codes in self._widen(count).code_types.values())

    def find_budget(self, count: int) -> float:
        """Return the least budget for the first groups, as a factor of the cycles without wider codes such as 1.25.

        It has two decimals, rounded up.
        """
        hundredths = ceil(100 * self.get_slowdown(count))
        return next(n / 100 for n in (hundredths, hundredths + 1) if self._is_within_budget(count, n / 100))

    def get_slowdown(self, count: int) -> float:
        """Return the cycles with the first groups over those without."""
        return self.count_cycles(count) / max(self.count_cycles(0), 1)

    def _find_most_within_budget(self, progress: Progress, slowdown: float) -> int:
        """Return the largest number of groups within the budget of cycles, by bisection: more groups are taken to cost more."""
        least, most = 0, len(self._order)
        count = most
        while least < most:
            progress("cycles of wider codes", most - least, None)
            if self._is_within_budget(count, slowdown):
                least = count
            else:
                most = count - 1
            count = (least + most + 1) // 2
        return least

    def _is_within_budget(self, count: int, slowdown: float) -> bool:
        """Return whether the first groups may be wider within the budget of cycles; False where the machine cannot express
        them."""
        try:
            return self.count_cycles(count) <= slowdown * self.count_cycles(0)
        except CompileError:  # the machine cannot express it
            return False

    def count_cycles(self, count: int) -> int:
        """Return the expected cycles with the first `count` groups wider. Raise CompileError where the machine cannot express
        them."""
        if count not in self._cycles:
            self._cycles[count] = self._counter(self._widen(count), self.quantize(count))
        return self._cycles[count]

    def measure_levels(self, count: int) -> Mapping[str, float]:
        """Return dB of every part and of what it holds, by key, with the first groups wider. Raise CompileError as
        `count_cycles` does."""
        return self.measure_quality(count).list_levels()

    def measure_quality(self, count: int) -> OutputQuality:
        """Return the quality of the outputs with the first groups wider. Raise CompileError as `count_cycles` does."""
        if count not in self._qualities:
            self._qualities[count] = self._judge.verdict(self._widen(count), self.get_tried(count))
        return self._qualities[count]


def measure_ranges_of_types(
    network: Network, types: Mapping[str, CodeType], samples: Iterable[Sample], *, few_runs: bool = False
) -> Mapping[str, Range]:
    """Return the ranges of the network's tensors on these samples, by the machine's own observer for the codes of these types.

    `few_runs`: as in `quant.float_session.open_session`, for a few samples.
    """
    model, numerics = network.model, network.chip.numerics
    ranges = calibrate(
        model.proto,
        samples,
        network.tensors,
        observer=default_observer(numerics),
        numerics=numerics,
        others={name: numerics.of(codes) for name, codes in types.items()},
        computed_by=model,
        decomposition=model.decomposition,
        few_runs=few_runs,
    )
    return adjust_ranges(model.proto, ranges, model.decomposition, model.name).ranges


def get_operator(model: NormalModel, tensor: str) -> str:
    """Return the output of the operator that a tensor is a step of, or the tensor itself."""
    output = tensor.partition(": ")[0]
    is_step = model.undivided is not None and tensor not in model.undivided.types and output in model.undivided.types
    return output if is_step else tensor
