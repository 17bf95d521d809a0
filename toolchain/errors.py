"""The three kinds of fault: the user's machine file, the user's model on this machine, and our own bug."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """'1 node', '2 nodes', '1,024 bytes'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class ToolchainError(Exception):
    """Base of every fault that is reported in one message and exit code 2."""


class ConfigError(ToolchainError):
    """A machine description is wrong; `faults` holds every fault of the file as `file:line: path: reason`."""

    def __init__(self, faults: list[str]):
        super().__init__("\n".join(faults))
        self.faults = faults


class CompileError(ToolchainError):
    """A model, a calibration set or an option cannot be used on this machine."""


class ProgramError(ToolchainError):
    """A compiled file or its program is damaged, is of another machine, or breaks a rule of the machine."""


class InternalError(Exception):
    """Our bug: a broken invariant. Shown with a traceback, to be reported."""
