"""Calibration samples from a generator function in a user's Python file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quant.sample import Sample, fit_sample
from quant.suggestion import suggestion
from toolchain.errors import NO_FILE, CompileError
from toolchain.ir.graph import TensorType

USERS_FAULTS = (Exception, SystemExit)  # a user's sys.exit() must not end the build as if all were well


def generator_samples(path: Path, function: str, inputs: Mapping[str, TensorType]) -> Iterator[Sample]:
    """What FUNCTION of the file yields, called without arguments; or what a class, made without arguments, or an object gives
    by `get_next` (onnxruntime's CalibrationDataReader). Whatever the user's code raises is a CompileError."""
    where = f"{path}:{function}"
    produce = load_function(path, function)
    try:
        stream = iter(_iterable(produce() if callable(produce) else produce))
    except USERS_FAULTS as fault:
        raise CompileError(f"{where}: {users_cause(fault, path)}; it must return an iterable of samples") from None
    count = 0
    while True:
        try:
            value = next(stream)
        except StopIteration:
            break
        except USERS_FAULTS as fault:
            raise CompileError(f"{where}: sample {count}: {users_cause(fault, path)}; mend the generator") from None
        yield fit_sample(_arrays(value, f"{where}: sample {count}"), inputs, f"{where}: sample {count}")
        count += 1
    if count == 0:
        raise CompileError(f"{where}: yields 0 samples; calibration needs at least 1")


def _iterable(given: Any) -> Any:
    """A calibration data reader of onnxruntime, also one of no base class, as the samples that it gives until there are none."""
    return iter(given.get_next, None) if hasattr(given, "get_next") else given


def load_function(path: Path, function: str) -> Any:
    """Runs the file. A function, a class, or an object with `get_next`. Raises CompileError: no import, or nothing so called."""
    if not path.is_file():
        raise CompileError(f"{path}: {NO_FILE}; it was given as file.py:function")
    spec = importlib.util.spec_from_file_location(f"users_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CompileError(f"{path}: cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # so that it may import what lies beside it
    usual, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing appears beside the user's file
    try:
        spec.loader.exec_module(module)
    except USERS_FAULTS as fault:
        raise CompileError(f"{path}: {users_cause(fault, path)}; the file must import cleanly") from None
    finally:
        sys.dont_write_bytecode = usual
        sys.path.remove(str(path.parent))
    found = getattr(module, function, None)
    if not callable(found) and not hasattr(found, "get_next"):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise CompileError(
            f"{path}: no function {function!r} (functions: {', '.join(names) or 'none'}){suggestion(function, names)}"
        )
    return found


def _arrays(value: Any, where: str) -> Any:
    """What was yielded, as arrays. Raises CompileError where numpy makes no array of it."""
    try:
        return {name: np.asarray(v) for name, v in value.items()} if isinstance(value, Mapping) else np.asarray(value)
    except Exception as fault:
        reason = str(fault).partition("\n")[0]
        raise CompileError(f"{where}: is no array: {reason}; yield numpy arrays") from None


def users_cause(fault: BaseException, path: Path) -> str:
    """`ZeroDivisionError: division by zero (line 12)`, the line being the last one inside the user's file."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if Path(frame.filename).resolve() == path.resolve()
    ]
    line = getattr(fault, "lineno", None) or (lines[-1] if lines else None)
    reason = fault.msg if isinstance(fault, SyntaxError) else str(fault)
    return f"{type(fault).__name__}: {reason}" + (f" (line {line})" if line else "")
