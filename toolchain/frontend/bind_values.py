"""Bind inputs to values, which makes them constants of the model.

`bind_values` does so for the user's `--value`. `import_bound_by_data` imports the model's graph.
Where shapes depend on the values of inputs, it binds these to the value that all samples of the data hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod

import numpy as np
import onnx
from onnx import numpy_helper

from toolchain.errors import CompileError, format_count, shown_elements
from toolchain.frontend.bind_shapes import BoundInputs, Dim, get_declared_shape, input_dtype, show
from toolchain.frontend.convert import numpy_dtype
from toolchain.frontend.errors import refuse
from toolchain.frontend.import_graph import ImportedGraph, import_graph
from toolchain.ir.graph import TensorType

Value = tuple[str, ...]  # numbers as they are written, true and false
_ELEMENTS = 4096  # as `infer.MAX_DATA`: larger tensors never decide a shape
_INPUTS = 16  # the most that are tried, each with a walk through the graph
Sample = Mapping[str, np.ndarray]
Samples = Callable[[Mapping[str, TensorType]], Iterator[Sample]]


def bind_values(
    graph: onnx.GraphProto, values: Mapping[str, Value], shapes: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
    """Return the values of inputs that the user binds, and make these inputs initializers of `graph`, in place.

    `values`: by input, one number for all elements, or as many as it has elements, as text.
    `shapes`: of inputs, as `--shape` gives them; other inputs have their declared shape. Where that is one symbolic dimension,
    it is the count of numbers; one number for an input without a shape is a scalar.
    Raise CompileError with every fault: no such input, a shape that is not known, numbers that are not of its type.
    """
    initializers = {i.name for i in graph.initializer}
    inputs = {i.name: i for i in graph.input if i.name not in initializers}
    arrays: dict[str, np.ndarray] = {}
    faults: list[str] = []
    for name, value in values.items():
        try:
            if name not in inputs:
                raise refuse(
                    option(name, value), f'the model has no input "{name}"', f"its inputs are {', '.join(inputs) or 'none'}"
                )
            arrays[name] = _array(inputs[name], value, shapes.get(name))
        except CompileError as fault:
            faults.append(str(fault))
    if faults:
        raise CompileError("\n".join(faults))
    hold_values(graph, arrays)
    return arrays


def hold_values(graph: onnx.GraphProto, values: Mapping[str, np.ndarray]) -> None:
    """Make these inputs of the graph initializers with these values, in place."""
    remaining_inputs = [i for i in graph.input if i.name not in values]
    del graph.input[:]
    graph.input.extend(remaining_inputs)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())


def option(name: str, value: Value) -> str:
    """Return the `--value` option that binds an input, for messages."""
    return f"--value {name}={','.join(value)}"


def _array(info: onnx.ValueInfoProto, value: Value, shape: Sequence[int] | None) -> np.ndarray:
    """Return the value of an input from its numbers as text. Raise CompileError where its shape is not known or does not fit."""
    dtype = numpy_dtype(input_dtype(info))
    numbers = [_number(info.name, value, text, dtype) for text in value]
    dims: Sequence[Dim] | None = get_declared_shape(info) if shape is None else tuple(shape)
    if dims is None and len(numbers) == 1:
        dims = ()
    if dims is not None and len(dims) == 1 and isinstance(dims[0], str):
        dims = (len(numbers),)
    if dims is None or any(isinstance(d, str) for d in dims):
        shown = "none" if dims is None else show(dims)
        raise refuse(option(info.name, value), f"its shape is not known: {shown}", f"bind it: --shape {info.name}=D0,D1,...")
    size = tuple(int(d) for d in dims)
    if len(numbers) not in (1, prod(size)):
        raise refuse(option(info.name, value), f"has {len(numbers)} numbers, the input {prod(size)}: {show(dims)}")
    array = np.asarray(numbers, dtype)
    return np.broadcast_to(array.reshape(-1)[0] if len(numbers) == 1 else array.reshape(size), size).copy()


def _number(name: str, value: Value, text: str, dtype: np.dtype) -> bool | int | float:
    """Return one number of the input's type. Raise CompileError where the text is none, NaN included."""
    try:
        if dtype.kind == "b":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        number = float(text) if dtype.kind == "f" else int(text)
    except (KeyError, ValueError):
        raise refuse(option(name, value), f"{text} is no {dtype.name}") from None
    if number != number or (dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max):
        raise refuse(option(name, value), f"{text} is no {dtype.name}")
    return number


@dataclass(frozen=True)
class ModelData:
    """The user's samples, with which inputs that decide shapes can be bound.

    `source`: the name of the data in messages.
    `samples`: yields the samples, arrays by input, given the types of the inputs.
    `judge`: name and samples of further data, which must hold the same values; None: there are none.
    """

    source: str
    samples: Samples
    judge: tuple[str, Samples] | None = None


@dataclass(frozen=True)
class BoundByData:
    """The imported graph, with the inputs that became constants because all samples agree.

    `values`: by such input, its value. `notes`: a sentence on each.
    """

    static: ImportedGraph
    values: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    notes: tuple[str, ...] = ()


def import_bound_by_data(proto: onnx.ModelProto, bound: BoundInputs, data: ModelData | None) -> BoundByData:
    """Import the graph. Where it is not static, bind the fewest inputs that make it so to the values that all samples hold.

    Only inputs of at most one dimension and 4096 elements are tried, the first 16 of them. `data` None: none are bound.
    The bound inputs become initializers of `proto`, in place; none are bound where the graph is static as it is.
    Raise CompileError as `import_graph` does. The message says which input would help if its samples did not differ.
    Raise CompileError too where samples of `data.judge` hold other values.
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
        """Return the sentence that says to what the input was bound, and by how many samples."""
        value = shown_elements(self.values[name])
        what = f'input "{name}": shapes depend on it; bound to {value}, which'
        proof = "is in the one sample" if self.count == 1 else f"all {format_count(self.count, 'sample')} hold"
        doubt = ": one sample alone is no proof that it is always so" if self.count == 1 else ""
        return f"{what} {proof} of {self.source}{doubt}; a run that feeds another value is refused"


def _collect_values(data: ModelData, types: Mapping[str, TensorType], names: list[str]) -> _SampleValues | None:
    """Return the values of inputs over all samples; None where there are no samples, or where they do not fit the inputs."""
    try:
        samples = data.samples(types)
        first = next(samples, dict[str, np.ndarray]())
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
    """Return as few of these values as make the graph static, by leaving out one after another; none where all do not."""
    bindings = dict(islice(values.items(), _INPUTS))
    if not _is_static(proto, bound, bindings):
        return {}
    for name in sorted(bindings, key=lambda n: bindings[n].dtype.kind != "f"):  # floats are data more often
        fewer = {n: v for n, v in bindings.items() if n != name}
        if fewer and _is_static(proto, bound, fewer):
            bindings = fewer
    return bindings


def _is_static(proto: onnx.ModelProto, bound: BoundInputs, values: Mapping[str, np.ndarray]) -> bool:
    """Return whether the graph can be imported with these inputs bound; `proto` itself does not change."""
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
    """Return the fault, extended by the input that would help if its samples did not differ."""
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
    """Raise CompileError where a sample holds another value than the input is bound to."""
    for index, sample in enumerate(samples(types)):
        for name, value in values.items():
            if name in sample and not np.array_equal(sample[name], value):
                raise CompileError(
                    f"{source}: sample {index}: input {name!r} is {shown_elements(sample[name])}; shapes depend on it, "
                    f"and the calibration data bind it to {shown_elements(value)}: remove the sample"
                )
