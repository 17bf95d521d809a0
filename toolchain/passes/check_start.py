"""Check a graph that the user edited (`--start-from`) against the one that the passes give there: what an edit may not
change.

Each rule in `_RULES` yields pairs of the node's name, "" for none, and its fault.
The host runs the model's nodes, not those of the text, so `find_host_fault` checks that the text does not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from toolchain.errors import CompileError
from toolchain.frontend.infer import infer
from toolchain.frontend.promote_attributes import PARAMETERS, SCALARS
from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, OnnxGraph, OnnxNode, OnnxOp, TensorType, verify
from toolchain.ir.parse_text import StageGraph
from toolchain.ir.text import print_operator
from toolchain.ops.elementwise.select_elementwise import Binary
from toolchain.ops.kit.layout import permute_to_layout
from toolchain.ops.matrix_product import MatrixProduct
from toolchain.ops.softmax import Softmax
from toolchain.ops.unary import Unary

WAY_OUT = "edit the model, or begin with the text of a build by --repair none with the same data and options"


_LAYOUTS = ("plain", "nhwc", INNER)
_ONNX = ("", "ai.onnx")
_OF_MACHINE: dict[str, Callable[[Chip], Any]] = {"accumulator_bits": lambda chip: chip.numerics.accumulator_bits}
_REALS = frozenset(("min", "max", "value", "roi", "scales"))  # parameters that are no whole numbers
Fault = tuple[str, str]


def find_host_fault(graph: Graph[Any], model: OnnxGraph) -> str | None:
    """Return why a host node of the graph differs from the model that this build has, as a sentence; None: none does.

    `graph`: integer. `model`: the model's graph, with constant parameters as attributes.
    """
    producers = model.producers()
    for node in graph.nodes:
        fault = _find_fault(node, graph, model, producers) if isinstance(node.op, OnnxOp) else None
        if fault is not None:
            return f"node {node.name} runs on the host, {fault}; {WAY_OUT}"
    return None


def _find_fault(node: Node[Any], graph: Graph[Any], model: OnnxGraph, producers: dict[str, Node[OnnxOp]]) -> str | None:
    """Return why a host node differs from the model, as a phrase, or None.

    Its tensors, its constants and its operator are the model's, and its outputs depend on the same inputs.
    """
    constants = {n for n in node.inputs if n in graph.constants}
    inputs = {n for n in node.inputs if n and n not in constants}
    unknown = [n for n in (*inputs, *node.outputs) if n and n not in model.types]
    if unknown:
        return f"where the model has no tensor {unknown[0]}"
    for name in sorted(constants & model.constants.keys()):
        values = graph.constants[name]
        if not np.array_equal(values, model.constants[name], equal_nan=values.dtype.kind == "f"):
            return f"where constant {name} has other values"
    for output in filter(None, node.outputs):
        read = _find_leaves(output, inputs, model, producers)
        if read != inputs:
            names = ", ".join(sorted(read)) or "constants alone"
            return f"where {output} is made of {names}, not of {', '.join(sorted(inputs)) or 'constants alone'}"
    twin = producers.get(node.outputs[0])
    if twin is not None and twin.name == node.name and twin.op.domain == node.op.domain:
        texts = print_operator(node), print_operator(twin)
        if texts[0] != texts[1]:
            return f"where it is {texts[1]}, not {texts[0]}"
    return None


def _find_leaves(output: str, stops: set[str], model: OnnxGraph, producers: dict[str, Node[OnnxOp]]) -> set[str]:
    """Return the tensors from which the model computes an output: those of `stops` that are met, inputs, and no constants."""
    leaves, met, pending = set[str](), set[str](), [output]
    while pending:
        name = pending.pop()
        if name in met or not name or name in model.constants:
            continue
        met.add(name)
        if name in stops or name not in producers:
            leaves.add(name)
        else:
            pending += producers[name].inputs
    return leaves


@dataclass(frozen=True)
class _Edit:
    """A graph that the user edited, beside the one in whose place it stands.

    `graph`, `replaced`: the edited one and the build's own.
    `sources`: names of the model's nodes. `tensors`: the model's and the build's tensors with their types.
    """

    graph: Graph[Any]
    replaced: Graph[Any]
    chip: Chip
    opset: int
    sources: frozenset[str]
    tensors: dict[str, TensorType]

    @cached_property
    def chip_nodes(self) -> list[Node[Any]]:
        """The nodes of the edited graph that the chip runs."""
        return [node for node in self.graph.nodes if not isinstance(node.op, OnnxOp)]

    @cached_property
    def changed_nodes(self) -> list[Node[Any]]:
        """The nodes that the replaced graph does not have, or has with tensors of other types."""
        before = {node.name: node for node in self.replaced.nodes}
        return [node for node in self.graph.nodes if not self._is_same(node, before.get(node.name))]

    def _is_same(self, node: Node[Any], other: Node[Any] | None) -> bool:
        """Return whether two nodes have the same text, tensors and types."""
        if other is None or (node.inputs, node.outputs) != (other.inputs, other.outputs):
            return False
        if print_operator(node) != print_operator(other):
            return False
        return all(self.graph.types.get(n) == self.replaced.types.get(n) for n in (*node.inputs, *node.outputs))


def require_start(start: StageGraph, replaced: Graph[Any], chip: Chip, opset: int, model: Graph[Any], names: set[str]) -> None:
    """Raise CompileError where the graph of a stage cannot take the place of the one that the passes give there.

    It must have the model's inputs and outputs, sound nodes with known sources and origins, and fit the machine.
    `replaced`: the graph in whose place it comes. `model`: the model's graph in canonical form.
    `names`: of the nodes that the file has.
    """
    sources = names | {node.name for node in model.nodes} | {s for node in replaced.nodes for s in node.sources}
    tensors = {**dict.fromkeys(o.tensor for o in replaced.origins.values()), **replaced.types, **model.types}
    known_types = {name: kind for name, kind in tensors.items() if kind is not None}
    edit = _Edit(start.graph, replaced, chip, opset, frozenset(sources), known_types)
    for rule in _RULES:
        for name, fault in rule(edit):
            place = start.places.get(name)
            raise CompileError(f"--start-from: {fault}" if place is None else f"{place}: {fault}")


def _check_ports(edit: _Edit) -> Iterator[Fault]:
    """Yield faults where inputs, outputs or their shapes are not the model's."""
    graph, replaced = edit.graph, edit.replaced
    for kind in ("inputs", "outputs"):
        ports, model_ports = getattr(graph, kind), getattr(replaced, kind)
        if ports != model_ports:
            yield "", f"{kind} of the graph are {', '.join(ports)}, those of the model {', '.join(model_ports)}"
            return
    for kind, names in {"input": replaced.inputs, "output": replaced.outputs}.items():
        for name in names:  # whose codes may differ from those of this build
            shape, model_shape = (g.types[name].shape if name in g.types else () for g in (graph, replaced))
            if shape != model_shape:
                yield "", f"{kind} {name} has the shape {list(shape)}, the model's has {list(model_shape)}"


def _check_soundness(edit: _Edit) -> Iterator[Fault]:
    """Yield one fault that names up to three faults of `verify`."""
    if faults := verify(edit.graph):
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        yield "", f"the graph is not sound: {'; '.join(faults[:3])}{more}"


def _check_sources(edit: _Edit) -> Iterator[Fault]:
    """Yield a fault for each source of a chip node that is no node of the model."""
    for node in edit.chip_nodes:
        for source in node.sources:
            if source not in edit.sources:
                yield node.name, f"node {node.name} is from {source}, and the model has no such node; {WAY_OUT}"


def _check_origins(edit: _Edit) -> Iterator[Fault]:
    """Yield faults where a chip tensor has no origin, another one than in this build, or a shape that its origin does not
    have.
    """
    graph, expected = edit.graph, edit.replaced.origins
    tensors = {n for node in edit.chip_nodes for n in (*node.inputs, *node.outputs)} - graph.constants.keys()
    for name in sorted(tensors & expected.keys() - graph.origins.keys()):
        yield "", f"tensor {name} has no origin; it is {' '.join(expected[name])}"
    model_tensors = edit.tensors.keys() | {origin.tensor for origin in expected.values()}
    for name, origin in graph.origins.items():
        text = f"the origin of {name} is {' '.join(origin)}"
        if name in expected:
            if origin != expected[name]:
                yield "", f"{text}, that of this build {' '.join(expected[name])}"
        elif origin.tensor not in model_tensors:
            yield "", f"{text}, and the model has no tensor {origin.tensor}; {WAY_OUT}"
        elif origin.layout not in _LAYOUTS:
            yield "", f"{text}: its layout must be one of {', '.join(_LAYOUTS)}"
        is_edited = name not in expected or graph.types.get(name) != edit.replaced.types.get(name)
        if is_edited and origin.layout != INNER and name in graph.types:
            shape = edit.tensors[origin.tensor].shape if origin.tensor in edit.tensors else None
            if shape is not None and not _has_shape(graph.types[name].shape, shape, origin.layout):
                yield "", f"{text}, which is {list(shape)} in the model's order; {name} is {_describe(graph.types[name])}"


def _has_shape(shape: tuple[int, ...], model_shape: tuple[int, ...], layout: str) -> bool:
    """Return whether a tensor of the model has this shape in a layout."""
    return (layout == "plain" or len(model_shape) in (3, 4)) and permute_to_layout(model_shape, layout) == shape


def _check_machine(edit: _Edit) -> Iterator[Fault]:
    """Yield a fault for each field that must equal the machine's, such as the accumulators' bits."""
    for node in edit.chip_nodes:
        for name in (f.name for f in fields(node.op) if f.name in _OF_MACHINE):
            value, expected = getattr(node.op, name), _OF_MACHINE[name](edit.chip)
            if value != expected:
                yield node.name, f"{type(node.op).__name__}: {name} {value}: must be {expected}, as {edit.chip.name} has"


def _check_shapes(edit: _Edit) -> Iterator[Fault]:
    """Yield a fault for each changed node that does not make its output's type from its inputs."""
    for node in edit.changed_nodes:
        if fault := _find_type_fault(node, edit):
            yield node.name, fault


_RULES = (_check_ports, _check_origins, _check_soundness, _check_sources, _check_machine, _check_shapes)


def _find_type_fault(node: Node[Any], edit: _Edit) -> str | None:
    """Return why a node does not make its output from its inputs; None: it does, or the rule of its operator is not known."""
    types = edit.graph.types
    read, result = [types[n] for n in node.inputs if n], types[node.outputs[0]]
    if isinstance(node.op, OnnxOp):
        is_float = all(kind.quant is None for kind in (*read, result))
        return _find_onnx_fault(node, edit) if node.op.domain in _ONNX and is_float else None
    shape = _find_shape(node.op, [kind.shape for kind in read])
    if shape is None or shape == result.shape:
        return None
    words = ", ".join(map(_describe, read))
    if not shape:
        return f"{type(node.op).__name__}: cannot be computed of {words}, whose shapes do not fit each other"
    return f"{type(node.op).__name__}: gives {list(shape)} of {words}, the output is {_describe(result)}"


def _find_shape(op: Any, shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape of a float operator's output; () where the inputs do not fit each other, None where it is not known."""
    try:
        if isinstance(op, (Unary, Softmax)):
            return shapes[0]
        if isinstance(op, Binary):
            return np.broadcast_shapes(*shapes)
        if isinstance(op, MatrixProduct):
            (*a_batch, rows, depth), (*b_batch, b_depth, columns) = shapes
            return (*np.broadcast_shapes(tuple(a_batch), tuple(b_batch)), rows, columns) if depth == b_depth else ()
    except ValueError:  # numpy's, of shapes, and Python's of too few dimensions
        return ()
    return None


def _find_onnx_fault(node: OnnxNode, edit: _Edit) -> str | None:
    """Return what ONNX's rules say against a node, or against the type of its output; None: nothing."""
    graph = edit.graph
    try:
        with_inputs, constants = _demote(node)
        types = {**graph.types, **{n: TensorType(c.shape, c.dtype.name) for n, c in constants.items()}}
        inferred_types = infer(with_inputs, types, {**graph.constants, **constants}, edit.opset)
    except CompileError as error:
        return str(error)
    except (TypeError, ValueError, LookupError, OverflowError):  # onnx's and numpy's, of attributes in other forms than its own
        return f"{node.op.op_type}: has attributes that are none of ONNX's, or in another form"
    for name, kind in inferred_types.items():
        if (kind.shape, kind.dtype) != (graph.types[name].shape, graph.types[name].dtype):
            return f"{node.op.op_type}: gives {_describe(kind)} for {name}, which is {_describe(graph.types[name])}"
    return None


def _demote(node: OnnxNode) -> tuple[OnnxNode, dict[str, np.ndarray]]:
    """Return a node with its parameters as inputs, as ONNX has them, and the values of these by their names."""
    keys = [key for key in PARAMETERS.get(node.op.op_type, ()) if key in node.op.attributes]
    values = {key: node.op.attributes[key] for key in keys if node.op.attributes[key] is not None}
    constants: dict[str, np.ndarray] = {}
    for key, value in values.items():
        array = np.asarray(value, "float32" if key in _REALS else "int64")
        constants[f"{node.name}/{key}"] = array.reshape(() if key in SCALARS - {"k"} else -1)
    names = [f"{node.name}/{key}" if key in values else "" for key in keys]
    attributes = {key: value for key, value in node.op.attributes.items() if key not in keys}
    return replace(node, op=OnnxOp(node.op.op_type, attributes), inputs=(*node.inputs, *names)), constants


def _describe(kind: TensorType | None) -> str:
    return "of no type" if kind is None else f"{kind.dtype}{list(kind.shape)}"
