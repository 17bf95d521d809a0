"""End long work early: by an event of another thread, wherever in Python code the work is, or at a deadline.

The watching thread looks every _POLL_S seconds, below what a person notices. It raises again every _REPEAT_S seconds, since
compiled modules lose an exception now and then (docs/python.md).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from toolchain.errors import CancelledError

Result = TypeVar("Result")
_POLL_S = 0.1
_REPEAT_S = 0.5


def make_deadline(limit_s: float | None, clock: Callable[[], float] = time.monotonic) -> Callable[[], bool] | None:
    """Return a function that returns True from `limit_s` seconds after its first call on; None without a limit.

    `clock`: returns seconds.
    """
    if limit_s is None:
        return None
    began_s: list[float] = []

    def is_late() -> bool:
        if not began_s:
            began_s.append(clock())
        return clock() - began_s[0] >= limit_s

    return is_late


class CancelEvent(Protocol):
    """An event that is set to cancel work, for example threading.Event or multiprocessing.Event."""

    def is_set(self) -> bool:
        """Return whether the work is to end."""
        ...


class _Interrupt(BaseException):
    """The exception that ends the work; no `except Exception` of the work holds it up."""


def run_cancellable(task: Callable[[], Result], cancel: CancelEvent | None) -> Result:
    """Return the result of `task`, which is ended soon after `cancel` is set. Raise CancelledError then.

    `cancel`: None lets the task run to its end. If it is set already, the task does not begin.
    A task that returns before the interrupt arrives gives its result. Any exception after the interrupt becomes CancelledError,
    except KeyboardInterrupt and SystemExit. Exceptions of a task that was not being cancelled pass through.
    A watching thread raises an exception in this one. It arrives between two steps of Python, so that a single call of numpy
    or onnxruntime is waited for.
    """
    if cancel is None:
        return task()
    if cancel.is_set():
        raise CancelledError
    watch = _Watch(cancel)
    try:
        try:
            result = task()
        finally:
            watch.end()
    except BaseException as fault:
        if isinstance(fault, _Interrupt) or (watch.fired and not isinstance(fault, KeyboardInterrupt | SystemExit)):
            raise CancelledError from None
        raise
    return result


class _Watch:
    """A thread that interrupts the one that made it when an event is set."""

    def __init__(self, cancel: CancelEvent) -> None:
        self._cancel, self._target, self.fired = cancel, threading.get_ident(), False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="npu-toolchain cancel", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(_REPEAT_S if self.fired else _POLL_S):
            if self._cancel.is_set():
                self.fired = True
                _raise_in(self._target, _Interrupt)

    def end(self) -> None:
        """End the thread; from then on nothing is raised in the watched one, not even what was on its way."""
        while True:
            try:
                self._done.set()
                self._thread.join()
                _raise_in(self._target, None)
                return
            except _Interrupt:
                continue


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Have Python raise an exception in a thread; None: drop one that is not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if exception is None else ctypes.py_object(exception))
