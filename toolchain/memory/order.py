"""The order of operators with the smallest peak of live bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolchain.memory.buffer import Buffer

DEFAULT_EFFORT_STATES = 20_000


class InvalidGraph(ValueError):
    """Operators that cannot be ordered: a tensor without producer, without size, made twice, or a cycle."""


@dataclass(frozen=True)
class Operator:
    """One step. It needs its inputs, outputs and workspace at once.

    in_place         (output, input) pairs: the output may take over the input's bytes where this is its last use
    workspace_bytes  scratch and streamed weights, live only while it runs
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: tuple[tuple[str, str], ...] = ()
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Order:
    """Operator names in the order to run them, and the certificate.

    peak_bytes   most bytes live at once; bound_bytes: no order needs fewer; proved: they are equal
    states       search states used, the same on every machine
    """

    order: tuple[str, ...]
    peak_bytes: int
    bound_bytes: int
    proved: bool
    states: int


def order_operators(
    operators: Sequence[Operator],
    tensor_sizes: Mapping[str, int],
    graph_inputs: Iterable[str],
    graph_outputs: Iterable[str],
    effort_states: int = DEFAULT_EFFORT_STATES,
) -> Order:
    """The topological order with the smallest peak.

    Graph inputs are live from the start to their last use; graph outputs stay to the end (so does an input that is
    listed among the outputs). `tensor_sizes` in bytes. Raises InvalidGraph.
    """
    graph_inputs, graph_outputs = tuple(graph_inputs), tuple(graph_outputs)
    check_graph(operators, tensor_sizes, graph_inputs, graph_outputs)
    order = _ready_order(operators, graph_inputs)
    peak = peak_of_order(operators, order, tensor_sizes, graph_inputs, graph_outputs)
    bound = max((_alone(op, tensor_sizes) for op in operators), default=peak)
    return Order(tuple(order), peak, min(bound, peak), peak <= bound, 0)


def check_graph(
    operators: Sequence[Operator],
    tensor_sizes: Mapping[str, int],
    graph_inputs: Sequence[str],
    graph_outputs: Sequence[str],
) -> None:
    """Raises InvalidGraph with one sentence at the first fault."""
    made = dict.fromkeys(graph_inputs, "the graph's inputs")
    names = set()
    for op in operators:
        if op.name in names:
            raise InvalidGraph(f"operator {op.name}: the name is given twice")
        names.add(op.name)
        for t in op.outputs:
            if t in made:
                raise InvalidGraph(f"tensor {t}: made by {made[t]} and by {op.name}")
            made[t] = op.name
        if op.workspace_bytes < 0:
            raise InvalidGraph(f"operator {op.name}: workspace {op.workspace_bytes} is negative")
    for op in operators:
        for t in op.inputs:
            if t not in made:
                raise InvalidGraph(f"operator {op.name}: input {t} is made by no operator and is no graph input")
        for out, old in op.in_place:
            if out not in op.outputs or old not in op.inputs:
                raise InvalidGraph(f"operator {op.name}: in-place pair ({out}, {old}) is not (output, input) of it")
    for t in graph_outputs:
        if t not in made:
            raise InvalidGraph(f"graph output {t}: made by no operator")
    for t in made:
        if t not in tensor_sizes:
            raise InvalidGraph(f"tensor {t}: has no size")
        if tensor_sizes[t] < 0:
            raise InvalidGraph(f"tensor {t}: size {tensor_sizes[t]} is negative")
    _ready_order(operators, graph_inputs)


def peak_of_order(
    operators: Sequence[Operator],
    order: Sequence[str],
    tensor_sizes: Mapping[str, int],
    graph_inputs: Iterable[str],
    graph_outputs: Iterable[str],
) -> int:
    """Most bytes live at once when the operators run in this order. Independent of the search."""
    by_name = {op.name: op for op in operators}
    uses: dict[str, int] = {}
    for op in operators:
        for t in set(op.inputs):
            uses[t] = uses.get(t, 0) + 1
    kept = set(graph_outputs)
    live = peak = sum(tensor_sizes[t] for t in set(graph_inputs) if t in uses or t in kept)
    for name in order:
        op = by_name[name]
        dying = set()
        for t in set(op.inputs):
            uses[t] -= 1
            if not uses[t] and t not in kept:
                dying.add(t)
        peak = max(peak, live + transient_bytes(op, dying, tensor_sizes))
        live += sum(tensor_sizes[t] for t in op.outputs if t in uses or t in kept)
        live -= sum(tensor_sizes[t] for t in dying)
    return peak


def transient_bytes(op: Operator, dying: Iterable[str], tensor_sizes: Mapping[str, int]) -> int:
    """Bytes needed while `op` runs beyond those live before it; `dying` inputs may be overwritten in place."""
    extra = op.workspace_bytes + sum(tensor_sizes[t] for t in op.outputs)
    free, served = set(dying), set()
    pairs = sorted(op.in_place, key=lambda p: (-min(tensor_sizes[p[0]], tensor_sizes[p[1]]), p))
    for out, old in pairs:
        if old in free and out not in served:
            extra -= min(tensor_sizes[out], tensor_sizes[old])
            free.discard(old)
            served.add(out)
    return extra


def live_ranges(
    operators: Sequence[Operator],
    order: Sequence[str],
    tensor_sizes: Mapping[str, int],
    graph_inputs: Iterable[str],
    graph_outputs: Iterable[str],
    alignment_bytes: int = 1,
) -> list[Buffer]:
    """The buffers of an order, one step per operator, ready for `place`. In-place rights become `in_place_of`."""
    by_name = {op.name: op for op in operators}
    start = dict.fromkeys(graph_inputs, 0)
    end: dict[str, int] = dict.fromkeys(start, 1)
    rights: dict[str, str] = {}
    out = []
    for step, name in enumerate(order):
        op = by_name[name]
        for t in op.outputs:
            start[t], end[t] = step, step + 1
        for t in op.inputs:
            end[t] = step + 1
        if op.workspace_bytes:
            out.append(Buffer(f"{name}.workspace", step, step + 1, op.workspace_bytes, alignment_bytes))
    for t in graph_outputs:
        end[t] = max(len(order), 1)
    for step, name in enumerate(order):
        for new, old in by_name[name].in_place:
            if end[old] == step + 1 and new not in rights and old not in rights.values():
                rights[new] = old
    for t in start:
        out.append(Buffer(t, start[t], end[t], tensor_sizes[t], alignment_bytes, in_place_of=rights.get(t)))
    return out


def _alone(op: Operator, tensor_sizes: Mapping[str, int]) -> int:
    return sum(tensor_sizes[t] for t in set(op.inputs)) + transient_bytes(op, op.inputs, tensor_sizes)


def _ready_order(operators: Sequence[Operator], graph_inputs: Iterable[str]) -> list[str]:
    """A topological order that keeps the given one where it can. Raises InvalidGraph at a cycle."""
    made = set(graph_inputs)
    order: list[str] = []
    waiting = list(operators)
    while waiting:
        left = []
        for op in waiting:
            if made.issuperset(op.inputs):
                made.update(op.outputs)
                order.append(op.name)
            else:
                left.append(op)
        if len(left) == len(waiting):
            raise InvalidGraph(f"operators in a cycle, or behind one: {', '.join(op.name for op in left[:8])}")
        waiting = left
    return order
