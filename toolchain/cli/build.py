"""npu-build: an ONNX model to model.npu, with a report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from toolchain.cli.faults import reported
from toolchain.cli.progress import shown

Level = Annotated[int, typer.Option("-O", min=0, max=3, help="optimization level, -O0 to -O3")]


def main() -> None:
    # typer knows no -O2 without a space
    sys.argv = [part for a in sys.argv for part in ([a[:2], a[2:]] if a[:2] == "-O" and a[2:].isdigit() else [a])]
    typer.run(build_command)


def build_command(
    model: Annotated[Path, typer.Argument(help="the ONNX model")],
    hw: Annotated[str, typer.Option(help="machine: a shipped name or a YAML file")],
    calib: Annotated[str | None, typer.Option(help=".npz, directory of .npy or images, or file.py:generator")] = None,
    quant: Annotated[str | None, typer.Option(help="parameters file of scripts/calibrate.py, perhaps edited")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="NAME=1,3,640,640 binds the dimensions of an input")] = None,
    host: Annotated[str, typer.Option(help="where islands run: cpu or cuda")] = "cpu",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="the compiled file; default MODEL.npu")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="the report as JSON")] = None,
    explain: Annotated[bool, typer.Option(help="list every node: engine, reason, cost")] = False,
    dump_after: Annotated[str | None, typer.Option(help="a stage, or all: its text goes to --dump-dir")] = None,
    dump_dir: Annotated[Path, typer.Option(help="where dumps go")] = Path("dumps"),
    observer: Annotated[str | None, typer.Option(help="minmax, percentile or mse; default by the machine")] = None,
    samples: Annotated[int | None, typer.Option(help="use at most so many calibration samples")] = None,
    level: Level = 2,
) -> None:
    """Calibrate, quantize, split, fuse, place, emit, check."""
    with reported():
        _build(model, hw, calib, quant, shape, host, output, json_file, explain, dump_after, dump_dir, observer, samples, level)


def _build(
    model: Path,
    hw: str,
    calib: str | None,
    quant: str | None,
    shape: list[str] | None,
    host: str,
    output: Path | None,
    json_file: Path | None,
    explain: bool,
    dump_after: str | None,
    dump_dir: Path,
    observer: str | None,
    samples: int | None,
    level: int,
) -> None:
    from toolchain.api import STAGES, BuildOptions, build
    from toolchain.codegen import write_whole
    from toolchain.errors import CompileError
    from toolchain.report import text

    if host not in ("cpu", "cuda"):
        raise CompileError(f"--host {host}: must be cpu or cuda")
    if dump_after is not None and dump_after not in (*STAGES, "all"):
        raise CompileError(f"--dump-after {dump_after}: no such stage; stages are {', '.join(STAGES)}, or all")
    options = BuildOptions(hw, calib, quant, _shapes(shape or []), host, level, samples, observer)
    with shown() as progress:
        built = build(model, options, _dumper(dump_after, dump_dir), progress)
    target = output or model.with_suffix(".npu")
    write_whole(target, built.data)
    if json_file is not None:
        write_whole(json_file, (json.dumps(built.figures, indent=1) + "\n").encode())
    machine = built.container.machine
    sections = [
        text.layers_text(built.figures, machine.chip.macs_per_cycle),
        text.totals_text(built.figures),
        text.fallbacks_text(built.figures),
        text.fidelity_text(built.figures["outputs"], "outputs against float:"),
        text.fidelity_text(built.figures["concats"], "concat operands against float:"),
        text.explain_text(built.figures) if explain else "",
        *text.warnings_text(built.figures),
        *(f"note: {note}" for note in built.notes),
        f"wrote {target}: {len(built.data):,} bytes; the emitted program equals the integer reference bit for bit",
    ]
    print("\n\n".join(s for s in sections if s))


def _shapes(given: list[str]) -> dict[str, tuple[int, ...]]:
    from toolchain.errors import CompileError

    shapes: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, dims = text.partition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split(","))
        except ValueError:
            equals = ""
        if not equals or not name:
            raise CompileError(f"--shape {text}: must be NAME=D0,D1,..., for example --shape x=1,3,640,640")
    return shapes


def _dumper(stage: str | None, directory: Path):
    """Writes NN-STAGE.txt files; later regions are added to their stage's file."""
    from toolchain.api import STAGES, _silent

    if stage is None:
        return _silent
    started: set[str] = set()

    def dump(name: str, text: str) -> None:
        if stage not in (name, "all"):
            return
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{STAGES.index(name):02d}-{name}.txt"
        with file.open("a" if name in started else "w", encoding="utf-8") as out:
            out.write(text)
        started.add(name)

    return dump
