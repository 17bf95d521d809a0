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
    """A builder of a chain of nodes that replaces one node.

    `n`: the node that they replace.
    """

    n: OnnxNode
    scope: Rewriter
    nodes: list[OnnxNode] = field(default_factory=list[OnnxNode])

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the node's first input."""
        return self.scope.shape(self.n.inputs[0])

    def make(self, op_type: str, *inputs: Operand, takes_node_name: bool = False, **attributes: Any) -> str:
        """Add a node and return the name of its output.

        `inputs`: tensors, or constants: integers as a tuple, others of the type of the node's first input.
        `takes_node_name`: the new node does the main work and takes the name of the replaced node.
        `attributes`: attributes that differ from the operator's defaults.
        """
        name = self.n.name if takes_node_name else self.scope.fresh(f"{self.n.name}/{op_type.lower()}{len(self.nodes) or ''}")
        named = [x if isinstance(x, str) else self._constant(f"{name}/{i}", x) for i, x in enumerate(inputs)]
        y = self.scope.tensor(f"{self.n.outputs[0]}/{op_type.lower()}")
        new_node = node(name, op_type, named, y, self.n.sources)
        all_attributes = {**defaults(new_node, self.scope.opset), **attributes}
        self.nodes.append(replace(new_node, op=replace(new_node.op, attributes=all_attributes)))
        return y

    def done(self) -> Rewrite:
        """The last node makes the node's output, and has its name if no other has."""
        *before, last = self.nodes
        name = last.name if any(earlier_node.name == self.n.name for earlier_node in before) else self.n.name
        return Rewrite((*before, replace(last, name=name, outputs=self.n.outputs)))

    def _constant(self, name: str, value: float | np.ndarray | tuple[int, ...]) -> str:
        if isinstance(value, tuple):
            return self.scope.ints(name, value)
        dtype = value.dtype if isinstance(value, np.ndarray) else self.scope.types[self.n.inputs[0]].dtype
        return self.scope.constant(name, np.asarray(value, dtype))
