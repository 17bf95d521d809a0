"""Runs float and quantized ONNX models in onnxruntime for reference values, optimized only where that changes nothing.

`open_session` opens one model, `FloatSession` a network that may be cut into parts. Calibration, fidelity and the host's part of
a compiled network compute with them. Known faults of onnxruntime's optimizer are switched off. What else it changes is found by
comparing the first run with an unoptimized one, and told in `inference_notes`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from quant.fidelity import ErrorSums
from toolchain.errors import InternalError
from toolchain.foundation.inference import (
    CPU,
    InferenceError,
    InferenceSession,
    add_weights,
    get_float_host,
    host_providers,
    open_model,
    session_options,
)
from toolchain.ir.float_submodel import FloatSubmodel

if TYPE_CHECKING:
    import onnx

# The rule that takes a Pad into a pool makes a model that does not load where the padding is as wide as the window, and
# loses windows of pools with ceil_mode (seen in onnxruntime 1.31). The other rounds weights and biases that a model has in float.
WRONG_FUSIONS = ["Pad_Fusion", "WeightBiasQuantization"]
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
# Drops the output of a Conv that is asked for, where its weights are under a DequantizeLinear (1.32).
_DROPS_OUTPUTS = "ConvAddActivationFusion"
MOST_DISTANCE = 1e-3  # of an output's rms; float sums in another order stay below 1e-5
_AT_ONCE = 1 << 16  # elements that are compared
T = TypeVar("T")
Array = NDArray[Any]
NO_WEIGHTS: Mapping[str, Any] = MappingProxyType({})


@dataclass
class _Findings:
    """A record of what sessions show of the optimizer and the host while one file is worked on.

    `notes`: sentences for the user, as keys.
    `agrees`: the file itself computes the same optimized, so that graphs derived of it are not compared anew.
    `cpu_operators`: operators of float models that the CPU ran, where another host was requested.
    """

    notes: dict[str, None]
    agrees: bool = False
    cpu_operators: set[str] = field(default_factory=set[str])


_FINDINGS: ContextVar[_Findings | None] = ContextVar("_FINDINGS", default=None)


class FloatModel(Protocol):
    """Interface of a float network, whose tensors are computed by one or several models."""

    @property
    def inputs(self) -> Sequence[str]:
        """The names of its inputs."""
        ...

    def parts(self, names: Sequence[str]) -> Iterable[FloatSubmodel]:
        """Return the models to run one after the other for the tensors `names`; later ones read what earlier ones make."""
        ...


def open_session(
    model: bytes | str | Path,
    *,
    threads: int = 1,
    providers: Sequence[str] | None = None,
    folder: str = "",
    dims: Sequence[tuple[str, int]] = (),
    weights: Mapping[str, Any] = NO_WEIGHTS,
    few_runs: bool = False,
    lean: bool = False,
    plain_outputs: Sequence[Any] | None = None,
) -> CheckedSession:
    """Open a model, given as bytes or as the path of its file.

    `threads`: of onnxruntime.
    `providers`: of onnxruntime; None: those of the host that float models run on.
    `folder`: folder of its external data, where the model is bytes.
    `dims`: sizes of named dimensions.
    `weights`: arrays of initializers that the model has no values for, to be kept as long as the session.
    `few_runs`: open fast rather than run fast, which leaves the optimizer off.
    `lean`: memory is returned after each run, which costs time.
    `plain_outputs`: as in `CheckedSession`.

    Raise InferenceError or MemoryError.
    """
    model, folder, weights = _exact(model, folder, weights)
    here = host_providers(get_float_host()) if providers is None else providers

    def opened(optimized: bool) -> InferenceSession:
        options = session_options(optimized=optimized, threads=threads)
        # Its rewriting of int8 to uint8 makes models of quantized ones that do not load (1.31).
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        # Weights under a DequantizeLinear stay what they are; activations beside them are not rounded.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if lean:
            options.enable_cpu_mem_arena = options.enable_mem_pattern = False
            _return_large_blocks()
        if folder:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        for name, size in dims:
            options.add_free_dimension_override_by_name(name, size)
        add_weights(options, weights)
        quantized = isinstance(model, bytes) and b"DequantizeLinear" in model
        wrong = [*WRONG_FUSIONS, _DROPS_OUTPUTS] if quantized else WRONG_FUSIONS
        session = open_model(model, options, providers=here, disabled_optimizers=wrong)
        if providers is None:
            _collect_cpu_operators(session)
        return session

    return CheckedSession(opened, few_runs, plain_outputs)


class CheckedSession:
    """A model in onnxruntime, optimized where that computes what the model says.

    The first run is made twice, without and with the optimizer. Where their outputs differ by more than MOST_DISTANCE, later runs
    do without it, and a note says so. Where `trust_optimizer` says that the optimizer is known to be right, nothing is compared.
    A model that fails in one of both ways is run in the other. Threads may share a session.
    """

    def __init__(
        self, opened: Callable[[bool], InferenceSession], few_runs: bool = False, plain_outputs: Sequence[Any] | None = None
    ) -> None:
        """Open the session. Raise InferenceError or MemoryError.

        `opened`: opens the model, optimized or not.
        `few_runs`: the model is never optimized, since optimizing costs more than a run or two gain.
        `plain_outputs`: the outputs of the first run without the optimizer, which is then not made again; None: it is made.
        """
        self._lock = RLock()  # of the choice, which every thread waits for
        self._opened, self._few_runs, self._plain_outputs = opened, few_runs, plain_outputs
        self._chosen: InferenceSession | None = None
        self._optimized = False
        self._session: InferenceSession | None
        findings = _FINDINGS.get()
        self._trusted = findings is not None and findings.agrees and not few_runs
        try:
            self._session = self._open_trusted() or (opened(False) if plain_outputs is None else None)
        except InferenceError as fault:  # no kernel for a node that the optimizer computes or replaces
            self._session = self._chosen = _or_else(fault, lambda: opened(True))

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """Return the values of these outputs, of all where None. Raise InferenceError or MemoryError."""
        if self._chosen is None:
            with self._lock:
                if self._chosen is None:
                    self._chosen, values = self._choose(lambda session: session.run(outputs, feeds, run_options))
                    self._session = self._chosen
                    self._opened = _no_more  # it holds the model
                    return values
        return self._chosen.run(outputs, feeds, run_options)

    def get_inputs(self) -> list[Any]:
        """Return the inputs as onnxruntime describes them."""
        return self._open().get_inputs()

    def get_outputs(self) -> list[Any]:
        """Return the outputs as onnxruntime describes them."""
        return self._open().get_outputs()

    def get_providers(self) -> list[str]:
        """Return the providers that run the model, the preferred one first."""
        return self._open().get_providers()

    def get_nodes_by_provider(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes that each provider runs; see `InferenceSession`."""
        return self._open().get_nodes_by_provider()

    @property
    def is_optimized(self) -> bool:
        """True once a run was made and the optimized model serves the later ones."""
        return self._optimized

    def _open_trusted(self) -> InferenceSession | None:
        """Return the optimized session, where nothing is to be compared and it loads; else None."""
        if self._trusted:
            with suppress(InferenceError):
                return self._opened(True)
            self._trusted = False
        return None

    def _open(self) -> InferenceSession:
        """Return the session at hand; without one, open the model without the optimizer."""
        with self._lock:
            if self._session is None:
                self._session = self._opened(False)
            return self._session

    def _choose(self, run: Callable[[InferenceSession], list[Any]]) -> tuple[InferenceSession, list[Any]]:
        """Return the session that all later runs use, and the values of the first run. Raise InferenceError where neither way
        runs."""
        if self._trusted:
            optimized = self._open()
            with suppress(InferenceError):
                values = run(optimized)
                self._optimized = True
                return optimized, values
            del optimized
            self._trusted, self._session = False, None
        expected, self._plain_outputs = self._plain_outputs, None
        if expected is None:
            plain = self._open()
            try:
                expected = run(plain)
            except InferenceError as fault:
                optimized = _or_else(fault, lambda: self._opened(True))
                return optimized, _or_else(fault, lambda: run(optimized))
            if self._few_runs:
                return plain, expected
            del plain
        self._session = None  # one is held at a time
        try:
            optimized = self._opened(True)
            values = run(optimized)
        except InferenceError as fault:
            reason = f"fails on it ({fault.reason})"
        else:
            distance = largest_distance(expected, values)
            if distance <= MOST_DISTANCE:
                self._optimized = True
                return optimized, values
            reason = f"changes what it computes ({_share(distance)})"
            del optimized
        plain = self._opened(False)
        again = run(plain)
        if largest_distance(expected, again) > MOST_DISTANCE:  # random by itself
            return plain, again
        _note(f"onnxruntime's optimizer {reason}: computed in float without it, which is slower and right")
        return plain, again


def largest_distance(expected: Sequence[Any], values: Sequence[Any]) -> float:
    """Return the largest distance of an output: the rms of its differences over its own rms, where `expected` is finite.

    It is infinite where shapes or types differ, or a finite number became infinite or NaN, and 0 without outputs. Texts must be
    equal. Of sequences and other values that are no arrays only the type is compared.
    """
    return max((_distance(a, b) for a, b in zip(expected, values, strict=True)), default=0.0)


def _distance(expected: Any, value: Any) -> float:
    """Return the distance of one output, as `largest_distance`."""
    if not (_is_array(expected) and _is_array(value)):
        return 0.0 if type(expected) is type(value) else np.inf
    return _array_distance(expected, value)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _array_distance(expected: Array, value: Array) -> float:
    if expected.shape != value.shape or expected.dtype != value.dtype:
        return np.inf
    if expected.dtype.kind in "OSU":  # strings
        return 0.0 if np.array_equal(expected, value) else np.inf
    sums = ErrorSums()
    for at in range(0, expected.size, _AT_ONCE):
        a, b = (v.reshape(-1)[at : at + _AT_ONCE].astype(np.float64) for v in (expected, value))
        finite = np.isfinite(a)  # where it is not, a fused kernel that makes a number of it is no worse
        sums.update(a[finite], b[finite])
    return 10 ** (-sums.sqnr_db / 20)


def _share(distance: float) -> str:
    """Return the distance in words."""
    return f"by {distance:.2g} of an output's rms" if np.isfinite(distance) else "its outputs' shapes, zeros or NaN"


def _or_else(fault: InferenceError, call: Callable[[], T]) -> T:
    """Return the result of the call; where that is refused too, raise the first fault, which is of the model as it is."""
    try:
        return call()
    except InferenceError:
        raise fault from None


def _no_more(_: bool) -> InferenceSession:
    """Raise InternalError: a session that has run is not opened again."""
    raise InternalError("a session that has run is opened again")


@contextmanager
def inference_notes() -> Generator[Mapping[str, None]]:
    """A context that collects notes on the sessions that run inside, as keys: one on the optimizer, one on nodes left to the CPU.

    The latter comes when the context ends. What `trust_optimizer` says holds as long.
    """
    findings = _Findings({})
    token = _FINDINGS.set(findings)
    try:
        yield findings.notes
    finally:
        _FINDINGS.reset(token)
        if findings.cpu_operators:
            operators = ", ".join(sorted(findings.cpu_operators))
            sentence = f"host {get_float_host()}: nodes of float models ran on the CPU, for want of kernels: {operators}"
            findings.notes[sentence] = None


def trust_optimizer(agrees: bool) -> None:
    """Record, within `inference_notes`, whether the optimizer is known to leave what the file computes as it is. Outside it
    does nothing."""
    findings = _FINDINGS.get()
    if findings is not None:
        findings.agrees = agrees


def _collect_cpu_operators(session: InferenceSession) -> None:
    """Keep the operators that fell back to the CPU, for the note of `inference_notes`."""
    findings, nodes = _FINDINGS.get(), session.get_nodes_by_provider()
    if findings is not None:
        findings.cpu_operators.update(node.rpartition("(")[2].rstrip(")") for node in nodes.get(CPU[0], ()))


def _note(sentence: str) -> None:
    """Add a sentence to the notes of `inference_notes`, unless there is one."""
    findings = _FINDINGS.get()
    if findings is not None and not findings.notes:  # a network is run in many pieces; the first says enough
        findings.notes[sentence] = None


def _exact(
    model: bytes | str | Path, folder: str, weights: Mapping[str, Any]
) -> tuple[bytes | str | Path, str, Mapping[str, Any]]:
    """Return model, folder and weights such that this processor's kernels multiply exactly; unchanged where they do already."""
    from quant.exact_weights import may_saturate, saturates, with_exact_weights  # and onnx with it

    if not saturates():
        return model, folder, weights
    model_bytes = model if isinstance(model, bytes) else Path(model).read_bytes()
    if not may_saturate(model_bytes):
        return model, folder, weights
    from onnx import load_model_from_string

    within = folder if isinstance(model, bytes) else str(Path(model).absolute().parent)
    exact = with_exact_weights(load_model_from_string(model_bytes), within, weights)
    initializer_names = {i.name for i in exact.graph.initializer}
    return exact.SerializeToString(), within, {name: w for name, w in weights.items() if name in initializer_names}


def _return_large_blocks() -> None:
    """Return blocks of a MiB or more to the system when they are freed.
    Otherwise glibc would raise that limit to 32 MiB by itself, and tensors below it would fragment its heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none, and need none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 20)


@dataclass(frozen=True)
class PlainModel:
    """A float network that is one ONNX model. A tensor that it declares no type of is float32."""

    proto: onnx.ModelProto

    @property
    def inputs(self) -> Sequence[str]:
        """The names of its inputs."""
        return tuple(i.name for i in self.proto.graph.input)

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Yield the one model, with the tensors `names` as its outputs."""
        import onnx

        declared = {v.name: v for v in (*self.proto.graph.value_info, *self.proto.graph.output)}
        extended = onnx.ModelProto()
        extended.CopyFrom(self.proto)
        del extended.graph.output[:]
        for name in names:
            # onnxruntime infers the shape itself; a type is all it asks for
            untyped = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            extended.graph.output.append(declared.get(name, untyped))
        serialized = extended.SerializeToString()
        del extended  # the weights need not be held once more
        yield FloatSubmodel(serialized, tuple(self.inputs), tuple(names))


class _Part(NamedTuple):
    """A part of a network in its session. `weights`: arrays that the session reads, held here as long as it."""

    session: CheckedSession
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constant_feeds: Mapping[str, Any]
    weights: Mapping[str, Any]


class FloatSession:
    """A session that computes some tensors of a float network, its inputs among them, for one sample at a time.

    `run` returns them all, `stream` one by one, so that few are in memory at once.
    """

    def __init__(
        self,
        model: FloatModel,
        names: Sequence[str],
        *,
        threads: int = 1,
        few_runs: bool = False,
        lean: bool = False,
        plain_values: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the sessions of a model. Raise InferenceError or MemoryError.

        `few_runs`, `lean`: as in `open_session`. `plain_values`: by name, the tensors of the first sample without
        onnxruntime's optimizer; None: it is run without first.
        """
        computed_names = [n for n in dict.fromkeys(names) if n not in model.inputs]
        self._names = tuple(names)
        self._sessions: list[_Part] = []
        for part in model.parts(computed_names) if computed_names else ():
            session = open_session(
                part.model,
                threads=threads,
                folder=part.folder,
                dims=part.dims,
                weights=part.weights,
                few_runs=few_runs,
                lean=lean,
                plain_outputs=None if plain_values is None else [plain_values[name] for name in part.outputs],
            )
            self._sessions.append(_Part(session, part.inputs, part.outputs, part.extra_inputs, part.weights))

    @property
    def is_optimized(self) -> bool:
        """True where every part has run and uses the optimizer; also without parts."""
        return all(part.session.is_optimized for part in self._sessions)

    def run(self, sample: Mapping[str, Any]) -> list[Any]:
        """Return the tensors in the order of their names. Raise InferenceError or MemoryError.

        `sample`: arrays by input.
        """
        values = dict(self.stream(sample))
        return [values[n] for n in self._names]

    def stream(self, sample: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of each of the tensors once: requested inputs first, then each as soon as its part of the model has
        run.

        A tensor is freed after the last part that reads it. Raise InferenceError or MemoryError.
        """
        requested, values = set(self._names), dict(sample)
        yield from ((n, values[n]) for n in dict.fromkeys(self._names) if n in sample)
        for at, part in enumerate(self._sessions):
            feeds = {**part.constant_feeds, **{n: values[n] for n in part.inputs if n in values}}
            results = part.session.run(list(part.outputs), feeds)
            values.update(zip(part.outputs, results, strict=True))
            del feeds, results
            later = {n for rest in self._sessions[at + 1 :] for n in rest.inputs}
            live_names = later.union(part.outputs)
            values = {n: v for n, v in values.items() if n in live_names}
            for name in part.outputs:
                value = values[name] if name in later else values.pop(name)
                if name in requested:
                    yield name, value
                del value
