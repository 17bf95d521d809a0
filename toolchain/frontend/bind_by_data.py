"""Inputs that decide shapes and are bound to the value that all samples of the data hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import onnx

from toolchain.errors import CompileError, format_count, shown_elements
from toolchain.frontend.bind_shapes import BoundInputs
from toolchain.frontend.bind_values import hold_values
from toolchain.frontend.import_graph import ImportedGraph, import_graph
from toolchain.ir.graph import TensorType

_ELEMENTS = 4096  # as `infer.MAX_DATA`: larger tensors never decide a shape
_INPUTS = 16  # the most that are tried, each with a walk through the graph


Sample = Mapping[str, np.ndarray]
Samples = Callable[[Mapping[str, TensorType]], Iterator[Sample]]


@dataclass(frozen=True)
class ModelData:
    """Samples by the types of the inputs, each with the inputs that the data hold.

    `source`: their name in sentences.
    `judge`: further samples by their name, which must agree.
    """

    source: str
    samples: Samples
    judge: tuple[str, Samples] | None = None


@dataclass(frozen=True)
class BoundByData:
    """A static graph, the inputs that are constants of it because the data say so, and a note of each."""

    static: ImportedGraph
    values: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    notes: tuple[str, ...] = ()


def import_bound_by_data(proto: onnx.ModelProto, bound: BoundInputs, data: ModelData | None) -> BoundByData:
    """Import the graph, with the fewest inputs bound that make its shapes static.

    The bound inputs become initializers of `proto`; none are bound where the graph is static as it is. Raises
    CompileError as `import_graph`, and says which input would mend it but differs.
    """
    try:
        return BoundByData(import_graph(proto, bound.types))
    except CompileError as fault:
        candidates = [n for n, t in bound.types.items() if len(t.shape) < 2 and t.elements <= _ELEMENTS]
        if data is None or not candidates:
            raise
        sample_values = _collect_values(data, bound.types, candidates)
        values = None if sample_values is None else _fewest(proto, bound, sample_values.values)
        if sample_values is None or not values:
            raise _explain_binding(proto, bound, fault, sample_values) from None
    if data.judge is not None:
        _require_equal(*data.judge, bound.types, values)
    hold_values(proto.graph, values)
    types = {n: t for n, t in bound.types.items() if n not in values}
    return BoundByData(import_graph(proto, types), values, tuple(sample_values.note(n) for n in values))


@dataclass(frozen=True)
class _SampleValues:
    """Values of small inputs in calibration data.

    `values`: inputs that are equal in all of `count` samples.
    `first`: all inputs of the first sample.
    `other`: by input, the first sample that has another value, and the value.
    """

    source: str
    count: int
    values: Mapping[str, np.ndarray]
    first: Mapping[str, np.ndarray]
    other: Mapping[str, tuple[int, np.ndarray]]

    def note(self, name: str) -> str:
        value = shown_elements(self.values[name])
        what = f'input "{name}": shapes depend on it; bound to {value}, which'
        proof = "is in the one sample" if self.count == 1 else f"all {format_count(self.count, 'sample')} hold"
        doubt = ": one sample alone is no proof that it is always so" if self.count == 1 else ""
        return f"{what} {proof} of {self.source}{doubt}; a run that feeds another value is refused"


def _collect_values(data: ModelData, types: Mapping[str, TensorType], names: list[str]) -> _SampleValues | None:
    """Return the values of inputs over all samples.

    The answer is None where there are no samples, or where they do not fit the inputs.
    """
    try:
        samples = data.samples(types)
        first = next(samples, {})
        first_values = {n: first[n] for n in names if n in first}
        other: dict[str, tuple[int, np.ndarray]] = {}
        count = 1
        for count, sample in enumerate(samples, 2):
            for name in first_values.keys() - other.keys():
                if not np.array_equal(sample[name], first_values[name]):
                    other[name] = count - 1, sample[name]
    except (CompileError, StopIteration):
        return None
    return (
        _SampleValues(data.source, count, {n: v for n, v in first_values.items() if n not in other}, first_values, other)
        if first_values
        else None
    )


def _fewest(proto: onnx.ModelProto, bound: BoundInputs, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the fewest of these values that make the graph static; none where all together do not."""
    bindings = dict(islice(values.items(), _INPUTS))
    if not _is_static(proto, bound, bindings):
        return {}
    for name in sorted(bindings, key=lambda n: bindings[n].dtype.kind != "f"):  # floats are data more often
        fewer = {n: v for n, v in bindings.items() if n != name}
        if fewer and _is_static(proto, bound, fewer):
            bindings = fewer
    return bindings


def _is_static(proto: onnx.ModelProto, bound: BoundInputs, values: Mapping[str, np.ndarray]) -> bool:
    tried = onnx.ModelProto()
    tried.CopyFrom(proto)
    hold_values(tried.graph, values)
    try:
        import_graph(tried, {n: t for n, t in bound.types.items() if n not in values})
    except CompileError:
        return False
    return True


def _explain_binding(
    proto: onnx.ModelProto, bound: BoundInputs, fault: CompileError, sample_values: _SampleValues | None
) -> CompileError:
    """The fault, and which inputs would mend it if they did not differ."""
    bindings = _fewest(proto, bound, sample_values.first) if sample_values is not None and sample_values.other else {}
    differing = [n for n in bindings if sample_values is not None and n in sample_values.other]
    if sample_values is None or not differing:
        return fault
    name = differing[0]
    sample, value = sample_values.other[name]
    difference = (
        f"sample 0 of {sample_values.source} holds {shown_elements(sample_values.first[name])}, sample {sample} "
        f"{shown_elements(value)}"
    )
    way_out = (
        f"it depends on input {name!r}, which differs: {difference}; fix it with --value {name}=V0,V1 and give data of that value"
    )
    return CompileError(f"{fault}\n  help: {way_out}")


def _require_equal(source: str, samples: Samples, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]) -> None:
    """Raises CompileError: a sample holds another value than the input is bound to."""
    for index, sample in enumerate(samples(types)):
        for name, value in values.items():
            if name in sample and not np.array_equal(sample[name], value):
                raise CompileError(
                    f"{source}: sample {index}: input {name!r} is {shown_elements(sample[name])}; shapes depend on it, "
                    f"and the calibration data bind it to {shown_elements(value)}: remove the sample"
                )
