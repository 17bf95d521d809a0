"""Check the fields of operators that a dumped text gives: each fits its type hint, and the limits that its name has.

A name means the same in all operators of the toolchain and of ONNX: `strides` are 1 or more wherever they stand. So the
limits stand here once, by name. Those of other domains and of plug-ins may use a name otherwise; they have no such limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import prod
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from toolchain.ir.graph import Node, OnnxOp, TensorType

_LEAST = {
    **dict.fromkeys(("kernel", "strides", "dilations", "groups", "factors", "steps", "count"), 1),
    **dict.fromkeys(("pads", "before", "after", "starts", "first", "again", "left_shift", "shape"), 0),
}
_ONNX_LEAST = {"kernel_shape": 1, "strides": 1, "dilations": 1, "group": 1}  # other attributes may count from the end
_PER_DIMENSION = ("perm", "factors", "before", "after", "starts", "steps")  # one number for each dimension of the first input
_ZERO_POINTS = {"x_zero_point": 0, "a_zero_point": 0, "b_zero_point": 1}  # fields, and the inputs whose codes they are
_PACKAGES, _DOMAINS = ("toolchain", "quant"), ("", "ai.onnx")  # whose names have these limits
_MOST_SHIFT = 31  # left, of sums of 32 bits


def find_field_fault(node: Node[Any], types: Mapping[str, TensorType]) -> str | None:
    """Return the first fault of the fields of a node, as operator, field, value and limit; None: there is none.

    `node`: of the toolchain, a plug-in or ONNX; nodes of other domains are not checked. Fields of a plug-in must fit their type
    hints and pass its `find_own_fault`; limits by name do not bind them.
    `types`: of the node's tensors; without an entry the checks that need it are left out.
    """
    if isinstance(node.op, OnnxOp):
        if node.op.domain not in _DOMAINS:
            return None
        return next((f"{node.op.op_type}: {fault}" for fault in _list_onnx_faults(node, node.op.attributes, types)), None)
    faults = (f"{type(part).__name__}: {fault}" for part in _list_parts(node.op) for fault in _list_faults(part))
    if fault := next(faults, None) or node.op.find_own_fault():
        return fault
    if not has_limits(node.op.__class__):
        return None
    return next((f"{type(node.op).__name__}: {fault}" for fault in _list_faults_on(node, types)), None)


def find_hint_fault(kind: type, values: Mapping[str, Any]) -> str | None:
    """Return a text on the first value that is not of its field's type, with field, value and type; None: all are.

    `kind`: a dataclass. `values`: by name of its fields, of which those that are absent are not checked.
    Raise KeyError for a name that the class has no field for, unless a fault comes before it.
    """
    hints = get_type_hints(kind)
    faults = (f"{n} {_show(v)}: must be {_describe(hints[n])}" for n, v in values.items() if not _fits(v, hints[n]))
    return next(faults, None)


def has_limits(kind: type) -> bool:
    """Return whether the names of a class's fields are the toolchain's, not those of a plug-in."""
    return kind.__module__.partition(".")[0] in _PACKAGES


def _list_parts(value: Any) -> Iterator[Any]:
    """Yield an operator, and the dataclasses that its fields hold."""
    yield value
    for field in fields(value):
        if is_dataclass(part := getattr(value, field.name)):
            yield from _list_parts(part)


def _list_faults(part: Any) -> Iterator[str]:
    """Yield the faults of fields by themselves."""
    kind: type = part.__class__
    hints = get_type_hints(kind)
    for name in [field.name for field in fields(part)]:
        value, hint = getattr(part, name), hints[name]
        if not _fits(value, hint):
            yield f"{name} {_show(value)}: must be {_describe(hint)}"
            return
        if not has_limits(kind):
            continue
        yield from _list_below(name, value, _LEAST)
        if name == "left_shift" and value > _MOST_SHIFT:
            yield f"left_shift {value}: must be at most {_MOST_SHIFT}"
        if name == "activation" and None not in value and value[0] > value[1]:
            yield f"activation {_show(value)}: the least value is above the largest"
    codes = getattr(part, "codes", None) if has_limits(kind) else None
    if codes is not None and not codes.limits[0] <= part.zero_point <= codes.limits[1]:
        yield f"zero_point {part.zero_point}: must be {codes.limits[0]} to {codes.limits[1]}, the codes of {codes.value}"


def _list_below(name: str, value: Any, least_by_name: Mapping[str, int]) -> Iterator[str]:
    """Yield a fault where a number of the value is below the least one of that name, or is no whole number."""
    numbers = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
    if name in least_by_name and any(not isinstance(n, int) or n < least_by_name[name] for n in numbers):
        yield f"{name} {_show(value)}: must be whole numbers of {least_by_name[name]} or more"


def _list_faults_on(node: Node[Any], types: Mapping[str, TensorType]) -> Iterator[str]:
    """Yield the faults of fields on the node's tensors."""
    values = {field.name: getattr(node.op, field.name) for field in fields(node.op)}
    read, result = [types.get(n) for n in node.inputs], [types.get(n) for n in node.outputs]
    if not read or not result or read[0] is None or result[0] is None:
        return  # undefined tensors are told of by `verify`
    shape = read[0].shape
    yield from _list_dimension_faults(values, shape, result[0].shape)
    for name, place in _ZERO_POINTS.items():
        codes = read[place] if name in values and place < len(read) else None
        if codes is not None and not _is_code(values[name], codes.dtype):
            yield f"{name} {values[name]}: is no code of {codes.dtype}"
    groups = values.get("groups", 1)
    if shape and shape[-1] % groups:
        yield f"groups {groups}: must divide the {shape[-1]} channels of {node.inputs[0]}"
        return
    window = values.get("geometry", node.op)
    if hasattr(window, "strides"):
        weights = read[1] if len(read) > 1 else None
        kernel = window.kernel if hasattr(window, "kernel") else weights.shape[1:3] if weights is not None else ()
        yield from _list_window_faults(window, kernel, shape, result[0].shape)


def _list_dimension_faults(values: Mapping[str, Any], read: tuple[int, ...], result: tuple[int, ...]) -> Iterator[str]:
    """Yield the faults of fields that name dimensions."""
    rank = len(read)
    for name in _PER_DIMENSION:
        if name in values and len(values[name]) != rank:
            yield f"{name} {_show(values[name])}: must have {rank} numbers, one for each dimension of its input"
    if "perm" in values and sorted(values["perm"]) != list(range(rank)):
        yield f"perm {_show(values['perm'])}: must hold each of 0 to {rank - 1} once"
    if "axis" in values and not 0 <= values["axis"] < rank:
        yield f"axis {values['axis']}: must be 0 to {rank - 1}"
    if "shape" in values and values["shape"] != result:
        yield f"shape {_show(values['shape'])}: is not {_show(result)}, the shape of its output"
    if list(values) == ["shape"] and prod(result) != prod(read):
        yield f"shape {_show(result)}: has {prod(result)} elements, its input has {prod(read)}"
    if {"starts", "steps", "shape"} <= values.keys():
        ends = tuple(s + (n - 1) * k for s, n, k in zip(values["starts"], values["shape"], values["steps"]))
        if any(end >= size for end, size in zip(ends, read)):
            yield f"starts {_show(values['starts'])}: the last element is at {_show(ends)}, outside of {_show(read)}"


def _list_window_faults(window: Any, kernel: tuple[int, ...], read: tuple[int, ...], result: tuple[int, ...]) -> Iterator[str]:
    """Yield the faults of a window over rows and columns of [n, h, w, c]; `pads` are top, left, bottom, right."""
    if len(read) != 4 or len(result) != 4 or len(kernel) != 2:
        yield f"strides {_show(window.strides)}: its tensors must have 4 dimensions, rows and columns in the middle"
        return
    for axis in (0, 1):
        padded = read[1 + axis] + window.pads[axis] + window.pads[axis + 2]
        places = (padded - window.dilations[axis] * (kernel[axis] - 1) - 1) // window.strides[axis] + 1
        if places != result[1 + axis]:
            words = f"strides {_show(window.strides)}, pads {_show(window.pads)}, dilations {_show(window.dilations)}"
            side = ("rows", "columns")[axis]
            yield f"{words}: a kernel of {_show(kernel)} gives {max(places, 0)} {side}, the output has {result[1 + axis]}"


def _list_onnx_faults(node: Node[Any], attributes: Mapping[str, Any], types: Mapping[str, TensorType]) -> Iterator[str]:
    """Yield faults of an ONNX node's attributes that no class describes: axes beyond the rank, a wrong shape or perm."""
    for name, value in attributes.items():
        yield from _list_below(name, value, _ONNX_LEAST)
    ranks = [len(types[n].shape) for n in (*node.inputs[:1], *node.outputs[:1]) if n in types]
    axes = list[Any](attributes["axes"] if isinstance(attributes.get("axes"), tuple) else ())
    axes += [attributes["axis"]] if isinstance(attributes.get("axis"), int) else []
    for axis in axes if ranks else ():
        if not isinstance(axis, int) or not -max(ranks) <= axis <= max(ranks):
            yield f"axis {axis}: must be {-max(ranks)} to {max(ranks)}"
    shape, output = attributes.get("shape"), types.get(node.outputs[0]) if node.outputs else None
    if node.op.op_type == "Reshape" and isinstance(shape, tuple) and output is not None and shape != output.shape:
        yield f"shape {_show(shape)}: is not {_show(output.shape)}, the shape of its output"
    perm = attributes.get("perm")
    if ranks and isinstance(perm, tuple) and Counter(cast(tuple[Any, ...], perm)) != Counter(range(ranks[0])):
        yield f"perm {_show(perm)}: must hold each of 0 to {ranks[0] - 1} once"


def _is_code(value: int, dtype: str) -> bool:
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
    return limits is None or limits.min <= value <= limits.max


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type hint."""
    kind, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind is Literal:
        return value in arguments
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if kind is tuple:
        if not isinstance(value, tuple):
            return False
        items = cast(tuple[Any, ...], value)
        if arguments[-1:] == (...,):
            return all(_fits(item, arguments[0]) for item in items)
        return len(items) == len(arguments) and all(map(_fits, items, arguments))
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind or hint)


def _describe(hint: Any) -> str:
    """Return in words what a type hint asks for."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if kind in (Union, UnionType):
        return " or ".join(map(_describe, arguments))
    if kind is tuple:
        many = "" if arguments[-1:] == (...,) else f"{len(arguments)} "
        return f"{many}values in brackets, each {_describe(arguments[0])}"
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a name", NoneType: "None"}
    return words.get(kind or hint, f"a {(kind or hint).__name__}")


def _show(value: Any) -> str:
    """Return a value as a text has it."""
    return f"({', '.join(map(_show, cast(tuple[Any, ...], value)))})" if isinstance(value, tuple) else str(value)
