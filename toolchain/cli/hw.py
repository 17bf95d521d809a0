"""Define the command npu-hw, with a subcommand for each thing to do with machine descriptions.

Subcommands check, show, list, compare and upgrade machine files. Others print their schema, instruction table, manual, C header
and Verilog package, write conformance vectors, and copy examples.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from quant.fixed_point import KIT_OPERATORS, Contents, FixedPointError, read_vectors, write_vectors
from toolchain.cli.application import Plugins, Version, application, load_plugin_option, report_errors, say
from toolchain.errors import CompileError, ConfigError, format_count
from toolchain.foundation.atomic_files import naming, read_limited, write_atomically, write_files
from toolchain.hw import Chip, chip_differences, chip_lines, chip_schema, list_shipped_names, load_chip, upgrade_text
from toolchain.hw.timing import IDEAL
from toolchain.hw.timing_terms import list_defaulted_terms
from toolchain.hw.unit_map import EMIT
from toolchain.input_limits import YAML_BYTES
from toolchain.isa import load_machine, machine_digest, table_schema
from toolchain.isa.constants import c_header
from toolchain.isa.default_table import make_default_table
from toolchain.isa.manual import manual, manual_page
from toolchain.isa.verilog import verilog_package
from toolchain.machine import TABLE_FUNCTIONS
from toolchain.vectors import write_instruction_cases

ALL = "all"
DESCRIPTIONS = {
    "classifier": "a trained network with its data, to build and run at once",
    "decoder": "a decoder that keeps its caches on the chip",
    "interpreter": "a model of a machine, written from its manual alone",
    "networks": "standard networks without weights, and a script that fills them",
    "plugins": "operators of one's own: a function, a normalization, a pooling with its own machine operation",
    "rmsnorm": "a plug-in in four steps, with a machine",
    "schedules": "schedules written by hand, and their networks",
    "sweeps": "a sweep of arrays and memories for the classifier",
}
_WHEEL = Path(__file__).parent / "examples"
_CHECKOUT = Path(__file__).parents[2] / "examples"


def list_examples() -> list[str]:
    """Return the names of the folders of examples, sorted."""
    root = _root()
    return sorted(path.name for path in root.iterdir() if path.is_dir() and _list_files(path))


def describe_examples() -> str:
    """Return a line for each example: its name and what it is."""
    names = list_examples()
    width = max(len(name) for name in names)
    return "\n".join(f"{name:{width}}  {DESCRIPTIONS.get(name, '')}".rstrip() for name in names)


def copy_example(name: str, folder: Path) -> list[Path]:
    """Write the files of an example into a folder, all or none, and return their paths.

    `name`: an example, or `all`, which keeps the folders beside one another.
    Raise CompileError where there is no such example, or a file of its name stands in the folder.
    """
    if name != ALL and name not in list_examples():
        raise CompileError(f"{name}: is no example; there are {', '.join([*list_examples(), ALL])}")
    source = _root() if name == ALL else _root() / name
    contents: dict[str | Path, bytes] = {folder / path.relative_to(source): path.read_bytes() for path in _list_files(source)}
    existing = next((path for path in contents if Path(path).exists()), None)
    if existing is not None:
        raise CompileError(f"{existing}: is there already; give a new folder")
    write_files(contents, sorted({Path(path).parent for path in contents}))
    return [Path(path) for path in contents]


def _root() -> Path:
    """Return the folder of the examples: in the wheel, or beside the packages of a checkout. Raise CompileError where there is
    none."""
    root = next((path for path in (_WHEEL, _CHECKOUT) if path.is_dir()), None)
    if root is None:
        raise CompileError(f"{_WHEEL.parent}: has no examples beside it; install the toolchain again")
    return root


def _list_files(folder: Path) -> list[Path]:
    """Return the files below a folder, without those that running the examples leaves."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".") and path.suffix != ".npu"
    ]


app = application(no_args_is_help=True)
_MACHINE = typer.Argument(metavar="MACHINE", help="A shipped machine's name, or the path of a YAML file.")


@app.callback()
def hw_command(plugin: Plugins = None, version: Version = False) -> None:
    """Machine descriptions: one YAML each, with an instruction table."""
    with report_errors():
        load_plugin_option(plugin)


@app.command()
def check(file: str = _MACHINE) -> None:
    """Checks a machine and its instruction table; prints every fault as file:line: path: reason and exits with 2. Says which
    terms of its time are left at their defaults."""
    with report_errors():
        machine = load_machine(file)
        say(f"{machine.chip.name}: no faults; instruction table {machine.isa.name} ({machine.isa.kind})")
        for engine, reason in machine.chip.unused.items():
            say(f"engines.{engine} is not used by compiled programs: {reason}")
        for name, array in machine.chip.engines.items():
            if array.kind == "mac_array" and array.timing == IDEAL:
                say(f"engines.{name}.timing is ideal: folds begin at once, operands enter in time, outputs leave for nothing")
        for key, value in list_defaulted_terms(machine.chip):
            say(f"{key} is left at its default, {value}")


@app.command()
def show(name: str = _MACHINE) -> None:
    """Prints every key with its value, defaults included, and what follows from them."""
    with report_errors():
        machine = load_machine(name)
        say("\n".join(chip_lines(machine.chip)))
        say(f"# instruction table: {machine.isa.name} ({machine.isa.kind}), {', '.join(machine.isa.plans)}")
        say(f"# digest: {machine_digest(machine)}")


@app.command(name="list")
def list_machines() -> None:
    """Lists the shipped machines."""
    with report_errors():
        names = list_shipped_names()
        width = max(len(name) for name in names)
        for name in names:
            say(f"{name:{width}}  {load_machine(name).chip.description}")


@app.command()
def diff(a: str = _MACHINE, b: str = _MACHINE) -> None:
    """Prints every key that two machines have differently; exits with 1 when there are any."""
    with report_errors():
        left, right = load_machine(a), load_machine(b)
        differences = chip_differences(left.chip, right.chip)
        old_operations, new_operations = " ".join(left.isa.plans), " ".join(right.isa.plans)
        if old_operations != new_operations:
            differences.append(("operations", old_operations, new_operations))
        for key, old, new in differences:
            say(f"{key}: {old} -> {new}")
        if left.isa.table != right.isa.table and left.isa.name == right.isa.name:
            differences.append(("instruction table", left.isa.name, "another of this name"))
            say(f"instruction table: both are named {left.isa.name}, their contents differ")
        if not differences:
            say("no difference")
    raise typer.Exit(1 if differences else 0)


@app.command()
def example(
    name: str = typer.Argument(metavar="NAME", help="classifier, or another example; list: prints them; all: brings all."),
    folder: str | None = typer.Argument(
        None, metavar="DIR", help="Where the files go; needed except with list. Nothing there is replaced."
    ),
) -> None:
    """Copies an example that comes with the toolchain into a folder."""
    with report_errors():
        if name == "list":
            say(describe_examples())
        elif folder is None:
            raise CompileError(f"{name}: needs a folder to go to, npu-hw example {name} DIR")
        else:
            with naming(folder):
                paths = copy_example(name, Path(folder))
            say(f"{folder}: {format_count(len(paths), 'file')} of the example {name}")


@app.command()
def upgrade(
    file: str = typer.Argument(metavar="FILE", help="A machine's YAML, or an instruction table's."),
    output: str | None = typer.Option(None, "-o", "--output", help="Where to write; without it the file itself is replaced."),
) -> None:
    """Rewrites a machine file or an instruction table of an earlier format. Comments and all other keys stay as they are."""
    with report_errors():
        try:
            text = read_limited(Path(file), YAML_BYTES).decode()
        except UnicodeDecodeError:
            raise ConfigError([f"{file}:1: not YAML: not UTF-8 text"]) from None
        upgraded = upgrade_text(text, file)
        if upgraded.changes or output is not None:
            write_atomically(output or file, upgraded.text.encode())
        say("\n".join(f"{file}: {change}" for change in upgraded.changes) or f"{file}: is of the newest format already")


@app.command()
def schema(isa: bool = typer.Option(False, "--isa", help="Of instruction tables instead.")) -> None:
    """Prints the JSON schema of machine files, for editors."""
    with report_errors():
        sys.stdout.write(table_schema() if isa else chip_schema())


@app.command()
def table(
    file: str = typer.Argument(metavar="MACHINE", help="A YAML file without section isa."),
    kind: str = typer.Option("descriptors", help="The kind of table: descriptors or registers."),
) -> None:
    """Prints a first instruction table for a machine that has none yet, with rows for operations of plug-ins too."""
    with report_errors():
        sys.stdout.write(make_default_table(load_chip(file, table=f"isa/{Path(file).name}"), kind))


@app.command(name="manual")
def print_manual(
    name: str = _MACHINE,
    c: bool = typer.Option(False, "--c-header", help="A C header instead."),
    verilog: bool = typer.Option(False, "--verilog", help="A SystemVerilog package instead."),
    html: bool = typer.Option(False, "--html", help="One page of HTML, with figures, instead."),
) -> None:
    """Prints the machine's manual in Markdown: all that is needed to build it."""
    with report_errors():
        forms = {"--c-header": (c, c_header), "--verilog": (verilog, verilog_package), "--html": (html, manual_page)}
        chosen_forms = [option for option, (is_set, _) in forms.items() if is_set]
        if len(chosen_forms) > 1:
            raise CompileError(f"{' and '.join(chosen_forms)}: give one of them")
        write = forms[chosen_forms[0]][1] if chosen_forms else manual
        sys.stdout.write(write(load_machine(name)))


@app.command()
def vectors(
    name: str = _MACHINE,
    out: str = typer.Option(..., "--out", help="The kit's directory: new, empty, or of an earlier kit."),
    instructions: bool = typer.Option(False, "--instructions", help="Of instructions: words, memories before and after, cycles."),
    hexadecimal: bool = typer.Option(False, "--hex", help="With --instructions: also words and memories for $readmemh."),
) -> None:
    """Writes a machine's conformance kit: cases of its numerics, or of its instructions with --instructions; index.json."""
    with report_errors():
        if hexadecimal and not instructions:
            raise CompileError("--hex: words and memories are what --instructions writes; give both")
        machine = load_machine(name)
        chip = machine.chip
        try:
            with naming(out):
                if instructions:
                    cases = write_instruction_cases(Path(out), machine, hexadecimal)
                    what = f"{len(cases)} cases of {len(machine.isa.plans)} instructions of {chip.name}"
                else:
                    paths = write_vectors(Path(out), chip.numerics, _contents(chip))
                    what = f"{len(paths) - 1} cases for the numerics of {chip.name}"
        except FixedPointError as fault:
            raise CompileError(str(fault)) from None
        size_bytes = sum(path.stat().st_size for path in Path(out).iterdir())
        say(f"{out}: {what}, {size_bytes / 1024:.0f} KiB")
        uncovered = [] if instructions else _functions_without_cases(chip, Path(out))
        if uncovered:
            say(f"note: no cases here of {', '.join(uncovered)}; --instructions writes those of every instruction")


def _contents(chip: Chip) -> Contents:
    """Return what the kit of this machine has: products, and the vector operations that the machine has."""
    functions = {_kit_name(name) for name in chip.functions} & {*KIT_OPERATORS}
    return Contents(("requantize", "conv2d", "conv_transpose2d", "matmul", *sorted(functions)))


def _kit_name(function: str) -> str:
    """Return what the kit calls a function of a vector engine."""
    return "table" if function in TABLE_FUNCTIONS else "requantize" if function == EMIT else function


def _functions_without_cases(chip: Chip, kit: Path) -> list[str]:
    """Return the machine's functions of which the kit has no cases, such as those that only it has."""
    covered = {case.op for case in read_vectors(kit)}
    return sorted(name for name in chip.functions if _kit_name(name) not in covered)


def main() -> None:
    """Run the command on the process's arguments and exit."""
    app()
