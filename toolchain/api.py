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
from typing import Any

import numpy as np

from quant.calibrate import default_observer
from quant.data import Samples, to_calibrate_on
from quant.file import read_parameters
from quant.repair.step import Quantization
from simulator import simulate
from toolchain import entries
from toolchain.codegen import (
    MAIN,
    Container,
    Island,
    Region,
    container_of,
    container_to_bytes,
    entries_to_bytes,
    island,
    link_region,
    shortened,
)
from toolchain.errors import CompileError, InternalError, ProgramError
from toolchain.export.qdq import qdq_model
from toolchain.frontend import NormalModel, load_model, to_graph
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph
from toolchain.ir.text import print_graph
from toolchain.isa import Machine, decode, disassemble, load_machine
from toolchain.judging import Data, data_in_other_shapes, data_of, judged_warnings, random_warnings, to_judge_on
from toolchain.machine import dispatched
from toolchain.ops.kit.arrays import require_workers
from toolchain.ops.matrix_product import batch_choices
from toolchain.options import BuildOptions
from toolchain.passes.decompose import decomposed
from toolchain.passes.fuse import fuse_residuals, fuse_tables
from toolchain.passes.given import clamped, selected
from toolchain.passes.named import named_nodes
from toolchain.passes.quantize import quantize
from toolchain.passes.samples import OneSample, one_sample
from toolchain.passes.segments import Segment, segments
from toolchain.passes.select import Selection
from toolchain.passes.typed import asked_types
from toolchain.repair.network import Network
from toolchain.repair.prepare import Prepared, effort_of, prepared, prepared_alike, prepared_by_file
from toolchain.report import agreed, calibration_warnings, explained, host_warnings, run_figures
from toolchain.report.accuracy import JudgedOn, Judgement, Subject, judged
from toolchain.report.diagnosis import Quantized
from toolchain.report.error_report import ErrorReport, concat_parts, network_of
from toolchain.report.gate import Evaluation, loaded
from toolchain.report.strides import stride_warnings
from toolchain.runtime import Session
from toolchain.schedule.options import LEVELS, Options
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.region import plan_region
from toolchain.schedule.text import print_plan

STAGES = ("normal", "compose", "select", "clamps", "quantize", "fuse", "schedule", "program")
_AGREEMENT_SAMPLES = 1  # that the user's file and its normal form are compared on
Dump = Callable[[str, Callable[[], str]], None]  # stage, and what makes its text
Progress = Callable[[str, int, int | None], None]  # stage, done, total


@dataclass(frozen=True)
class Build:
    """The file's bytes, what the report says of them, what was assumed, and what must not be overlooked. failures: of the gate;
    errors: every layer's, qdq: an ONNX model, where they were asked for. entries: where they were asked for, each as a build of
    its own with the bytes of a file of its own; container, failures, errors and qdq are then the first's."""

    container: Container
    data: bytes
    figures: Mapping[str, Any]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    failures: tuple[str, ...] = ()
    errors: ErrorReport | None = None
    qdq: bytes | None = None
    entries: Mapping[str, Build] = field(default_factory=dict[str, "Build"])


@dataclass(frozen=True)
class Compiled:
    """What an .npu file holds, the plan of each region in order, and the integer graph before anything was fused in it."""

    container: Container
    plans: tuple[RegionPlan, ...]
    unfused: Graph


@dataclass(frozen=True)
class _Started:
    """A network that is ready to be compiled: one set of input shapes, its data, and its quantization."""

    data: Data
    calibrated: Prepared
    unread: tuple[str, ...]


def silent(*_: Any) -> None:
    return None


def build(path: str | Path, options: BuildOptions, dump: Dump = silent, progress: Progress = silent) -> Build:
    """path: an ONNX model. Raises ConfigError, CompileError. `dump` is told every stage, and may ask for its text.

    Of several entries the first is calibrated, or all are as the parameters file says: what they share is then the same bytes.
    """
    machine = options.hardware if isinstance(options.hardware, Machine) else load_machine(options.hardware)
    evaluation = loaded(options.gate)
    started: dict[str, _Started] = {}
    compiled: dict[str, Compiled] = {}
    each = options.each()
    for name, asked in each.items():
        first = next(iter(started.values()), None)
        with entries.named(name if options.entries else None):
            tell = entries.dump_of(name, dump) if options.entries else dump
            begun = _started(path, asked, machine, first, tell, progress)
            network, given = begun.calibrated.network, begun.calibrated.quantization
            made = compile_model(Path(path).stem, network.model, network.selection, machine, given, asked.level, tell, progress)
        started[name], compiled[name] = begun, made
    data = entries_to_bytes({name: made.container for name, made in compiled.items()})
    progress("check", 0, None)
    built: dict[str, Build] = {}
    for name, asked in each.items():
        with entries.named(name if options.entries else None):
            score = evaluation if not built else None
            built[name] = _built(data, name, compiled[name], started[name], asked, score, progress)
    return _together(data, built) if options.entries else built[MAIN]


def _started(
    path: str | Path, options: BuildOptions, machine: Machine, first: _Started | None, dump: Dump, progress: Progress
) -> _Started:
    """first: another entry of the file, by whose ranges this one is quantized."""
    progress("load", 0, None)
    model = load_model(path, options.shapes, static_ranges=options.static_ranges)
    model = _divided(model, machine.chip, options)
    selection = select_model(model, machine, dump, options.host_nodes)
    data = data_of(model, options) if first is None else data_in_other_shapes(model, options)
    samples = data.given if first is not None or options.parameters is not None else to_calibrate_on(data.given)
    model, unread = agreed(model, islice(samples, _AGREEMENT_SAMPLES))
    network = Network(model, selection, machine, named_nodes(model.nodes, options.host_nodes))
    types = asked_types(model.graph, model.nodes, options.types, machine.chip, network.held)
    network = replace(network, types=types) if types else network
    if first is None or options.parameters is not None:
        return _Started(data, _prepared(network, options, samples, progress), unread)
    return _Started(data, prepared_alike(network, first.calibrated), unread)


def _divided(model: NormalModel, chip: Chip, options: BuildOptions) -> NormalModel:
    """With steps in the place of the operators that the machine wants so, for the codes that are asked for."""
    hosts = named_nodes(model.nodes, options.host_nodes)
    divided = decomposed(model, chip, hosts)
    if divided.undivided is None or len(chip.code_types) == 1:
        return divided
    given = {} if options.parameters is None else read_parameters(Path(options.parameters)).quantization.types
    types = {**given, **asked_types(divided.graph, divided.nodes, options.types, chip, divided.types)}
    finest = max(codes.bits for codes in chip.code_types)
    return decomposed(model, chip, hosts, {name for name, codes in types.items() if codes.bits == finest})


def _built(
    data: bytes,
    name: str,
    compiled: Compiled,
    started: _Started,
    options: BuildOptions,
    evaluation: Evaluation | None,
    progress: Progress,
) -> Build:
    """What has come of one entry of the file `data`, checked."""
    container, calibrated = compiled.container, started.calibrated
    model, selection, chip = calibrated.network.model, calibrated.network.selection, container.machine.chip
    on, judging = to_judge_on(started.data, options, calibrated.samples)
    figures, judgement = _check((data, name), compiled, calibrated, (on, judging), evaluation, options, progress)
    hosted = _host_reasons(selection)
    figures["repair"] = calibrated.figures()
    figures["calibration_samples"] = calibrated.samples if options.calibration is not None else None
    warnings = (
        *started.unread,
        *random_warnings(options),
        *calibration_warnings(figures["calibration_samples"]),
        *(judged_warnings(on, options) if started.data.on is None else ()),
        *judgement.warnings,
        *host_warnings(figures["host"], model.nodes),
        *figures["warnings"],
        *stride_warnings(container, figures["layers"]),
    )
    folded = [n for n in options.host_nodes if hosted.keys().isdisjoint(named_nodes(model.nodes, (n,)))]
    idle = (f"--host-node {n}: is folded away, nothing of it is left to run" for n in folded)
    notes = (*model.notes, *selection.notes, *calibrated.notes, *started.data.notes, *idle)
    chosen = clamped(selection, chip)
    qdq = qdq_model(model, compiled.unfused, chosen, selection.shown, chip) if options.export_qdq else None
    return Build(container, data, figures, notes, warnings, judgement.failures, judgement.errors, qdq)


def _host_reasons(selection: Selection) -> dict[str, str]:
    """By the model's own nodes."""
    sources = {n.name: n.sources for n in selection.graph.nodes}
    return {s: f.reason for f in selection.fallbacks for s in sources.get(f.node) or (f.node,)}


def select_model(model: NormalModel, machine: Machine, dump: Dump = silent, host_nodes: Sequence[str] = ()) -> Selection:
    """What runs where, and why: enough for --explain without calibration. Raises CompileError: no such node or operator."""
    asked = named_nodes(model.nodes, host_nodes)
    require_workers(machine.chip)
    dump("normal", lambda: print_graph(to_graph(model)))
    selection = selected(model, machine.chip, asked, lambda composed: dump("compose", partial(print_graph, composed)))
    dump("select", partial(print_graph, selection.graph))
    return selection


def _prepared(network: Network, options: BuildOptions, samples: Samples, progress: Progress) -> Prepared:
    """As the parameters file says, or calibrated and repaired."""
    if options.parameters is not None:
        return prepared_by_file(network, Path(options.parameters))
    effort = effort_of(options.repair, network, samples, real=options.calibration is not None)
    return prepared(network, samples, options.observer, effort, progress)


def _together(data: bytes, built: Mapping[str, Build]) -> Build:
    """data: the file of all."""
    first = next(iter(built.values()))
    alone = {name: replace(one, data=container_to_bytes(one.container)) for name, one in built.items()}
    figures = entries.figures_of_entries(
        len(data), {name: len(one.data) for name, one in alone.items()}, {name: one.figures for name, one in alone.items()}
    )
    notes = [note for name, one in built.items() for note in entries.told(name, one.notes)]
    warnings = [warning for name, one in built.items() for warning in entries.told(name, one.warnings)]
    return Build(first.container, data, figures, tuple(notes), tuple(warnings), first.failures, first.errors, first.qdq, alone)


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
    entry: tuple[bytes, str],
    compiled: Compiled,
    calibrated: Prepared,
    judging: tuple[JudgedOn, Samples],
    evaluation: Evaluation | None,
    options: BuildOptions,
    progress: Progress,
) -> tuple[dict[str, Any], Judgement]:
    """Runs the emitted bytes (of a file and an entry) once against the integer reference; the reference on a few samples against
    float."""
    container, (on, samples) = compiled.container, judging
    model, selection = calibrated.network.model, calibrated.network.selection
    simulator = Session(entry[0], host=options.host, timing=True, entry=entry[1])  # type: ignore[arg-type]
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
    flows = [simulator.program(i).flow if isinstance(s, Region) else None for i, s in enumerate(container.segments)]
    resident = LEVELS[options.level].residency
    figures["nodes"] = explained(model.nodes, figures["layers"], container, flows, _host_reasons(selection), resident)
    del run, simulator, flows
    chip, parts = container.machine.chip, concat_parts(selection.graph, selection.shown)
    network = network_of(model, compiled.unfused, clamped(selection, chip), selection.shown, parts)
    observer = calibrated.label or default_observer(chip.numerics)
    given = calibrated.quantization.ranges if options.parameters is not None else None
    quantized = Quantized(chip, observer, given, options.parameters, options.repair)
    subject = Subject(model, container, reference, network, quantized, parts, samples, on)
    judgement = judged(subject, (first, expected), options.gate, evaluation, options.error_report)
    return {**figures, **judgement.figures}, judgement
