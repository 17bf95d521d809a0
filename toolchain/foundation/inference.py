"""Open and run every model of the toolchain in onnxruntime, so that whatever onnxruntime refuses is an error of one sentence.

The module also holds what all sessions of this process share: libraries of custom operators, and the host of float models.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from toolchain.errors import NO_FILE, CompileError, first_line, is_out_of_memory

if TYPE_CHECKING:
    import onnxruntime

T = TypeVar("T")
_LIBRARIES: list[str] = []  # of custom operators, by their absolute paths
CPU = ("CPUExecutionProvider",)
CUDA = ("CUDAExecutionProvider", *CPU)
# Products in TF32 keep ten bits of a float32's fraction. The default search times algorithms, so that two runs may take two of
# them (https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html).
PROVIDER_OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"CUDAExecutionProvider": {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}}
)
_DEFAULT_LOG_SEVERITY = 2  # warnings; docs/cuda.md
_HOST: ContextVar[str] = ContextVar("_HOST", default="cpu")


class InferenceError(CompileError):
    """The error that onnxruntime does not open or does not run a model. `reason`: what onnxruntime says, in one line."""

    def __init__(self, verb: str, reason: str):
        super().__init__(f"onnxruntime cannot {verb} the model: {reason}")
        self.reason = reason


class InferenceSession:
    """An onnxruntime.InferenceSession that raises nothing but InferenceError and MemoryError."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        """Wrap a session of onnxruntime."""
        self._session = session

    def run(
        self, outputs: Sequence[str] | None, feeds: Mapping[str, Any], run_options: onnxruntime.RunOptions | None = None
    ) -> list[Any]:
        """Return the values of these outputs; `outputs` None: of all, in the model's order. Raise InferenceError or
        MemoryError.
        """
        names = None if outputs is None else list(outputs)
        return _call_checked("run", lambda: self._session.run(names, dict(feeds), run_options))

    def get_inputs(self) -> list[onnxruntime.NodeArg]:
        """The inputs as onnxruntime describes them."""
        return self._session.get_inputs()

    def get_outputs(self) -> list[onnxruntime.NodeArg]:
        """The outputs as onnxruntime describes them."""
        return self._session.get_outputs()

    def get_providers(self) -> list[str]:
        """The providers that run the model, the preferred one first."""
        return self._session.get_providers()

    def get_nodes_by_provider(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes that each provider runs, as `name (operator)`; fused nodes are one.

        The result is empty for sessions with one provider, and where onnxruntime does not record it (before 1.24).
        """
        if len(self.get_providers()) < 2 or not hasattr(self._session, "get_provider_graph_assignment_info"):
            return {}
        nodes: dict[str, tuple[str, ...]] = {}
        for subgraph in self._session.get_provider_graph_assignment_info():
            names = tuple(f"{node.name} ({node.op_type})" if node.name else node.op_type for node in subgraph.get_nodes())
            nodes[subgraph.ep_name] = nodes.get(subgraph.ep_name, ()) + names
        return nodes


def use_custom_ops(libraries: Iterable[str]) -> None:
    """Hand libraries of custom operators to every session of this process from now on.

    `libraries`: paths; one that was handed over before is ignored. Raise CompileError where onnxruntime cannot load one.
    """
    for library in libraries:
        file = str(Path(library).resolve())  # one library by two names would be registered twice
        if file in _LIBRARIES:
            continue
        if not Path(library).is_file():
            fault = "is a directory" if Path(library).is_dir() else NO_FILE
            raise CompileError(f"custom-ops {library}: {fault}; give a shared library of onnxruntime's custom operators")
        import onnxruntime

        try:
            onnxruntime.SessionOptions().register_custom_ops_library(file)
        except Exception as fault:  # onnxruntime's errors share no base class
            raise CompileError(f"custom-ops {library}: onnxruntime cannot load it: {first_line(fault)}") from None
        _LIBRARIES.append(file)


def has_custom_ops() -> bool:
    """Return whether `use_custom_ops` was given a library, so that onnxruntime may know any domain."""
    return bool(_LIBRARIES)


def session_options(*, optimized: bool, threads: int = 1) -> onnxruntime.SessionOptions:
    """Return onnxruntime.SessionOptions for one session, with the custom operators of this process.

    `optimized`: whether onnxruntime may rewrite the graph. `threads`: inside one operator.
    Sessions log nothing: what onnxruntime logs it also raises.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for library in _LIBRARIES:
        options.register_custom_ops_library(library)
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def add_weights(options: onnxruntime.SessionOptions, weights: Mapping[str, Any]) -> None:
    """Give `options` the values of initializers that the model lacks, by name. The caller keeps the arrays while the session
    lives.
    """
    import onnxruntime

    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(w) for w in weights.values()]
        options.add_external_initializers(list(weights), values)


def open_model(
    model: bytes | str | Path,
    options: onnxruntime.SessionOptions,
    *,
    providers: Sequence[str] = CPU,
    disabled_optimizers: Sequence[str] = (),
) -> InferenceSession:
    """Open serialized ONNX, or its file. Raise InferenceError or MemoryError.

    `options`: of `session_options`, for this session alone: several providers change them.
    `providers`: onnxruntime's, the preferred one first.
    `disabled_optimizers`: names of onnxruntime's graph transformers.
    """
    import onnxruntime

    if len(providers) > 1:
        options.use_deterministic_compute = True
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
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


@contextmanager
def run_float_models_on(host: str) -> Generator[None]:
    """Set the host, "cpu" or "cuda", that `get_float_host` returns inside the block, in this thread."""
    token = _HOST.set(host)
    try:
        yield
    finally:
        _HOST.reset(token)


def get_float_host() -> str:
    """Return the host that `run_float_models_on` has set, on which callers open float models; "cpu" outside of it."""
    return _HOST.get()


def host_providers(host: str) -> tuple[str, ...]:
    """Return onnxruntime's providers for a host, "cpu" or "cuda". Raise CompileError where they cannot run here."""
    if host == "cpu":
        return CPU
    if host != "cuda":
        raise CompileError(f"host {host}: must be cpu or cuda")
    reason = find_cuda_fault()
    if reason is not None:
        raise CompileError(f"host cuda: {reason}, or use cpu")
    return CUDA


@cache
def find_cuda_fault() -> str | None:
    """Return why onnxruntime does not run on a GPU here, with the way out; None: it does. The first answer is kept."""
    import onnxruntime

    if _has_distribution("onnxruntime") and _has_distribution("onnxruntime-gpu"):
        return (
            "onnxruntime and onnxruntime-gpu are both installed and own the same files; "
            "uninstall both, then install onnxruntime-gpu alone (docs/cuda.md)"
        )
    if CUDA[0] not in onnxruntime.get_available_providers():
        return f"onnxruntime has no {CUDA[0]} here; install onnxruntime-gpu instead (docs/cuda.md)"
    if CUDA[0] not in _start_providers():
        return f"onnxruntime's {CUDA[0]} does not start here; it needs a GPU with its driver, CUDA and cuDNN (docs/cuda.md)"
    return None


def _has_distribution(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _start_providers() -> list[str]:
    """Return the providers of a small session that asks for CUDA: onnxruntime leaves one out that does not start.

    Lines that onnxruntime logs meanwhile are kept from the user.
    """
    import onnxruntime
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    onnxruntime.set_default_logger_severity(4)
    try:
        if hasattr(onnxruntime, "preload_dlls"):  # CUDA and cuDNN as packages of pip lie where no loader looks
            with redirect_stdout(StringIO()):
                onnxruntime.preload_dlls()
        return open_model(model, session_options(optimized=True), providers=CUDA).get_providers()
    except InferenceError:
        return []
    finally:
        onnxruntime.set_default_logger_severity(_DEFAULT_LOG_SEVERITY)


def _call_checked(verb: str, call: Callable[[], T]) -> T:
    """Return what `call` returns. Raise MemoryError where memory is short, and InferenceError for any other exception."""
    try:
        return call()
    except Exception as fault:  # onnxruntime's errors share no base class
        if is_out_of_memory(fault):
            raise MemoryError(first_line(fault)) from fault
        raise InferenceError(verb, first_line(fault)) from fault
