"""The door to onnxruntime: every model is opened and run here, and what onnxruntime refuses is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from toolchain.errors import CompileError, first_line, is_out_of_memory

T = TypeVar("T")
CPU = ("CPUExecutionProvider",)
# Products in TF32 keep ten bits of a float32's fraction (https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html).
PROVIDER_OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType({"CUDAExecutionProvider": {"use_tf32": "0"}})


class InferenceError(CompileError):
    """onnxruntime does not open or does not run a model, optimized or not. reason: what it says, in one line."""

    def __init__(self, verb: str, reason: str):
        super().__init__(f"onnxruntime cannot {verb} the model: {reason}")
        self.reason = reason


class InferenceSession:
    """An onnxruntime.InferenceSession that raises nothing but InferenceError and MemoryError."""

    def __init__(self, session: Any) -> None:
        """Wrap a session of onnxruntime."""
        self._session = session

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """The values of these outputs, of all where None. Raises InferenceError, MemoryError."""
        names = None if outputs is None else list(outputs)
        return _call_checked("run", lambda: self._session.run(names, dict(feeds), run_options))

    def get_inputs(self) -> list[Any]:
        """The inputs as onnxruntime describes them."""
        return self._session.get_inputs()

    def get_outputs(self) -> list[Any]:
        """The outputs as onnxruntime describes them."""
        return self._session.get_outputs()

    def get_providers(self) -> list[str]:
        """The providers that run the model, the preferred one first."""
        return self._session.get_providers()


def session_options(*, optimized: bool, threads: int = 1) -> Any:
    """onnxruntime.SessionOptions that log nothing: what onnxruntime logs it also raises."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def add_weights(options: Any, weights: Mapping[str, Any]) -> None:
    """Adds arrays of initializers that the model has no values for, to be kept as long as the session."""
    import onnxruntime

    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(w) for w in weights.values()]
        options.add_external_initializers(list(weights), values)


def open_model(
    model: bytes | str | Path, options: Any, *, providers: Sequence[str] = CPU, disabled_optimizers: Sequence[str] = ()
) -> InferenceSession:
    """Opens serialized ONNX, or its file. options: see `session_options`. Raises InferenceError, MemoryError."""
    import onnxruntime

    wrong = list(disabled_optimizers) or None
    return InferenceSession(
        _call_checked(
            "load",
            lambda: onnxruntime.InferenceSession(
                model, options, providers=_with_options(providers), disabled_optimizers=wrong, enable_fallback=0
            ),
        )
    )


def _with_options(providers: Sequence[str]) -> list[str | tuple[str, dict[str, str]]]:
    """Return the providers, those that round float32 by themselves with the options that keep them from it."""
    return [(name, dict(PROVIDER_OPTIONS[name])) if name in PROVIDER_OPTIONS else name for name in providers]


def _call_checked(verb: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as fault:  # onnxruntime's errors share no base class
        if is_out_of_memory(fault):
            raise MemoryError(first_line(fault)) from fault
        raise InferenceError(verb, first_line(fault)) from fault
