"""Define the context of a rule while it turns one ONNX operator into the chip's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, OnnxNode, Origin, TensorType, fresh_name, step_name
from toolchain.ops.kit.layout import NCHW, NHWC, permute_to_layout
from toolchain.ops.permutation import permutation


class NotSelected(Exception):
    """A rule's reason why a node cannot be selected."""


@dataclass
class SelectionContext:
    """A context of a rule while it turns one OnnxOp into chip nodes. It is discarded when the rule refuses."""

    graph: Graph
    chip: Chip
    node: OnnxNode
    origins: dict[str, Origin]
    layouts: dict[str, str]  # model tensors that the chip makes -> their layout
    types: dict[str, TensorType]
    constants: dict[str, np.ndarray]
    spatial: frozenset[str]  # model tensors that end in an operator which slides over space
    counted: dict[str, int] = field(default_factory=dict[str, int])  # whole numbers that the chip makes -> the largest
    nodes: list[Node] = field(default_factory=list[Node])

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.node.op.attributes

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape in the model's order."""
        return self.graph.types[name].shape

    def refuse(self, reason: str) -> None:
        raise NotSelected(reason)

    def value(self, name: str) -> np.ndarray | None:
        return self.graph.constants.get(name)

    def layout(self, *names: str) -> str:
        """Return nhwc when a four-dimensional operand has that layout already, else plain.

        Tensors of the host take the layout of the others, or the one that an operator over space at their end wants.
        """
        computed = [n for n in names if n not in self.graph.constants]
        if any(len(self.shape(n)) != 4 for n in computed):
            return "plain"
        layouts = {self.layouts[n] for n in computed if n in self.layouts}
        if not layouts:
            return "nhwc" if not self.spatial.isdisjoint(computed) else "plain"
        return "nhwc" if "nhwc" in layouts else "plain"

    def read(self, name: str, layout: str) -> str:
        """The chip tensor that holds model tensor `name` in `layout`, transposed if need be."""
        if name not in self.layouts:
            alias = name if layout == "plain" else fresh_name(f"{name}@nhwc", self.graph.types)
            shape = self.shape(name)
            self._define(alias, permute_to_layout(shape, layout), Origin(name, layout))
            return alias
        if self.layouts[name] == layout:
            return name
        alias = fresh_name(f"{name}@{layout}", self.graph.types)
        if alias not in self.types:
            perm = NHWC if layout == "nhwc" else NCHW
            order = "channels last" if layout == "nhwc" else "the model's order"
            self._transpose(name, alias, perm, Origin(name, layout), step_name(name, f"to {order}"))
        return alias

    def _transpose(self, source: str, target: str, perm: tuple[int, ...], origin: Origin, node: str) -> None:
        shape = tuple(self.types[source].shape[p] for p in perm)
        self._define(target, shape, origin)
        self.nodes.append(Node(node, permutation(self.types[source].shape, perm), (source,), (target,), ()))

    def _define(self, name: str, shape: tuple[int, ...], origin: Origin) -> None:
        self.types[name] = TensorType(shape, "float32")
        self.origins[name] = origin

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add a constant and return its name: another one where something else has that."""
        constant = self.constants.get(name)
        if constant is None or constant.dtype != value.dtype or not np.array_equal(constant, value):
            name = self._fresh(name)
        self.constants[name] = value
        self.types[name] = TensorType(value.shape, str(value.dtype))
        return name

    def _fresh(self, name: str) -> str:
        """The file may call nodes and tensors as it likes."""
        return fresh_name(name, self.types, self.graph.types)

    def inner(self, suffix: str, shape: tuple[int, ...], like: str = "") -> str:
        """A tensor between two chip nodes of this rule, calibrated as the node's output, or as the chip tensor `like`."""
        name = self._fresh(f"{self.node.outputs[0]}@{suffix}")
        self._define(name, shape, Origin(self.origins[like].tensor if like else self.node.outputs[0], INNER))
        return name

    def step(
        self,
        suffix: str,
        op: Any,
        inputs: tuple[str, ...],
        shape: tuple[int, ...],
        *,
        like: str = "",
        sources: tuple[str, ...] | None = None,
    ) -> str:
        """Add a chip node in front of the one that makes the model node's output; return its output's name.

        The output is calibrated as the model node's output, or as the chip tensor `like`.
        `sources`: the model's nodes that it stands for, by default this one's; () for nodes that the compiler adds.
        """
        name = self.inner(suffix, shape, like)
        sources = self.node.sources if sources is None else sources
        self.nodes.append(Node(step_name(self.node.name, suffix), op, inputs, (name,), sources))
        return name

    def add_main_step(self, suffix: str, op: Any, inputs: tuple[str, ...], shape: tuple[int, ...]) -> str:
        """Add the chip node that does the model node's work, and return its output's name, as `step` does.

        It has the node's name; later nodes only give its output another shape.
        """
        name, sources = self.inner(suffix, shape), self.node.sources or (self.node.name,)
        self.nodes.append(Node(self.node.name, op, inputs, (name,), sources))
        self.node = replace(self.node, name=step_name(self.node.name, "shape"), sources=sources)
        return name

    def emit(self, op: Any, inputs: tuple[str, ...], layout: str, most: int | None = None) -> None:
        """Add the chip node that makes the model node's output, in `layout`.

        `most`: for integers, the largest, where it is not that of the node's inputs.
        """
        name = self.node.outputs[0]
        maxima = [self.counted[n] for n in self.node.inputs if n in self.counted]
        if self.graph.types[name].dtype not in ("float32", "bool") and (most is not None or maxima):
            self.counted[name] = max(1, max(maxima) if most is None else most)  # steps of a number that is always 0 are ones
        shape = self.shape(name)
        self._define(name, permute_to_layout(shape, layout), Origin(name, layout))
        self.layouts[name] = layout
        self.nodes.append(Node(self.node.name, op, inputs, (name,), self.node.sources or (self.node.name,)))
