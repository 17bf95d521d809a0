"""Runs the commands in this process as their console scripts would, and says what they printed."""

from __future__ import annotations

import hashlib
import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from toolchain import cli, reference

COMMANDS = {"npu-build": cli.build, "npu-sim": cli.sim, "npu-dis": cli.dis, "npu-hw": cli.hw, "reference": reference.main}


@dataclass(frozen=True)
class Printed:
    code: int
    out: str
    err: str


def run(line: str) -> Printed:
    """line: command and arguments, separated by single spaces."""
    command, *arguments = line.split(" ")
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with mock.patch.object(sys, "argv", [command, *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            COMMANDS[command]()
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    return Printed(code, out.getvalue(), err.getvalue())


def contents(folder: Path) -> dict[str, str]:
    """Every file and directory below the folder, files with the digest of their bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        for path in sorted(folder.rglob("*"))
    }
