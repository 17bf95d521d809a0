"""Sessions of onnxruntime that compute what the model says."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from toolchain.ir.part import Part

if TYPE_CHECKING:
    import onnx

# The rule that takes a Pad into a pool makes a model that does not load where the padding is as wide as the window, and
# loses windows of pools with ceil_mode (seen in onnxruntime 1.31). The other rounds weights and biases that a model has in float.
WRONG_FUSIONS = ["Pad_Fusion", "WeightBiasQuantization"]
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
# Drops the output of a Conv that is asked for, where its weights are under a DequantizeLinear (1.32).
_DROPS_OUTPUTS = "ConvAddActivationFusion"
NO_WEIGHTS: Mapping[str, Any] = MappingProxyType({})


class FloatModel(Protocol):
    """A float network, whose tensors `parts` compute: models to be run one behind the other, later ones read what earlier ones
    make."""

    @property
    def inputs(self) -> Sequence[str]: ...
    def parts(self, names: Sequence[str]) -> Iterable[Part]: ...


def open_session(
    model: bytes | str | Path,
    *,
    threads: int = 1,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    folder: str = "",
    dims: Sequence[tuple[str, int]] = (),
    weights: Mapping[str, Any] = NO_WEIGHTS,
    few_runs: bool = False,
    lean: bool = False,
) -> Any:
    """An onnxruntime.InferenceSession of a model or its file, on these providers alone. folder: of its external data; dims:
    of named dimensions; weights: arrays of initializers that the model has no values for, to be kept as long as the session.
    few_runs: open fast rather than run fast. lean: what a run has used is given back behind it, which costs time.

    Raises what onnxruntime raises, which shares no base class.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what it logs it also raises
    # Its rewriting of int8 to uint8 makes models of quantized ones that do not load (1.31).
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    # Weights under a DequantizeLinear stay what they are; activations beside them are not rounded.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if few_runs:  # layouts and fusions for speed cost more than a run or two get back
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if lean:
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        _return_large_blocks()
    model, folder, weights = _exact(model, folder, weights)
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    for name, size in dims:
        options.add_free_dimension_override_by_name(name, size)
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(w) for w in weights.values()]
        options.add_external_initializers(list(weights), values)
    wrong = [*WRONG_FUSIONS, _DROPS_OUTPUTS] if isinstance(model, bytes) and b"DequantizeLinear" in model else WRONG_FUSIONS
    return onnxruntime.InferenceSession(model, options, providers=list(providers), disabled_optimizers=wrong, enable_fallback=0)


def _exact(
    model: bytes | str | Path, folder: str, weights: Mapping[str, Any]
) -> tuple[bytes | str | Path, str, Mapping[str, Any]]:
    """The model, the folder of its external data and the weights that it has no values for, such that this processor's kernels
    multiply exactly."""
    from quant.exact_weights import may_saturate, saturates, with_exact_weights  # and onnx with it

    if not saturates():
        return model, folder, weights
    held = model if isinstance(model, bytes) else Path(model).read_bytes()
    if not may_saturate(held):
        return model, folder, weights
    from onnx import load_model_from_string

    within = folder if isinstance(model, bytes) else str(Path(model).absolute().parent)
    exact = with_exact_weights(load_model_from_string(held), within, weights)
    left = {i.name for i in exact.graph.initializer}
    return exact.SerializeToString(), within, {name: w for name, w in weights.items() if name in left}


def _return_large_blocks() -> None:
    """Blocks of a MiB or more go back to the system when they are freed. glibc would raise that limit to 32 MiB by itself, and
    tensors below it would fragment its heap."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none, and need none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 20)


@dataclass(frozen=True)
class PlainModel:
    """A float network that is one ONNX model. What it declares no type of is float32."""

    proto: onnx.ModelProto

    @property
    def inputs(self) -> Sequence[str]:
        return tuple(i.name for i in self.proto.graph.input)

    def parts(self, names: Sequence[str]) -> Iterator[Part]:
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
        yield Part(serialized, tuple(self.inputs), tuple(names))


class FloatSession:
    """Computes some tensors of a float network, its inputs among them, for one sample at a time."""

    def __init__(
        self, model: FloatModel, names: Sequence[str], *, threads: int = 1, few_runs: bool = False, lean: bool = False
    ) -> None:
        """few_runs, lean: as in `open_session`. Raises what onnxruntime raises, which shares no base class."""
        made = [n for n in dict.fromkeys(names) if n not in model.inputs]
        self._names = tuple(names)
        self._sessions = []
        for part in model.parts(made) if made else ():
            session = open_session(
                part.model,
                threads=threads,
                folder=part.folder,
                dims=part.dims,
                weights=part.weights,
                few_runs=few_runs,
                lean=lean,
            )
            self._sessions.append((session, part.inputs, part.outputs, part.given, part.weights))  # which live as long

    def run(self, sample: Mapping[str, Any]) -> list[Any]:
        """The tensors in the order of their names. Raises what onnxruntime raises."""
        values = dict(self.stream(sample))
        return [values[n] for n in self._names]

    def stream(self, sample: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Each of the tensors as soon as its part of the model has run; none is held longer than a later part reads it.
        Raises what onnxruntime raises."""
        wanted, values = set(self._names), dict(sample)
        yield from ((n, values[n]) for n in dict.fromkeys(self._names) if n in sample)
        for at, (session, inputs, outputs, given, _) in enumerate(self._sessions):
            made = session.run(list(outputs), {**given, **{n: values[n] for n in inputs if n in values}})
            values.update(zip(outputs, made, strict=True))
            del made
            later = {n for _, reads, *_ in self._sessions[at + 1 :] for n in reads}
            held = later.union(outputs)
            values = {n: v for n, v in values.items() if n in held}
            for name in outputs:
                value = values[name] if name in later else values.pop(name)
                if name in wanted:
                    yield name, value
                del value
