"""Define the command npu-dis: print the programs of a compiled model as listings, or put edited listings back into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from toolchain.cli.application import (
    Plugins,
    Version,
    application,
    as_options,
    load_plugin_option,
    report_errors,
    require_writable,
    say,
)
from toolchain.codegen import Container, Region, entries_to_bytes, read_container, read_entries
from toolchain.errors import ProgramError, comment_name, format_count
from toolchain.foundation.atomic_files import read_limited, write_atomically
from toolchain.input_limits import LISTING_BYTES
from toolchain.isa import AssembledProgram, assemble_words, disassemble, split_listings

_MODEL = typer.Argument(metavar="MODEL", help="A compiled model, model.npu.")
_ENTRY = typer.Option(None, "--entry", help="Which of the sets of input shapes that MODEL was built for.")
_OUTPUT = typer.Option(None, "-o", "--output", help="Write here instead of printing.")
_ASSEMBLE = typer.Option(None, "--assemble", help="A listing: write a copy of MODEL with its programs (needs -o).")


def run(
    model: Path = _MODEL,
    entry: str | None = _ENTRY,
    output: Path | None = _OUTPUT,
    assemble_from: Path | None = _ASSEMBLE,
    plugin: Plugins = None,
    version: Version = False,
) -> None:
    """Lists every program of MODEL, each operation with the layer it comes from; --assemble takes the listing back.

    Of a MODEL for several sets of input shapes it is the programs of one, --entry; the others stay as they are."""
    with report_errors():
        if assemble_from is not None and output is None:
            raise ProgramError("--assemble writes a compiled model; name it with -o OUT.npu")
        load_plugin_option(plugin)
        require_writable({"-o": output}, {"the model": model, "--assemble": assemble_from})
        with as_options():
            container = read_container(model, entry)
        if assemble_from is not None:
            assert output is not None
            entries = read_entries(model)
            entries[entry or next(iter(entries))] = replace_programs(container, _text(assemble_from))
            write_atomically(output, entries_to_bytes(entries))
            return
        text = listing(container)
        if output is None:
            say(text, end="")
        else:
            write_atomically(output, text.encode(errors="backslashreplace"))


def _text(path: Path) -> str:
    """Return the text of a listing. Raise ProgramError where it is no UTF-8 or too long."""
    try:
        return read_limited(path, LISTING_BYTES).decode()
    except UnicodeDecodeError:
        raise ProgramError(f"{path}: is no listing, not UTF-8 text") from None


def listing(container: Container) -> str:
    """Return the listing of a compiled model: every region's program in order, each from its line `isa NAME` on.

    Comments in front of a program name the segment, its ports and base registers; host segments have a comment alone.
    """
    machine = container.machine
    parts = [f"; {comment_name(container.name)} for {machine.chip.name}\n"]
    for index, segment in enumerate(container.segments):
        if not isinstance(segment, Region):
            parts.append(f"\n; segment {index}: host, {format_count(len(segment.nodes), 'node')}\n")
            continue
        words = len(segment.program) // machine.isa.word_bytes
        constants = sum(len(data) for _, data in segment.constants)
        parts.append(f"\n; segment {index}: npu, {format_count(words, 'word')}, {format_count(constants, 'byte')} of constants\n")
        states = [s.port for s in segment.states]
        for kind, ports in (("input", segment.inputs), ("output", segment.outputs), ("state", states)):
            parts += [f"; {kind} {comment_name(p.model)} {list(p.shape)} {p.dtype} at DRAM {p.address:#x}\n" for p in ports]
        for area in segment.areas:
            area_label = comment_name(area.label)
            parts += [f"; base {area.base_register}: {area_label} at DRAM {area.base:#x}\n"] if area.base_register else []
        parts.append(disassemble(segment.program, machine.isa, segment.op_layers, [layer.name for layer in segment.layers]))
    return "".join(parts)


def replace_programs(container: Container, text: str) -> Container:
    """Return a copy of the compiled model with the programs of a listing in place of its own; nothing else changes.

    Raise ProgramError where the listing has another number of programs, or one cannot be assembled.
    """
    texts = split_listings(text)
    regions = [s for s in container.segments if isinstance(s, Region)]
    if len(texts) != len(regions):
        raise ProgramError(f"the listing has {format_count(len(texts), 'program')} (lines 'isa NAME'), the model {len(regions)}")
    programs = iter([_region(s, assemble_words(t, container.machine.isa, len(s.layers))) for s, t in zip(regions, texts)])
    return replace(container, segments=tuple(next(programs) if isinstance(s, Region) else s for s in container.segments))


def _region(region: Region, assembled: AssembledProgram) -> Region:
    """Return a copy of the region with an assembled program and its layers."""
    return replace(region, program=assembled.program, op_layers=assembled.layers)


app = application(run)


def main() -> None:
    """Run the command on the process's arguments and exit."""
    app()
