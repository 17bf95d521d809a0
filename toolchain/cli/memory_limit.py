"""Run a command in a child process where the address space is limited (`ulimit -v`), so that a lack of memory ends with one
line.

C and C++ libraries that lack memory print lines of their own, or end the process. So the parent holds these lines back, and
says how the child ended. Without a limit nothing is forked.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from toolchain.errors import is_out_of_memory, out_of_memory, tells_lack_of_memory

try:
    import resource
except ImportError:  # a system without such limits
    resource = None

# Signals that a process raises by itself, and the code with which the loader of glibc ends one that lacks memory.
RAISED_BY_ITSELF = frozenset(
    getattr(signal, name) for name in ("SIGABRT", "SIGBUS", "SIGILL", "SIGSEGV", "SIGTRAP") if hasattr(signal, name)
)
LOADER_FAILED = 127
REPORTED_CODES = (0, 2, 3)  # with which a command ends after its sentence, if there is one
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h

_native_lines: int | None = None  # in the child: the file that holds what libraries print on stderr


def limit_bytes() -> int | None:
    """Return the limit of this process's address space; None where it has none, or the system cannot run a command apart."""
    if resource is None or sys.platform != "linux":
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def work_in_child() -> None:
    """Return at once where there is no limit. Else fork and return in the child; the parent waits for it and ends as it did.

    Python's stderr stays what it was. What libraries print on file 2 is held back until the child has ended.
    """
    redirected = sys.stderr is None or sys.stderr is not sys.__stderr__  # a caller in this process reads it
    if limit_bytes() is None or redirected:
        return
    stderr_file = os.memfd_create("stderr")
    signals = {signal.SIGINT, signal.SIGCHLD}
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        child = os.fork()
    except OSError:  # no room for another process
        child = None
    if child:
        _end_as(_wait_for(child, signals), stderr_file)
    if child == 0:
        _end_with_parent()
        _hold_back_native_lines(stderr_file)
    signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    import ctypes  # not before it is needed: it takes time

    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def lacks_memory(fault: BaseException) -> bool:
    """Return whether a fault is due to missing memory or threads: its text says so, or a library has printed so."""
    return is_out_of_memory(fault) or (_native_lines is not None and _tell_lack_of_memory(_native_lines))


def end_for_memory(fault: BaseException) -> NoReturn:
    """Print one line that memory is missing, and exit with code 2.

    A child ends at once, without Python's clean-up, which could lack memory too.
    """
    print(out_of_memory(fault, limit_bytes()), file=sys.stderr)
    if _native_lines is None:
        raise SystemExit(2) from None
    with suppress(OSError, MemoryError):
        sys.stdout.flush()
    os._exit(2)


def _tell_lack_of_memory(stderr_file: int) -> bool:
    """Return whether what libraries printed tells of missing memory."""
    return tells_lack_of_memory(_read(stderr_file).decode(errors="replace"))


def _hold_back_native_lines(stderr_file: int) -> None:
    """Send what libraries print on file 2 to `stderr_file`; Python's own stderr still goes where it went."""
    global _native_lines
    _native_lines = stderr_file
    sys.stderr.flush()
    sys.stderr = open(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")  # noqa: SIM115
    os.dup2(stderr_file, 2)
    sys.unraisablehook = _hold_back_lack_of_memory


def _hold_back_lack_of_memory(unraisable: sys.UnraisableHookArgs) -> None:
    """Report exceptions that Python ignores, at the end of an object for example, in one line where they are of memory."""
    if unraisable.exc_value is not None and is_out_of_memory(unraisable.exc_value):
        os.write(2, b"out of memory, ignored by Python\n")
    else:
        sys.__unraisablehook__(unraisable)


def _wait_for(child: int, signals: set[signal.Signals]) -> int:
    """Wait for the child and return its exit code, or minus the signal that ended it.

    An interrupt that was sent to this process alone is sent on to the child.
    """
    while True:
        sent = signal.sigwaitinfo(signals)
        if sent.si_signo == signal.SIGINT and sent.si_code <= 0:  # by a process; the terminal interrupts both
            os.kill(child, signal.SIGINT)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _end_as(code: int, stderr_file: int) -> NoReturn:
    """Print what libraries printed and end as the child did. A lack of memory ends with one line and code 2 instead."""
    native_lines = _read(stderr_file)
    memory_is_missing = _tell_lack_of_memory(stderr_file)
    if code == LOADER_FAILED or -code in RAISED_BY_ITSELF or (memory_is_missing and code > 0 and code not in REPORTED_CODES):
        native_lines, code = f"{out_of_memory(limit_bytes=limit_bytes())}\n".encode(), 2
    elif memory_is_missing and code:
        native_lines = b""
    with suppress(OSError):
        os.write(2, native_lines)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _read(stderr_file: int) -> bytes:
    return os.pread(stderr_file, os.fstat(stderr_file).st_size, 0)
