"""Run the integer reference on a GPU by CuPy, as the backend `cuda`: the same functions on device arrays, and the same bits."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from simulator import Observe
from toolchain.errors import CompileError, first_line
from toolchain.runtime.backend import Execution, LoadedProgram, Program, Progress
from toolchain.runtime.builtin_backends import ReferenceProgram


class CudaReference:
    """The backend that evaluates the integer graph on a GPU.

    Operators that take no device arrays run on the CPU, and are named in the result. It gives no times and shows no single
    operations. Runs do not overlap, since all would share the GPU's default stream and memory.
    """

    observes = False
    concurrent = False
    reads_constants = False

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        """Return the program ready to run. `timing` and `check` have no effect.

        Raise CompileError where CuPy is not installed or finds no GPU.
        """
        return _CudaProgram(ReferenceProgram(program, import_cupy()))


class _CudaProgram:
    """A loaded program; exceptions of CuPy become CompileErrors."""

    def __init__(self, program: ReferenceProgram):
        self._program = program

    def run(
        self, dram: np.ndarray, *, until: int | None = None, observe: Observe | None = None, progress: Progress | None = None
    ) -> Execution:
        """Run the program as `ReferenceProgram.run` does. Raise CompileError for exceptions of CuPy."""
        with _report_cupy_faults():
            return self._program.run(dram, until=until, observe=observe, progress=progress)


@cache
def import_cupy() -> Any:
    """Import cupy once and return the module. Raise CompileError where it is not installed or finds no GPU."""
    try:
        cupy: Any = import_module("cupy")
    except Exception as fault:  # whatever it looks for while it is imported
        reason = "CuPy is not installed" if isinstance(fault, ModuleNotFoundError) and fault.name == "cupy" else first_line(fault)
        raise CompileError(f"backend cuda: {reason}; install the extra 'cuda' (docs/cuda.md), or take reference") from None
    with _report_cupy_faults():
        cupy.cuda.runtime.getDeviceCount()
    return cupy


@contextmanager
def _report_cupy_faults() -> Generator[None]:
    """Turn exceptions of CuPy and CUDA in the block into a CompileError; others pass."""
    try:
        yield
    except Exception as fault:
        if type(fault).__module__.partition(".")[0] not in ("cupy", "cupy_backends"):
            raise
        raise CompileError(f"backend cuda: {first_line(fault)}; docs/cuda.md says what it needs, or take reference") from fault
