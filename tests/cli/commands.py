"""Runs the commands in this process as their console scripts would, and says what they printed. Scripts of the repository too."""

from __future__ import annotations

import hashlib
import io
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

from toolchain import cli, reference

ROOT = Path(__file__).parents[2]
# By name: a module of the same name may have taken a function's place in the package.
COMMANDS = {f"npu-{name}": partial(cli.run_command, name) for name in ("build", "sim", "dis", "hw", "sweep")} | {
    "reference": reference.main
}


@dataclass(frozen=True)
class Printed:
    code: int
    out: str
    err: str


def run(line: str | Sequence[str]) -> Printed:
    """Run a command line. Lines of progress are left out: whether ten seconds pass depends on the machine's load.

    `line`: command, or path of a script from the repository's root, and arguments, separated by single spaces.
    """
    command, *arguments = line.split(" ") if isinstance(line, str) else line
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with mock.patch.object(sys, "argv", [command, *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            if command.endswith(".py"):
                _run_script(ROOT / command)
            else:
                COMMANDS[command]()
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    printed = (line for line in err.getvalue().splitlines(keepends=True) if not line.startswith("progress: "))
    return Printed(code, out.getvalue(), "".join(printed))


def _run_script(path: Path) -> None:
    with mock.patch.object(sys, "path", [str(path.parent), *sys.path]):
        runpy.run_path(str(path), run_name="__main__")


def contents(folder: Path) -> dict[str, str]:
    """Every file and directory below the folder, files with the digest of their bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        for path in sorted(folder.rglob("*"))
    }
