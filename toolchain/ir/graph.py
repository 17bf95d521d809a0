"""The graph: nodes in topological order over named tensors. Frozen; passes return new graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic

import numpy as np
from typing_extensions import TypeVar  # its defaults are in typing from Python 3.13 on

MAX_PARTS = 16  # of a Concat that stands for one node of the model


@dataclass(frozen=True)
class Quant:
    """real = scale (code - zero_point), per tensor."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class TensorType:
    """Shape in elements, numpy dtype name; `quant` when the codes stand for real numbers."""

    shape: tuple[int, ...]
    dtype: str
    quant: Quant | None = None

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def size_bytes(self) -> int:
        return self.elements * np.dtype(self.dtype).itemsize


class Operator:
    """What a node computes: `OnnxOp` as the frontend leaves it; the chip's own are in `toolchain.ops`."""


@dataclass(frozen=True)
class OnnxOp(Operator):
    """A node as the frontend leaves it: one spelling, constant parameters promoted to attributes (see toolchain.frontend)."""

    op_type: str
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    domain: str = ""


OpT = TypeVar("OpT", bound=Operator, covariant=True, default=Operator)


@dataclass(frozen=True)
class Node(Generic[OpT]):
    """`inputs` hold '' where an optional input is absent; `sources` are the names of the model's own nodes it stands for."""

    name: str
    op: OpT
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph(Generic[OpT]):
    """Every tensor name has a type; constants are tensors with values and no producer."""

    name: str
    nodes: tuple[Node[OpT], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]

    def producers(self) -> dict[str, Node[OpT]]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node[OpT]]]:
        found: dict[str, list[Node[OpT]]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    found.setdefault(name, []).append(node)
        return found

    def read_once(self, tensor: str, consumers: Mapping[str, Sequence[Node[Any]]]) -> bool:
        """True when one node alone reads the tensor and the graph does not give it out. consumers: of this graph."""
        return len(consumers.get(tensor, ())) == 1 and tensor not in self.outputs

    def with_nodes(
        self,
        nodes: Iterable[Node[Any]],
        types: Mapping[str, TensorType] | None = None,
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> Graph[Any]:
        """A copy with these nodes; tensors and constants that nothing names any more are dropped."""
        nodes = tuple(nodes)
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
        )


OnnxNode = Node[OnnxOp]
OnnxGraph = Graph[OnnxOp]  # the normal form: the network as the frontend leaves it


def verify(graph: Graph[Any]) -> list[str]:
    """Every fault: undefined or doubly defined tensors, order, missing types. Empty when sound."""
    faults: list[str] = []
    defined = set(graph.inputs) | set(graph.constants)
    for node in graph.nodes:
        faults += [f"{node.name}: input {n!r} is not defined before it" for n in node.inputs if n and n not in defined]
        faults += [f"{node.name}: output {n!r} is defined twice" for n in node.outputs if n and n in defined]
        defined.update(n for n in node.outputs if n)
    faults += [f"output {n!r} is never defined" for n in graph.outputs if n not in defined]
    faults += [f"tensor {n!r} has no type" for n in sorted(defined) if n not in graph.types]
    return faults
