"""Unroll If, Loop and Scan while a model is imported, so that a graph without subgraphs remains.

An If of a known condition becomes its branch. A Loop of a known count, and a Scan, become copies of their body.
Where a condition is known only when it runs, both branches or all iterations are computed, and Where chooses among results.
`CONTROL_FLOW` has the function of each operator. Nodes are not returned: `UnrollContext.add` takes single ones, `within` bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.subgraphs import get_defined_names, instantiate_subgraph, split_invariant
from toolchain.input_limits import ITERATIONS
from toolchain.ir.graph import Node, OnnxNode, OnnxOp, TensorType, fresh_name

WHOLE_SCAN = 9  # the opset from which a Scan has no batch and no lengths


@dataclass(frozen=True)
class UnrollContext:
    """The context of unrolling: what is known so far, and the callbacks that continue the import.

    `types`, `constants`: by tensor, which the callbacks add to.
    `lost`: tensors that nodes with faults would make; outputs that depend on one join it.
    `repeated`: by tensor of one iteration, the name that it shares with those of all others. They share one calibrated range.
    `within`: adds the nodes of a graph that a node holds. They stand for the given model nodes; with (), each for itself.
    Within another body that has such model nodes, they stand for those.
    `add`: adds a node.
    """

    opset: int
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    lost: set[str]
    repeated: dict[str, str]
    within: Callable[[OnnxNode, onnx.GraphProto, tuple[str, ...]], None]
    add: Callable[[OnnxNode], None]


def branch(node: OnnxNode, flow: UnrollContext) -> None:
    """Expand an If. Raise CompileError where an open condition decides the type of an output."""
    condition, branches = node.inputs[0], ("then_branch", "else_branch")
    condition_value = flow.constants.get(condition)
    if condition_value is not None:
        return _give(node, _branch(node, branches[0 if condition_value.reshape(-1)[0] else 1], flow), node.outputs, flow)
    if condition in flow.lost:
        return flow.lost.update(n for n in node.outputs if n)
    branch_outputs = [_branch(node, name, flow) for name in branches]
    return _choose(node, condition, branch_outputs[0], branch_outputs[1], node.outputs, flow)


def _branch(node: OnnxNode, name: str, flow: UnrollContext) -> list[str]:
    """Expand one branch of an If, and return the tensors that are its outputs."""
    graph: Any = node.op.attributes[name]
    clashing_names = get_defined_names(graph) & (flow.types.keys() | flow.lost)
    inner = instantiate_subgraph(
        graph, {tensor: fresh_name(f"{node.name}/{tensor}", flow.types) for tensor in sorted(clashing_names)}
    )
    flow.within(node, inner, ())
    return [o.name for o in inner.output]


def _choose(
    node: OnnxNode, condition: str, where: Sequence[str], elsewhere: Sequence[str], outputs: Sequence[str], flow: UnrollContext
) -> None:
    """Add a Where for each output, which chooses one of two tensors of equal type.

    Raise CompileError where the types differ.
    """
    truth = _single(node, condition, flow)
    for first, second, output in zip(where, elsewhere, outputs):
        if not output:
            continue
        if flow.lost.intersection((first, second)):
            flow.lost.add(output)
            continue
        types = [flow.types[n] for n in (first, second)]
        if types[0] != types[1]:
            types_text = " or ".join(f"{t.dtype}{list(t.shape)}" for t in types)
            raise _unknown(node, f'whether "{output}" is {types_text}', condition)
        flow.add(Node(f"{node.name}/{output}", OnnxOp("Where"), (truth, first, second), (output,), node.sources))


def _single(node: OnnxNode, condition: str, flow: UnrollContext) -> str:
    """Return the condition as a tensor without dimensions, by a Reshape where it has some."""
    if flow.types[condition].shape == ():
        return condition
    truth = fresh_name(f"{node.name}/{condition}", flow.types)
    shape = _constant(node, f"{condition}/shape", np.zeros(0, np.int64), flow)
    flow.add(Node(truth, OnnxOp("Reshape"), (condition, shape), (truth,), node.sources))
    return truth


def loop(node: OnnxNode, flow: UnrollContext) -> None:
    """Unroll a Loop whose count is known, or whose condition is known at each iteration.

    Where the end is known only at run time, the Loop needs a known count, and states alone as outputs.
    All iterations up to the count are then added, and the states no longer change after the end.
    Raise CompileError for other Loops, and beyond `ITERATIONS` iterations.
    """
    count = _require_constant(node, 0, "how often it runs", flow)
    first = node.inputs[1] if len(node.inputs) > 1 else ""
    states, body = list(node.inputs[2:]), _Body(node, flow)
    collected: list[list[str]] = [[] for _ in body.outputs[1 + len(states) :]]
    limit, done = (None if count is None else int(count)), 0
    on, active = (not first or _truth(first, flow)), ""
    if on is None:
        on, active = True, _open(node, "whether it runs at all", first, limit, collected, flow)
    endless = body.never_ends_itself() and on and not active and (limit is None or limit > ITERATIONS)
    while on and (limit is None or done < limit):
        if endless or done >= ITERATIONS:
            raise refuse_node(node, f"runs more than {ITERATIONS:,} times; so often at most it is written out")
        number = body.constant(f"{done}/iteration", np.asarray(done, np.int64))
        condition, *step_outputs = body.step(done, (number, body.constant(f"{done}/condition", np.asarray(True)), *states))
        if flow.lost.intersection((condition, *step_outputs)):
            flow.lost.update(n for n in node.outputs if n)
            return
        next_states = step_outputs[: len(states)]
        if active:
            chosen_states = [f"{node.name}/{done}/{i} kept" for i in range(len(states))]
            _choose(node, active, next_states, states, chosen_states, flow)
            next_states = chosen_states
        states, on = next_states, _truth(condition, flow)
        if on is None:
            going = _open(node, "whether it goes on", condition, limit, collected, flow)
            on, active = True, _both(node, f"{done}/goes on", active, going, flow)
        for parts, part in zip(collected, step_outputs[len(next_states) :]):
            parts.append(part)
        done += 1
    _finish(node, states, collected, [0] * len(collected), flow)


def _truth(condition: str, flow: UnrollContext) -> bool | None:
    """Return the truth of a condition, or None where it is known only at run time."""
    condition_value = flow.constants.get(condition)
    return None if condition_value is None else bool(condition_value.reshape(-1)[0])


def _open(
    node: OnnxNode, what: str, condition: str, limit: int | None, collected: Sequence[Sequence[str]], flow: UnrollContext
) -> str:
    """Return the condition, without dimensions, of a Loop that may end before its count.

    Raise CompileError where there is no count, or values of iterations are collected.
    """
    if limit is None or collected:
        raise _unknown(node, what if limit is None else "how many values it keeps", condition)
    return _single(node, condition, flow)


def _both(node: OnnxNode, what: str, first: str, second: str, flow: UnrollContext) -> str:
    """Return the conjunction of two conditions; the first may be "" for none so far."""
    if not first:
        return second
    name = f"{node.name}/{what}"
    flow.add(Node(name, OnnxOp("And"), (first, second), (name,), node.sources))
    return name


def scan(node: OnnxNode, flow: UnrollContext) -> None:
    """Unroll a Scan, one copy of its body for each step.

    Raise CompileError before opset 9, for inputs of unequal lengths, and beyond `ITERATIONS` steps.
    """
    if flow.opset < WHOLE_SCAN:
        raise refuse_node(node, f"is of opset {flow.opset}; Scans of opset {WHOLE_SCAN} and later are written out")
    a, count = node.op.attributes, node.op.attributes["num_scan_inputs"]
    states, read = list(node.inputs[: len(node.inputs) - count]), node.inputs[len(node.inputs) - count :]
    axes: list[int] = [axis % len(flow.types[x].shape) for axis, x in zip(a.get("scan_input_axes") or (0,) * count, read)]
    lengths = {flow.types[x].shape[axis] for x, axis in zip(read, axes)}
    if len(lengths) != 1:
        raise refuse_node(node, f"its inputs have {' and '.join(map(str, sorted(lengths)))} steps")
    (length,), body = lengths, _Body(node, flow)
    if length > ITERATIONS:
        raise refuse_node(node, f"has {length:,} steps; {ITERATIONS:,} at most are written out")
    scan_count = len(body.outputs) - len(states)
    collected: list[list[str]] = [[] for _ in range(scan_count)]
    for t in range(length):
        parts = [
            body.part(f"{t}/input {i}", x, axis, length - 1 - t if backwards else t)
            for i, (x, axis, backwards) in enumerate(zip(read, axes, a.get("scan_input_directions") or (0,) * count))
        ]
        step_outputs = body.step(t, (*states, *parts))
        if flow.lost.intersection(step_outputs):
            flow.lost.update(n for n in node.outputs if n)
            return
        states = step_outputs[: len(states)]
        for of, part in zip(collected, step_outputs[len(states) :]):
            of.append(part)
    for of, backwards in zip(collected, a.get("scan_output_directions") or (0,) * scan_count):
        if backwards:
            of.reverse()
    _finish(node, states, collected, list(a.get("scan_output_axes") or (0,) * scan_count), flow)


class _Body:
    """The body of a Loop or Scan. Nodes that do not depend on its inputs are added once, when the object is made."""

    def __init__(self, node: OnnxNode, flow: UnrollContext) -> None:
        graph: Any = node.op.attributes["body"]
        self._node, self._flow = node, flow
        self.outputs = [o.name for o in graph.output]
        self._inputs = [i.name for i in graph.input]
        once, self._each = split_invariant(graph)
        self._shared = {name: f"{node.name}/{name}" for name in get_defined_names(once)}
        flow.within(node, instantiate_subgraph(once, self._shared, node.name), node.sources)

    def never_ends_itself(self) -> bool:
        """Return whether the condition from a Loop's body is the one it received, or is true in each iteration."""
        sources = {n.output[0]: n.input[0] for n in self._each.node if n.op_type == "Identity" and n.input and n.output}
        name = next(iter(self.outputs), "")
        while name in sources:
            name = sources.pop(name)
        return name in self._inputs[1:2] or bool(_truth(str(self._shared.get(name, name)), self._flow))

    def step(self, t: int, inputs: Sequence[str]) -> list[str]:
        """Instantiate the body for iteration t on these tensors and return its outputs."""
        if len(inputs) != len(self._inputs):
            raise refuse_node(self._node, f"its body has {len(self._inputs)} inputs, {len(inputs)} are given")
        step_name_by_tensor = {name: f"{self._node.name}/{t}/{name}" for name in get_defined_names(self._each)}
        self._flow.repeated.update((step, f"{self._node.name}/{name}") for name, step in step_name_by_tensor.items())
        names = {**self._shared, **step_name_by_tensor, **dict(zip(self._inputs, inputs))}
        self._flow.within(self._node, instantiate_subgraph(self._each, names, f"{self._node.name}/{t}"), self._node.sources)
        return [str(names.get(name, name)) for name in self.outputs]

    def constant(self, what: str, value: np.ndarray) -> str:
        return _constant(self._node, what, value, self._flow)

    def part(self, what: str, x: str, axis: int, index: int) -> str:
        """Add a Gather of `x` at `index` along `axis`, which is then gone, and return its name."""
        name = f"{self._node.name}/{what}"
        inputs = (x, self.constant(f"{what}/place", np.asarray(index, np.int64)))
        self._flow.add(Node(name, OnnxOp("Gather", {"axis": axis}), inputs, (name,), self._node.sources))
        return name


def _require_constant(node: OnnxNode, index: int, what: str, flow: UnrollContext) -> Any:
    """Return the number that an input holds; None where it is absent. Raise CompileError where it is not constant."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    if not name:
        return None
    if name not in flow.constants:
        raise _unknown(node, what, name)
    return flow.constants[name].reshape(-1)[0]


def _unknown(node: OnnxNode, what: str, name: str) -> Exception:
    """Return the error that `what` depends on a tensor whose value is known only at run time."""
    case = (
        "for one case, with the condition fixed"
        if node.op.op_type == "If"
        else "with the loop unrolled, or end it before this node"
    )
    way_out = f"export the model {case}; --value NAME=V fixes an input"
    return refuse_node(node, f'{what} depends on "{name}", known only when it runs', way_out)


def _finish(
    node: OnnxNode, states: Sequence[str], collected: Sequence[Sequence[str]], axes: Sequence[int], flow: UnrollContext
) -> None:
    """Make the node's outputs: the last states, and the collected parts of each iteration, joined in a new dimension.

    Raise CompileError where nothing was collected, so that the shape is not known.
    """
    _give(node, states, node.outputs[: len(states)], flow)
    flow.repeated.update((y, flow.repeated[s]) for y, s in zip(node.outputs, states) if y and s in flow.repeated)
    for y, parts, axis in zip(node.outputs[len(states) :], collected, axes):
        if not y:
            continue
        if not parts:
            raise refuse_node(node, f'never runs, and nothing says what shape its output "{y}" has')
        axis %= len(flow.types[parts[0]].shape) + 1
        place = _constant(node, f"{y}/axis", np.asarray([axis], np.int64), flow)
        wide = [f"{node.name}/{y}/{t}" for t in range(len(parts))]
        for part, name in zip(parts, wide):
            flow.add(Node(name, OnnxOp("Unsqueeze"), (part, place), (name,), node.sources))
        flow.add(Node(f"{node.name}/{y}", OnnxOp("Concat", {"axis": axis}), tuple(wide), (y,), node.sources))


def _constant(node: OnnxNode, what: str, value: np.ndarray, flow: UnrollContext) -> str:
    """Add a Constant node and return its tensor."""
    name = f"{node.name}/{what}"
    flow.add(Node(name, OnnxOp("Constant", {"value": value}), (), (name,), node.sources))
    return name


def _give(node: OnnxNode, inner_names: Sequence[str], outputs: Sequence[str], flow: UnrollContext) -> None:
    """Make the node's outputs equal to inner tensors, by an Identity each. A lost inner tensor loses the output."""
    for inner, outer in zip(inner_names, outputs):
        if not outer:
            continue
        if inner in flow.lost:
            flow.lost.add(outer)
            continue
        if inner not in flow.types:
            raise refuse_node(node, f'its branch never makes "{inner}"')
        flow.add(Node(f"{node.name}/{outer}", OnnxOp("Identity"), (inner,), (outer,), node.sources))


CONTROL_FLOW: Mapping[str, Callable[[OnnxNode, UnrollContext], None]] = {"If": branch, "Loop": loop, "Scan": scan}
