"""Print docs/commands.md: every command with its options by group, as --help has them.

python scripts/commands_page.py > docs/commands.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import typer

from toolchain.cli.application import application
from toolchain.cli.build import EXAMPLES, build_command
from toolchain.cli.dis import app as dis_app
from toolchain.cli.hw import app as hw_app
from toolchain.cli.sim import sim_command
from toolchain.cli.sweep import EXAMPLES as SWEEP_EXAMPLES
from toolchain.cli.sweep import sweep_command

HEAD = """# Commands

`scripts/commands_page.py` writes this page from the commands themselves; `--help` prints the same. A fault of the model, the
machine file, the data or the options gives one message and exit code 2. Exit code 1 says that a comparison found a difference,
or that no build of a sweep succeeded. Exit code 3 says that the requested accuracy was not reached, 130 that Ctrl-C was pressed.
"""
NO_EXAMPLES: Mapping[str, str] = MappingProxyType({})
EXAMPLES_BY_COMMAND = {"npu-build": EXAMPLES, "npu-sweep": SWEEP_EXAMPLES}


def page() -> str:
    """Return the Markdown of all commands, ending in a newline."""
    commands: dict[str, Any] = {
        "npu-build": typer.main.get_command(application(build_command)),
        "npu-sim": typer.main.get_command(application(sim_command)),
        "npu-dis": typer.main.get_command(dis_app),
        "npu-hw": typer.main.get_command(hw_app),
        "npu-sweep": typer.main.get_command(application(sweep_command)),
    }
    lines = [HEAD]
    for name, command in commands.items():
        lines += _section(f"## {name}", name, command, EXAMPLES_BY_COMMAND.get(name, NO_EXAMPLES))
        for verb, subcommand in getattr(command, "commands", {}).items():
            lines += _section(f"### {name} {verb}", f"{name} {verb}", subcommand, NO_EXAMPLES)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(heading: str, line: str, command: Any, examples: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of one command: usage, what it does, its arguments, its options by group."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    subcommands = ["COMMAND"] if getattr(command, "commands", None) else []
    yield f"{heading}\n\n`{' '.join([line, '[OPTIONS]', *(a.metavar or a.name.upper() for a in arguments), *subcommands])}`\n"
    yield f"{' '.join((command.help or '').split())}\n"
    groups: dict[str, list[Any]] = {}
    for parameter in (p for p in command.params if not {"--version", "--help"} & set(p.opts)):
        group = "Arguments" if parameter in arguments else getattr(parameter, "rich_help_panel", None) or "Options"
        groups.setdefault(group, []).append(parameter)
    for group, parameters in groups.items():
        if group in examples:
            yield f"**{group}**, for example `{examples[group]}`\n"
        yield "| | default | meaning |\n|---|---|---|"
        yield from (_row(parameter) for parameter in parameters)
        yield ""


def _row(parameter: Any) -> str:
    """Return the table row of an argument or option; a default that its help names goes into the column of defaults."""
    is_argument = parameter.param_type_name == "argument"
    name = parameter.metavar or parameter.name.upper() if is_argument else ", ".join((*parameter.opts, *parameter.secondary_opts))
    value = "" if is_argument or parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    meaning, _, default = " ".join((parameter.help or "").split()).partition(" Default: ")
    default, _, rest = default.partition(". ")
    if parameter.default not in (None, False, ()) and not is_argument:
        default = f"`{parameter.opts[0] if parameter.default is True else parameter.default}`"
    return f"| `{name}{value}` | {default.rstrip('.')} | {f'{meaning} {rest}'.strip()} |"


if __name__ == "__main__":
    print(page(), end="")
