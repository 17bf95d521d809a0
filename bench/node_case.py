"""Builds and runs one node case of the onnx package, and judges it against onnxruntime on the case's own file.

The script bench/check_node_cases.py runs it case by case.
"""

from __future__ import annotations

import resource
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import CompileError, ConfigError
from toolchain.runtime import Session

SQNR_FLOOR_DB = 25.0
HALF_STEP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
HOST_TOLERANCE = 1e-4  # of the output's largest value: the normal form regroups float32 arithmetic


@dataclass(frozen=True)
class Verdict:
    """A verdict on a case.

    `kind`: right, refused, wrong, traceback.
    `where`: chip, partly, host, or nothing where there is no program.
    `oracle`: whether onnxruntime itself runs the case's file; where not, the package's own outputs were compared.
    """

    kind: str
    where: str = ""
    reason: str = ""
    oracle: bool = False


@dataclass(frozen=True)
class Case:
    """A model with its inputs by name and the outputs that the package expects; a value is an array, or a list or None."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    expected: Sequence[Any]


def as_given(case: Any) -> Case:
    """Return the case of the package's own TestCase."""
    inputs, outputs = ([as_array(v) for v in side] for side in case.data_sets[0])
    return Case(case.name, case.model, dict(zip((i.name for i in case.model.graph.input), inputs)), outputs)


def as_array(value: Any) -> Any:
    """Return a tensor or a number as an array, anything else as it is."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else value


def with_constants(case: Case) -> Case | None:
    """Return the case with every tensor but the first input as an initializer; None where that changes nothing."""
    names = [n for n, v in case.inputs.items() if isinstance(v, np.ndarray)]
    fixed = [n for n in names if n != next(iter(case.inputs))]
    if not fixed:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    remaining_inputs = [i for i in model.graph.input if i.name not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(remaining_inputs)
    model.graph.initializer.extend(numpy_helper.from_array(case.inputs[n], n) for n in fixed)
    return Case(case.name, model, {n: v for n, v in case.inputs.items() if n not in fixed}, case.expected)


def limit_resources(cpu_s: int, memory_bytes: int) -> None:
    """Limit this process's CPU seconds and address space; beyond them the system ends it or refuses memory."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def judge_case(case: Case, machine: Any, folder: Path) -> Verdict:
    """Build and run the case, calibrated on its own inputs, and return the verdict."""
    path = folder / f"{case.name}.onnx"
    path.write_bytes(case.model.SerializeToString())
    shapes = {n: v.shape for n, v in case.inputs.items() if isinstance(v, np.ndarray)}
    dynamic = {i.name for i in case.model.graph.input if is_dynamic(i)}
    bound = {n: s for n, s in shapes.items() if n in dynamic}
    outputs, oracle = get_expected(path, case)
    try:
        options = BuildOptions(
            machine, calibration=calibration(case, folder), shapes=bound, states=("none",)
        )  # all outputs count
        built = build(path, options)
        session = Session(built.data)
        results = session.run(None, dict(case.inputs))
    except (CompileError, ConfigError) as fault:
        return Verdict("refused", reason=str(fault), oracle=oracle)
    except Exception as fault:  # a ProgramError too: no file that was just built is damaged
        return Verdict("traceback", reason=f"{type(fault).__name__}: {fault} {locate_fault(fault)}", oracle=oracle)
    segments = session.container.segments
    chip = [isinstance(s, Region) for s in segments]
    where = "host" if not any(chip) else "chip" if all(chip) else "partly"
    return compare_outputs(outputs, results, where, oracle)


def is_dynamic(value: onnx.ValueInfoProto) -> bool:
    """Return whether an input has no shape or a dimension without a size."""
    kind = value.type.tensor_type
    return not kind.HasField("shape") or any(d.dim_value <= 0 for d in kind.shape.dim)


def locate_fault(fault: BaseException) -> str:
    """Return the last line of this project's code in the traceback, as text."""
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if "site-packages" not in f.filename]
    last = frames[-1]
    return f"[{Path(last.filename).name}:{last.lineno} {last.name}]"


def calibration(case: Case, folder: Path) -> str | None:
    """Write the case's inputs as one sample and return the file's path; None where an .npz cannot hold them."""
    if not case.inputs or not all(isinstance(v, np.ndarray) and v.dtype.kind in "fiub" for v in case.inputs.values()):
        return None
    path = folder / f"{case.name}.npz"
    np.savez(path, **{n: v[None] for n, v in case.inputs.items()})
    return str(path)


def get_expected(path: Path, case: Case) -> tuple[Sequence[Any], bool]:
    """Return onnxruntime's outputs on the file and True; the package's own and False where onnxruntime cannot run it."""
    try:
        return open_session(path).run(None, dict(case.inputs)), True
    except Exception:  # onnxruntime's exceptions share no base class
        return case.expected, False


def compare_outputs(expected: Sequence[Any], results: Sequence[Any], where: str, oracle: bool) -> Verdict:
    """Return the verdict right or wrong, with what is wrong or the least SQNR of all outputs."""
    reasons, worst_db = [], np.inf
    for index, (expected_value, value) in enumerate(zip(expected, results, strict=True)):
        reason, db = difference(np.asarray(expected_value), np.asarray(value), where)
        worst_db = min(worst_db, db)
        reasons += [f"output {index}: {reason}"] if reason else []
    shown = "" if np.isinf(worst_db) else f"{worst_db:.1f} dB"
    return Verdict("wrong" if reasons else "right", where, "; ".join(reasons) or shown, oracle)


def difference(expected_value: np.ndarray, got: np.ndarray, where: str) -> tuple[str, float]:
    """Return what is wrong, or an empty text, and the SQNR of a float output in dB, else inf.

    `where`: `host`: nearly equal is asked; else a floor in dB.
    """
    if expected_value.shape != got.shape or expected_value.dtype != got.dtype:
        return f"{got.dtype}{list(got.shape)} where {expected_value.dtype}{list(expected_value.shape)} is right", np.inf
    if not is_float(expected_value.dtype):
        off = int((expected_value != got).sum())
        return (f"{off} of {expected_value.size} {expected_value.dtype} elements differ" if off else ""), np.inf
    a, b = expected_value.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "infinity or NaN elsewhere", np.inf
    a, error = a[finite], (b - a)[finite]
    if not a.size or not np.any(error):
        return "", np.inf
    with np.errstate(divide="ignore"):
        db = float(10 * np.log10(np.sum(a**2) / np.sum(error**2)))
    if where != "host":
        return (f"{db:.1f} dB" if not db >= SQNR_FLOOR_DB else ""), db
    tolerance = max(HOST_TOLERANCE, 2 * HALF_STEP.get(expected_value.dtype.name, 0.0)) * np.abs(a).max()
    largest = float(np.abs(error).max())
    return (f"off by {largest:.3g} of {np.abs(a).max():.3g}" if largest > tolerance else ""), np.inf


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or "float" in dtype.name
