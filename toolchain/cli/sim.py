"""Define the command npu-sim: run a compiled file bit-exactly on the simulator or another backend, and print where cycles went.

It also compares a run with the integer reference (`--verify`) and dumps memories behind an operation (`--dump-memory`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain.cli import exit_on_interrupt
from toolchain.cli.application import (
    CustomOps,
    Plugins,
    Version,
    application,
    as_options,
    load_plugin_option,
    report_errors,
    require_host,
    require_new_folder,
    require_writable,
    say,
    use_custom_ops_option,
    warn,
)
from toolchain.cli.files import machine_inputs
from toolchain.cli.progress import make_progress_bar
from toolchain.errors import CompileError
from toolchain.hw.timing_terms import TERMS

if TYPE_CHECKING:
    from toolchain.runtime import Run, Session

_MOST_LISTED = 8  # nodes and segments that are printed one by one


def main() -> None:
    """Run the command on the process's arguments and exit."""
    application(sim_command)()


def sim_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A compiled model, model.npu.")],
    input_file: Annotated[
        Path | None,
        typer.Option("--input", help=".npz with an array for each input, and for states that are not zero; default random."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help=".npz for the outputs, and for what is left of states, by the names of their inputs."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="The figures as JSON.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Chrome trace, opens in Perfetto.")] = None,
    host: Annotated[str, typer.Option(help="Where islands run: cpu or cuda.")] = "cpu",
    backend: Annotated[
        str, typer.Option(help="What runs the programs: simulator, reference, cuda, or a package's.")
    ] = "simulator",
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with the integer reference; exit code 1 where a byte differs.")
    ] = False,
    dump_memory: Annotated[
        str | None,
        typer.Option(metavar="AFTER", help="Stop behind an operation (its index, SEGMENT:INDEX, end); memories go to --out."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the memories and what they hold.")] = None,
    entry: Annotated[str | None, typer.Option(help="Which of the sets of input shapes that MODEL was built for.")] = None,
    hw: Annotated[str | None, typer.Option(help="Refuse a file that was built for another machine than this.")] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(help="NAME=ADDRESS: where an area of DRAM lies, as constants=0x100000 or input:x=0x8000. Repeatable."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="TERM", help=f"Times a machine on which this costs nothing: {', '.join(TERMS)}. Repeatable."),
    ] = None,
    plugin: Plugins = None,
    custom_ops: CustomOps = None,
    version: Version = False,
) -> None:
    """Runs MODEL on the simulator, or another backend, islands in onnxruntime; prints where the cycles went and what ran where.

    Exit code 2 where the file or its program breaks a rule.
    """
    with report_errors():
        with exit_on_interrupt():
            import_module("toolchain.runtime")
        require_host(host)
        load_plugin_option(plugin)
        use_custom_ops_option(custom_ops)
        if without and backend != "simulator":
            raise CompileError(f"--without {without[0]}: times of the simulator only, not of backend {backend}")
        request = SimRequest(model, entry, backend, host, hw, area_bases(base or []), tuple(without or ()))
        outputs = {"--output": output, "--json": json_file, "--trace": trace}
        require_writable(outputs, {"the model": model, "--input": input_file, **machine_inputs(hw)})
        if dump_memory is None and out is None:
            return _simulate(request, input_file, output, json_file, trace, verify)
        if dump_memory is None:
            raise CompileError(f"--out {out}: goes with --dump-memory AFTER, which says where to stop")
        if out is None:
            raise CompileError(f"--dump-memory {dump_memory}: needs --out DIR, a new folder for the memories")
        other_options = {**outputs, "--verify": verify or None, "--without": without or None}
        unused = next((name for name, value in other_options.items() if value is not None), None)
        if unused is not None:
            raise CompileError(f"{unused}: does not go with --dump-memory {dump_memory}, which stops the program there")
        require_new_folder("--out", out)
        return _dump(request, input_file, dump_memory, out)


@dataclass(frozen=True)
class SimRequest:
    """A request to run a compiled file.

    `entry`: one of its sets of input shapes; None: the only one.
    `hw`: the machine that the file must be for; None: any.
    `bases`: addresses of areas of DRAM, by name.
    `without`: terms of the machine's time that cost nothing.
    """

    model: Path
    entry: str | None
    backend: str
    host: str
    hw: str | None
    bases: Mapping[str, int]
    without: tuple[str, ...]

    def session(self, timing: bool) -> Session:
        """Return a session of the request.

        `timing`: the simulator shall give times.
        Raise CompileError where there is no such entry or backend, ProgramError for a file of another machine than `hw`.
        """
        from toolchain.runtime import Session

        with as_options():
            session = Session(
                self.model,
                backend=self.backend,
                host=self.host,  # type: ignore[arg-type]
                timing=timing,
                bases=self.bases,
                entry=self.entry,
                without=self.without,
            )
        if self.hw is not None:
            _require_machine(session, self.model, self.hw)
        return session

    def reference(self) -> Session:
        """Return a session of the integer reference on the same file and entry."""
        from toolchain.runtime import Session

        return Session(self.model, backend="reference", host=self.host, entry=self.entry)  # type: ignore[arg-type]


def area_bases(texts: Sequence[str]) -> dict[str, int]:
    """Return the addresses by name of area.

    `texts`: NAME=ADDRESS of each `--base`; a name may hold '='. An address is decimal or hexadecimal with 0x.
    Raise CompileError where a text has another form or a name is repeated.
    """
    bases: dict[str, int] = {}
    for text in texts:
        name, _, address = text.rpartition("=")
        if not name or not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19}", address, re.ASCII):
            raise CompileError(f"--base {text}: must be NAME=ADDRESS, for example --base constants=0x100000")
        if name in bases:
            raise CompileError(f"--base {text}: {name!r} is given twice")
        bases[name] = int(address, 0 if address[1:2] in ("x", "X") else 10)
    return bases


def _dump(request: SimRequest, input_file: Path | None, after: str, out: Path) -> None:
    """Run the program up to `after`, and write the memories into the folder `out`."""
    from toolchain.cli.files import read_feeds
    from toolchain.foundation.atomic_files import write_files
    from toolchain.runtime import memory_files, parse_stop

    session = request.session(timing=False)
    try:
        stop = parse_stop(after, session)
    except CompileError as fault:
        raise CompileError(f"--dump-memory {fault}") from None
    feeds = read_feeds(
        input_file, session.get_inputs(), session.get_states(), session.container.bound, session.container.host_inputs
    )
    with make_progress_bar() as progress:
        files = memory_files(session, stop, feeds, progress)
    write_files({out / name: data for name, data in files.items()}, [out])
    say(f"wrote {out}: {', '.join(f'{name} {len(data):,} bytes' for name, data in files.items())}")
    say(f"behind op {stop.index} of segment {stop.segment}, on {request.backend}")
    if input_file is None:
        say("\nnote: ran on random inputs; give --input IN.npz")


def _simulate(
    request: SimRequest,
    input_file: Path | None,
    output: Path | None,
    json_file: Path | None,
    trace: Path | None,
    compare: bool,
) -> None:
    """Run the file once, write the requested files, and print the report; exit with 1 where `compare` finds a difference."""
    from quant.float_session import inference_notes
    from toolchain.cli.files import npz_bytes, read_feeds
    from toolchain.codegen import Region
    from toolchain.errors import format_count
    from toolchain.foundation.atomic_files import write_files
    from toolchain.runtime import verify

    session = request.session(timing=True)
    feeds = read_feeds(
        input_file, session.get_inputs(), session.get_states(), session.container.bound, session.container.host_inputs
    )
    reference = request.reference() if compare else None
    with make_progress_bar() as progress, inference_notes() as notes:
        if reference is None:
            run, difference = session.run_detailed(feeds, progress), None
        else:
            run, difference = verify(session, reference, feeds, progress)
    simulations = [s.simulation for s in run.segments]
    timed = all(s.simulation is not None for s in run.segments if s.where == f"npu ({request.backend})")
    if trace is not None and not timed:
        raise CompileError(f"--trace {trace}: backend {request.backend} gives no times; the simulator does")
    figures = _figures(session, run, timed)
    if compare:
        figures["difference"] = difference
    if request.without:
        figures["without"] = list(request.without)
    files: dict[str | Path, bytes] = {}
    if json_file is not None:
        files[json_file] = (json.dumps(figures, indent=1) + "\n").encode()
    if trace is not None:
        from toolchain.report.trace import trace_json

        files[trace] = trace_json(session.container, simulations)
    if output is not None:
        files[output] = npz_bytes(
            {**run.outputs, **{name: session.state(name) for name in (t.name for t in session.get_states())}}
        )
    write_files(files)
    say(_report(session, figures))
    if request.without:
        named = ", ".join(request.without)
        say(f"\nnote: times of a copy of {session.container.machine.chip.name} on which this costs nothing: {named}")
    for note in notes:
        say(f"\nnote: {note}")
    if input_file is None:
        say("\nnote: ran on random inputs; give --input IN.npz")
    if compare and difference is None:
        regions = (s for s in session.container.segments if isinstance(s, Region))
        partly = sum(layer.result is None for region in regions for layer in region.layers)
        partial_note = (
            f"; the tensors of {format_count(partly, 'layer')} are kept a few rows at a time: "
            "they are seen in what is made of them"
        )
        say(f"\nverified: every byte of every layer's tensor is the integer reference's{partial_note if partly else ''}")
    warn(figures["warnings"])
    if difference is not None:
        say(f"DIFFERS: {difference}", is_fault=True)
        raise SystemExit(1)


def _figures(session: Session, run: Run, timed: bool) -> dict[str, Any]:
    """Return the figures of a run.

    `timed`: the backend gives times.
    """
    from toolchain.codegen import reading_layers
    from toolchain.report import collect_metrics, get_untimed_figures
    from toolchain.report.host_metrics import list_segment_figures

    simulations = [s.simulation for s in run.segments]
    with reading_layers():
        figures = collect_metrics(session.container, simulations) if timed else get_untimed_figures(session.container)
    figures["segments"] = list_segment_figures(run.segments)
    figures["warnings"] = [w for s in run.segments for w in s.warnings]
    return figures


def _report(session: Session, figures: dict[str, Any]) -> str:
    """Return the text that npu-sim prints; without times only what ran where."""
    from toolchain.errors import printable_strings
    from toolchain.report import build_text, report_text

    figures, timed = printable_strings(figures), "cycles" in figures
    sections = [
        report_text.layers_text(figures) if timed else "",
        report_text.totals_text(figures)
        if timed
        else f"{figures['name']} on {figures['machine']}: no cycles, the backend gives no times",
        build_text.attribution_text(figures) if timed else "",
        build_text.traffic_text(figures) if timed else "",
        report_text.fallbacks_text(figures, _MOST_LISTED),
        report_text.segments_text(figures, _MOST_LISTED),
    ]
    more = max(len(figures["fallbacks"]), len(figures["segments"])) > _MOST_LISTED
    return "\n\n".join(s for s in (*sections, "--json FILE has all nodes and segments" if more else "") if s)


def _require_machine(session: Session, model: Path, hw: str) -> None:
    """Raise ProgramError where the file was built for another machine than `hw`."""
    from toolchain.errors import ProgramError
    from toolchain.isa import load_machine, machine_digest

    built, target_machine = session.container.machine, load_machine(hw)
    if machine_digest(built) != machine_digest(target_machine):
        raise ProgramError(
            f"{model}: was built for machine {built.chip.name} (digest {machine_digest(built)[:12]}), "
            f"not for {target_machine.chip.name} (digest {machine_digest(target_machine)[:12]}); build it again with --hw {hw}"
        )
