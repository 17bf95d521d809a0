"""Parse the values of options of npu-build: shapes, values, data and files, by entry where there are several; goals of the
plan.

An entry is one of several sets of input shapes in a compiled file. Options that scripts share with npu-build are added here
too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from toolchain.cli.application import (
    CUSTOM_OPS,
    CUSTOM_OPS_FORM,
    CUSTOM_OPS_HELP,
    PLUGIN,
    PLUGIN_FORM,
    PLUGIN_HELP,
    report_errors,
    say,
)
from toolchain.errors import CompileError
from toolchain.foundation.atomic_files import is_stream

if TYPE_CHECKING:
    from toolchain.schedule.goals import Goal


Shape = tuple[int, ...]

TYPE, TYPE_FORM = "--type", "NAME=TYPE"
VALUE, VALUE_FORM = "--value", "NAME=V0,V1"
VALUE_HELP = "An input is these numbers, or one number everywhere, from now on. Repeatable."
TYPE_HELP = "Codes of a tensor, of weights, or of what nodes or a pattern make. Repeatable."
STATE, STATE_FORM = "--state", "PAST=PRESENT"
STATE_HELP = "An input that is this output of the run before stays on the chip; none: no input does. Repeatable."


def add_types(parser: argparse.ArgumentParser) -> None:
    """Add --type to a script's parser, as npu-build has it. The parsed `types` is a list of NAME=TYPE."""
    parser.add_argument(TYPE, dest="types", action="append", default=[], metavar=TYPE_FORM, help=TYPE_HELP)


def add_values(parser: argparse.ArgumentParser) -> None:
    """Add --value to a script's parser, as npu-build has it. The parsed `values` is a list of NAME=V0,V1,..."""
    parser.add_argument(VALUE, dest="values", action="append", default=[], metavar=VALUE_FORM, help=VALUE_HELP)


def add_states(parser: argparse.ArgumentParser) -> None:
    """Add --state to a script's parser, as npu-build has it. The parsed `states` is a list of PAST=PRESENT, None without one."""
    parser.add_argument(STATE, dest="states", action="append", metavar=STATE_FORM, help=STATE_HELP)


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """Add --plugin and --custom-ops to a script's parser, as npu-build has them. They are parsed to `plugins`, `custom_ops`."""
    parser.add_argument(PLUGIN, dest="plugins", action="append", default=[], metavar=PLUGIN_FORM, help=PLUGIN_HELP)
    parser.add_argument(CUSTOM_OPS, action="append", default=[], metavar=CUSTOM_OPS_FORM, help=CUSTOM_OPS_HELP)


def plan_goal(optimize: str, sram_budget: str | None, tolerance: str | None = None) -> Goal:
    """Return the goal of `--optimize`, `--sram-budget` and `--tolerance`.

    `sram_budget`: bytes as text, such as 96KiB; None: all SRAM. `tolerance`: a percentage as text; None: the default.
    Raise CompileError for a text that cannot be read, or a tolerance without `balanced`. Its message begins with the
    option's name without dashes.
    """
    from toolchain.hw.section import read_bytes
    from toolchain.schedule.goals import Goal

    if tolerance is not None and optimize != "balanced":
        raise CompileError(f"tolerance {tolerance}: goes with --optimize balanced, not with {optimize}; leave it out")
    share = Goal.tolerance if tolerance is None else _read_share(tolerance)
    try:
        sram_bytes = None if sram_budget is None else read_bytes(sram_budget)
    except ValueError as fault:
        raise CompileError(f"sram-budget {sram_budget}: {fault}") from None
    return Goal(optimize, sram_bytes, tolerance=share)  # type: ignore[arg-type]


def _read_share(text: str) -> float:
    """Return the share, 0 to 1, that a percentage says. Raise CompileError for any other text."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise CompileError(f"tolerance {text}: must be a percentage from 0% to 100%, such as 1%")
    return share


def entry_shapes(texts: Sequence[str]) -> dict[str, dict[str, Shape]]:
    """Return the input shapes of each entry by name.

    `texts`: NAME:INPUT=D0,D1,... of each `--entry`. Further inputs of an entry repeat its name.
    Raise CompileError where a text has another form or an input is repeated.
    """
    entries: dict[str, list[str]] = {}
    for text in texts:
        name, colon, shape = text.partition(":")
        if not name or not colon:
            raise CompileError(f"--entry {text}: must be NAME:INPUT=D0,D1,..., for example --entry small:x=1,3,160,160")
        entries.setdefault(name, []).append(shape)
    return {name: input_shapes(shapes, f"--entry {name}:") for name, shapes in entries.items()}


def judging_data(texts: Sequence[str], entries: Collection[str]) -> tuple[str | None, dict[str, str]]:
    """Return the data that judge all entries (None without any), and the data of single entries by name.

    `texts`: DATA or ENTRY:DATA of each `--judge`.
    Raise CompileError where two texts give data for the same.
    """
    common, single = list[str](), dict[str, str]()
    for text in texts:
        entry, _, data = text.partition(":")
        if entry not in entries:
            common.append(text)
        elif entry in single:
            raise CompileError(f"--judge {text}: entry {entry} has data already: {single[entry]}")
        else:
            single[entry] = data
    if len(common) > 1:
        entry_hint = f"; entries are {', '.join(entries)}" if entries else ""
        raise CompileError(f"--judge {common[1]}: {common[0]} is given already; ENTRY:DATA is of a single entry{entry_hint}")
    return common[0] if common else None, single


def qdq_files(path: Path | None, entries: Collection[str]) -> dict[str, Path]:
    """Return the files of --export-qdq by entry, empty where `path` is None.

    A model without entries has `path` alone, under "". Else `q.onnx` becomes `q.NAME.onnx` for each entry.
    Raise CompileError where entries should go to a stream.
    """
    if path is None or not entries:
        return {} if path is None else {"": path}
    if is_stream(path):
        raise CompileError(f"--export-qdq {path}: every entry has a file of its own; give the name of a file")
    return {entry: path.with_name(f"{path.stem}.{entry}{path.suffix}") for entry in entries}


def shape_sets(shapes: Sequence[str], entries: Sequence[str]) -> tuple[dict[str, Shape], dict[str, dict[str, Shape]]]:
    """Return the shapes of `--shape` and `--entry`: those of all entries, and those by entry; one of the two is empty.

    An input that `--shape` names again begins the next set. Then each set is an entry named by its number, with the shapes of
    the set before where it names no other.

    Raise CompileError for a text of another form, a repeated set, or sets together with `--entry`.
    """
    sets: list[list[str]] = [[]]
    for text in shapes:
        if any(earlier.rpartition("=")[0] == text.rpartition("=")[0] for earlier in sets[-1]):
            sets.append([])
        sets[-1].append(text)
    set_shapes = [input_shapes(texts) for texts in sets]
    if len(set_shapes) == 1:
        return set_shapes[0], entry_shapes(entries)
    if entries:
        again = f"--shape {sets[1][0]}: names its input again, which begins a set of shapes of its own"
        raise CompileError(f"{again}; --entry does so by name: give one of them")
    full_sets: list[dict[str, Shape]] = []
    for new_shapes in set_shapes:
        full_sets.append({**(full_sets[-1] if full_sets else {}), **new_shapes})
    same = next((number for number, one in enumerate(full_sets) if one in full_sets[:number]), None)
    if same is not None:
        raise CompileError(f"--shape {sets[same][0]}: input {next(iter(set_shapes[same]))!r} is given twice")
    return {}, {str(number): one for number, one in enumerate(full_sets, 1)}


def input_shapes(texts: Sequence[str], option: str = "--shape ") -> dict[str, Shape]:
    """Return the shapes by input.

    `texts`: NAME=D0,D1,... of each `--shape`; a name may hold '='.
    `option`: what stands in front of a text on the command line, for the message.
    Raise CompileError where a text has another form or an input is repeated.
    """
    shapes: dict[str, Shape] = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        if not name or not re.fullmatch(r"-?\d+(,-?\d+)*", dims, re.ASCII):
            raise CompileError(f"{option}{text}: must be NAME=D0,D1,..., for example {option}x=1,3,640,640")
        if name in shapes:
            of = "" if option == "--shape " else f" of entry {option.removeprefix('--entry ').rstrip(':')!r}"
            raise CompileError(f"{option}{text}: input {name!r}{of} is given twice")
        shapes[name] = tuple(int(d) for d in dims.split(","))
    return shapes


def input_values(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values by input, as texts.

    `texts`: NAME=V0,V1,... of each `--value`; a name may hold '='.
    Raise CompileError where a text has another form or an input is repeated.
    """
    values: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, numbers = text.rpartition("=")
        parts = tuple(part.strip() for part in numbers.split(","))
        if not name or not all(parts):
            raise CompileError(f"{VALUE} {text}: must be NAME=V0,V1,..., for example {VALUE} rate=16000")
        if name in values:
            raise CompileError(f"{VALUE} {text}: input {name!r} is given twice")
        values[name] = parts
    return values


def values_by_entry(
    option_texts: Sequence[str], entries: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, tuple[str, ...]]]]:
    """Return the values of all entries by input, and those of single entries by entry and input, as texts.

    `option_texts`: NAME=V0,V1,... or ENTRY:NAME=V0,V1,... of each `--value`.
    Raise CompileError where a text has another form or an input is repeated.
    """
    of = {text: text.partition(":")[0] for text in option_texts}
    common = [text for text in option_texts if of[text] not in entries]
    single = {name: [text.partition(":")[2] for text in option_texts if of[text] == name] for name in entries}
    return input_values(common), {name: input_values(texts) for name, texts in single.items() if texts}


def check_plugin_option(file: Path | None) -> None:
    """Check a plug-in, print a line for each check, and exit: with 1 where one fails, with 2 where the file cannot be loaded.

    Return at once where no file is given.
    """
    if file is None:
        return
    with report_errors():
        from toolchain.plugin_check import check_plugin
        from toolchain.plugin_loading import load_plugin

        try:
            loaded = load_plugin(file)
        except CompileError as fault:
            raise CompileError(f"--check-{fault}") from None
        say(f"{loaded.label}: {', '.join(operator.DOMAIN + '.' + operator.__name__ for operator in loaded.plugin.operators)}")
        failures = 0
        for finding in check_plugin(loaded):
            say(f"{finding.verdict}  {finding.check}: {finding.text}")
            failures += not finding.passed
        say(f"{failures} of the checks failed" if failures else "all checks passed")
    raise typer.Exit(1 if failures else 0)
