"""Choose the order of operators with the smallest peak of live bytes, check graphs, and derive live ranges.

`order_operators` is the entry. `live_ranges` makes buffers of an order for `place`.
`toolchain/schedule/all_resident.py` orders a region's layers by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from toolchain.memory.buffer import Buffer
from toolchain.memory.order.best_first import search_order
from toolchain.memory.order.graph import InvalidGraph, Operator, transient_bytes

DEFAULT_EFFORT_STATES = 20_000


@dataclass(frozen=True)
class Order:
    """A topological order of all operators, by name, and its certificate.

    `peak_bytes`: most bytes live at once in this order.
    `bound_bytes`: no order needs fewer.
    `proved`: both are equal, so the order is optimal.
    `states`: search states used; they depend on the input alone, not on the machine's speed.
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
    """Return a topological order with the smallest peak of live bytes, as far as the effort goes.

    The peak is never above that of `ready_order`, which keeps the given order where it can.
    Graph inputs are live from the start to their last use, and not at all without one.
    Graph outputs stay to the end (so does an input that is listed among the outputs).
    `tensor_sizes`: bytes of every tensor.
    `effort_states`: states that the exact search expands before beam search takes over.
    Raise InvalidGraph as `check_graph` does.
    """
    graph_inputs, graph_outputs = tuple(graph_inputs), tuple(graph_outputs)
    check_graph(operators, tensor_sizes, graph_inputs, graph_outputs)
    result = search_order(operators, tensor_sizes, graph_inputs, graph_outputs, effort_states)
    order = [operators[k].name for k in result.order]
    ready_names = ready_order(operators, graph_inputs)
    peak, ready_peak = (
        peak_of_order(operators, names, tensor_sizes, graph_inputs, graph_outputs) for names in (order, ready_names)
    )
    if ready_peak < peak:
        order, peak = ready_names, ready_peak
    return Order(tuple(order), peak, min(result.bound_bytes, peak), peak <= result.bound_bytes, result.states)


def check_graph(
    operators: Sequence[Operator],
    tensor_sizes: Mapping[str, int],
    graph_inputs: Sequence[str],
    graph_outputs: Sequence[str],
) -> None:
    """Raise InvalidGraph, in one sentence, at the first fault of a graph; return nothing where it is sound.

    Faults are names given twice, tensors with two producers, none or no size, negative sizes and wrong in-place pairs.
    Cycles are faults too.
    """
    producer_by_tensor = dict.fromkeys(graph_inputs, "the graph's inputs")
    names: set[str] = set()
    for op in operators:
        if op.name in names:
            raise InvalidGraph(f"operator {op.name}: the name is given twice")
        names.add(op.name)
        for t in op.outputs:
            if t in producer_by_tensor:
                raise InvalidGraph(f"tensor {t}: made by {producer_by_tensor[t]} and by {op.name}")
            producer_by_tensor[t] = op.name
        if op.workspace_bytes < 0:
            raise InvalidGraph(f"operator {op.name}: workspace {op.workspace_bytes} is negative")
    for op in operators:
        for t in op.inputs:
            if t not in producer_by_tensor:
                raise InvalidGraph(f"operator {op.name}: input {t} is made by no operator and is no graph input")
        for out, old in op.in_place:
            if out not in op.outputs or old not in op.inputs:
                raise InvalidGraph(f"operator {op.name}: in-place pair ({out}, {old}) is not (output, input) of it")
    for t in graph_outputs:
        if t not in producer_by_tensor:
            raise InvalidGraph(f"graph output {t}: made by no operator")
    for t in producer_by_tensor:
        if t not in tensor_sizes:
            raise InvalidGraph(f"tensor {t}: has no size")
        if tensor_sizes[t] < 0:
            raise InvalidGraph(f"tensor {t}: size {tensor_sizes[t]} is negative")
    ready_order(operators, graph_inputs)


def peak_of_order(
    operators: Sequence[Operator],
    order: Sequence[str],
    tensor_sizes: Mapping[str, int],
    graph_inputs: Iterable[str],
    graph_outputs: Iterable[str],
) -> int:
    """Return the most bytes live at once when the operators run in this order.

    It is computed without the search, so that it can judge the search. `order`: names of all operators, topological.
    """
    by_name = {op.name: op for op in operators}
    uses: dict[str, int] = {}
    for op in operators:
        for t in set(op.inputs):
            uses[t] = uses.get(t, 0) + 1
    output_names = set(graph_outputs)
    live = peak = sum(tensor_sizes[t] for t in set(graph_inputs) if t in uses or t in output_names)
    for name in order:
        op = by_name[name]
        dying: set[str] = set()
        for t in set(op.inputs):
            uses[t] -= 1
            if not uses[t] and t not in output_names:
                dying.add(t)
        peak = max(peak, live + transient_bytes(op, dying, tensor_sizes))
        live += sum(tensor_sizes[t] for t in op.outputs if t in uses or t in output_names)
        live -= sum(tensor_sizes[t] for t in dying)
    return peak


def live_ranges(
    operators: Sequence[Operator],
    order: Sequence[str],
    tensor_sizes: Mapping[str, int],
    graph_inputs: Iterable[str],
    graph_outputs: Iterable[str],
    alignment_bytes: int = 1,
) -> list[Buffer]:
    """Return the buffers of an order for `place`: a step is one operator, numbered from 0.

    There is a buffer for each tensor, of its name, and one for each workspace, as `OPERATOR.workspace`.
    Graph inputs start at 0, graph outputs end behind the last step, and a tensor without a reader lives for one step.
    An in-place pair becomes `in_place_of` where the operator is the input's last reader; each input is given away once.
    """
    by_name = {op.name: op for op in operators}
    start = dict.fromkeys(graph_inputs, 0)
    end: dict[str, int] = dict.fromkeys(start, 1)
    rights: dict[str, str] = {}
    out: list[Buffer] = []
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


def ready_order(operators: Sequence[Operator], graph_inputs: Iterable[str]) -> list[str]:
    """Return the names in a topological order: always the first of the given operators that is ready.

    Raise InvalidGraph at a cycle, with the operators in it or behind it.
    """
    available = set(graph_inputs)
    waiting_for: dict[str, list[int]] = {}
    missing: list[int] = []
    for n, op in enumerate(operators):
        needs = {t for t in op.inputs if t not in available}
        missing.append(len(needs))
        for t in needs:
            waiting_for.setdefault(t, []).append(n)
    ready = [n for n, count in enumerate(missing) if not count]
    order: list[str] = []
    while ready:
        n = heappop(ready)
        order.append(operators[n].name)
        for t in operators[n].outputs:
            for k in waiting_for.get(t, ()):
                missing[k] -= 1
                if not missing[k]:
                    heappush(ready, k)
    if len(order) < len(operators):
        stuck = sorted(set(range(len(operators))) - {n for n, count in enumerate(missing) if not count})
        names = ", ".join(operators[n].name for n in stuck[:8])
        raise InvalidGraph(f"operators in a cycle, or behind one: {names}")
    return order
