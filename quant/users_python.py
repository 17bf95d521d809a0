"""A user's Python file is imported here, and its functions are called, so that nothing it does ends a command."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from quant.suggestion import suggestion
from toolchain.errors import NO_FILE, CompileError, fault_text

Result = TypeVar("Result")


def call_user(file: Path, where: str, way_out: str, call: Callable[..., Result], *arguments: Any) -> Result:
    """Call code of the user's `file` and return its result.

    `where`, `way_out`: what a fault's message names, and what to do.

    Ctrl-C, a lack of memory and refusals of this project pass through. Anything else that the code raises is a CompileError, even
    what is no Exception. The user's sys.exit() must not end a build as if all were well. Streams, working directory and import
    path are restored.
    """
    try:
        with _restore_environment(file):
            result = call(*arguments)
    except (CompileError, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as fault:
        raise CompileError(f"{where}: {_cause(fault, file)}; {way_out}") from None
    if getattr(sys.stdout, "closed", False):
        raise CompileError(f"{where}: closes sys.stdout, on which the command prints; {way_out}")
    return result


def locate_fault(fault: BaseException, path: Path) -> str | None:
    """Return what a fault is and in which line of the user's file it arose; None where it arose elsewhere."""
    frames = traceback.extract_tb(fault.__traceback__)
    return _cause(fault, path) if any(Path(frame.filename).resolve() == path.resolve() for frame in frames) else None


def load_function(path: Path, function: str) -> Any:
    """Runs the file. A function, a class, or an object with `get_next`. Raises CompileError: no import, or nothing so called."""
    if not path.is_file():
        raise CompileError(f"{path}: {NO_FILE}; it was given as file.py:function")
    module = call_user(path, str(path), "the file must import cleanly", load_module, path, f"users_{path.stem}")
    value, names = call_user(path, str(path), "mend the file", _find_function, module, function)
    if value is None:
        raise CompileError(
            f"{path}: no function {function!r} (functions: {', '.join(names) or 'none'}){suggestion(function, names)}"
        )
    return value


def load_module(path: Path, name: str) -> ModuleType:
    """Run the file as a module of this name; within `call_user` whatever it raises is one sentence."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look up the module of their classes
    spec.loader.exec_module(module)
    return module


def _find_function(module: ModuleType, function: str) -> tuple[Any, list[str]]:
    """Return what can give samples, None without it, and the names of what the file has instead."""
    value = getattr(module, function, None)
    if callable(value) or hasattr(value, "get_next"):
        return value, []
    return None, [str(n) for n, v in vars(module).items() if callable(v) and not str(n).startswith("_")]


@contextmanager
def _restore_environment(file: Path) -> Generator[None]:
    """Inside, the file may import what lies beside it, and no bytecode appears there."""
    streams, directory = (sys.stdout, sys.stderr), os.getcwd()
    path, no_bytecode = list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(file.parent))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        sys.path, sys.dont_write_bytecode = path, no_bytecode
        os.chdir(directory)


def _cause(fault: BaseException, path: Path) -> str:
    """`ZeroDivisionError: division by zero (line 12)`, the line being the last one inside the user's file."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if Path(frame.filename).resolve() == path.resolve()
    ]
    if isinstance(fault, SyntaxError):
        return _line(f"{type(fault).__name__}: {fault.msg}", fault.lineno or (lines[-1] if lines else None))
    reason = fault_text(fault)
    return _line(f"{type(fault).__name__}{f': {reason}' if reason else ''}", lines[-1] if lines else None)


def _line(reason: str, number: int | None) -> str:
    return reason if number is None else f"{reason} (line {number})"
