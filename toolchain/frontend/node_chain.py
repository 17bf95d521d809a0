"""Build the nodes that take one's place during rewriting: what decompositions of the normal form are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeAlias

import numpy as np

from toolchain.frontend.import_graph import defaults
from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule
from toolchain.ir.graph import OnnxNode
from toolchain.ir.step_builder import Array, Operand, StepBuilder, to_array


@dataclass
class NodeChain(StepBuilder):
    """A builder of a chain of nodes that replaces one node.

    `node`: the node that they replace.
    `scope`: the graph, which takes new names and constants.
    """

    node: OnnxNode
    scope: Rewriter

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the node's first input."""
        return self.scope.shape(self.node.inputs[0])

    def add(self, op_type: str, *inputs: Operand, takes_node_name: bool = False, **attributes: Any) -> str:
        """Add a step and return the name of its tensor.

        `inputs`: names of tensors, or values of constants: integers as a tuple, numbers of the type of the node's first input.
        `takes_node_name`: the step does the main work and takes the name of the replaced node.
        `attributes`: attributes that differ from the operator's defaults.
        """
        label = f"{op_type.lower()}{len(self.nodes) or ''}"
        name = self.node.name if takes_node_name else self.scope.fresh(f"{self.node.name}/{label}")
        named = [self._input_name(f"{name}/{i}", x) for i, x in enumerate(inputs)]
        y = self.scope.tensor(f"{self.node.outputs[0]}/{op_type.lower()}")
        self.append(name, op_type, named, (y,), attributes, self.node.sources)
        return y

    def define_constant(self, name: str, value: float | Sequence[float] | Array) -> str:
        """Define a constant in the graph, and return its name."""
        if isinstance(value, (list, tuple)):
            return self.scope.constant(name, to_array(value))
        dtype = value.dtype if isinstance(value, np.ndarray) else self.scope.types[self.node.inputs[0]].dtype
        return self.scope.constant(name, np.asarray(value, dtype))

    def finish(self) -> Rewrite | None:
        """Return the steps in the node's place; None where there are none.

        The last step makes the node's output, and has its name if no other has.
        """
        if not self.nodes:
            return None
        *before, last = [self._with_defaults(step) for step in self.nodes]
        name = last.name if any(earlier.name == self.node.name for earlier in before) else self.node.name
        return Rewrite((*before, replace(last, name=name, outputs=self.node.outputs)))

    def _with_defaults(self, step: OnnxNode) -> OnnxNode:
        return replace(step, op=replace(step.op, attributes={**defaults(step, self.scope.opset), **step.op.attributes}))


Decomposition: TypeAlias = Callable[[NodeChain], None]


def as_rule(decompose: Decomposition) -> Rule:
    """Return the rewrite rule of a decomposition, by its name."""

    @wraps(decompose)
    def rule(node: OnnxNode, scope: Rewriter) -> Rewrite | None:
        chain = NodeChain(node, scope)
        decompose(chain)
        return chain.finish()

    return rule
