"""Try advice on a poor output: change the network, run the integer reference, and measure what the worst part gains.

A report can then name the advice that helps, with its dB. The module report.accuracy calls `AdviceTrials.run` at the end of
a build.

A build tries at most `_MOST` advices, and none behind one that leaves `ENOUGH_DB`. For each it measures ranges on at most
`_CALIBRATION` samples (docs/accuracy.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from quant.calibrate import calibrate
from quant.fidelity import ErrorSums
from quant.fit_sample import Sample
from quant.float_session import FloatSession
from quant.part_sums import PartSums
from quant.repair.choices import Quantization
from toolchain.codegen import Region
from toolchain.compiler import CompiledNetwork, compile_model, time_region
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph, OnnxOp
from toolchain.passes.match_nodes import match_nodes
from toolchain.passes.quantized_graph import QuantizedGraph
from toolchain.passes.select import ASKED_FOR
from toolchain.repair.calibrate_network import CalibratedNetwork
from toolchain.repair.equalize import free_ends
from toolchain.repair.network import Network
from toolchain.repair.place_port_nodes import place_port_nodes
from toolchain.report.error_report import Effort
from toolchain.report.fidelity import FidelityPart
from toolchain.report.findings import Advice, RunCost, TriedAdvice, choose_trial
from toolchain.report.host_metrics import host_figures
from toolchain.report.layer_errors import ErrorNetwork
from toolchain.runtime import Session
from toolchain.schedule.goals import Goal

ENOUGH_DB = 20.0  # docs/accuracy.md: advice behind one that leaves so much is not tried
_MOST = 6  # docs/accuracy.md: trials of a build
_QUICK_SHARE = 0.5  # docs/accuracy.md: of a large network's layers, whose plan takes little beside the build's
_CALIBRATION = 16  # docs/accuracy.md: samples that ranges are measured on for a trial
_FEW = 2  # docs/accuracy.md: samples of a trial
_MORE = 4  # docs/accuracy.md: times as many, that advice is measured on before it is named


class AdviceTrials:
    """The trials of one build: at most six, fewer for a large network. Each runs the reference once or twice.

    Advice to be named is measured once more, on up to eight samples, so that its dB hold on others.

    `calibrated`: the network that is judged.
    `session`: a session of its integer reference.
    `measured`: the same for errors of layers, which sets the budget.
    `samples`: samples to judge on, of which the first eight at most are used, and samples that ranges are measured on. The
    latter are iterated anew for each trial, so they must not be an iterator.
    `compiled`: the network that is written, with whose cost a piece of advice is compared.
    `integer`: the integer graph of `calibrated`, without fused epilogues.
    `planned`: the optimization level and the goal of its plans, which those of advice have too.
    `cycles`: simulated cycles of that network, as its report says.
    `pinned`: advice to free ports, which is tried first.
    """

    def __init__(
        self,
        calibrated: CalibratedNetwork,
        session: Session,
        measured: ErrorNetwork,
        samples: tuple[Iterable[Sample], Iterable[Sample]],
        compiled: CompiledNetwork,
        integer: Graph,
        planned: tuple[int, Goal],
        cycles: int,
        pinned: Sequence[Advice] = (),
    ) -> None:
        self._calibrated, self._session, (self._samples, self._calibration) = calibrated, session, samples
        self._compiled, (self._level_of_plan, self._goal), self._cycles, self._pinned = compiled, planned, cycles, pinned
        self._before = QuantizedGraph(calibrated.network.graph, integer, calibrated.quantization)
        effort = Effort.of(measured)
        self._is_small = effort.looked_at > 1
        self._remaining, self._few = min(effort.tried, _MOST), min(effort.looked_at, _FEW)
        # Of which model, tensor and number of samples; the model, whose identity is that name; the values.
        self._float_values: tuple[tuple[int, str, int], NormalModel, list[NDArray[Any]]] | None = None

    @cached_property
    def _few_calibration(self) -> list[Sample]:
        return list(islice(self._calibration, _CALIBRATION))

    @cached_property
    def _judges(self) -> list[Sample]:
        return list(islice(self._samples, _MORE * self._few))

    def run(self, output: FidelityPart, candidates: Sequence[Advice]) -> list[TriedAdvice]:
        """Try candidates on an output, in order, and return those that the machine can express with dB of the worst part before
        and after.

        Those that do not help are returned too. The result is empty where the budget is spent. Later candidates are left
        out behind one that helps and leaves ENOUGH_DB. Candidates that the machine cannot express cost nothing of the budget.
        Costs are set for the best trial and for advice that takes steps off the chip, unless planning would take long. The
        best trial is the best on more samples than the others were tried on, where there are more.

        `output`: an output with its slices and weak indices, which are measured too.
        """
        candidates = [*self._list_pinned(output), *candidates][: self._remaining]
        if not candidates or not self._judges:
            return []
        few = self._judges[: self._few]
        before = self._level(self._session, self._calibrated.network.model, output, few)
        tried, changed_networks = list[TriedAdvice](), list[tuple[Network, Quantization]]()
        for advice in candidates:
            try:
                changed, after = self._try(advice, output, few)
                trial = TriedAdvice(advice, before, after, len(few))
            except CompileError:  # the machine cannot express it
                continue
            trial = replace(trial, costs=self._compare_costs(*changed)) if advice.hosts_steps else trial
            tried.append(trial)
            changed_networks.append(changed)
            self._remaining -= 1
            if trial.helps and trial.after_db >= ENOUGH_DB:
                break
        tried = self._confirm(output, tried, changed_networks)
        best = choose_trial(tried)
        return [
            replace(trial, costs=trial.costs or self._compare_costs(*changed)) if trial is best else trial
            for trial, changed in zip(tried, changed_networks, strict=True)
        ]

    def _confirm(
        self, output: FidelityPart, tried: Sequence[TriedAdvice], changed: Sequence[tuple[Network, Quantization]]
    ) -> list[TriedAdvice]:
        """Return the trials, with the best one measured on all judging samples. The best of few samples is often their luck.

        Where another trial is the best after that, it is measured too.

        `changed`: the network and the quantization of each trial.
        """
        trials, before = list(tried), math.nan
        while (best := choose_trial(trials)) is not None and best.samples < len(self._judges):
            if math.isnan(before):
                before = self._level(self._session, self._calibrated.network.model, output, self._judges)
            at = trials.index(best)
            after = self._level_of(changed[at], output, self._judges)
            trials[at] = replace(best, before_db=before, after_db=after, samples=len(self._judges))
        return trials

    def _list_pinned(self, output: FidelityPart) -> list[Advice]:
        """Return the advice to free ports that this output may depend on: inputs, and the output itself."""
        model = self._calibrated.network.model
        others = {model.name(n) for n in model.graph.outputs if n != output.tensor}
        return [advice for advice in self._pinned if not others.issuperset(advice.freed_ports)]

    def _free_ports(self, network: Network, ports: Sequence[str]) -> Network:
        """Return the network as without the options that pin these ports. Raise CompileError where nothing changes."""
        model = network.model
        raw_ports = {model.name(n) for n in (*model.graph.inputs, *model.graph.outputs)}.difference(ports)
        freed = place_port_nodes(network, self._calibration, raw_ports)
        if freed is network:
            raise CompileError(f"{' '.join(ports)}: the host gains nothing there")
        return freed

    def _compare_costs(self, network: Network, quantization: Quantization) -> tuple[RunCost, RunCost] | None:
        """Return the costs of a run of the written network, and of one changed by advice; None where planning that takes long."""
        if not self._is_small and _count_layers(network) > _QUICK_SHARE * _count_layers(self._calibrated.network):
            return None
        model, selection, machine = network.model, network.selection, network.machine
        try:
            after = compile_model("advice", model, selection, machine, quantization, self._level_of_plan, goal=self._goal)
        except CompileError:
            return None
        regions = [segment for segment in after.container.segments if isinstance(segment, Region)]
        cycles = sum(time_region(machine, region).cycles for region in regions)
        return _price_run(self._compiled, self._cycles), _price_run(after, cycles)

    def _level(self, session: Session, model: NormalModel, output: FidelityPart, samples: Sequence[Sample]) -> float:
        """Return the SQNR in dB of the output's worst part on these samples.

        `session`: of the integer reference. `model`: the same network in float.
        """
        error, parts = ErrorSums(), PartSums()
        for sample, x in zip(samples, self._compute_float(model, output.tensor, samples), strict=True):
            y = session.run_detailed(sample).outputs[output.tensor]
            error.update(x, y)
            parts.update(x, y)
        return min([error.sqnr_db, *(parts.sqnr_db(part) for part in (*output.slices, *output.weak))])

    def _compute_float(self, model: NormalModel, tensor: str, samples: Sequence[Sample]) -> Sequence[NDArray[Any]]:
        """Return float's values of a tensor on the first judging samples; they are kept until others are asked for."""
        key = id(model), tensor, len(samples)
        if self._float_values is None or self._float_values[0] != key:
            session = FloatSession(model, [tensor])
            self._float_values = key, model, [session.run(sample)[0] for sample in samples]
        return self._float_values[2]

    def _level_of(self, changed: tuple[Network, Quantization], output: FidelityPart, samples: Sequence[Sample]) -> float:
        """Return `_level` of a network with a quantization. Raise CompileError where the machine cannot express it."""
        network, quantization = changed
        return self._level(network.session(quantization, self._before), network.model, output, samples)

    def _try(self, advice: Advice, output: FidelityPart, samples: Sequence[Sample]) -> tuple[tuple[Network, Quantization], float]:
        """Return the network as a build with this advice makes it, and the dB of its worst part on these samples. Raise
        CompileError."""
        changed = self._apply(advice)
        after = self._level_of(changed, output, samples)
        ends = self._free_ends(*changed) if advice.host_nodes and self._calibrated.effort != "none" else None
        freed_after = -math.inf if ends is None else self._level_of(ends, output, samples)
        return (changed, after) if ends is None or freed_after <= after else (ends, freed_after)

    def _free_ends(self, network: Network, quantization: Quantization) -> tuple[Network, Quantization] | None:
        """Return the network with its regions' ends as repair leaves them for the host; None where nothing changes."""
        before = replace(quantization, factors={}, hosted=())
        freed = free_ends(network, before, self._few_calibration, lambda stage, done, total: None).quantization
        return None if freed is before else (network.through(replace(freed, types={})), freed)

    def _apply(self, advice: Advice) -> tuple[Network, Quantization]:
        """Return the network and the quantization that a piece of advice gives, with missing ranges calibrated on 16 samples.

        Weights of layers that the advice changes lose their repair. Raise CompileError where the machine cannot express it.
        """
        network, quantization = self._calibrated.network, self._calibrated.quantization
        if advice.host_nodes:
            network = network.host(match_nodes(network.model.nodes, advice.host_nodes), ASKED_FOR)
        if advice.hosts_steps and not _count_layers(network):
            raise CompileError(f"{advice.text}: nothing is left on the chip")
        if advice.freed_ports:
            network = self._free_ports(network, advice.freed_ports)
        if advice.types:
            network = network.override_types(advice.types)
        types = {**quantization.types, **network.types}
        ranges = {**quantization.ranges, **advice.ranges}
        missing = [n for n in network.tensors if n not in ranges or advice.observer is not None]
        if missing:
            numerics = network.chip.numerics
            model, others = network.model, {name: numerics.of(codes) for name, codes in types.items()}
            observer = advice.observer or "minmax"
            ranges |= calibrate(
                model.proto,
                self._few_calibration,
                missing,
                observer=observer,
                numerics=numerics,
                others=others,
                computed_by=model,
                decomposition=model.decomposition,
            )
        kept_tensors = {*network.tensors, *network.selection.file_ranges}
        held_ranges = {n: r for n, r in ranges.items() if n in kept_tensors}
        layers = _list_unchanged_layers(self._calibrated.network, network)
        chosen = {name: parameters for name, parameters in quantization.layers.items() if name in layers}
        weights = {**quantization.weight_types, **network.weight_types}
        weights = {name: codes for name, codes in weights.items() if name in layers}
        return network, replace(
            quantization,
            ranges=held_ranges,
            types=types,
            layers=chosen,
            weight_types=weights,
            compiler_weights=network.compiler_weights,
        )


def _count_layers(network: Network) -> int:
    """Return the number of nodes that the chip computes, before any fusion."""
    return sum(not isinstance(node.op, OnnxOp) for node in network.graph.nodes)


def _price_run(compiled: CompiledNetwork, cycles: int) -> RunCost:
    """Return the cost of a run of so many simulated cycles, with the host's seconds."""
    container = compiled.container
    return RunCost(cycles, container.machine.chip.clock.frequency, host_figures(container, 0)["seconds"])


def _list_unchanged_layers(network: Network, other: Network) -> set[str]:
    """Return the layers of `other` that read the constants that they read in `network`."""
    inputs_by_node = {n.name: n.inputs for n in network.model.graph.nodes}
    changed = {n.name for n in other.model.graph.nodes if n.inputs != inputs_by_node.get(n.name)}
    return {n.name for n in other.weighted if changed.isdisjoint((n.name, *n.sources))}
