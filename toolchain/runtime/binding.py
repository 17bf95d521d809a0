"""Arrays that a session's runs read and write, bound once: as onnxruntime's io_binding, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from toolchain.errors import CompileError


class _Runs(Protocol):
    def run(self, output_names: Any, feeds: Mapping[str, np.ndarray], run_options: Any = None) -> list[np.ndarray]: ...


class IoBinding:
    """A binding of inputs and outputs of one session.

    Inputs are read when it runs, so that an array that was changed in place is taken as it then is.
    Each thread needs its own binding.
    With a shared one the outputs are those of a single run, but perhaps of another thread's.
    """

    def __init__(self, session: _Runs) -> None:
        self.session = session
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs: dict[str, np.ndarray | None] = {}  # and where they go, None: to a new array at every run
        self._results: Mapping[str, np.ndarray] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        self._inputs[name] = arr_on_cpu

    def bind_output(self, name: str, device_type: str = "cpu", *, array: np.ndarray | None = None) -> None:
        """Bind an output. Raise CompileError for another device.

        `array`: the output is written to it; it has its shape and type.
        """
        if device_type != "cpu":
            raise CompileError(f"output {name!r}: device {device_type}; outputs of a session are on the cpu")
        self._outputs[name] = array

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results = {}

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return the outputs of the last run, in the order in which they were bound. Raise CompileError where one was bound
        since.
        """
        results = self._results
        missing = next((name for name in self._outputs if name not in results), None)
        if missing is not None:
            raise CompileError(f"output {missing!r} is bound, and nothing has run since; call run_with_iobinding")
        return [results[name] for name in self._outputs]

    def run(self, run_options: Any) -> None:
        """Raises CompileError: no output is bound, an array of another shape or type, and what a run of the session does."""
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
    if array.shape == result.shape and array.dtype == result.dtype:
        return ""
    return f"output {name!r} is {result.dtype} {list(result.shape)}, the array bound to it {array.dtype} {list(array.shape)}"
