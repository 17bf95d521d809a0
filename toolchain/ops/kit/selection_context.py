"""Define what a rule can ask and do while `passes.select` has it turn one ONNX node into the chip's float operators."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, OnnxNode, Origin, TensorType, fresh_name, step_name
from toolchain.ops.kit.layout import NCHW, NHWC, permute_to_layout
from toolchain.ops.permutation import permutation

T = TypeVar("T")


class NotSelected(Exception):
    """The exception by which a rule, or a decomposition, refuses a node; its text is the reason."""


@dataclass
class SelectionContext:
    """The context of one rule and one ONNX node. It is discarded, with all that was added, when the rule refuses.

    A rule reads operands with `read`, adds nodes with `step` or `add_main_step`, and ends with `emit`.
    `graph`: the model's graph; the chip's tensors and nodes made so far are in the other fields.
    Those mappings show what was made before, and hold what this rule adds; `adopt` moves it there when the rule succeeds.
    `origins`: by chip tensor, the model's tensor and the layout.
    `layouts`: by model tensor that the chip makes, its layout.
    `types`, `constants`: by tensor of both graphs. A tensor that a rule has computed is float32.
    `spatial`: model tensors that an operator over rows and columns reads later, at once or through others.
    `counted`: by integer tensor that the chip makes, its largest number. It decides the step of the codes of a cast to float32.
    `nodes`: the chip nodes of this rule.
    """

    graph: Graph
    chip: Chip
    node: OnnxNode
    origins: ChainMap[str, Origin]
    layouts: ChainMap[str, str]
    types: ChainMap[str, TensorType]
    constants: ChainMap[str, np.ndarray]
    spatial: frozenset[str]
    counted: ChainMap[str, int]
    nodes: list[Node] = field(default_factory=list[Node])

    def adopt(self) -> None:
        """Add what the rule has added to the mappings that it was shown."""
        _adopt(self.origins)
        _adopt(self.layouts)
        _adopt(self.types)
        _adopt(self.constants)
        _adopt(self.counted)

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.node.op.attributes

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a model tensor's shape in the model's order."""
        return self.graph.types[name].shape

    def refuse(self, reason: str) -> None:
        """Refuse the node: raise NotSelected with the reason, which the user is shown."""
        raise NotSelected(reason)

    def value(self, name: str) -> np.ndarray | None:
        """Return the value of a constant of the model; None where the tensor is computed or absent."""
        return self.graph.constants.get(name)

    def layout(self, *names: str) -> str:
        """Return the layout in which operands of these names are best read: "nhwc" or "plain".

        It is "nhwc" where all computed ones have four dimensions and the chip holds one of them so.
        Where the host makes all of them, it is "nhwc" if an operator over rows and columns reads one later.
        """
        computed = [n for n in names if n not in self.graph.constants]
        if any(len(self.shape(n)) != 4 for n in computed):
            return "plain"
        layouts = {self.layouts[n] for n in computed if n in self.layouts}
        if not layouts:
            return "nhwc" if not self.spatial.isdisjoint(computed) else "plain"
        return "nhwc" if "nhwc" in layouts else "plain"

    def read(self, name: str, layout: str) -> str:
        """Return the chip tensor that holds the model tensor `name` in `layout`.

        A tensor of the host arrives in this layout. One of the chip in the other layout gets a Transpose, once for all rules.
        """
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
        """Add a constant and return its name: `name`, or a fresh one where that is taken by anything but an equal constant."""
        constant = self.constants.get(name)
        if constant is None or constant.dtype != value.dtype or not np.array_equal(constant, value):
            name = self._fresh(name)
        self.constants[name] = value
        self.types[name] = TensorType(value.shape, str(value.dtype))
        return name

    def _fresh(self, name: str) -> str:
        """Return a name that no tensor of the model or of the chip has."""
        return fresh_name(name, self.types, self.graph.types)

    def inner(self, suffix: str, shape: tuple[int, ...], like: str = "") -> str:
        """Define a tensor between two chip nodes of this rule and return its name, which is made from `suffix`.

        It is calibrated as the model node's output, or as the chip tensor `like`. With the suffix "nhwc" or "plain" it must hold
        the output in that layout: `read` then takes it and adds no Transpose.
        """
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
        """Add a chip node before the one that makes the model node's output; return its output's name.

        `shape`: of its output, which is calibrated as the model node's output, or as the chip tensor `like`.
        `sources`: the model's nodes that it stands for, by default this one's; () for nodes that the compiler adds.
        """
        name = self.inner(suffix, shape, like)
        sources = self.node.sources if sources is None else sources
        self.nodes.append(Node(step_name(self.node.name, suffix), op, inputs, (name,), sources))
        return name

    def add_main_step(self, suffix: str, op: Any, inputs: tuple[str, ...], shape: tuple[int, ...]) -> str:
        """Add the chip node that does the model node's work, and return its output's name, as `step` does.

        It takes the model node's name; `emit` then adds only a node that gives its output another shape.
        """
        name, sources = self.inner(suffix, shape), self.node.sources or (self.node.name,)
        self.nodes.append(Node(self.node.name, op, inputs, (name,), sources))
        self.node = replace(self.node, name=step_name(self.node.name, "shape"), sources=sources)
        return name

    def emit(self, op: Any, inputs: tuple[str, ...], layout: str, most: int | None = None) -> None:
        """Add the chip node that makes the model node's output, in `layout`. A rule calls it once, last.

        `most`: for an integer output, its largest number; None: the largest of the node's integer inputs.
        """
        name = self.node.outputs[0]
        maxima = [self.counted[n] for n in self.node.inputs if n in self.counted]
        if self.graph.types[name].dtype not in ("float32", "bool") and (most is not None or maxima):
            self.counted[name] = max(1, max(maxima) if most is None else most)  # steps of a number that is always 0 are ones
        shape = self.shape(name)
        self._define(name, permute_to_layout(shape, layout), Origin(name, layout))
        self.layouts[name] = layout
        self.nodes.append(Node(self.node.name, op, inputs, (name,), self.node.sources or (self.node.name,)))


def _adopt(mapping: ChainMap[str, T]) -> None:
    """Add the mapping's first layer, which a rule wrote, to the one below it."""
    added, made_before = mapping.maps
    made_before.update(added)
