"""Runs the repository's scripts in this process as they would run in their own: what starts Python anew takes seconds."""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock


def run_script(path: Path, *arguments: object) -> CompletedProcess[str]:
    """Run a script with these arguments and return its exit code and what it printed."""
    line, out, err = [str(path), *map(str, arguments)], io.StringIO(), io.StringIO()
    places = mock.patch.object(sys, "path", [str(path.parent), *sys.path])
    with places, mock.patch.object(sys, "argv", line), redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_path(str(path), run_name="__main__")
            code = 0
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    return CompletedProcess(line, code, out.getvalue(), err.getvalue())
