"""A command whose libraries end its process, or print that they lack memory, under `ulimit -v` ends with one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands work in a child on Linux only")

LIMIT_BYTES = 4 << 30
SENTENCE = b"out of memory; raise the limit of 4194304 KiB (ulimit -v), close other programs, or take smaller inputs\n"
# The command's module is replaced: no imports, and an end that a library would have to be brought to.
COMMAND = """
import os, pathlib, signal, sys, time, types
from toolchain.cli import build
from toolchain.cli.application import report_errors
from toolchain.errors import CompileError

def main():
    {body}

sys.modules["toolchain.cli.build"] = types.SimpleNamespace(main=main)
build()
"""
NATIVE = "os.write(2, b'Schema error: std::bad_alloc\\n')"
REPORTED_KEY_ERROR = "\n    with report_errors():\n        raise KeyError('Conv')"
MEMORY_ERROR = "\n    with report_errors():\n        raise MemoryError"
UNRAISABLE = "\n    class Lacking:\n        def __del__(self): raise MemoryError\n    Lacking()"
REPORTED_FAULT = "\n    with report_errors():\n        raise CompileError('node a: is unknown')"


def start_process(body: str, limit_bytes: int | None = LIMIT_BYTES, **options) -> subprocess.Popen:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    command = [sys.executable, "-c", COMMAND.format(body=body)]
    return subprocess.Popen(command, preexec_fn=limit, stderr=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def ending(body: str, limit_bytes: int | None = LIMIT_BYTES) -> tuple[int, bytes, bytes]:
    with start_process(body, limit_bytes, stdin=subprocess.PIPE) as process:
        out, err = process.communicate(b"typed", timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "body",
    [
        "os.abort()",
        "os.write(2, b'cannot allocate memory for thread-local data: ABORT'); os._exit(127)",
        "os.kill(os.getpid(), signal.SIGSEGV)",
        f"import atexit; atexit.register(os.abort){MEMORY_ERROR}",  # the one sentence is not said twice
        f"{UNRAISABLE}{MEMORY_ERROR}",
        f"{NATIVE}; os._exit(1)",
        f"{NATIVE}; raise KeyError('Conv')",
        f"{NATIVE}{REPORTED_KEY_ERROR}",
        f"{NATIVE}{REPORTED_FAULT}",
    ],
)
def test_ends_that_lack_memory(body: str) -> None:
    assert ending(body) == (2, b"", SENTENCE)


@pytest.mark.parametrize(
    ("body", "code", "err"),
    [
        (f"{NATIVE}", 0, b"Schema error: std::bad_alloc\n"),
        ("os.write(2, b'a warning\\n'); sys.exit(3)", 3, b"a warning\n"),
        ("print('read', sys.stdin.read()); print('WARNING: a', file=sys.stderr)", 0, b"WARNING: a\n"),
        (f"os.write(2, b'a line\\n'){REPORTED_FAULT}", 2, b"node a: is unknown\na line\n"),
        ("sys.exit(1)", 1, b""),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, b""),
    ],
)
def test_other_ends_are_the_command_s(body: str, code: int, err: bytes) -> None:
    """The ends are the same as without a limit."""
    out = b"read typed\n" if "read" in body else b""
    assert ending(body) == (code, out, err)
    assert ending(body, limit_bytes=None)[:2] == (code, out)


@pytest.mark.parametrize(("sent", "code", "err"), [(signal.SIGINT, 130, b"interrupted\n"), (signal.SIGTERM, -15, b"")])
def test_a_signal_to_the_parent_ends_the_child(sent: int, code: int, err: bytes, tmp_path: Path) -> None:
    """stderr is read to its end: until the child has ended too."""
    body = "\n    with report_errors():\n        pathlib.Path('running').touch()\n        while True: time.sleep(0.01)"
    with start_process(body, cwd=tmp_path) as process:
        while not (tmp_path / "running").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(sent)
        assert process.stderr
        assert (process.stderr.read(), process.wait()) == (err, code)


def test_no_child_without_a_limit() -> None:
    assert ending("print(os.getppid())", limit_bytes=None)[1] == b"%d\n" % os.getpid()
    assert ending("print(os.getppid())")[1] != b"%d\n" % os.getpid()
