"""Verify a build before it is written: the program against the integer reference, the integers against float."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from quant.calibrate import default_observer
from quant.calibration_data import Samples
from toolchain.codegen import Region
from toolchain.compiler import CompiledNetwork, Progress
from toolchain.errors import InternalError
from toolchain.frontend import NormalModel
from toolchain.judging.step_advice import list_step_advice
from toolchain.judging.try_advice import AdviceTrials
from toolchain.options import BuildOptions
from toolchain.passes.fold_qdq import fuse_selected_clamps
from toolchain.passes.select import IDLE, Selection
from toolchain.repair.calibrate_network import CalibratedNetwork
from toolchain.repair.channel_scaling import broadcast_factors
from toolchain.repair.sample_folds import Fold
from toolchain.report import collect_metrics, explain_nodes
from toolchain.report.accuracy import AccuracyInput, AccuracyResult, JudgedNetwork, JudgedOn, evaluate_accuracy
from toolchain.report.error_report import concat_parts, network_of
from toolchain.report.fidelity import list_output_operands
from toolchain.report.findings import Advice, AdviceContext
from toolchain.report.gate import Evaluation
from toolchain.report.host_metrics import list_segment_figures
from toolchain.report.report_text import RANDOM
from toolchain.report.warnings import make_shared_warnings
from toolchain.runtime import Session
from toolchain.schedule.options import LEVELS


def verify_build(
    entry: tuple[bytes, str],
    compiled: CompiledNetwork,
    calibrated: CalibratedNetwork,
    judging: tuple[JudgedOn, Samples | Fold],
    calibration: Fold,
    evaluation: Evaluation | None,
    options: BuildOptions,
    progress: Progress,
) -> tuple[dict[str, Any], AccuracyResult]:
    """Run the emitted bytes once on the simulator, judge the accuracy, and return the figures and the accuracy's result.

    The program must give the bits of the integer reference on the first sample. The reference is compared with float on a few
    samples. On held-out samples the network whose ranges did not see them is judged; errors of layers are those of the network
    that is written. A failed gate raises nothing; the result holds it. Advice is tried, unless the build starts in a graph that
    somebody edited.

    `entry`: bytes of the file and the name of one of its entries.
    `compiled`: the compiled network of this entry; `calibrated`: the network that it was made of.
    `judging`: kind of the samples to judge on, and the samples.
    `calibration`: samples of calibration, for trials of advice.
    `evaluation`: the user's function of `--eval`; None without one.
    Raise InternalError where an output differs from the reference in any bit.
    """
    container, (on, samples) = compiled.container, judging
    model, selection = calibrated.network.model, calibrated.network.selection
    simulator = Session(entry[0], host=options.host, timing=True, entry=entry[1])  # type: ignore[arg-type]
    reference = Session(container, backend="reference", host=options.host)  # type: ignore[arg-type]
    first = next(iter(samples))
    run = simulator.run_detailed(first, lambda stage, done, total: progress(stage, done, total))
    expected = reference.run_detailed(first)
    for name, value in expected.outputs.items():
        if not np.array_equal(value, run.outputs[name], equal_nan=True):
            raise InternalError(f"the program's output {name} differs from the integer reference")
    figures = collect_metrics(container, [s.simulation for s in run.segments])
    figures["segments"] = list_segment_figures(run.segments)
    figures["warnings"] = [w for s in run.segments for w in s.warnings]
    flows = [simulator.program(i).flow if isinstance(s, Region) else None for i, s in enumerate(container.segments)]
    resident = LEVELS[options.level].residency
    figures["nodes"] = explain_nodes(model.nodes, figures["layers"], container, flows, host_reasons(selection), resident)
    del run, simulator, flows
    chip, parts = container.machine.chip, concat_parts(selection.graph, selection.shown)
    ranges = calibrated.quantization.ranges
    clamped_graph = fuse_selected_clamps(selection, chip)
    factors = broadcast_factors(model.graph, calibrated.quantization.factors)
    network = network_of(model, compiled.unfused, clamped_graph, selection.shown, parts, ranges, selection.ended, factors)
    observer = calibrated.label or default_observer(chip.numerics)
    file_ranges = ranges if options.parameters is not None else None
    quantized = AdviceContext(chip, observer, file_ranges, options.parameters, calibrated.effort)
    judged = calibrated.judged if on == "held out" else None
    judge = reference if judged is None else judged.network.session(judged.quantization)
    if judged is not None:
        expected = judge.run_detailed(first)
    judged_by = JudgedNetwork(judge.container, judge)
    operands = list_output_operands(model, selection.graph, selection.shown)
    trial_network, pinned = calibrated if judged is None else judged, _advise_free_ports(options, model)
    cycles, planned = int(figures["cycles"]), (options.level, options.planned_for)
    integer = compiled.unfused if judged is None else judge.container.graph
    trials = AdviceTrials(trial_network, judge, network, (samples, calibration), compiled, integer, planned, cycles, pinned)
    others = calibration if on == "held out" else ()
    places = samples.places if isinstance(samples, Fold) else ()
    subject = AccuracyInput(model, judged_by, reference, network, quantized, operands, samples, on, samples.count, others, places)
    if options.passes.start is None:  # trials are of the model, not of a graph that somebody edited
        subject = replace(subject, try_advice=trials.run, steps=list_step_advice(trial_network.network, figures))
    shared = make_shared_warnings(model, compiled.unfused, selection.origins, selection.shared, chip, samples)
    figures["warnings"] += shared if on != RANDOM else []
    judgement = evaluate_accuracy(subject, (first, expected), options.gate, evaluation, options.error_report)
    return {**figures, **judgement.figures}, judgement


def _advise_free_ports(options: BuildOptions, model: NormalModel) -> list[Advice]:
    """Return advice to leave out the options that keep nodes at ports on the chip; empty without such options or for several
    entries."""
    if options.parameters is not None or options.entries:
        return []
    if not options.host_ports:
        ports = tuple(model.name(n) for n in (*model.graph.inputs, *model.graph.outputs))
        return [Advice("leaving out --no-host-ports", freed_ports=ports)]
    return [Advice(f"leaving out --raw-port {name}", freed_ports=(name,)) for name in options.raw_ports]


def host_reasons(selection: Selection) -> dict[str, str]:
    """Return why nodes of the model run on the host, by node.

    Where a selected node stands for several, and reasons differ, that of a node which computes wins.
    """
    sources = {n.name: n.sources for n in selection.graph.nodes}
    moving_first = sorted(selection.fallbacks, key=lambda f: f.reason != IDLE)
    return {s: f.reason for f in moving_first for s in sources.get(f.node) or (f.node,)}
