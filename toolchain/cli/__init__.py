"""The commands. Thin: they parse, call `toolchain.api`, print; the only place that prints or exits."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from toolchain.errors import is_out_of_memory, out_of_memory


def build() -> None:
    run_command("build")


def sim() -> None:
    run_command("sim")


def dis() -> None:
    run_command("dis")


def hw() -> None:
    run_command("hw")


def collect_seldom() -> None:
    """Garbage of this process: there are few cycles, and many objects that live on. A fifth of a build of ResNet-50."""
    gc.set_threshold(50_000, 20, 100)


def run_command(command: str) -> None:
    """Runs a command, whose imports may need more memory than there is. Exits with 2 where memory or threads run out."""
    collect_seldom()
    _make_room_for_throws()
    try:
        with ended_at_once():
            import_module(f"toolchain.cli.{command}").main()
    except Exception as fault:
        if not is_out_of_memory(fault):
            raise
        os.write(2, f"{out_of_memory(fault)}\n".encode(errors="backslashreplace"))
        raise SystemExit(2) from None


def _make_room_for_throws() -> None:
    """C++ keeps what it throws in memory that a thread gets at its first throw. Where that is bad_alloc, there is none left, and
    the loader ends the process."""
    with suppress(OSError, AttributeError):  # another C++ library
        ctypes.CDLL("libstdc++.so.6")["__cxa_get_globals"]()


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Ctrl-C inside ends the process with one line. For imports and parsing: they take longer than many commands, compiled
    modules lose or change a KeyboardInterrupt that meets them, and nothing is written by then."""
    with _on_interrupt(_stop):
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C inside raises KeyboardInterrupt."""
    with _on_interrupt(signal.default_int_handler):
        yield


@contextmanager
def _on_interrupt(handler: Callable[..., object]) -> Iterator[None]:
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
