"""Inputs that are bound to values: constants of the model from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import onnx
from onnx import numpy_helper

from toolchain.errors import CompileError
from toolchain.frontend.bind_shapes import Dim, get_declared_shape, input_dtype, show
from toolchain.frontend.convert import numpy_dtype
from toolchain.frontend.errors import refuse

Value = tuple[str, ...]  # numbers as they are written, true and false


def bind_values(
    graph: onnx.GraphProto, values: Mapping[str, Value], shapes: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
    """Makes inputs of the graph constants: of one number everywhere, or of as many as they have elements. shapes: of inputs, as
    --shape gives them. Raises CompileError with every fault: no such input, a shape that is not known, numbers that are not of
    its type."""
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
    """Makes these inputs of the graph initializers."""
    remaining_inputs = [i for i in graph.input if i.name not in values]
    del graph.input[:]
    graph.input.extend(remaining_inputs)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())


def option(name: str, value: Value) -> str:
    return f"--value {name}={','.join(value)}"


def _array(info: onnx.ValueInfoProto, value: Value, shape: Sequence[int] | None) -> np.ndarray:
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
    try:
        if dtype.kind == "b":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        number = float(text) if dtype.kind == "f" else int(text)
    except (KeyError, ValueError):
        raise refuse(option(name, value), f"{text} is no {dtype.name}") from None
    if number != number or (dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max):
        raise refuse(option(name, value), f"{text} is no {dtype.name}")
    return number
