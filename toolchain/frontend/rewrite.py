"""Apply rewrite rules to a graph until none applies: each is anchored at one node and gives the nodes that take its place.

A rule takes the anchor and the `Rewriter`, and returns a `Rewrite`, or None where it does not apply.
Decompositions of one operator are rules too, which build their nodes with a `NodeChain` (`as_rule`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeAlias

import numpy as np
import onnx

from toolchain.errors import InternalError
from toolchain.frontend.convert import type_of
from toolchain.frontend.infer import defaults, evaluate, foldable, infer
from toolchain.frontend.source_names import MOVES
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType, fresh_name
from toolchain.ir.step_builder import Array, Operand, StepBuilder, to_array

MAX_SWEEPS = 100


@dataclass(frozen=True)
class Rewrite:
    """The replacement of an anchor. Its `nodes` make the anchor's outputs; or `same` names the tensor that its only output
    equals.
    """

    nodes: tuple[OnnxNode, ...] = ()
    same: str = ""


@dataclass
class Rewriter:
    """A view of the graph during one sweep, for rules, which also takes their new names and constants.

    `types`, `constants`: by tensor, added to in place. `outputs`: of the graph.
    `uses`: how often each tensor is read. `producers`: the nodes in front of the anchor, by output.
    `moved`: (input, output) of every Reshape and Transpose that there was.
    """

    opset: int
    types: dict[str, TensorType]
    constants: dict[str, np.ndarray]
    outputs: frozenset[str]
    uses: Counter[str]
    producers: dict[str, OnnxNode] = field(default_factory=dict[str, OnnxNode])
    moved: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.types[name].shape

    def is_float(self, name: str) -> bool:
        """Return whether the tensor has a float type that numpy knows."""
        return np.dtype(self.types[name].dtype).kind == "f" if self.types[name].dtype.startswith("float") else False

    def only_user(self, name: str, op_types: Iterable[str]) -> OnnxNode | None:
        """Return the producer of `name` where it is one of these standard operators and only one input reads that output.

        None otherwise, also where `name` is an output of the graph.
        """
        node = self.producers.get(name)
        if node is None or node.op.domain or node.op.op_type not in op_types:
            return None
        return node if self.uses[name] == 1 and name not in self.outputs else None

    def producer(self, name: str, op_type: str) -> OnnxNode | None:
        """Return the producer of `name` where it is this standard operator, whoever else reads it; else None."""
        node = self.producers.get(name)
        return node if node is not None and node.op.op_type == op_type and not node.op.domain else None

    def fresh(self, base: str) -> str:
        return fresh_name(base, self.types)

    def constant(self, base: str, value: np.ndarray) -> str:
        """Add a constant, made contiguous, and return its name, which is made from `base`."""
        name = self.fresh(base)
        value = np.asarray(value, order="C")
        self.constants[name] = value
        self.types[name] = type_of(value)
        return name

    def ints(self, base: str, values: Sequence[int]) -> str:
        """Add a constant of int64[n] and return its name."""
        return self.constant(base, np.asarray(tuple(values), np.int64))

    def tensor(self, base: str) -> str:
        """Reserve and return a name for a tensor that a new node will make; its type is inferred then."""
        name = self.fresh(base)
        self.types[name] = TensorType((), "float32")
        return name


def operand(n: OnnxNode, index: int) -> str:
    """Return the name of an input; "" when it is absent or left out."""
    return n.inputs[index] if index < len(n.inputs) else ""


Rule = Callable[[OnnxNode, Rewriter], Rewrite | None]


def node(name: str, op_type: str, inputs: Sequence[str], output: str, sources: Sequence[str], **attributes: Any) -> OnnxNode:
    """Return a node of a standard operator with one output."""
    return Node(name, OnnxOp(op_type, attributes), tuple(inputs), (output,), tuple(dict.fromkeys(sources)))


def reshape(like: OnnxNode, suffix: str, x: str, shape: Sequence[int], output: str, scope: Rewriter) -> OnnxNode:
    """Return a Reshape of `x` to `shape`, named after the node `like` and standing for the same nodes of the model."""
    name = f"{like.name}/{suffix}" if suffix else like.name
    return node(name, "Reshape", (x, scope.ints(f"{name}/shape", shape)), output, like.sources, allowzero=0)


def rewrite(graph: OnnxGraph, rules: Mapping[str, Sequence[Rule]], opset: int, moved: dict[tuple[str, str], None]) -> OnnxGraph:
    """Return the graph after sweeps over its nodes until no rule applies. Outputs of the graph keep their names.

    `rules`: by operator, tried in order; the first that applies counts.
    `moved`: gains (input, output) of every Reshape and Transpose that there was.
    Raise InternalError where the rules still apply after 100 sweeps.
    """
    for _ in range(MAX_SWEEPS):
        graph, changed = sweep(graph, rules, opset, moved)
        if not changed:
            return graph
    raise InternalError(f"rewrite rules of the frontend do not settle on {graph.name}")


def sweep(
    graph: OnnxGraph, rules: Mapping[str, Sequence[Rule]], opset: int, moved: dict[tuple[str, str], None]
) -> tuple[OnnxGraph, bool]:
    """Return the graph after one sweep without dead code, and whether anything changed.

    Nodes that a rule made are anchors only in the next sweep.
    """
    uses = Counter(n for node in graph.nodes for n in node.inputs if n)
    scope = Rewriter(opset, dict(graph.types), dict(graph.constants), frozenset(graph.outputs), uses, moved=moved)
    same: dict[str, str] = {}
    renamed: dict[str, str] = {}
    done: list[OnnxNode] = []
    changed = False
    for old in graph.nodes:
        anchor = replace(old, inputs=tuple(same.get(n, n) for n in old.inputs)) if same else old
        rule_result = first_match(anchor, rules, scope)
        if rule_result is None:
            emit(anchor, done, scope)
            continue
        if rule_result.same:
            changed |= keep_output(anchor, rule_result.same, same, renamed, done, scope)
            continue
        changed = True
        for new in rule_result.nodes:
            place(new, done, scope)
    if renamed:
        done = [rename(n, renamed) for n in done]
        for old_name, name in renamed.items():
            scope.types[name] = scope.types[old_name]
    return eliminate_dead_code(replace(graph, nodes=tuple(done), types=scope.types, constants=scope.constants)), changed


def first_match(anchor: OnnxNode, rules: Mapping[str, Sequence[Rule]], scope: Rewriter) -> Rewrite | None:
    """Return what the first rule that applies makes of the node; None where none does."""
    if anchor.op.domain:
        return None
    for rule in rules.get(anchor.op.op_type, ()):
        rule_result = rule(anchor, scope)
        if rule_result is not None:
            return rule_result
    return None


def emit(node: OnnxNode, done: list[OnnxNode], scope: Rewriter) -> None:
    """Append a node to the new list, and record its outputs and what it moves."""
    done.append(node)
    scope.producers.update((n, node) for n in node.outputs if n)
    if node.op.op_type in MOVES and not node.op.domain:
        scope.moved[node.inputs[0], node.outputs[0]] = None


def place(new: OnnxNode, done: list[OnnxNode], scope: Rewriter) -> None:
    """Append a new node with its type; where all its inputs are constant, its values become constants instead."""
    new = replace(new, sources=tuple(dict.fromkeys(new.sources)))
    scope.types.update(infer(new, scope.types, scope.constants, scope.opset))
    if foldable(new, scope.constants) and not scope.outputs.intersection(new.outputs):
        scope.constants.update(evaluate(new, scope.constants, scope.opset))
        return
    emit(new, done, scope)


def keep_output(
    anchor: OnnxNode, value: str, same: dict[str, str], renamed: dict[str, str], done: list[OnnxNode], scope: Rewriter
) -> bool:
    """Replace the anchor's output by the tensor `value`; return whether that changed anything.

    Its readers take `value`; where it is an output of the graph, the producer of `value` takes its name.
    An Identity stays where two outputs, or an input and an output, are one tensor.
    """
    output = anchor.outputs[0]
    if output not in scope.outputs:
        same[output] = value
        scope.uses[value] += scope.uses[output] - 1
        return True
    if value in scope.producers and value not in scope.outputs and value not in renamed:
        renamed[value] = output
        same[output] = value
        return True
    emit(replace(anchor, op=OnnxOp("Identity"), inputs=(value,)), done, scope)
    return anchor.op.op_type != "Identity"


def rename(node: OnnxNode, names: Mapping[str, str]) -> OnnxNode:
    """Return the node with its tensors renamed."""
    if not any(n in names for n in (*node.inputs, *node.outputs)):
        return node
    inputs, outputs = (tuple(names.get(n, n) for n in side) for side in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def eliminate_dead_code(graph: OnnxGraph) -> OnnxGraph:
    """Remove nodes, constants and types that no output needs; unused optional outputs become ''."""
    live_tensors = set(graph.outputs)
    live_nodes: list[OnnxNode] = []
    for old in reversed(graph.nodes):
        if not live_tensors.intersection(old.outputs):
            continue
        live_tensors.update(n for n in old.inputs if n)
        live_nodes.append(old)
    trimmed = [trim_outputs(n, live_tensors) for n in reversed(live_nodes)]
    return graph.with_nodes(trimmed)


def trim_outputs(old: OnnxNode, live_tensors: set[str]) -> OnnxNode:
    """Return the node with optional outputs that nobody reads as "", or left out at the end."""
    if len(old.outputs) == 1:
        return old
    required = onnx.defs.get_schema(old.op.op_type).min_output if not old.op.domain else len(old.outputs)
    outputs = [n if n in live_tensors or index < required else "" for index, n in enumerate(old.outputs)]
    while not outputs[-1]:
        outputs.pop()
    return replace(old, outputs=tuple(outputs))


@dataclass
class NodeChain(StepBuilder):
    """A builder of a chain of nodes that replaces one node; constants and names go to the graph at once.

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
        """Define a constant in the graph, and return its name. A number gets the type of the node's first input."""
        if isinstance(value, (list, tuple)):
            return self.scope.constant(name, to_array(value))
        dtype = value.dtype if isinstance(value, np.ndarray) else self.scope.types[self.node.inputs[0]].dtype
        return self.scope.constant(name, np.asarray(value, dtype))

    def finish(self) -> Rewrite | None:
        """Return the steps in the node's place; None where there are none.

        The last step makes the node's output, and has its name unless another step has it.
        """
        if not self.nodes:
            return None
        *before, last = [self._with_defaults(step) for step in self.nodes]
        name = last.name if any(earlier.name == self.node.name for earlier in before) else self.node.name
        return Rewrite((*before, replace(last, name=name, outputs=self.node.outputs)))

    def _with_defaults(self, step: OnnxNode) -> OnnxNode:
        """Return the step with its operator's default attributes written out."""
        return replace(step, op=replace(step.op, attributes={**defaults(step, self.scope.opset), **step.op.attributes}))


Decomposition: TypeAlias = Callable[[NodeChain], None]


def as_rule(decompose: Decomposition) -> Rule:
    """Return the rewrite rule that applies a decomposition; it does not apply where the decomposition adds no step."""

    @wraps(decompose)
    def rule(node: OnnxNode, scope: Rewriter) -> Rewrite | None:
        chain = NodeChain(node, scope)
        decompose(chain)
        return chain.finish()

    return rule
