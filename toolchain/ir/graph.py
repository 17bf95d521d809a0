"""Define the graph that all stages between the ONNX file and the schedule work on: nodes in topological order over named
tensors.

The same frozen `Graph` holds ONNX operators (`OnnxOp`, from the frontend), float operators of the chip and integer operators.
A pass takes a graph and returns a new one; `verify` lists the faults of one.
Constants here limit what the frontend and the operators recognise. `MAX_PARTS`: operands of a Concat that stands for one
node.
`MAX_RESIZE_FACTOR`: of a linear Resize that becomes convolutions. `MAX_MATRIX`: elements of a matrix that only rearranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, NamedTuple

import numpy as np
from typing_extensions import TypeVar  # its defaults are in typing from Python 3.13 on

from toolchain.ir.states import ChipState

FLOAT_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})  # ONNX operators that sum products with weights
INNER = "inner"  # layout of a tensor that is none of the model's, only calibrated as one: a partial result, another arrangement
MAX_PARTS = 16  # of a Concat that stands for one node of the model
MAX_WRAPS = (MAX_PARTS - 1) // 2  # times that a Pad by wrap-around repeats a dimension at each end
MAX_RESIZE_FACTOR = 4  # up to which a linear Resize is a convolution for each phase of its output
HALF_PIXEL = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")  # coordinates of a Resize
MAX_MATRIX = 1 << 20  # elements of a matrix that takes elements in an order of its own


@dataclass(frozen=True)
class Quant:
    """The quantization parameters of one tensor: real = scale * (code - zero_point), with one scale for all elements."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor: its shape in elements and the name of its numpy dtype.

    `quant`: scale and zero point where the elements are codes of real numbers; None where they are plain numbers.
    """

    shape: tuple[int, ...]
    dtype: str
    quant: Quant | None = None

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def item_bytes(self) -> int:
        """Return the bytes of one element."""
        return _item_bytes(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all elements, dense."""
        return self.elements * self.item_bytes


@cache
def _item_bytes(dtype: str) -> int:
    return np.dtype(dtype).itemsize


class Origin(NamedTuple):
    """A link from a chip tensor to the model's tensor that it holds.

    `tensor`: the name in the model.
    `layout`: the order here: "plain", "nhwc", or `INNER` ("inner").
    An inner tensor is none of the model's, such as a partial result; it is calibrated as that tensor.
    """

    tensor: str
    layout: str


class TensorName(NamedTuple):
    """The name of a chip tensor as messages and reports show it.

    `tensor`: the name in the model, or the chip's own where no origin is known.
    `layout`: plain, nhwc or inner; None where no origin is known.
    `inside`: the model's node in which this is only an intermediate result; None where it is the model's tensor itself.
    """

    tensor: str
    layout: str | None
    inside: str | None

    def __str__(self) -> str:
        """Return the name for messages: the model's tensor, with ", inside NODE" for an intermediate result."""
        return f"{self.tensor}, inside {self.inside}" if self.inside else self.tensor


class Operator:
    """The base of what a node computes: `OnnxOp` from the frontend, or a class of the chip's operators in `toolchain.ops`."""

    def find_own_fault(self) -> str | None:
        """Return what is wrong with the operator's own fields, as a phrase, or None. Readers of dumped stages ask it; the
        default is None.
        """
        return None


@dataclass(frozen=True)
class OnnxOp(Operator):
    """An ONNX operator with its attributes, as graphs hold it until the chip's operators are selected.

    `attributes`: by name, as Python values. `domain`: "" for standard ONNX.
    """

    op_type: str
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    domain: str = ""


OpT = TypeVar("OpT", bound=Operator, covariant=True, default=Operator)


@dataclass(frozen=True)
class Node(Generic[OpT]):
    """A node of the graph: one operator with the tensors that it reads and writes.

    `inputs`, `outputs`: tensor names; "" where an optional one is absent.
    `sources`: names of the nodes of the user's model that it stands for; empty for a node that only the compiler needs.
    """

    name: str
    op: OpT
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: tuple[str, ...] = ()


def step_name(name: str, step: str) -> str:
    """Return the name of an extra node that the compiler makes for the model's node or tensor `name`."""
    return f"{name} ({step})"


def fresh_name(base: str, *used_names: Container[str]) -> str:
    """Return `base`, or the first of base_2, base_3, ... that is in none of the containers."""
    name, suffix = base, 2
    while any(name in names for names in used_names):
        name, suffix = f"{base}_{suffix}", suffix + 1
    return name


def distinctly_named(nodes: Iterable[Node[OpT]]) -> tuple[Node[OpT], ...]:
    """Return the nodes, renamed where needed so that no two have one name.

    Of several with one name, the one that lists this name in its `sources` keeps it, else the first.
    """
    nodes = tuple(nodes)
    name_counts = Counter(node.name for node in nodes)
    if len(name_counts) == len(nodes):
        return nodes
    keeping: dict[str, int] = {}
    for index, node in sorted(enumerate(nodes), key=lambda pair: pair[1].name not in pair[1].sources):
        keeping.setdefault(node.name, index)
    renamed: list[Node[OpT]] = []
    for index, node in enumerate(nodes):
        name = node.name if keeping[node.name] == index else fresh_name(node.name, name_counts)
        name_counts[name] += 1
        renamed.append(node if name == node.name else replace(node, name=name))
    return tuple(renamed)


@dataclass(frozen=True)
class Graph(Generic[OpT]):
    """A graph in which every tensor name has a type; constants are tensors with values and no producer.

    `nodes`: in topological order. `types`: by tensor, constants included. `constants`: by tensor, the values.
    `origins`: by chip tensor, the model's tensor that it holds; tensors that are gone may be included.
    A tensor with an origin and no producer is the model's tensor, rearranged on its way in.
    `states`: tensors that the chip keeps from run to run.
    """

    name: str
    nodes: tuple[Node[OpT], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))
    states: tuple[ChipState, ...] = ()

    def shown(self, tensor: str) -> TensorName:
        """Return the name of a chip tensor for people: the model's, or the chip's own where no origin is known."""
        origin = self.origins.get(tensor)
        if origin is None:
            return TensorName(tensor, None, None)
        return TensorName(*origin, self.find_model_node(tensor) if origin.layout == INNER else None)

    def find_model_node(self, tensor: str) -> str | None:
        """Return the model's node that makes the tensor, or None.

        For a tensor that the compiler added, it is the next node behind it that stands for one of the model's.
        """
        for node in self.nodes:  # in order: the readers of a tensor stand behind what makes it
            if tensor in node.outputs or tensor in node.inputs:
                if node.sources:
                    return node.sources[0]
                tensor = node.outputs[0]
        return None

    def producers(self) -> dict[str, Node[OpT]]:
        """Return the node that writes each tensor; inputs and constants have no entry."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node[OpT]]]:
        """Return the nodes that read each tensor, in order, each once; tensors without a reader have no entry."""
        consumers_by_tensor: dict[str, list[Node[OpT]]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    consumers_by_tensor.setdefault(name, []).append(node)
        return consumers_by_tensor

    def read_once(self, tensor: str, consumers: Mapping[str, Sequence[Node[Any]]]) -> bool:
        """Return whether exactly one node reads the tensor and it is no output of the graph.

        `consumers`: what `consumers()` of this graph returned.
        """
        return len(consumers.get(tensor, ())) == 1 and tensor not in self.outputs

    def with_constants_of(self, other: Graph[Any]) -> Graph[OpT]:
        """Return a copy that holds the other's arrays in place of equal constants of the same name, so that there is one of
        each.
        """
        constants = dict(self.constants)
        for name, value in self.constants.items():
            theirs = other.constants.get(name)
            if theirs is not None and theirs.dtype == value.dtype and np.array_equal(theirs, value):
                constants[name] = theirs
        return replace(self, constants=constants)

    def with_nodes(
        self,
        nodes: Iterable[Node[Any]],
        types: Mapping[str, TensorType] | None = None,
        constants: Mapping[str, np.ndarray] | None = None,
        origins: Mapping[str, Origin] | None = None,
    ) -> Graph[Any]:
        """Return a copy with these nodes in place of all others. The nodes get distinct names (`distinctly_named`).

        `types`, `constants`, `origins`: added to the present ones, which they override.
        Types and constants that no node, input or output names are dropped; origins stay. The result is not verified.
        """
        nodes = distinctly_named(nodes)
        all_types = {**self.types, **(types or {})}
        all_constants = {**self.constants, **(constants or {})}
        used = set(self.inputs) | set(self.outputs)
        for node in nodes:
            used.update(node.inputs)
            used.update(node.outputs)
        used.discard("")
        return replace(
            self,
            nodes=nodes,
            types={n: t for n, t in all_types.items() if n in used},
            constants={n: c for n, c in all_constants.items() if n in used},
            origins={**self.origins, **(origins or {})},
        )


OnnxNode = Node[OnnxOp]
OnnxGraph = Graph[OnnxOp]  # the normal form: the network as the frontend leaves it


def verify(graph: Graph[Any]) -> list[str]:
    """Return every fault of the graph as a sentence; the list is empty for a sound graph.

    Faults are equal node names, undefined or doubly defined tensors, nodes out of order, missing types, and constants whose
    type says another shape or dtype. A tensor of codes without an origin is a fault too.
    """
    names = Counter(node.name for node in graph.nodes)
    faults = [f"{times} nodes have the name {name!r}" for name, times in names.items() if times > 1]
    produced_tensors = {n for node in graph.nodes for n in node.outputs}
    arriving = {n: o.tensor for n, o in graph.origins.items() if n not in produced_tensors and o.layout != INNER}
    defined = set(graph.inputs) | set(graph.constants)
    for node in graph.nodes:
        read = [n for n in node.inputs if n and n not in defined]
        arrived = {n for n in read if arriving.get(n) in defined}
        faults += [f"{node.name}: input {n!r} is not defined before it" for n in read if n not in arrived]
        defined |= arrived
        faults += [f"{node.name}: output {n!r} is defined twice" for n in node.outputs if n and n in defined]
        defined.update(n for n in node.outputs if n)
    faults += [f"output {n!r} is never defined" for n in graph.outputs if n not in defined]
    faults += [f"tensor {n!r} has no type" for n in sorted(defined) if n not in graph.types]
    coded = (n for n in sorted(defined - graph.constants.keys()) if n in graph.types and graph.types[n].quant is not None)
    faults += [f"tensor {n!r} has codes, and no origin says of what" for n in coded if n not in graph.origins]
    for name, value in graph.constants.items():
        declared_type, actual_type = graph.types.get(name), TensorType(value.shape, value.dtype.name)
        if declared_type is not None and (declared_type.shape, declared_type.dtype) != (actual_type.shape, actual_type.dtype):
            faults.append(
                f"constant {name!r} is {actual_type.dtype}{list(actual_type.shape)}, its type says "
                f"{declared_type.dtype}{list(declared_type.shape)}"
            )
    return faults
