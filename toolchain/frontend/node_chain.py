"""Nodes that take one's place, one behind the other: what rules of operators that the normal form has not are written with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolchain.frontend.import_graph import defaults
from toolchain.frontend.rewrite import Rewrite, Rewriter, node
from toolchain.ir.graph import OnnxNode

Operand = str | float | np.ndarray | tuple[int, ...]


@dataclass
class NodeChain:
    """n: the node whose place they take."""

    n: OnnxNode
    scope: Rewriter
    nodes: list[OnnxNode] = field(default_factory=list[OnnxNode])

    def shape(self) -> tuple[int, ...]:
        """Of the node's first input."""
        return self.scope.shape(self.n.inputs[0])

    def make(self, op_type: str, *inputs: Operand, own: bool = False, **attributes: Any) -> str:
        """A node; the name of what it makes. inputs: tensors, or constants: whole numbers as a tuple, others of the type of the
        node's first input; own: whether it does what the node is for, and has its name; attributes: those that are not the
        operator's defaults."""
        name = self.n.name if own else self.scope.fresh(f"{self.n.name}/{op_type.lower()}{len(self.nodes) or ''}")
        named = [x if isinstance(x, str) else self._constant(f"{name}/{i}", x) for i, x in enumerate(inputs)]
        y = self.scope.tensor(f"{self.n.outputs[0]}/{op_type.lower()}")
        made = node(name, op_type, named, y, self.n.sources)
        given = {**defaults(made, self.scope.opset), **attributes}
        self.nodes.append(replace(made, op=replace(made.op, attributes=given)))
        return y

    def done(self) -> Rewrite:
        """The last node makes the node's output, and has its name if no other has."""
        *before, last = self.nodes
        name = last.name if any(made.name == self.n.name for made in before) else self.n.name
        return Rewrite((*before, replace(last, name=name, outputs=self.n.outputs)))

    def _constant(self, name: str, value: float | np.ndarray | tuple[int, ...]) -> str:
        if isinstance(value, tuple):
            return self.scope.ints(name, value)
        dtype = value.dtype if isinstance(value, np.ndarray) else self.scope.types[self.n.inputs[0]].dtype
        return self.scope.constant(name, np.asarray(value, dtype))
