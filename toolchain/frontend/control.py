"""Nodes that hold graphs: an If of a known condition is its branch, a Loop of a known count and a Scan are written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from toolchain.bounds import ITERATIONS
from toolchain.frontend.errors import refuse_node
from toolchain.frontend.inner_graphs import defined_in, instance, parted
from toolchain.ir.graph import Node, OnnxNode, OnnxOp, TensorType

WHOLE_SCAN = 9  # the opset from which a Scan has no batch and no lengths


@dataclass(frozen=True)
class Flow:
    """What is known so far, and what goes on: `within` goes through a graph that a node holds, whose nodes stand for
    these of the model, or each for itself; `add` takes a node; `repeated` is told of each tensor
    of a loop's steps what it is at all of them."""

    opset: int
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    lost: set[str]
    repeated: dict[str, str]
    within: Callable[[OnnxNode, onnx.GraphProto, tuple[str, ...]], None]
    add: Callable[[OnnxNode], None]


def branch(node: OnnxNode, flow: Flow) -> None:
    condition = flow.constants.get(node.inputs[0])
    if condition is None:
        reason = f'which branch it takes depends on "{node.inputs[0]}", known only when it runs'
        way_out = "export the model for one case, with the condition fixed; --value NAME=V fixes an input"
        raise refuse_node(node, reason, way_out)
    graph: Any = node.op.attributes["then_branch" if condition.reshape(-1)[0] else "else_branch"]
    taken = defined_in(graph) & (flow.types.keys() | flow.lost)
    inner = instance(graph, {name: f"{node.name}/{name}" for name in taken})
    flow.within(node, inner, ())
    _give(node, [o.name for o in inner.output], node.outputs, flow)


def loop(node: OnnxNode, flow: Flow) -> None:
    """Its count and its condition are known, from iteration to iteration."""
    count, going = (_known(node, index, what, flow) for index, what in ((0, "how often it runs"), (1, "whether it runs at all")))
    states, body = list(node.inputs[2:]), _Body(node, flow)
    collected: list[list[str]] = [[] for _ in body.outputs[1 + len(states) :]]
    limit, done, on = (None if count is None else int(count)), 0, going is None or bool(going)
    while on and (limit is None or done < limit):
        if done >= ITERATIONS:
            raise refuse_node(node, f"runs more than {ITERATIONS:,} times; so often at most it is written out")
        number = body.constant(f"{done}/iteration", np.asarray(done, np.int64))
        condition, *made = body.step(done, (number, body.constant(f"{done}/condition", np.asarray(True)), *states))
        if flow.lost.intersection((condition, *made)):
            flow.lost.update(n for n in node.outputs if n)
            return
        known = flow.constants.get(condition)
        if known is None:
            raise _unknown(node, "whether it goes on", condition)
        states, on = made[: len(states)], bool(known.reshape(-1)[0])
        for parts, part in zip(collected, made[len(states) :]):
            parts.append(part)
        done += 1
    _finish(node, states, collected, [0] * len(collected), flow)


def scan(node: OnnxNode, flow: Flow) -> None:
    if flow.opset < WHOLE_SCAN:
        raise refuse_node(node, f"is of opset {flow.opset}; Scans of opset {WHOLE_SCAN} and later are written out")
    a, count = node.op.attributes, node.op.attributes["num_scan_inputs"]
    states, read = list(node.inputs[: len(node.inputs) - count]), node.inputs[len(node.inputs) - count :]
    axes = [axis % len(flow.types[x].shape) for axis, x in zip(a.get("scan_input_axes") or (0,) * count, read)]
    lengths = {flow.types[x].shape[axis] for x, axis in zip(read, axes)}
    if len(lengths) != 1:
        raise refuse_node(node, f"its inputs have {' and '.join(map(str, sorted(lengths)))} steps")
    (length,), body = lengths, _Body(node, flow)
    if length > ITERATIONS:
        raise refuse_node(node, f"has {length:,} steps; {ITERATIONS:,} at most are written out")
    kept = len(body.outputs) - len(states)
    collected: list[list[str]] = [[] for _ in range(kept)]
    for t in range(length):
        parts = [
            body.part(f"{t}/input {i}", x, axis, length - 1 - t if backwards else t)
            for i, (x, axis, backwards) in enumerate(zip(read, axes, a.get("scan_input_directions") or (0,) * count))
        ]
        made = body.step(t, (*states, *parts))
        if flow.lost.intersection(made):
            flow.lost.update(n for n in node.outputs if n)
            return
        states = made[: len(states)]
        for of, part in zip(collected, made[len(states) :]):
            of.append(part)
    for of, backwards in zip(collected, a.get("scan_output_directions") or (0,) * kept):
        if backwards:
            of.reverse()
    _finish(node, states, collected, list(a.get("scan_output_axes") or (0,) * kept), flow)


class _Body:
    """The graph that a node runs again and again. What is the same each time is there once."""

    def __init__(self, node: OnnxNode, flow: Flow) -> None:
        graph: Any = node.op.attributes["body"]
        self._node, self._flow = node, flow
        self.outputs = [o.name for o in graph.output]
        self._inputs = [i.name for i in graph.input]
        once, self._each = parted(graph)
        self._shared = {name: f"{node.name}/{name}" for name in defined_in(once)}
        flow.within(node, instance(once, self._shared, node.name), node.sources)

    def step(self, t: int, inputs: Sequence[str]) -> list[str]:
        """Once more, of these tensors; what it makes."""
        if len(inputs) != len(self._inputs):
            raise refuse_node(self._node, f"its body has {len(self._inputs)} inputs, {len(inputs)} are given")
        own = {name: f"{self._node.name}/{t}/{name}" for name in defined_in(self._each)}
        self._flow.repeated.update((step, f"{self._node.name}/{name}") for name, step in own.items())
        names = {**self._shared, **own, **dict(zip(self._inputs, inputs))}
        self._flow.within(self._node, instance(self._each, names, f"{self._node.name}/{t}"), self._node.sources)
        return [str(names.get(name, name)) for name in self.outputs]

    def constant(self, what: str, value: np.ndarray) -> str:
        return _constant(self._node, what, value, self._flow)

    def part(self, what: str, x: str, axis: int, index: int) -> str:
        """x at this place of a dimension, which is gone."""
        name = f"{self._node.name}/{what}"
        inputs = (x, self.constant(f"{what}/place", np.asarray(index, np.int64)))
        self._flow.add(Node(name, OnnxOp("Gather", {"axis": axis}), inputs, (name,), self._node.sources))
        return name


def _known(node: OnnxNode, index: int, what: str, flow: Flow) -> Any:
    """A number that an input holds; None where it is absent."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    if not name:
        return None
    if name not in flow.constants:
        raise _unknown(node, what, name)
    return flow.constants[name].reshape(-1)[0]


def _unknown(node: OnnxNode, what: str, name: str) -> Exception:
    way_out = "export the model with the loop unrolled, or end it before this node; --value NAME=V fixes an input"
    return refuse_node(node, f'{what} depends on "{name}", known only when it runs', way_out)


def _finish(node: OnnxNode, states: Sequence[str], collected: Sequence[Sequence[str]], axes: Sequence[int], flow: Flow) -> None:
    """The node's outputs: what the states are at last, and the parts of each step side by side in a new dimension."""
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


def _constant(node: OnnxNode, what: str, value: np.ndarray, flow: Flow) -> str:
    name = f"{node.name}/{what}"
    flow.add(Node(name, OnnxOp("Constant", {"value": value}), (), (name,), node.sources))
    return name


def _give(node: OnnxNode, made: Sequence[str], outputs: Sequence[str], flow: Flow) -> None:
    for inner, outer in zip(made, outputs):
        if not outer:
            continue
        if inner in flow.lost:
            flow.lost.add(outer)
            continue
        if inner not in flow.types:
            raise refuse_node(node, f'its branch never makes "{inner}"')
        flow.add(Node(f"{node.name}/{outer}", OnnxOp("Identity"), (inner,), (outer,), node.sources))


CONTROL_FLOW: Mapping[str, Callable[[OnnxNode, Flow], None]] = {"If": branch, "Loop": loop, "Scan": scan}
