"""Define the command npu-build: compile an ONNX model to model.npu, with a report and other files on request.

The options become `BuildOptions` of toolchain.api. Everything that can be refused without the build is refused before it:
options without effect, and files that cannot be written. All files are written together at the end, or none.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain.cli import exit_on_interrupt
from toolchain.cli.application import (
    CUSTOM_OPS,
    CUSTOM_OPS_FORM,
    CUSTOM_OPS_HELP,
    PLUGIN,
    PLUGIN_FORM,
    PLUGIN_HELP,
    Paths,
    Version,
    application,
    as_options,
    load_plugin_option,
    report_errors,
    require_distinct_files,
    require_new_folder,
    require_writable,
    say,
    use_custom_ops_option,
    warn,
)
from toolchain.cli.build_report import curve_picture, error_reports, report
from toolchain.cli.dumps import StageDumps, dump_files, list_passes
from toolchain.cli.files import data_inputs, machine_inputs, model_inputs
from toolchain.cli.option_values import (
    STATE,
    STATE_FORM,
    STATE_HELP,
    TYPE,
    TYPE_FORM,
    TYPE_HELP,
    VALUE,
    VALUE_FORM,
    VALUE_HELP,
    check_plugin_option,
    judging_data,
    plan_goal,
    qdq_files,
    shape_sets,
    values_by_entry,
)
from toolchain.cli.progress import make_progress_bar
from toolchain.errors import CompileError
from toolchain.foundation.atomic_files import is_stream

if TYPE_CHECKING:
    from toolchain.api import BuildOptions

NOT_ACCURATE = 3  # exit code of a build that the gate keeps from being written
LEVELS = ("0", "1", "2", "3")


def main() -> None:
    """Run the command on the process's arguments and exit. Level options such as -O2 are split into two arguments first."""
    # click reads -O2 as three options where -O has a long name, or none; so it gets the two apart.
    arguments = [part for a in sys.argv[1:] for part in (("-O", a[2:]) if re.match("-O.", a) else (a,))]
    application(build_command, EXAMPLES)(args=arguments)


MODEL, DATA, ACCURACY = "Model and machine", "Calibration and quantization", "Accuracy"
SCHEDULE, OUTPUT, PASSES = "Schedule", "Output", "Passes"
EXAMPLES = {
    MODEL: "npu-build model.onnx --hw edge16 --shape x=1,3,224,224",
    DATA: "npu-build model.onnx --hw edge16 --calib calib.npz --repair none",
    ACCURACY: "npu-build model.onnx --hw edge16 --calib calib.npz --min-sqnr 20 --error-report report",
    SCHEDULE: "npu-build model.onnx --hw edge16 --optimize memory --sram-budget 96KiB",
    OUTPUT: "npu-build model.onnx --hw edge16 -o model.npu --json report.json --explain",
    PASSES: "npu-build model.onnx --hw edge16 --skip-pass fuse-tables --dump-after quantize",
}


def build_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.")],
    hw: Annotated[
        str | None,
        typer.Option(help="The machine: a shipped name (npu-hw list) or a YAML file. Required.", rich_help_panel=MODEL),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=1,3,640,640 sets the whole shape of an input; the same name again begins the next entry. Repeatable.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    value: Annotated[list[str] | None, typer.Option(VALUE, metavar=VALUE_FORM, help=VALUE_HELP, rich_help_panel=MODEL)] = None,
    state: Annotated[list[str] | None, typer.Option(STATE, metavar=STATE_FORM, help=STATE_HELP, rich_help_panel=MODEL)] = None,
    entry: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:SHAPE",
            help="NAME:x=1,3,160,160 adds an entry: programs for these shapes in the same file. Repeatable.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option(PLUGIN, metavar=PLUGIN_FORM, help=PLUGIN_HELP, rich_help_panel=MODEL)
    ] = None,
    custom_ops: Annotated[
        list[str] | None,
        typer.Option(CUSTOM_OPS, metavar=CUSTOM_OPS_FORM, help=CUSTOM_OPS_HELP, rich_help_panel=MODEL),
    ] = None,
    check_plugin: Annotated[
        Path | None,
        typer.Option(
            metavar=PLUGIN_FORM,
            help="Checks a plug-in as the toolchain's own operators are checked, and exits.",
            callback=check_plugin_option,
            is_eager=True,
            rich_help_panel=MODEL,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where host subgraphs and float models run: cpu or cuda.", rich_help_panel=MODEL)
    ] = "cpu",
    host_node: Annotated[
        list[str] | None,
        typer.Option(help="Keeps a node, an operator, or a pattern of either on the host. Repeatable.", rich_help_panel=MODEL),
    ] = None,
    host_ports: Annotated[
        bool,
        typer.Option(
            "--host-ports/--no-host-ports",
            help="Where codes lose a part of an input or output, the host computes nodes beside it and scales its channels.",
            rich_help_panel=MODEL,
        ),
    ] = True,
    raw_port: Annotated[
        list[str] | None,
        typer.Option(
            help="Keeps one affine scale at a port that a camera or a DMA feeds with codes. Repeatable.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    calib: Annotated[
        str | None,
        typer.Option(
            help="Calibration data: .npz, a directory of .npy or images, or file.py:generator. Default: random inputs.",
            rich_help_panel=DATA,
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Uses at most this many calibration samples. Default: all.", rich_help_panel=DATA)
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(help="A parameters file of scripts/calibrate.py, perhaps edited. Default: calibrate.", rich_help_panel=DATA),
    ] = None,
    observer: Annotated[
        str | None,
        typer.Option(
            help="How ranges are chosen: minmax, percentile, mse or auto. Default: by the machine.", rich_help_panel=DATA
        ),
    ] = None,
    repair: Annotated[
        str | None,
        typer.Option(
            help="Post-training refinement: none, fast or full. Default: fast from 16 samples on.", rich_help_panel=DATA
        ),
    ] = None,
    max_slowdown: Annotated[
        float,
        typer.Option(
            help="Times the expected cycles that repair may take for wider codes where a part is poor; 1 for none.",
            rich_help_panel=DATA,
        ),
    ] = 1.1,
    type_: Annotated[list[str] | None, typer.Option(TYPE, metavar=TYPE_FORM, help=TYPE_HELP, rich_help_panel=DATA)] = None,
    static_ranges: Annotated[
        bool,
        typer.Option("--static-ranges", help="Calibrates ranges that the model computes anew in each run.", rich_help_panel=DATA),
    ] = False,
    blocks_alike: Annotated[
        bool,
        typer.Option(
            "--blocks-alike", help="Gives repeated blocks common ranges, so that they share one program.", rich_help_panel=DATA
        ),
    ] = False,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ENTRY:]DATA",
            help="Data to judge on. Default: held-out samples of --calib. Repeatable, for single entries.",
            rich_help_panel=ACCURACY,
        ),
    ] = None,
    min_cosine: Annotated[
        float | None,
        typer.Option(help="The least cosine of every part; below it nothing is written, exit code 3.", rich_help_panel=ACCURACY),
    ] = None,
    min_sqnr: Annotated[
        float | None,
        typer.Option(help="The least SQNR of every part in dB; below it nothing is written.", rich_help_panel=ACCURACY),
    ] = None,
    evaluation: Annotated[
        str | None,
        typer.Option("--eval", help="FILE.py:FUNCTION decides whether the accuracy is enough.", rich_help_panel=ACCURACY),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Writes the file whatever these say.", rich_help_panel=ACCURACY)] = False,
    error_report: Annotated[
        Path | None,
        typer.Option(help="A new folder for the layer-wise error: table, JSON, HTML.", rich_help_panel=ACCURACY),
    ] = None,
    level: Annotated[str, typer.Option("-O", help="How much the planner searches: -O0 to -O3.", rich_help_panel=SCHEDULE)] = "2",
    optimize: Annotated[
        str,
        typer.Option(
            help="The goal of the plan: balanced, cycles, memory, traffic or energy.", metavar="WHAT", rich_help_panel=SCHEDULE
        ),
    ] = "balanced",
    tolerance: Annotated[
        str | None,
        typer.Option(
            help="Percent of cycles beyond the fewest that a balanced plan may take for less energy. Default: 1%.",
            metavar="PERCENT",
            rich_help_panel=SCHEDULE,
        ),
    ] = None,
    sram_budget: Annotated[
        str | None,
        typer.Option(
            help="The most SRAM that plans take: 172000 or 96KiB. Default: all.", metavar="BYTES", rich_help_panel=SCHEDULE
        ),
    ] = None,
    sram_curve: Annotated[
        Path | None,
        typer.Option(
            help="Plans for other sizes of the SRAM: a table of cycles and DRAM bytes, and this picture (SVG).",
            rich_help_panel=SCHEDULE,
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which searches for plans end. The report says their steps.",
            metavar="SECONDS",
            rich_help_panel=SCHEDULE,
        ),
    ] = None,
    search_steps: Annotated[
        int | None,
        typer.Option(
            help="Steps after which searches for plans end: gives what a --time-limit gave.",
            metavar="N",
            rich_help_panel=SCHEDULE,
        ),
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(
            help="A schedule in text: of --dump-schedule, edited, or written by hand. Default: planned.", rich_help_panel=SCHEDULE
        ),
    ] = None,
    dump_schedule: Annotated[
        Path | None, typer.Option(help="Writes the schedule as text, which --schedule takes.", rich_help_panel=SCHEDULE)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The compiled file. Default: MODEL.npu.", rich_help_panel=OUTPUT)
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Writes the report as JSON.", rich_help_panel=OUTPUT)] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Lists every node with engine, cost and reason. Tries which key of the machine helps most.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    image: Annotated[
        Path | None,
        typer.Option(help="A new folder for words, constants and ports as plain files.", rich_help_panel=OUTPUT),
    ] = None,
    export_qdq: Annotated[
        Path | None, typer.Option(help="Writes the quantized network as ONNX with QDQ pairs.", rich_help_panel=OUTPUT)
    ] = None,
    export_nearest: Annotated[
        bool,
        typer.Option(
            "--export-nearest",
            help="Layers in the export round once to nearest, as QLinear kernels do.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    epcontext: Annotated[
        Path | None,
        typer.Option(help="Writes ONNX whose chip parts are EPContext nodes of onnxruntime.", rich_help_panel=OUTPUT),
    ] = None,
    epcontext_embed: Annotated[
        bool,
        typer.Option("--epcontext-embed", help="The EPContext file holds the compiled file.", rich_help_panel=OUTPUT),
    ] = False,
    dump_after: Annotated[
        str | None, typer.Option(help="Writes a stage, all stages, or a pass, as text to --dump-dir.", rich_help_panel=PASSES)
    ] = None,
    dump_dir: Annotated[
        Path | None, typer.Option(help="The folder for dumps, made if missing. Default: dumps.", rich_help_panel=PASSES)
    ] = None,
    skip_pass: Annotated[
        list[str] | None, typer.Option(help="Leaves out an optional pass of --list-passes.", rich_help_panel=PASSES)
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Takes the graph of a stage from a text of --dump-after, edited or not, in place of the model's own.",
            rich_help_panel=PASSES,
        ),
    ] = None,
    verify_passes: Annotated[
        bool, typer.Option("--verify-passes", help="Verifies the graph after each pass.", rich_help_panel=PASSES)
    ] = False,
    list_passes: Annotated[
        bool,
        typer.Option(
            "--list-passes",
            help="Lists the passes in order and exits.",
            callback=list_passes,
            is_eager=True,
            rich_help_panel=PASSES,
        ),
    ] = False,
    version: Version = False,
) -> None:
    """Compiles MODEL for a machine: calibrate, quantize, split, fuse, place, emit, check. Prints where the cycles went."""
    with report_errors():
        with exit_on_interrupt():
            from toolchain.api import BuildOptions
            from toolchain.passes.pass_options import PassOptions
            from toolchain.passes.pipeline import require_optional
            from toolchain.passes.stage_file import read_stage
            from toolchain.report.gate import Gate

        load_plugin_option(plugin)
        use_custom_ops_option(custom_ops)
        machine, (shapes, entries) = _machine(hw, level), shape_sets(shape or (), entry or ())
        values, own_values = values_by_entry(value or (), entries)
        judged, judges = judging_data(judge or (), entries)
        start = None if start_from is None else read_stage(start_from)
        with as_options():
            passes = PassOptions(require_optional(skip_pass or ()), verify_passes, start)
            gate = Gate(min_cosine, min_sqnr, evaluation)
            options = BuildOptions(
                machine,
                calib,
                shapes=shapes,
                entries=entries,
                values=values,
                entry_values=own_values,
                states=None if state is None else tuple(state),
                host_nodes=tuple(host_node or ()),
                host=host,
                plugins=tuple(plugin or ()),
                custom_ops=tuple(custom_ops or ()),
                parameters=quant,
                samples=samples,
                observer=observer,  # type: ignore[arg-type]
                static_ranges=static_ranges,
                types=tuple(type_ or ()),
                repair=repair,  # type: ignore[arg-type]
                max_slowdown=max_slowdown,
                host_ports=host_ports,
                raw_ports=tuple(raw_port or ()),
                level=int(level),
                goal=plan_goal(optimize, sram_budget, tolerance),
                schedule=None if schedule is None else str(schedule),
                sram_curve=sram_curve is not None,
                time_limit_s=time_limit,
                search_steps=search_steps,
                blocks_alike=blocks_alike,
                passes=passes,
                judge=judged,
                judges=judges,
                gate=gate,
                error_report=error_report is not None,
                export_qdq=export_qdq is not None,
                export_nearest=export_nearest,
                explain=explain,
            )
        _require_effect(options, dump_after, dump_dir, force, sram_curve)
        _require_source(model)
        inputs = _inputs(model, machine, options, start_from)
        qdq = qdq_files(export_qdq, entries)
        output_files = OutputFiles(
            output or model.with_suffix(".npu"), json_file, qdq, image, error_report, dump_schedule, sram_curve, epcontext
        )
        dumps = StageDumps(dump_files(dump_after, dump_dir or Path("dumps")))
        _require_places(inputs, output_files, dumps)
        context = None if epcontext is None and not epcontext_embed else context_path(output_files, epcontext_embed, options)
        _build(model, options, output_files, explain, force, dumps, context)


def _machine(hw: str | None, level: str) -> str:
    """Return the machine of --hw. Raise CompileError where it is missing or there is no such level."""
    from toolchain.hw import list_shipped_names

    if hw is None:
        raise CompileError(f"--hw is missing: the machine to build for, one of {', '.join(list_shipped_names())}, or a YAML file")
    if level not in LEVELS:
        raise CompileError(f"-O{level}: must be -O0, -O1, -O2 or -O3")
    return hw


@dataclass(frozen=True)
class OutputFiles:
    """The files to write; None: not requested.

    `target`: the compiled file.
    `image`, `error_report`: folders.
    `qdq`: by entry, '' where there is only one.
    """

    target: Path
    json_file: Path | None
    qdq: Mapping[str, Path]
    image: Path | None
    error_report: Path | None
    schedule: Path | None
    sram_curve: Path | None
    epcontext: Path | None


def context_path(output_files: OutputFiles, embeds: bool, options: BuildOptions) -> str | None:
    """Return the compiled file's path as the EPContext file names it; None: the EPContext file holds the bytes.

    `embeds`: the option `--epcontext-embed`.
    Raise CompileError where EPContext nodes cannot express the build, or the file lies outside their folder.
    """
    file, target = output_files.epcontext, output_files.target
    if file is None:
        raise CompileError("--epcontext-embed: goes with --epcontext FILE.onnx, which it is about")
    if options.entries:
        raise CompileError(
            f"--epcontext {file}: holds one set of input shapes, not {len(options.entries)} entries; build each apart"
        )
    if options.states and options.states != ("none",):
        raise CompileError(
            f"--epcontext {file}: EPContext nodes keep no state {options.states[0]}; say --state none, or leave it out"
        )
    if embeds:
        return None
    folder = file.resolve().parent
    if not target.resolve().is_relative_to(folder):
        way_out = "write it there, or let --epcontext-embed put it in"
        raise CompileError(f"-o {target}: is outside the folder of --epcontext {file}, which names it by a path below; {way_out}")
    return target.resolve().relative_to(folder).as_posix()


def _inputs(model: Path, machine: str, options: BuildOptions, start_from: Path | None) -> dict[str, Paths]:
    """Return the files that are read, by what a message calls them. Raise CompileError where the model is no file."""
    from toolchain.passes.stage_file import list_stage_files

    input_paths = {**model_inputs(model), **machine_inputs(machine), **data_inputs("--calib", options.calibration)}
    return {
        **input_paths,
        "--quant": options.parameters,
        **data_inputs("--judge", options.judge),
        **{
            name: files for entry, data in options.judges.items() for name, files in data_inputs(f"--judge {entry}", data).items()
        },
        "the file of --eval": options.gate.file,
        "--schedule": options.schedule,
        "--start-from": None if start_from is None else [str(file) for file in list_stage_files(start_from)],
        PLUGIN: options.plugins,
        CUSTOM_OPS: options.custom_ops,
    }


def _require_places(inputs: Mapping[str, Paths], output_files: OutputFiles, dumps: StageDumps) -> None:
    """Check that all outputs can be written, and are distinct from the inputs and from each other. Raise CompileError."""
    qdq = {f"--export-qdq of entry {entry}" if entry else "--export-qdq": file for entry, file in output_files.qdq.items()}
    single = {"--json": output_files.json_file, "--dump-schedule": output_files.schedule, "--sram-curve": output_files.sram_curve}
    single["--epcontext"] = output_files.epcontext
    outputs = {"-o": output_files.target, **single, **qdq}
    require_writable(outputs, inputs)
    require_new_folder("--image", output_files.image)
    require_new_folder("--error-report", output_files.error_report)
    require_distinct_files(dumps.places, {**inputs, **outputs})


def _require_effect(
    options: BuildOptions, dump_after: str | None, dump_dir: Path | None, force: bool, sram_curve: Path | None
) -> None:
    """Raise CompileError where an option would do nothing, or something else than it says."""
    if options.observer is not None and options.parameters is not None:
        raise CompileError(
            f"--observer {options.observer}: --quant {options.parameters} holds the ranges already; give one of them"
        )
    if options.samples is not None and options.calibration is None:
        raise CompileError(f"--samples {options.samples}: goes with --calib DATA; without it the inputs are random")
    if force and not options.gate:
        raise CompileError("--force: goes with --min-cosine, --min-sqnr or --eval; nothing else keeps a file from being written")
    if options.export_nearest and not options.export_qdq:
        raise CompileError("--export-nearest: goes with --export-qdq FILE; it says how layers round there")
    if sram_curve is not None and sram_curve.suffix != ".svg" and not is_stream(sram_curve):
        raise CompileError(f"--sram-curve {sram_curve}: is written as SVG; give a name that ends in .svg")
    if dump_dir is not None and dump_after is None:
        raise CompileError(f"--dump-dir {dump_dir}: goes with --dump-after STAGE, which says what to dump")


def _require_source(model: Path) -> None:
    """Raise CompileError for a model that npu-build itself has written."""
    from toolchain.codegen import MAGIC

    if not model.is_file():
        return
    with model.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise CompileError(f"{model}: is compiled already; npu-sim {model} runs it, npu-build takes the ONNX model")


def _build(
    model: Path,
    options: BuildOptions,
    output_files: OutputFiles,
    explain: bool,
    force: bool,
    dumps: StageDumps,
    context: str | None,
) -> None:
    """Build the model, write the files, and print the report.

    A build that fails writes the dumps that it reached and no other file. A build that the gate refuses exits with code 3,
    unless `force` is set.

    `context`: as `context_path` returns it.
    """
    from toolchain.api import build
    from toolchain.codegen import image_files, images_of_entries
    from toolchain.foundation.atomic_files import write_files
    from toolchain.schedule.text import print_schedule

    try:
        with make_progress_bar() as progress:
            built = build(model, options, dumps.add, progress)
    except Exception:  # what the stages made is looked at then
        dumps.write()
        raise
    if built.failures and not force:
        dumps.write()
        say(report(built, explain, options))
        warn(built.warnings)
        written = "nothing but the dumps" if dumps.files else "nothing"
        refused = f"{written} was written; mend it, ask for less, or take it as it is with --force"
        say("\n".join(["NOT ACCURATE ENOUGH", *built.failures, refused]), is_fault=True)
        raise SystemExit(NOT_ACCURATE)
    parts = built.entries or {"": built}
    files: dict[str | Path, bytes] = {output_files.qdq[name]: one.qdq for name, one in parts.items() if one.qdq is not None}
    if output_files.json_file is not None:
        figures = {**built.figures, "notes": built.notes, "warnings": built.warnings, "failures": built.failures}
        files[output_files.json_file] = (json.dumps(figures, indent=1) + "\n").encode()
    if output_files.epcontext is not None:
        files[output_files.epcontext] = built.context_model(context, model.name)
    if output_files.schedule is not None:
        files[output_files.schedule] = print_schedule(built.schedule).encode()
    if output_files.sram_curve is not None and built.curve is not None:
        files[output_files.sram_curve] = curve_picture(built.curve, built.container).encode()
    containers = {name: one.container for name, one in built.entries.items()}
    folders = _folder(output_files.image, lambda: images_of_entries(containers) if containers else image_files(built.container))
    folders |= _folder(output_files.error_report, lambda: error_reports(model.stem, parts))
    new_folders = [*filter(None, (output_files.image, output_files.error_report)), *(file.parent for file in folders)]
    write_files({**dumps.contents, **files, **folders, output_files.target: built.data}, [*dumps.folders, *new_folders])
    say(report(built, explain, options))
    programs = any(one.figures["layers"] for one in parts.values())
    checked = "the emitted program equals the integer reference bit for bit" if programs else "no program"
    if len(built.entries) > 1 and programs:
        checked = "of every entry the emitted program equals the integer reference bit for bit"
    say(f"\nwrote {output_files.target}: {len(built.data):,} bytes; {checked}")
    warn((*built.warnings, *(f"NOT ACCURATE ENOUGH, written because of --force: {f}" for f in built.failures)))


def _folder(folder: Path | None, make_files: Callable[[], Mapping[str, bytes]]) -> dict[Path, bytes]:
    """Return the files of a folder by path; empty where the folder was not requested."""
    return {} if folder is None else {folder / name: data for name, data in make_files().items()}
