"""Imports a user's Python file and calls its functions, so that whatever they do becomes one sentence instead of a traceback.

Generators of calibration data and plug-ins run through it.
"""

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

    `where`: what the message of a fault names.
    `way_out`: what the message advises.

    Ctrl-C, a lack of memory and refusals of this project pass through. Anything else that the code raises is a CompileError, even
    what is no Exception. The user's sys.exit() must not end a build as if all were well. Streams, working directory and import
    path are restored. Closing sys.stdout is a CompileError too.
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
    """Return a sentence on a fault with its line in the user's file; None where no frame of the traceback is in that file."""
    frames = traceback.extract_tb(fault.__traceback__)
    return _cause(fault, path) if any(Path(frame.filename).resolve() == path.resolve() for frame in frames) else None


def load_function(path: Path, function: str) -> Any:
    """Run the file and return the attribute `function`: a function, a class, or an object with `get_next`.

    Raise CompileError: no such file, it does not import, or it has nothing of that name.
    """
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
    """Run the file as a module of this name, enter it in sys.modules, and return it.

    It raises what the file raises; call it through `call_user`, which turns that into one sentence.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look up the module of their classes
    spec.loader.exec_module(module)
    return module


def _find_function(module: ModuleType, function: str) -> tuple[Any, list[str]]:
    """Return (value, []) where the module has something of that name that can give samples, else (None, names of its
    callables)."""
    value = getattr(module, function, None)
    if callable(value) or hasattr(value, "get_next"):
        return value, []
    return None, [str(n) for n, v in vars(module).items() if callable(v) and not str(n).startswith("_")]


@contextmanager
def _restore_environment(file: Path) -> Generator[None]:
    """A context inside which the file may import what lies beside it, and no bytecode appears there.

    At its end streams, import path and working directory are as before.
    """
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
    """Return a text such as `ZeroDivisionError: division by zero (line 12)`, with the last line inside the user's file."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if Path(frame.filename).resolve() == path.resolve()
    ]
    if isinstance(fault, SyntaxError):
        return _line(f"{type(fault).__name__}: {fault.msg}", fault.lineno or (lines[-1] if lines else None))
    reason = fault_text(fault)
    return _line(f"{type(fault).__name__}{f': {reason}' if reason else ''}", lines[-1] if lines else None)


def _line(reason: str, number: int | None) -> str:
    """Return the reason with its line number, or alone where the number is None."""
    return reason if number is None else f"{reason} (line {number})"
