"""Run the stages of a build in order; this is the public interface for Python (docs/python.md).

The function `build` reads an ONNX model into its canonical form and selects the chip's operators. It calibrates and repairs
them to integers, and compiles regions and host subgraphs to programs. Their file model.npu is then run once against the integer
reference, and its accuracy is judged. A model may have several entries: sets of input shapes with a program each, in one file.

LEAVING has the names that leave this module in the next release; until then they work, with a warning (docs/python.md). The
user's file and its canonical form are compared on _FRONTEND_CHECK_SAMPLES samples.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

from quant.file import read_parameters
from quant.fit_sample import NotFinite
from quant.fixed_point.core.codes import CodeType
from quant.float_session import inference_notes
from toolchain.build_progress import add_time_left
from toolchain.codegen import MAIN, Container, container_from_bytes, container_to_bytes, entries_to_bytes
from toolchain.compiler import CompiledNetwork, Dump, Progress, compile_model, ignore_progress, make_cycle_counter, select_model
from toolchain.errors import CancelledError, CompileError, ConfigError, InternalError, ProgramError, ToolchainError
from toolchain.export.qdq import qdq_model
from toolchain.foundation import entry_points
from toolchain.foundation.cancellation import CancelEvent, make_deadline, run_cancellable
from toolchain.foundation.inference import run_float_models_on, use_custom_ops
from toolchain.frontend import ModelFile, load_model, model_file, pair_states, tie_block_ranges
from toolchain.hw import list_shipped_names
from toolchain.ir.text import dump_of
from toolchain.isa import Machine, load_machine
from toolchain.judging.evaluation_data import (
    BuildData,
    calibration_in_other_shapes,
    choose_evaluation_data,
    data_in_other_shapes,
    evaluation_warnings,
    hold_out_evaluation_data,
    open_build_data,
    random_warnings,
    refit_notes,
    similarity_notes,
)
from toolchain.judging.sram_sweep import SramSweep, as_figures, sram_curve
from toolchain.judging.stateful_samples import model_data
from toolchain.judging.try_keys import KeyTrials
from toolchain.judging.verify_build import host_reasons, verify_build
from toolchain.options import BuildOptions
from toolchain.passes.fold_qdq import fuse_selected_clamps
from toolchain.passes.match_nodes import match_nodes
from toolchain.passes.stage_file import blame_start
from toolchain.passes.type_overrides import decompose_for_types
from toolchain.plugin_loading import blame_plugins, load_plugins
from toolchain.repair.calibrate_network import (
    AUTO,
    CalibratedNetwork,
    calibrate_network,
    effort_of,
    load_quantization,
    reuse_quantization,
    widen_ranges,
)
from toolchain.repair.network import Network
from toolchain.repair.place_port_nodes import place_port_nodes, require_ports
from toolchain.repair.place_softmaxes import place_output_softmaxes
from toolchain.repair.repair_pipeline import Effort
from toolchain.repair.sample_folds import HoldOut
from toolchain.report import (
    calibration_warnings,
    check_frontend,
    few_values_warnings,
    host_warnings,
    idle_warnings,
    list_requantized_weights,
    make_joined_range_warnings,
    make_skipped_warnings,
    not_finite_warnings,
    unseen_warnings,
)
from toolchain.report.build_summary import SummaryInput, summary_html, summary_text
from toolchain.report.error_report import ErrorReport
from toolchain.report.figure_types import BuildFigures
from toolchain.report.gate import Evaluation, Gate, load_evaluation
from toolchain.report.warnings import stride_warnings
from toolchain.runtime import EntriesSession, Session
from toolchain.schedule.bind_region import read_schedules
from toolchain.schedule.goals import Goal
from toolchain.schedule.nodes import RegionTree
from toolchain.schedule.options import SearchSteps

__all__ = [
    "Build",
    "BuildOptions",
    "CancelledError",
    "CompileError",
    "ConfigError",
    "EntriesSession",
    "Gate",
    "Goal",
    "InternalError",
    "Machine",
    "ProgramError",
    "Session",
    "ToolchainError",
    "build",
    "list_shipped_names",
    "load_machine",
]

LEAVING: dict[str, LeavingName] = {}


def __getattr__(name: str) -> Any:
    """Return a name that is about to leave this module, with a DeprecationWarning. Raise AttributeError for any other name."""
    return get_leaving_name(__name__, name, LEAVING)


_FRONTEND_CHECK_SAMPLES = 1


@dataclass(frozen=True, repr=False)
class Build:
    """A finished build: the file's bytes, the figures of its report, notes of what was assumed, and warnings. Nothing is
    written to disk.

    `container`: the content of the file; of several entries the first's.
    `data`: bytes of the compiled file.
    `figures`: the keys of docs/figures.md; of several entries they are `EntriesFigures`.
    `failures`: sentences of the accuracy gate; empty where it passes or is not set.
    `errors`: the error report of every layer, where requested.
    `qdq`: the bytes of an ONNX model with the integers, where requested.
    `scheduled`: makes the `schedule`.
    `curve`: the sweep over sizes of SRAM, where requested.
    `entries`: a build for each entry, with the bytes of a file of its own, its errors and qdq; empty for a model without
    entries.
    """

    container: Container
    data: bytes
    figures: Mapping[str, Any]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    failures: tuple[str, ...] = ()
    errors: ErrorReport | None = None
    qdq: bytes | None = None
    scheduled: Callable[[], tuple[RegionTree, ...]] = tuple
    curve: SramSweep | None = None
    entries: Mapping[str, Build] = field(default_factory=dict[str, "Build"])

    @property
    def typed_figures(self) -> BuildFigures:
        """Return `figures` with their types, for editors and type checkers. Not of a build of several entries."""
        return cast(BuildFigures, self.figures)

    @property
    def schedule(self) -> tuple[RegionTree, ...]:
        """Return the schedule of each region, entry by entry."""
        return self.scheduled()

    @property
    def _summary(self) -> SummaryInput:
        return SummaryInput(self.figures, len(self.data), self.warnings, self.failures)

    def __repr__(self) -> str:
        """Return the build in at most ten lines."""
        return summary_text(self._summary)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: cycles by layer as a picture, each part with its dB, warnings."""
        return summary_html(self._summary)

    def context_model(self, path: str | None = None, source_model: str = "") -> bytes:
        """Return the build as ONNX: each part of the chip is an EPContext node of onnxruntime, which `Session` runs.

        `path`: where `data` lies, relative to the folder of this model; None: the first node holds it.
        `source_model`: the name of the file that was built.
        Raise CompileError for several entries, for states, and where no part runs on the chip.
        """
        from toolchain.export.context_model import context_model

        if self.entries:
            raise CompileError(
                f"EPContext: holds one set of input shapes, the build {len(self.entries)} entries; build one of them"
            )
        return context_model(self.container, self.data, path, source_model)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickle: the container as its bytes, the schedule as it stands."""
        fields = {f.name: getattr(self, f.name) for f in dataclass_fields(self)}
        return {**fields, "container": None, "scheduled": self.schedule}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore the fields from pickle."""
        schedule, entry = state["scheduled"], next(iter(state["entries"]), None)
        container = container_from_bytes(state["data"], "build", entry)
        for name, value in {**state, "container": container, "scheduled": lambda: schedule}.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class _Started:
    """A network that is ready to be compiled: one set of input shapes, its data, and its quantization.

    `calibrated_on`: number of samples, of this entry or the one by whose ranges it is quantized; None: a file gave all ranges.
    `unread`: notes on outputs where the user's file and its canonical form differ.
    `held_out`: the samples held out, of the entry whose ranges are used.
    """

    data: BuildData
    calibrated: CalibratedNetwork
    calibrated_on: int | None
    unread: tuple[str, ...]
    held_out: HoldOut


def build(
    model: ModelFile | str | os.PathLike[str] | bytes | Any,
    options: BuildOptions,
    dump: Dump = ignore_progress,
    progress: Callable[..., Any] = ignore_progress,
    cancel: CancelEvent | None = None,
) -> Build:
    """Build a model: calibrate, quantize, compile, verify the program, judge it, and return the build. No file is written.

    `model`: a path, bytes, an onnx.ModelProto, an onnx_ir.Model, an ONNXProgram of torch, or a ModelFile.
    `dump`: is called at every stage with its name and a function that makes its text.
    `progress`: is called with the stage, how much of it is done, of how much or None, and the seconds left or None. One of
    three arguments is called without the last, and so is one whose fourth has a default other than None.
    `cancel`: an event; when it is set the build ends with CancelledError.

    Of several entries the first is calibrated. Its ranges also cover the data in the shapes of the others, or all entries
    follow the parameters file. So what they share is the same bytes.

    Raise ConfigError for a machine or a parameters file that is wrong, CompileError for a model, data or options that cannot be
    used. Raise InternalError where the program does not give the bits of the reference. A failed accuracy gate is not raised;
    the build holds it in `failures`.
    """
    _require_arguments(options, progress, cancel)
    load_plugins(options.plugins)
    use_custom_ops(options.custom_ops)
    file = model_file(model)

    def run() -> Build:
        start = options.passes.start
        with blame_plugins(), run_float_models_on(options.host), inference_notes() as notes, blame_start(start):
            built = _all_entries(file, options, dump, add_time_left(progress))
        return replace(built, notes=(*built.notes, *notes))

    if cancel is not None:
        import_module("onnxruntime")  # an import of compiled modules is not to be interrupted
    return run_cancellable(run, cancel)


def _require_arguments(options: object, progress: object, cancel: object) -> None:
    """Raise CompileError for arguments of `build` that are none of theirs."""
    if not isinstance(options, BuildOptions):
        shown = repr(options) if isinstance(options, str) else "..."
        raise CompileError(f"options: is {type(options).__name__}; give BuildOptions({shown})")
    if not callable(progress):
        raise CompileError(
            f"progress: is {type(progress).__name__}; give a function of four arguments: stage, done, total, left_s"
        )
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise CompileError(f"cancel: is {type(cancel).__name__}; give an event, as threading.Event()")


def _all_entries(file: ModelFile, options: BuildOptions, dump: Dump, progress: Progress) -> Build:
    """Build every entry: quantize and compile one after the other, put all into one file, then verify each."""
    machine = options.hardware if isinstance(options.hardware, Machine) else load_machine(options.hardware)
    evaluation = load_evaluation(options.gate)
    schedules = read_schedules(options.schedule, tuple(options.entries))
    started: dict[str, _Started] = {}
    compiled: dict[str, CompiledNetwork] = {}
    steps = SearchSteps(options.search_steps, make_deadline(options.time_limit_s), progress)
    each = options.each()

    @cache
    def opened(name: str) -> Network:
        tell = dump_of(name, dump) if options.entries else dump
        return _open_network(file, each[name], machine, tell, progress)

    for name, entry_options in each.items():
        first = next(iter(started.values()), None)
        with entry_points.entry_in_errors(name if options.entries else None):
            started_entry = _start_entry(opened(name), entry_options, first, progress, alone=len(each) == 1)
        if first is None and options.entries:
            started_entry = replace(started_entry, calibrated=_over_all_shapes(started_entry, each, opened, progress))
        with entry_points.entry_in_errors(name if options.entries else None):
            tell = dump_of(name, dump) if options.entries else dump
            network, quantization = started_entry.calibrated.network, started_entry.calibrated.quantization
            entry_schedules, name_ = schedules.get(name if options.entries else "", ()), file.name
            compiled_entry = compile_model(
                name_,
                network.model,
                network.selection,
                machine,
                quantization,
                entry_options.level,
                tell,
                progress,
                entry_schedules,
                entry_options.planned_for,
                rings=len(each) == 1,  # entries of other numbers of rows would not have one state
                steps=steps,
            )
        started[name], compiled[name] = started_entry, compiled_entry
    data = entries_to_bytes({name: compiled_entry.container for name, compiled_entry in compiled.items()})
    progress("check", 0, None)
    built: dict[str, Build] = {}
    for name, entry_options in each.items():
        with entry_points.entry_in_errors(name if options.entries else None):
            entry_built = _built(data, name, compiled[name], started[name], entry_options, evaluation, progress)
            built[name] = _with_steps(entry_built, steps, options)
    return _together(data, built) if options.entries else built[MAIN]


def _with_steps(built: Build, steps: SearchSteps, options: BuildOptions) -> Build:
    """Return the build with the steps of its searches: among its figures, and in a note where they had a limit."""
    figures = {**built.figures, "search_steps": steps.count}
    if options.time_limit_s is None and options.search_steps is None:
        return replace(built, figures=figures)
    limit = f"after {steps.count:,} steps" if options.time_limit_s is None else f"at --time-limit {options.time_limit_s:g}"
    ended = f"search of plans: ended {limit}; --search-steps {steps.count} gives the same file on any machine"
    in_full = f"search of plans: came to its end after {steps.count:,} steps, before its limit"
    return replace(built, figures=figures, notes=(*built.notes, ended if steps.over else in_full))


def _open_network(file: ModelFile, options: BuildOptions, machine: Machine, dump: Dump, progress: Progress) -> Network:
    """Return the model in the shapes of one entry, selected for its machine, not yet quantized."""
    progress("load", 0, None)
    data = model_data(options.calibration, options.samples, options.judge)
    model = load_model(file, options.shapes, values=options.values, static_ranges=options.static_ranges, data=data)
    hosted = match_nodes(model.nodes, options.host_nodes)
    file_types: Mapping[str, CodeType] = {}
    if options.parameters is not None:
        file_types = read_parameters(Path(options.parameters)).quantization.types
    model = pair_states(decompose_for_types(model, machine.chip, hosted, options.types, file_types), options.states)
    model = tie_block_ranges(model) if options.blocks_alike else model
    selection = select_model(model, machine, dump, options.host_nodes, options.passes)
    return Network(model, selection, machine, hosted).override_types(options.types)


def _over_all_shapes(
    started: _Started, each: Mapping[str, BuildOptions], opened: Callable[[str], Network], progress: Progress
) -> CalibratedNetwork:
    """Return the first entry with its ranges widened to what the data show in the shapes of the others.

    Entries whose shapes the data do not fit add nothing.
    """
    calibrated = started.calibrated
    for name, options in list(each.items())[1:]:
        if options.calibration is None or options.parameters is not None:
            continue
        with entry_points.entry_in_errors(name):
            network = opened(name)
            samples = calibration_in_other_shapes(network.model, options, calibrated.network.model)
            if samples is not None:
                judged = calibrated.judged
                if judged is not None:
                    judged = widen_ranges(judged, network, started.held_out.seen_of(samples), progress)
                calibrated = replace(widen_ranges(replace(calibrated, judged=None), network, samples, progress), judged=judged)
    return calibrated


def _start_entry(network: Network, options: BuildOptions, first: _Started | None, progress: Progress, alone: bool) -> _Started:
    """Open and quantize one entry.

    A tensor that a sample fills with NaN or infinity sends the nodes beside it to the host, where that is possible.

    `first`: another entry of the file, whose ranges quantize this one; None: it is calibrated itself.
    `alone`: there is no other entry, so that nodes may go to the host.
    Raise CompileError where it cannot be quantized.
    """
    first_fault: NotFinite | None = None
    while True:
        try:
            return _quantize_network(network, options, first, progress, alone=alone)
        except NotFinite as fault:
            first_fault = first_fault or fault  # what comes of it says less of the data
            changed = network.without_range(fault.tensor, fault.what) if alone else None
            if changed is None:
                raise first_fault from None
            network = changed


def _quantize_network(
    network: Network, options: BuildOptions, first: _Started | None, progress: Progress, alone: bool
) -> _Started:
    """Open the data of one entry, check the frontend, place nodes at ports, and quantize.

    `alone`: there is no other entry, so that nodes beside ports may go to the host.
    Raise NotFinite where a tensor cannot have codes, CompileError otherwise.
    """
    model = network.model
    data = (
        open_build_data(model, options, network.not_finite)
        if first is None
        else data_in_other_shapes(model, options, first.calibrated.network.model)
    )
    model, unread = check_frontend(model, islice(data.calibration, _FRONTEND_CHECK_SAMPLES))
    network = replace(network, model=model, raw_ports=frozenset(options.raw_ports))
    slowdown = options.max_slowdown if alone else 1.0  # other entries have the steps of the types they were opened with
    network = replace(network, max_slowdown=slowdown, count_cycles=make_cycle_counter(options.level))
    require_ports(network, options.raw_ports)
    if options.host_ports and alone and options.calibration is not None and options.parameters is None:
        network = place_port_nodes(network, data.calibration, options.raw_ports)
        network = place_output_softmaxes(network, data.calibration, options.raw_ports)
    if first is None or options.parameters is not None:
        return replace(_calibrate_entry(network, options, data, progress), unread=unread)
    calibrated = reuse_quantization(network, first.calibrated)
    return _Started(data, calibrated, first.calibrated_on, unread, first.held_out)


def _built(
    data: bytes,
    name: str,
    compiled: CompiledNetwork,
    started: _Started,
    options: BuildOptions,
    evaluation: Evaluation | None,
    progress: Progress,
) -> Build:
    """Verify and judge one entry of the file `data`, collect its warnings and notes, and return its build."""
    container, calibrated = compiled.container, started.calibrated
    model, selection, chip = calibrated.network.model, calibrated.network.selection, container.machine.chip
    on, judging = choose_evaluation_data(started.data, options, started.calibrated_on, started.held_out)
    figures, judgement = verify_build(
        (data, name), compiled, calibrated, (on, judging), started.held_out.seen, evaluation, options, progress
    )
    hosted, key_trials = host_reasons(selection), KeyTrials(container, figures, options)
    if options.explain:
        figures["key_trials"] = [trial.as_json for trial in key_trials.run()]
    figures["expected_cycles"] = compiled.expected_cycles
    figures["fastest"] = compiled.fastest
    figures["repair"] = calibrated.figures()
    is_repaired = options.repair is not None or options.observer == AUTO
    figures["near_copies_judged"] = started.held_out.copies if on == "held out" else 0
    figures["calibration_samples"] = calibrated.samples if options.calibration is not None else None
    measured = options.calibration is not None or options.parameters is not None
    warnings = (
        *model.warnings,
        *started.unread,
        *random_warnings(options),
        *not_finite_warnings(calibrated.network.not_finite),
        *(calibration_warnings(figures["calibration_samples"]) or few_values_warnings(calibrated.outputs if measured else {})),
        *(unseen_warnings(calibrated.unseen) if options.calibration is not None else ()),
        *make_joined_range_warnings(calibrated.quantization.ranges, calibrated.quantization.joined, model.name),
        *idle_warnings(options.static_ranges, model.nodes),
        *make_skipped_warnings(figures["repair"] if is_repaired else None, options.observer, started.calibrated_on is not None),
        *evaluation_warnings(
            on, judgement.figures["judged_samples"], started.data, options, started.calibrated_on, started.held_out.copies
        ),
        *judgement.warnings,
        *host_warnings(figures["host"], model.nodes, hosted.values()),
        *figures["warnings"],
        *stride_warnings(container, figures["layers"]),
        *key_trials.list_warnings(),
    )
    folded = [n for n in options.host_nodes if hosted.keys().isdisjoint(match_nodes(model.nodes, (n,)))]
    idle = (f"--host-node {n}: is folded away, nothing of it is left to run" for n in folded)
    graph, network = selection.graph, calibrated.network
    requantized_notes = list_requantized_weights(
        graph, network.weighted, model.stored, calibrated.quantization.weight_types, chip
    )
    judged = calibrated.judged.samples if calibrated.judged is not None else None
    refit = refit_notes(on, calibrated.samples, judged)
    notes = (
        *model.notes,
        *selection.notes,
        *requantized_notes,
        *calibrated.notes,
        *started.data.notes,
        *refit,
        *similarity_notes(on, started.held_out),
        *idle,
        *judgement.notes,
    )
    chosen = fuse_selected_clamps(selection, chip)
    integer, shown, nearest = compiled.unfused, selection.shown, options.export_nearest
    qdq = qdq_model(model, integer, chosen, shown, chip, nearest) if options.export_qdq else None
    curve = _curve(container.name, calibrated, container.machine, options, progress) if options.sram_curve else None
    if curve is not None:
        figures["sram_curve"] = as_figures(curve)
    return Build(
        container,
        data,
        figures,
        notes,
        warnings,
        judgement.failures,
        judgement.errors,
        qdq,
        lambda: compiled.schedule,
        curve,
    )


def _curve(name: str, calibrated: CalibratedNetwork, machine: Machine, options: BuildOptions, progress: Progress) -> SramSweep:
    """Sweep the sizes of SRAM for a network that is quantized already."""
    network, quantization, goal = calibrated.network, calibrated.quantization, options.planned_for

    def container(other: Machine) -> Container:
        return compile_model(name, network.model, network.selection, other, quantization, options.level, goal=goal).container

    return sram_curve(container, machine, progress)


def _calibrate_entry(network: Network, options: BuildOptions, data: BuildData, progress: Progress) -> _Started:
    """Quantize an entry by the parameters file, or calibrate and repair it.

    Samples that are held out judge the network without them. Behind all choices the ranges are made of all samples.
    """
    effort: Effort = "none"
    if options.parameters is None and options.passes.start is None:
        effort = effort_of(options.repair, network, data.calibration, real=options.calibration is not None)
    chooses = effort != "none" or options.observer == AUTO
    held_out = hold_out_evaluation_data(data, options, chooses=chooses, states=bool(network.model.states))
    if options.parameters is not None:
        calibrated = load_quantization(network, Path(options.parameters))
    else:
        every = held_out.every if held_out.indices else None
        calibrated = calibrate_network(network, held_out.seen, options.observer, effort, progress, every)
    return _Started(replace(data, calibration=held_out.every), calibrated, calibrated.samples, (), held_out)


def _states_of(containers: Mapping[str, Container]) -> tuple[list[str], list[str]]:
    """Return the names of states that all entries share, and those of the others."""
    states = [{state.name: state for _, state in c.states} for c in containers.values()]
    names = dict.fromkeys(name for states_of_entry in states for name in states_of_entry)
    shared = [
        n for n in names if all(n in states_of_entry and states_of_entry[n].holds_as(states[0][n]) for states_of_entry in states)
    ]
    return shared, [n for n in names if n not in shared]


def _together(data: bytes, built: Mapping[str, Build]) -> Build:
    """Return one build for a file of several entries.

    `data`: the bytes of the complete file. Each entry's build gets the bytes of a file of its own.
    """
    first = next(iter(built.values()))
    alone = {name: replace(one, data=container_to_bytes(one.container)) for name, one in built.items()}
    figures = entry_points.figures_of_entries(
        len(data), {name: len(one.data) for name, one in alone.items()}, {name: one.figures for name, one in alone.items()}
    )

    def label_all(sentences_of: Callable[[Build], Sequence[str]]) -> tuple[str, ...]:
        return tuple(
            sentence for name, one in built.items() for sentence in entry_points.label_sentences(name, sentences_of(one))
        )

    notes, warnings = label_all(lambda one: one.notes), label_all(lambda one: one.warnings)
    failures = label_all(lambda one: one.failures)
    notes += tuple(entry_points.describe_states([*built], *_states_of({name: one.container for name, one in built.items()})))

    def scheduled() -> tuple[RegionTree, ...]:
        return tuple(replace(tree, entry=name) for name, one in built.items() for tree in one.schedule)

    return Build(first.container, data, figures, notes, warnings, failures, scheduled=scheduled, entries=alone)


@dataclass(frozen=True)
class LeavingName:
    """A public name that works for one more release.

    `load`: returns what the name stands for.
    `gone_in`: the version that no longer has it.
    `way_out`: what to use in its place.
    """

    load: Callable[[], Any]
    gone_in: str
    way_out: str


def get_leaving_name(module: str, name: str, leaving: Mapping[str, LeavingName]) -> Any:
    """Return what a module's leaving name stands for, with a DeprecationWarning; for the module's `__getattr__`.

    Raise AttributeError for every other name.
    """
    if name not in leaving:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    entry = leaving[name]
    warnings.warn(f"{module}.{name} leaves in {entry.gone_in}; {entry.way_out}", DeprecationWarning, stacklevel=3)
    return entry.load()
