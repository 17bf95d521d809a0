"""Define the kinds of fault, and format names and texts of others for messages.

Three kinds matter: the user's machine file (ConfigError), the user's model on this machine (CompileError), and our own bug
(InternalError). All but the last derive from ToolchainError, which commands report in one message and exit code 2.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from toolchain.input_limits import FAULTS, MESSAGE_LINE

NO_FILE = "no such file or directory"  # as the system has it
MAX_QUOTED = 300  # characters of what another library says
# What onnxruntime puts before the reason: its code, the node at work, then the place in its source with the function's signature.
RUNTIME_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
RUNTIME_STEP = re.compile(r"^(Non-zero status code returned while running .*? Status Message|Exception during initialization): ")
OBJECT_ADDRESS = re.compile(r"<((?:<locals>|[^<>])*?)(?: object)? at 0x[0-9a-fA-F]+>")  # what has no text of its own
RUNTIME_PLACE = re.compile(r"/\S+\.(cc|cpp|h):\d+ .*?\)( const)?( \[with [^\]]*\])? ")


def fault_text(fault: BaseException) -> str:
    """Return an exception's message; "" where its own `__str__` fails, as that of a user's class may."""
    try:
        return str(fault)
    except BaseException:
        return ""


def first_line(fault: BaseException) -> str:
    """Return the first line of an exception's text, for a message of ours, in at most MAX_QUOTED characters.

    Places in another library's source and addresses of its objects are left out. Without text it is the exception's type.
    """
    text = OBJECT_ADDRESS.sub(r"\1", fault_text(fault).strip().partition("\n")[0])
    for noise in (RUNTIME_CODE, RUNTIME_STEP, RUNTIME_PLACE):
        text = noise.sub("", text, count=1)
    return text[:MAX_QUOTED].strip() or type(fault).__name__


# What libraries say where the system gives them no memory, no thread or no room for code; each was seen, or is in their source.
_NO_MEMORY = re.compile(
    r"bad_alloc|bad allocation|bad_array_new_length|out of memory|Unable to allocate|[Cc]annot allocate memory"
    r"|Failed to allocate memory|[Aa]rena alloc failed|smaller than requested bytes"  # onnxruntime, protobuf, onnxruntime
    r"|error return without exception set"  # CPython, where there is none for the exception either
    r"|can't start new thread|pthread_create|Resource temporarily unavailable|failed to map segment|cannot create .* mapping"
)


def is_out_of_memory(fault: BaseException) -> bool:
    """Return whether an exception, or one of its causes, says that the system has no more memory or threads.

    The texts of our own exceptions do not count, since they quote names of the user's.
    """
    pending, visited = [fault], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        if isinstance(one, OSError):  # a full pipe is "temporarily unavailable" too
            is_lack = one.errno == errno.ENOMEM
        else:
            is_lack = not isinstance(one, ToolchainError | InternalError) and tells_lack_of_memory(fault_text(one))
        if is_lack or isinstance(one, MemoryError):
            return True
        pending += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return False


def tells_lack_of_memory(text: str) -> bool:
    """Return whether a library's text says that the system gives no more memory or threads."""
    return _NO_MEMORY.search(text) is not None


def out_of_memory(fault: BaseException | None = None, limit_bytes: int | None = None) -> str:
    """Return the message for lack of memory.

    `fault`: the exception that tells it; the text of a MemoryError is quoted.
    `limit_bytes`: limit of this process's address space; None: no limit.
    """
    cause = first_line(fault) if isinstance(fault, MemoryError) and fault_text(fault) else ""
    limit = "" if limit_bytes is None else f"raise the limit of {limit_bytes // 1024} KiB (ulimit -v), "
    return f"out of memory{f': {cause}' if cause else ''}; {limit}close other programs, or take smaller inputs"


def system_cause(fault: OSError) -> str:
    """Return the system's reason for a fault of a file, to stand after its name and a colon: 'no such file or directory'."""
    reason = fault.strerror or fault_text(fault)
    return reason[:1].lower() + reason[1:]


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 node`, `2 nodes`, `1,024 bytes`. The plural is made with an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(line: str) -> str:
    """Return a line with its control characters spelled out, line breaks too: a terminal obeys them, and names in files hold
    any."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def printable_lines(text: str) -> str:
    """Return a text with the control characters of each line spelled out; its line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def comment_name(name: str) -> str:
    """Return a name for a comment of a listing: one line, runs of blanks as one, control characters spelled out."""
    return printable(" ".join(name.split()))


def printable_strings(value: Any) -> Any:
    """Return a value with the control characters of all strings in nested mappings and sequences spelled out.

    Lists and tuples keep their kind; mappings become dicts. Other values are returned as they are.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        mapping = cast(Mapping[Any, Any], value)
        return {printable_strings(key): printable_strings(part) for key, part in mapping.items()}
    if isinstance(value, list | tuple):
        parts = [printable_strings(part) for part in cast(Sequence[Any], value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def shown(line: str) -> str:
    """Return a line for a terminal: control characters spelled out, the middle left out of more than MESSAGE_LINE
    characters."""
    line = printable(line)
    if len(line) <= MESSAGE_LINE:
        return line
    head, tail = line[: MESSAGE_LINE * 3 // 4], line[-MESSAGE_LINE // 4 :]
    return f"{head} [{len(line) - len(head) - len(tail):,} characters left out] {tail}"


class ToolchainError(Exception):
    """The base of every fault that is reported in one message and exit code 2. A message of many lines is cut at FAULTS of
    them."""

    _part = "line"  # of its message

    def __init__(self, message: str):
        lines = message.split("\n")
        sentences = [shown(line) for line in lines[:FAULTS]]
        if len(lines) > FAULTS:
            sentences.append(f"and {format_count(len(lines) - FAULTS, f'more {self._part}')}")
        super().__init__("\n".join(sentences))


class ConfigError(ToolchainError):
    """A fault of a machine description or another file of settings.

    `faults`: every fault of the file, as `file:line: path: reason`.
    """

    _part = "fault"

    def __init__(self, faults: list[str]):
        super().__init__("\n".join(faults))
        self.faults = faults


class CompileError(ToolchainError):
    """A fault of a model, a calibration set or an option, which cannot be used on this machine."""


class CancelledError(ToolchainError):
    """The fault of work that its caller cancelled."""

    def __init__(self) -> None:
        super().__init__("cancelled by the caller; nothing was written")


class ProgramError(ToolchainError):
    """A fault of a compiled file or its program: it is damaged, is of another machine, or breaks a rule of the machine."""


class NewerFileError(ProgramError):
    """The fault of a compiled file that is whole, and holds what this toolchain does not read or run."""


class InternalError(Exception):
    """A bug of ours: a broken invariant. Commands show it with a traceback, to be reported."""


def percent(share: float) -> str:
    """Return a share, 0 to 1, as text in percent with two digits; 99.5 % and more are `100 %`."""
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def shown_elements(value: Any) -> str:
    """Return the elements of a numpy array as text for a sentence, the first eight of many."""
    first = ", ".join(str(v) for v in value.reshape(-1)[:8].tolist())
    text = f"{first}, ..." if value.size > 8 else first
    return text if not value.ndim else f"[{text}]"
