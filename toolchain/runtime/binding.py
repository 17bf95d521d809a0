"""Bind the arrays that a session's runs read and write, once for many runs, with the interface of onnxruntime's io_binding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from toolchain.errors import CompileError


class _Runs(Protocol):
    def run(self, output_names: Any, feeds: Mapping[str, np.ndarray], run_options: Any = None) -> list[np.ndarray]: ...


class IoBinding:
    """A binding of inputs and outputs of one session, on the CPU.

    Inputs are not copied when they are bound, so a run takes an array as it then is. Each thread needs its own binding. With a
    shared one the outputs are those of a single run, but perhaps of another thread's.
    """

    def __init__(self, session: _Runs) -> None:
        self.session = session
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs: dict[str, np.ndarray | None] = {}  # and where they go, None: to a new array at every run
        self._results: Mapping[str, np.ndarray] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array to an input; it is read, and checked, at each run."""
        self._inputs[name] = arr_on_cpu

    def bind_output(self, name: str, device_type: str = "cpu", *, array: np.ndarray | None = None) -> None:
        """Bind an output, anew where it is bound already; its result of the last run is forgotten.

        `array`: each run writes the output to it, so it must be writable and have the output's shape and type. None: each
        run makes a new array.
        Raise CompileError for another device than the cpu.
        """
        if device_type != "cpu":
            raise CompileError(f"output {name!r}: device {device_type}; outputs of a session are on the cpu")
        self._outputs[name] = array
        self._results = {bound: result for bound, result in self._results.items() if bound != name}

    def clear_binding_inputs(self) -> None:
        """Forget the bound inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the bound outputs and the results of the last run."""
        self._outputs.clear()
        self._results = {}

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return the outputs of the last run, in the order in which they were bound. Arrays that were bound are returned
        themselves.

        Raise CompileError where an output was bound since.
        """
        results = self._results
        missing = next((name for name in self._outputs if name not in results), None)
        if missing is not None:
            raise CompileError(f"output {missing!r} is bound, and nothing has run since; call run_with_iobinding")
        return [results[name] for name in self._outputs]

    def run(self, run_options: Any) -> None:
        """Run the session on the bound inputs and write the bound outputs; none is written where one does not fit.

        Raise CompileError where no output is bound, or an array has another shape or type or is read-only. Raise whatever a
        run of the session raises.
        """
        if not self._outputs:
            raise CompileError("no output is bound; bind_output names each that is wanted")
        outputs = dict(self._outputs)
        results = dict(zip(outputs, self.session.run(list(outputs), dict(self._inputs), run_options)))
        faults = [_misfit(name, array, results[name]) for name, array in outputs.items() if array is not None]
        if any(faults):
            raise CompileError("\n".join(filter(None, faults)))
        for name, array in outputs.items():
            if array is not None:
                array[...] = results[name]
                results[name] = array
        self._results = results


def _misfit(name: str, array: np.ndarray, result: np.ndarray) -> str:
    """Return why a result cannot be written to an array, empty where it can."""
    if not array.flags.writeable:
        return f"output {name!r}: the array bound to it is read-only"
    if array.shape == result.shape and array.dtype == result.dtype:
        return ""
    return f"output {name!r} is {result.dtype} {list(result.shape)}, the array bound to it {array.dtype} {list(array.shape)}"
