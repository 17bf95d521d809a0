"""The stages in order: the picture of the project.

model.onnx -> normal form -> composed functions -> chip operators on their layout -> integers -> regions and islands
-> plans -> programs -> model.npu, checked against the integer reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from quant.calibrate import OBSERVERS, ObserverName, default_observer
from quant.data import HELD_FROM, Samples, held_out, open_data, random_data, to_calibrate_on
from quant.file import read_parameters
from quant.repair.step import Quantization
from simulator import simulate
from toolchain.codegen import Container, Island, Region, container_of, container_to_bytes, island, link_region, shortened
from toolchain.errors import CompileError, InternalError, ProgramError
from toolchain.export.qdq import qdq_model
from toolchain.frontend import NormalModel, load_model, to_graph
from toolchain.ir.graph import Graph, TensorType
from toolchain.ir.text import print_graph
from toolchain.isa import Machine, decode, disassemble, load_machine
from toolchain.machine import dispatched
from toolchain.ops.kit.arrays import require_workers
from toolchain.ops.matrix_product import batch_choices
from toolchain.passes.fuse import fuse_residuals, fuse_tables
from toolchain.passes.given import clamped, selected
from toolchain.passes.named import named_nodes
from toolchain.passes.quantize import quantize
from toolchain.passes.samples import OneSample, one_sample
from toolchain.passes.segments import Segment, segments
from toolchain.passes.select import Selection
from toolchain.repair.harness import EFFORTS, Effort
from toolchain.repair.network import Network
from toolchain.repair.prepare import AUTO, Prepared, effort_of, prepared
from toolchain.report import agreed, calibration_warnings, explained, host_warnings, run_figures
from toolchain.report.accuracy import JudgedOn, Judgement, Subject, judged
from toolchain.report.diagnosis import Quantized
from toolchain.report.error_report import ErrorReport, concat_parts, network_of
from toolchain.report.gate import OPEN, Evaluation, Gate, loaded
from toolchain.report.strides import stride_warnings
from toolchain.report.text import RANDOM
from toolchain.runtime import Session, host_providers
from toolchain.schedule.options import LEVELS, Options
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.region import plan_region
from toolchain.schedule.text import print_plan

STAGES = ("normal", "compose", "select", "clamps", "quantize", "fuse", "schedule", "program")
_AGREEMENT_SAMPLES = 1  # that the user's file and its normal form are compared on
Dump = Callable[[str, Callable[[], str]], None]  # stage, and what makes its text
Progress = Callable[[str, int, int | None], None]  # stage, done, total


@dataclass(frozen=True)
class BuildOptions:
    """What `npu-build` was asked for. hardware: a shipped name, a YAML file, or a machine already loaded. calibration None:
    random inputs; parameters: an edited file of calibrate.py; host_nodes: what stays on the host: nodes of the model, their
    operators, patterns of either; judge: data to judge on, None: what is held out of calibration; gate: what must be reached;
    error_report: every layer's error is measured; static_ranges: what the model quantizes by each run's range is calibrated;
    repair: what is done for the answer beyond calibration, None: nothing yet;
    export_qdq: the integers are also made an ONNX model."""

    hardware: str | Machine
    calibration: str | None = None
    parameters: str | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    host: str = "cpu"
    level: int = 2
    samples: int | None = None
    observer: ObserverName | Literal["auto"] | None = None
    host_nodes: tuple[str, ...] = ()
    judge: str | None = None
    gate: Gate = OPEN
    error_report: bool = False
    static_ranges: bool = False
    repair: Effort | None = None
    export_qdq: bool = False

    def __post_init__(self) -> None:
        """Raises CompileError: a level, a number of samples, an observer or a host that there is not."""
        if type(self.level) is not int or not 0 <= self.level < len(LEVELS):
            raise CompileError(f"level {self.level!r}: must be a whole number from 0 to {len(LEVELS) - 1}")
        if self.samples is not None and self.samples < 1:
            raise CompileError(f"samples {self.samples}: must be 1 or more")
        if self.observer not in (*OBSERVERS, AUTO, None):
            raise CompileError(f"observer {self.observer}: must be one of {', '.join((*OBSERVERS, AUTO))}")
        if self.repair not in (*EFFORTS, None):
            raise CompileError(f"repair {self.repair}: must be one of {', '.join(EFFORTS)}")
        if self.repair not in (None, "none") and self.parameters is not None:
            raise CompileError(f"repair {self.repair}: {self.parameters} holds what is built already; give one of them")
        host_providers(self.host)
        without_data = self.calibration is None and self.judge is None
        if self.judge is not None and self.calibration is None and self.parameters is None:
            raise CompileError(f"judge {self.judge}: what was calibrated on random inputs means nothing; give --calib or --quant")
        if without_data and (self.gate or self.error_report):
            asked = "error-report" if self.error_report else self.gate.asked[0]
            raise CompileError(
                f"{asked}: random inputs say nothing of accuracy; give --calib DATA, or --quant FILE and --judge DATA"
            )


@dataclass(frozen=True)
class Build:
    """The file's bytes, what the report says of them, what was assumed, and what must not be overlooked. failures: of the gate;
    errors: every layer's, qdq: an ONNX model, where they were asked for."""

    container: Container
    data: bytes
    figures: Mapping[str, Any]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    failures: tuple[str, ...] = ()
    errors: ErrorReport | None = None
    qdq: bytes | None = None


@dataclass(frozen=True)
class Compiled:
    """What an .npu file holds, the plan of each region in order, and the integer graph before anything was fused in it."""

    container: Container
    plans: tuple[RegionPlan, ...]
    unfused: Graph


def silent(*_: Any) -> None:
    return None


def build(path: str | Path, options: BuildOptions, dump: Dump = silent, progress: Progress = silent) -> Build:
    """path: an ONNX model. Raises ConfigError, CompileError. `dump` is told every stage, and may ask for its text."""
    machine = options.hardware if isinstance(options.hardware, Machine) else load_machine(options.hardware)
    progress("load", 0, None)
    model = load_model(path, options.shapes, static_ranges=options.static_ranges)
    selection = select_model(model, machine, dump, options.host_nodes)
    given = _samples(model, options)
    others = None if options.judge is None else open_data(options.judge, _inputs(model))
    evaluation = loaded(options.gate)
    samples = given if options.parameters is not None else to_calibrate_on(given)
    model, unread = agreed(model, islice(samples, _AGREEMENT_SAMPLES))
    asked = named_nodes(model.nodes, options.host_nodes)
    calibrated = _prepared(Network(model, selection, machine, asked), options, samples, progress)
    model, selection = calibrated.network.model, calibrated.network.selection
    compiled = compile_model(Path(path).stem, model, selection, machine, calibrated.quantization, options.level, dump, progress)
    container = compiled.container
    data = container_to_bytes(container)
    progress("check", 0, None)
    on, judging = _to_judge_on(options, given, others, calibrated.samples)
    figures, judgement = _check(data, compiled, model, selection, calibrated, (on, judging), evaluation, options, progress)
    hosted = _host_reasons(selection)
    resident = LEVELS[options.level].residency
    figures = {**figures, "nodes": explained(model.nodes, figures["layers"], container, hosted, resident)}
    figures["repair"] = calibrated.figures()
    figures["calibration_samples"] = calibrated.samples if options.calibration is not None else None
    warnings = (
        *unread,
        *_random_warnings(options),
        *calibration_warnings(figures["calibration_samples"]),
        *_judged_warnings(on, options),
        *judgement.warnings,
        *host_warnings(figures["host"], model.nodes),
        *figures["warnings"],
        *stride_warnings(container, figures["layers"]),
    )
    folded = [n for n in options.host_nodes if hosted.keys().isdisjoint(named_nodes(model.nodes, (n,)))]
    idle = (f"--host-node {n}: is folded away, nothing of it is left to run" for n in folded)
    notes = (*model.notes, *selection.notes, *calibrated.notes, *idle)
    chosen = clamped(selection, machine.chip)
    qdq = qdq_model(model, compiled.unfused, chosen, selection.shown, machine.chip) if options.export_qdq else None
    return Build(container, data, figures, notes, warnings, judgement.failures, judgement.errors, qdq)


def _to_judge_on(
    options: BuildOptions, given: Samples, others: Samples | None, calibrated_on: int | None
) -> tuple[JudgedOn, Samples]:
    """What was not calibrated on, where there is any. others: of --judge."""
    if others is not None:
        return "judge", others
    if options.calibration is None:
        return RANDOM, given
    if options.parameters is not None or calibrated_on is None:  # a quantized model may give all ranges itself
        return "calib", given
    held = held_out(given)
    few = calibrated_on is not None and calibrated_on < HELD_FROM
    return ("calibration", given) if few or next(iter(held), None) is None else ("held out", held)


def _judged_warnings(on: JudgedOn, options: BuildOptions) -> list[str]:
    if on != "calibration":
        return []
    asked = "the gate judges" if options.gate else "judged"
    return [f"{asked} on the data it was calibrated on: others may do worse; give more than {HELD_FROM} samples, or --judge DATA"]


def _random_warnings(options: BuildOptions) -> list[str]:
    if options.calibration is not None or options.judge is not None:
        return []
    what = "calibrated and judged" if options.parameters is None else "judged"
    return [f"{what} on RANDOM inputs: bits and cycles are right, accuracy means NOTHING; give --calib DATA"]


def _host_reasons(selection: Selection) -> dict[str, str]:
    """By the model's own nodes."""
    sources = {n.name: n.sources for n in selection.graph.nodes}
    return {s: f.reason for f in selection.fallbacks for s in sources.get(f.node) or (f.node,)}


def select_model(model: NormalModel, machine: Machine, dump: Dump = silent, host_nodes: Sequence[str] = ()) -> Selection:
    """What runs where, and why: enough for --explain without calibration. Raises CompileError: no such node or operator."""
    asked = named_nodes(model.nodes, host_nodes)
    require_workers(machine.chip)
    graph = to_graph(model)
    dump("normal", partial(print_graph, graph))
    selection = selected(graph, machine.chip, asked, lambda composed: dump("compose", partial(print_graph, composed)))
    dump("select", partial(print_graph, selection.graph))
    return selection


def _samples(model: NormalModel, options: BuildOptions) -> Samples:
    if options.calibration is None:
        return random_data(_inputs(model))
    return open_data(options.calibration, _inputs(model), limit=options.samples)


def _inputs(model: NormalModel) -> dict[str, TensorType]:
    return {n: model.types[n] for n in to_graph(model).inputs}


def _prepared(network: Network, options: BuildOptions, samples: Samples, progress: Progress) -> Prepared:
    """As the parameters file says, or calibrated and repaired."""
    if options.parameters is None:
        effort = effort_of(options.repair, network, samples, real=options.calibration is not None)
        return prepared(network, samples, options.observer, effort, progress)
    changed, tensors = network, list[str]()

    def needed(repair: Quantization) -> list[str]:
        nonlocal changed, tensors
        changed = network.through(repair)
        tensors = changed.tensors
        return tensors

    file = Path(options.parameters)
    found = read_parameters(file, tensors=needed, known=network.model.types, numerics=network.chip.numerics).quantization
    ranges = {**{name: found.ranges[name] for name in tensors}, **changed.selection.given}
    return Prepared(changed, replace(found, ranges=ranges, held=changed.model.stored))


def _integer(selection: Selection, machine: Machine, level: Options, given: Quantization, dump: Dump) -> tuple[Graph, Graph]:
    """The integer graph as it runs, and before anything was fused in it: the bits are the same."""
    chip = machine.chip
    float_graph = clamped(selection, chip)
    dump("clamps", partial(print_graph, float_graph))
    integer = quantize(float_graph, chip, given)
    dump("quantize", partial(print_graph, integer))
    fused = fuse_residuals(fuse_tables(integer, chip), chip) if level.fuse else integer
    dump("fuse", partial(print_graph, fused))
    return fused, integer


def compile_model(
    name: str,
    model: NormalModel,
    selection: Selection,
    machine: Machine,
    given: Quantization,
    level: int,
    dump: Dump = silent,
    progress: Progress = silent,
) -> Compiled:
    """From what runs where, and how it is quantized, to programs, without running them."""
    graph, unfused = _integer(selection, machine, LEVELS[level], given, dump)
    compiled: list[Region | Island] = []
    plans: list[RegionPlan] = []
    parts = segments(graph)
    for done, segment in enumerate(parts):
        progress("compile", done, len(parts))
        if not segment.on_chip:
            compiled.append(island(model, segment))
            continue
        plan, region = _region(graph, segment, selection, machine, level)
        _dump_region(done, plan, region, machine, dump)
        compiled.append(region)
        plans.append(plan)
    container = container_of(name, model, selection, machine, graph, compiled)
    return Compiled(container, tuple(plans), unfused)


def _region(graph: Graph, segment: Segment, selection: Selection, machine: Machine, level: int) -> tuple[RegionPlan, Region]:
    """The plan of a level and its program. The highest also takes the plans of the levels below it into the race and keeps
    the fewest simulated cycles, so that more search never costs any."""
    samples = one_sample(graph, segment, machine.chip) if machine.chip.control.repeat else None

    def linked(options: Options, samples: OneSample | None) -> tuple[RegionPlan, Region]:
        source, part = (graph, segment) if samples is None else (samples.graph, samples.segment)
        found: list[tuple[RegionPlan, Region]] = []
        for chip in batch_choices(machine.chip, part.nodes):
            plan = plan_region(source, part.nodes, part.inputs, part.outputs, chip, options)
            found.append((plan, link_region(graph, segment, plan, machine, samples)))
        return min(found, key=lambda f: (cycles(f[1]), len(f[1].program))) if len(found) > 1 else found[0]

    def made(options: Options) -> tuple[RegionPlan, Region]:
        plan, region = batched(options)
        shorter = shortened(region, machine) if machine.chip.control.call else None
        if shorter is None or not within(options.call_cycles, shorter, region):
            return plan, region
        return plan, shorter

    def batched(options: Options) -> tuple[RegionPlan, Region]:
        if samples is None:
            return linked(options, None)
        try:
            repeated = linked(options, samples)
        except CompileError:  # its control or its semaphores are too few for the repeat, or a sample fits no more than a batch
            return linked(options, None)
        if options.repeat_cycles == math.inf:
            return repeated
        flat = linked(options, None)
        return repeated if within(options.repeat_cycles, repeated[1], flat[1]) else flat

    def within(times: float, one: Region, other: Region) -> bool:
        return times == math.inf or cycles(one) <= times * cycles(other)

    def cycles(region: Region) -> int:
        found = decode(region.program, machine.isa)
        flow = dispatched(machine.chip, found.ops, found.words, region.bases)
        dram = np.zeros(region.dram_bytes, np.uint8)
        return simulate(machine.chip, flow, flow.words, dram, (), values=False, check=False).cycles

    if level < len(LEVELS) - 1:
        return made(LEVELS[level])
    return min((made(options) for options in LEVELS[:0:-1]), key=lambda found: cycles(found[1]))


def _dump_region(index: int, plan: RegionPlan, region: Region, machine: Machine, dump: Dump) -> None:
    dump("schedule", lambda: f"region {index}\n" + print_plan(plan, machine.chip))
    dump("program", lambda: f"region {index}\n" + disassemble(region.program, machine.isa))


def _check(
    data: bytes,
    compiled: Compiled,
    model: NormalModel,
    selection: Selection,
    calibrated: Prepared,
    judging: tuple[JudgedOn, Samples],
    evaluation: Evaluation | None,
    options: BuildOptions,
    progress: Progress,
) -> tuple[dict[str, Any], Judgement]:
    """Runs the emitted bytes once against the integer reference; the reference on a few samples against float."""
    container, (on, samples) = compiled.container, judging
    simulator = Session(data, host=options.host, timing=True)  # type: ignore[arg-type]
    reference = Session(container, backend="reference", host=options.host)  # type: ignore[arg-type]
    first = next(iter(samples))
    try:
        run = simulator.run_detailed(first, lambda stage, done, total: progress(stage, done, total))
    except ProgramError as fault:
        raise InternalError(f"the emitted program breaks a rule of the machine: {fault}") from fault
    expected = reference.run_detailed(first)
    for name, value in expected.outputs.items():
        if not np.array_equal(value, run.outputs[name], equal_nan=True):
            raise InternalError(f"the program's output {name} differs from the integer reference")
    figures = run_figures(container, [s.simulation for s in run.segments])
    figures["segments"] = [{"where": s.where, "nodes": len(s.nodes)} for s in run.segments]
    figures["warnings"] = [w for s in run.segments for w in s.warnings]
    del run, simulator
    chip, parts = container.machine.chip, concat_parts(selection.graph, selection.shown)
    network = network_of(model, compiled.unfused, clamped(selection, chip), selection.shown, parts)
    observer = calibrated.label or default_observer(chip.numerics)
    given = calibrated.quantization.ranges if options.parameters is not None else None
    quantized = Quantized(chip, observer, given, options.parameters, options.repair)
    subject = Subject(model, container, reference, network, quantized, parts, samples, on)
    judgement = judged(subject, (first, expected), options.gate, evaluation, options.error_report)
    return {**figures, **judgement.figures}, judgement
