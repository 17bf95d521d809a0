"""Bind every dimension of a model's inputs to a number: by the model, by `--shape`, or a lone open dimension 0 by 1.

This comes before the nodes are imported, whose shapes then follow by inference. `length_warnings` looks at the imported
graph: it names sequences that have one step because a dimension that nobody bound was taken as 1. For that it imports
the model again with _LONGER in its place. It looks at the recurrent layers _LAYERS, and at the operators _WRITTEN_OUT, which the
import unrolls. A `Dim` is a size, a name, or "?" for a dimension without one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import onnx

from toolchain.errors import CompileError
from toolchain.frontend.convert import array_dtype, dtype_name
from toolchain.frontend.errors import refuse
from toolchain.frontend.import_graph import import_graph
from toolchain.input_limits import TENSOR_ELEMENTS
from toolchain.ir.graph import OnnxGraph, TensorType

Dim = int | str
_LAYERS = ("GRU", "LSTM", "RNN")
_WRITTEN_OUT = ("Loop", "Scan")
_LONGER = 2


@dataclass(frozen=True)
class BoundInputs:
    """The static types of a model's inputs.

    `notes`: sentences on dimensions that were taken as 1. `assumed`: the inputs whose first dimension was.
    """

    types: Mapping[str, TensorType]
    notes: tuple[str, ...]
    assumed: tuple[str, ...] = ()

    def without(self, names: Collection[str]) -> BoundInputs:
        """Return a copy without the inputs of these names, which became constants; their notes stay."""
        types = {n: t for n, t in self.types.items() if n not in names}
        return replace(self, types=types, assumed=tuple(n for n in self.assumed if n not in names))


def bind_inputs(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]]) -> BoundInputs:
    """Bind every dimension of every input to a number; initializers are no inputs.

    Where dimension 0 alone is open, it is taken as 1, with a note. Its name then is 1 in later inputs too, not in earlier
    ones: an earlier input with the name at another axis is refused.
    Raise CompileError where another dimension is open, a shape contradicts the model or names no input, or an input is no
    tensor or too large.
    `shapes`: the complete shape by input name. They bind dimensions of the same name in all inputs that have no shape here.
    """
    initializers = {i.name for i in graph.initializer}
    inputs = [i for i in graph.input if i.name not in initializers]
    declared = {i.name: get_declared_shape(i) for i in inputs}
    dtypes = {i.name: input_dtype(i) for i in inputs}
    zeros = {i.name: zero_axes(i) for i in inputs}
    values: dict[str, int] = {}
    for name, shape in shapes.items():
        check_option(name, tuple(shape), declared, zeros.get(name, ()))
        for dim, value in zip(declared[name] or (), shape):
            if isinstance(dim, str) and dim != "?" and values.setdefault(dim, value) != value:
                raise refuse(option(name, shape), f'dimension "{dim}" is {values[dim]} elsewhere and {value} here')
    types: dict[str, TensorType] = {}
    notes: list[str] = []
    assumed: list[str] = []
    for name, dims in declared.items():
        shape = tuple(shapes[name]) if name in shapes else bind_dims(name, dims, values, notes, assumed)
        if prod(max(size, 1) for size in shape) > TENSOR_ELEMENTS:
            raise refuse(f'input "{name}"', f"has the shape {list(shape)}; {TENSOR_ELEMENTS:,} elements are the most")
        types[name] = TensorType(shape, dtypes[name])
    return BoundInputs(types, tuple(notes), tuple(assumed))


def get_declared_shape(info: onnx.ValueInfoProto) -> tuple[Dim, ...] | None:
    """Return the dimensions that the model declares for an input, None when it gives no rank.

    A dimension is a number, or its name, or "?" without one. Sizes of 0 or less, by which exporters mean dynamic, count as
    "?".
    Raise CompileError for an input that is no tensor.
    """
    if info.type.WhichOneof("value") != "tensor_type":
        kind = (info.type.WhichOneof("value") or "untyped").removesuffix("_type").replace("_", " ")
        raise refuse(f'input "{info.name}"', f"is a {kind}; only tensors can be inputs")
    if not info.type.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.dim_value > 0 else d.dim_param or "?" for d in info.type.tensor_type.shape.dim)


def input_dtype(info: onnx.ValueInfoProto) -> str:
    """Return numpy's name of an input's element type. Raise CompileError for types that onnxruntime does not take."""
    try:
        return array_dtype(dtype_name(info.type.tensor_type.elem_type))
    except CompileError as fault:
        raise refuse(f'input "{info.name}"', str(fault)) from fault


def option(name: str, shape: Sequence[int]) -> str:
    """Return the `--shape` option that binds an input, for messages."""
    return f"--shape {name}={','.join(map(str, shape))}"


def zero_axes(info: onnx.ValueInfoProto) -> frozenset[int]:
    """Return the axes to which the model itself gives the size 0. They are dynamic, unless `--shape` says 0 too."""
    dims = info.type.tensor_type.shape.dim
    return frozenset(axis for axis, d in enumerate(dims) if d.HasField("dim_value") and d.dim_value == 0)


def check_option(
    name: str, shape: tuple[int, ...], declared: Mapping[str, tuple[Dim, ...] | None], empty: Collection[int] = ()
) -> None:
    """Raise CompileError where a shape that the user gave does not fit its input.

    `declared`: by input, its dimensions in the model, or None without a rank. `empty`: axes that may have the size 0.
    """
    if name not in declared:
        raise refuse(option(name, shape), f'the model has no input "{name}"', f"its inputs are {', '.join(declared) or 'none'}")
    if any(d < 0 or (d == 0 and axis not in empty) for axis, d in enumerate(shape)):
        raise refuse(option(name, shape), "every dimension must be 1 or more")
    dims = declared[name]
    if dims is None:
        return
    if len(dims) != len(shape):
        raise refuse(option(name, shape), f"has rank {len(shape)}, the input has rank {len(dims)}: {show(dims)}")
    for axis, (dim, value) in enumerate(zip(dims, shape)):
        if isinstance(dim, int) and dim != value:
            raise refuse(option(name, shape), f"dimension {axis} is {dim} in the model, it cannot become {value}: {show(dims)}")


def bind_dims(
    name: str, dims: tuple[Dim, ...] | None, values: dict[str, int], notes: list[str], assumed: list[str]
) -> tuple[int, ...]:
    """Return the shape of an input for which the user gave none. Raise CompileError where it is open beyond dimension 0.

    `dims`: as in the model; None without a rank, which is refused. `values`: sizes by dimension name.
    `notes`, `assumed` and `values` gain what is assumed of dimension 0, so that later calls see it.
    """
    if dims is None:
        raise refuse(f'input "{name}"', "the model gives it no shape", f"bind it: --shape {name}=1,3,224,224")
    bound: list[Dim] = [values.get(d, d) if isinstance(d, str) else d for d in dims]
    open_axes = [axis for axis, d in enumerate(bound) if isinstance(d, str)]
    if open_axes == [0]:
        notes.append(f'input "{name}": dimension 0 ({bound[0]}) is dynamic and not bound; taken as 1')
        assumed.append(name)
        if bound[0] != "?":
            values[str(bound[0])] = 1
        bound[0] = 1
    elif open_axes:
        axis = next(a for a in open_axes if a > 0)
        example = ",".join("N" if d == "?" else "1" if a == 0 and isinstance(d, str) else str(d) for a, d in enumerate(bound))
        open_names = " and ".join(dict.fromkeys(part for part in example.split(",") if not part.isdigit()))
        raise refuse(
            f'input "{name}"',
            f'dimension {axis} ("{bound[axis]}") is dynamic: {show(dims)}',
            f"bind it: --shape {name}={example}, with a number in place of {open_names}",
        )
    return tuple(int(d) for d in bound)


def show(dims: Sequence[Dim]) -> str:
    """Return dimensions as text, such as `[N, 3, ?]`."""
    return f"[{', '.join(map(str, dims))}]"


def length_warnings(
    proto: onnx.ModelProto, graph: OnnxGraph, bound: BoundInputs, shapes: Mapping[str, Sequence[int]]
) -> list[str]:
    """Return a warning that names layers and loops whose number of steps is a dimension that was taken as 1; else an empty
    list.

    The model is imported again with that dimension 2; layers that then have more steps are named.
    `graph`: imported from `proto` with inputs `bound`.
    `shapes`: shapes that the user gave.
    """
    loops = {n.name: n.op_type for n in proto.graph.node if n.op_type in _WRITTEN_OUT}
    before = _steps(graph, loops)
    if not bound.assumed or not any(steps == 1 or node in loops for node, (_, steps) in before.items()):
        return []
    longer = {name: (_LONGER, *bound.types[name].shape[1:]) for name in bound.assumed}
    try:
        after = _steps(import_graph(proto, bind_inputs(proto.graph, {**shapes, **longer}).types).graph, loops)
    except CompileError:  # of no other length
        return []
    lengthened_nodes = [f"{node} ({op})" for node, (op, steps) in before.items() if node in after and after[node][1] > steps]
    if not lengthened_nodes:
        return []
    ways = " ".join(f"--shape {name}=N,{','.join(map(str, bound.types[name].shape[1:]))}" for name in bound.assumed)
    named = ", ".join(lengthened_nodes[:3]) + (f" and {len(lengthened_nodes) - 3} more" if len(lengthened_nodes) > 3 else "")
    inputs = ", ".join(f'dimension 0 of input "{name}"' for name in bound.assumed)
    return [
        f"{inputs} is taken as 1, and it is the number of steps of {named}: the file is for sequences of one step; give {ways}"
    ]


def _steps(graph: OnnxGraph, loops: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return, by node of the file, its operator and its number of steps.

    An unrolled node counts the nodes it became.
    """
    steps_by_node: dict[str, tuple[str, int]] = {}
    for node in graph.nodes:
        if node.op.op_type in _LAYERS:
            steps_by_node[node.name] = (
                node.op.op_type,
                graph.types[node.inputs[0]].shape[1 if node.op.attributes.get("layout") else 0],
            )
        for source in node.sources:
            if source in loops:
                steps_by_node[source] = loops[source], steps_by_node.get(source, ("", 0))[1] + 1
    return steps_by_node
