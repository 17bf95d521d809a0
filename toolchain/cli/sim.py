"""npu-sim: runs a compiled file, bit-exact, with cycles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from toolchain.cli.faults import reported
from toolchain.cli.progress import shown


def main() -> None:
    typer.run(sim_command)


def sim_command(
    model: Annotated[Path, typer.Argument(help="a compiled .npu")],
    input_file: Annotated[str | None, typer.Option("--input", help=".npz with an array for each input; default random")] = None,
    output: Annotated[str | None, typer.Option("--output", help=".npz for the outputs")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="the figures as JSON")] = None,
    trace: Annotated[Path | None, typer.Option(help="Chrome trace, opens in Perfetto")] = None,
    host: Annotated[str, typer.Option(help="where islands run: cpu or cuda")] = "cpu",
    hw: Annotated[str | None, typer.Option(help="refuse a file built for another machine than this")] = None,
) -> None:
    """Decode, run, report."""
    with reported():
        _simulate(model, input_file, output, json_file, trace, host, hw)


def _simulate(
    model: Path,
    input_file: str | None,
    output: str | None,
    json_file: Path | None,
    trace: Path | None,
    host: str,
    hw: str | None,
) -> None:
    from toolchain.cli.arrays import read_feeds, write_arrays
    from toolchain.codegen import write_whole
    from toolchain.errors import CompileError
    from toolchain.report import run_figures, text
    from toolchain.runtime import Session

    if host not in ("cpu", "cuda"):
        raise CompileError(f"--host {host}: must be cpu or cuda")
    session = Session(model, host=host, timing=True)  # type: ignore[arg-type]
    if hw is not None:
        _require_machine(session, model, hw)
    feeds = read_feeds(input_file, session.get_inputs())
    with shown() as progress:
        run = session.run_detailed(feeds, progress)
    figures = run_figures(session.container, [s.simulation for s in run.segments])
    figures["segments"] = [{"where": s.where, "nodes": len(s.nodes)} for s in run.segments]
    if output is not None:
        write_arrays(output, run.outputs)
    if json_file is not None:
        write_whole(json_file, (json.dumps(figures, indent=1) + "\n").encode())
    if trace is not None:
        write_whole(trace, _trace(session, run))
    sections = [
        text.layers_text(figures, session.container.machine.chip.macs_per_cycle),
        text.totals_text(figures),
        text.fallbacks_text(figures),
        "ran: " + ", ".join(f"{len(s.nodes)} nodes on {s.where}" for s in run.segments),
    ]
    print("\n\n".join(s for s in sections if s))


def _require_machine(session, model: Path, hw: str) -> None:
    from toolchain.errors import ProgramError
    from toolchain.isa import load_machine, machine_digest

    built, asked = session.container.machine, load_machine(hw)
    if machine_digest(built) != machine_digest(asked):
        raise ProgramError(
            f"{model}: was built for machine {built.chip.name} (digest {machine_digest(built)[:12]}), "
            f"not for {asked.chip.name} (digest {machine_digest(asked)[:12]}); build it again with --hw {hw}"
        )


def _trace(session, run) -> bytes:
    from toolchain.report.trace import trace_json

    return trace_json(session.container, [s.simulation for s in run.segments])
