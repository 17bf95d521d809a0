"""Start the commands npu-build, npu-sim, npu-dis, npu-hw and npu-sweep; each is a module of this package.

Commands parse, call `toolchain.api`, and print. They are the only place that prints or exits. What is here limits the garbage
collector, ends a command that lacks memory with one line, and handles Ctrl-C.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module

from toolchain.cli.memory_limit import end_for_memory, lacks_memory, work_in_child

THREAD_SECONDS = 2.0  # threads of a pool end as soon as Python does
THREADS_RAN_ON = (
    f"WARNING: a thread of the Python file ran on for {THREAD_SECONDS:g} s behind the command and was ended; "
    "end it in the file, or start it with daemon=True\n"
)


def build() -> None:
    """Run npu-build as a console script."""
    _run_console_script("build")


def sim() -> None:
    """Run npu-sim as a console script."""
    _run_console_script("sim")


def dis() -> None:
    """Run npu-dis as a console script."""
    _run_console_script("dis")


def hw() -> None:
    """Run npu-hw as a console script."""
    _run_console_script("hw")


def sweep() -> None:
    """Run npu-sweep as a console script."""
    _run_console_script("sweep")


def collect_seldom() -> None:
    """Make Python's garbage collector run seldom in this process. Cycles are few, and many objects live on.

    Measured: at Python's thresholds the collector takes a fifth of a build of ResNet-50.
    """
    gc.set_threshold(50_000, 20, 100)


def _run_console_script(command: str) -> None:
    """Run a command, in a child process where the address space is limited, so that a lack of memory ends with one line.

    Threads that a user's file leaves running are ended after THREAD_SECONDS.
    """
    _open_closed_streams()
    work_in_child()
    before = threading.enumerate()
    try:
        run_command(command)
    except SystemExit as done:
        if any(not thread.daemon for thread in threading.enumerate() if thread not in before):
            _end_threads_later(done.code)
        raise


def _open_closed_streams() -> None:
    """Let a standard stream that the caller has closed (`>&-`) lead nowhere. Else a file that is opened would get its number,
    with what libraries print.
    """
    while True:
        number = os.open(os.devnull, os.O_RDWR)
        if number > 2:
            os.close(number)
            break
        os.set_inheritable(number, True)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] # where it was closed
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _end_threads_later(code: object) -> None:
    """End the process with `code` in THREAD_SECONDS. Else Python would wait for ever for threads that a user's file started."""
    timer = threading.Timer(THREAD_SECONDS, _end_with_threads, (code if isinstance(code, int) else int(code is not None),))
    timer.daemon = True
    timer.start()


def _end_with_threads(code: int) -> None:
    """End the process at once, with a warning on stderr."""
    os.write(2, THREADS_RAN_ON.encode())
    os._exit(code)


def run_command(command: str) -> None:
    """Import a command and run it. Exit with code 2 where memory or threads run out, during imports too.

    Exit so too where what `--help` and the like print finds no room, and with 1 where nobody reads it.
    `command`: the name of a module of toolchain.cli.
    """
    collect_seldom()
    try:
        try:
            with exit_on_interrupt():
                import_module(f"toolchain.cli.{command}").main()
        finally:
            sys.stdout.flush()  # at Python's end a fault would have no line and another code
    except Exception as fault:
        if lacks_memory(fault):
            end_for_memory(fault)
        if not isinstance(fault, OSError):
            raise
        from toolchain.cli.application import end_for_file

        end_for_file(fault)


@contextmanager
def exit_on_interrupt() -> Generator[None]:
    """End the process with one line and code 130 on Ctrl-C inside the block. It is for imports and parsing, while nothing is
    written.

    Compiled modules lose or change a KeyboardInterrupt that meets them.
    """
    with _on_interrupt(_stop):
        yield


@contextmanager
def interruptible() -> Generator[None]:
    """Make Ctrl-C inside the block raise KeyboardInterrupt."""
    with _on_interrupt(signal.default_int_handler):
        yield


@contextmanager
def _on_interrupt(handler: Callable[..., object]) -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _stop(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
