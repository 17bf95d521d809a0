"""Keep a state that is a window of the latest rows, such as a cache, as a circular buffer.

A network that joins new rows to a state and cuts the oldest off moves every row. In a circular buffer no row moves.
A run writes its new rows where the host says, and once more one period later, so that the window is always contiguous.
The pass works on the integer graph; the compiler plans with and without it and takes the cheaper program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, Origin, Quant, TensorType, fresh_name, step_name
from toolchain.ir.states import ChipState, CircularState
from toolchain.ops.data_movement import IntegerConcat, Slice
from toolchain.ops.kit.tile import ceil_div, round_up
from toolchain.ops.permutation import Reshape
from toolchain.ops.tensor_scatter import PutRows, TakeRows, number_types


class _Window(NamedTuple):
    """A state that holds the latest rows of what is joined to it.

    `axis`: the dimension of rows, of the state's tensor.
    `newer`: the tensor of a run's own rows.
    `writer`: the node that makes the state's new value.
    `cut`: the node that drops the oldest rows before the join; None where that is done behind the join.
    """

    state: ChipState
    axis: int
    newer: str
    writer: Node
    cut: Node | None


def use_circular_states(graph: Graph, chip: Chip) -> Graph:
    """Return the graph with states that are windows of rows as circular buffers, or the graph itself where there is none.

    This needs a machine that reads base registers from memory (control.indirect) and has no channel-blocked layout.
    States of most bytes come first, until no base register is free. A state is left as it is where writing its new rows twice and
    reading a register costs as much as writing the whole state.
    `graph`: the quantized graph.
    """
    if chip.control.indirect is None or chip.layout.feature_maps is not None:
        return graph
    windows = _Windows(graph)
    windows_and_rings = [
        (w, ring) for state in graph.states if (w := windows.of(state)) and (ring := _circular_state(w, graph, chip)) is not None
    ]
    numbers: dict[tuple[int, int], str] = {}
    for window, ring in _within_registers(windows_and_rings, graph, chip):
        graph = _put_in_circular_buffer(graph, window, ring, numbers, chip)
    return graph


def _non_unit_dims(shape: Sequence[int]) -> list[int]:
    """Return the dimensions that are larger than one."""
    return [d for d, n in enumerate(shape) if n != 1]


def _has_equal_long_dims(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes differ in dimensions of one alone."""
    return [one[d] for d in _non_unit_dims(one)] == [other[d] for d in _non_unit_dims(other)]


class _Windows:
    """Finds states of a graph that are windows of the latest rows."""

    def __init__(self, graph: Graph):
        self._graph, self._producers = graph, graph.producers()

    def of(self, state: ChipState) -> _Window | None:
        """Return the state as a window; None where it is none, or is a part of a state."""
        writer = self._producers[state.present_tensor]
        if state.part is not None or not isinstance(writer.op, IntegerConcat) or len(writer.inputs) != 1:
            return None
        name = self._skip_reshapes(writer.inputs[0])
        producer = self._producers.get(name)
        cuts_after_join = producer is not None and isinstance(producer.op, Slice)
        join = self._producers.get(producer.inputs[0] if producer is not None and cuts_after_join else name)
        if join is None or not isinstance(join.op, IntegerConcat) or len(join.inputs) != 2:
            return None
        cut = producer if cuts_after_join else self._producers.get(join.inputs[0])
        older = join.inputs[0] if cuts_after_join or cut is None else cut.inputs[0]
        if cut is None or self._skip_reshapes(older) != state.past:
            return None
        dimension, newer, shape = join.op.axis, join.inputs[1], self._graph.types[cut.inputs[0]].shape
        rows = self._graph.types[newer].shape[dimension]
        lasting, long = _non_unit_dims(self._graph.types[state.past].shape), _non_unit_dims(shape)
        if cut.op != _last_rows(shape, dimension, shape[dimension] - rows) or len(lasting) != len(long) or dimension not in long:
            return None
        return _Window(state, lasting[long.index(dimension)], newer, writer, None if cuts_after_join else cut)

    def _skip_reshapes(self, name: str) -> str:
        """Return the tensor of which this one is a Reshape that adds or drops dimensions of one."""
        node = self._producers.get(name)
        while node is not None and isinstance(node.op, Reshape) and self._like_its_input(node):
            name = node.inputs[0]
            node = self._producers.get(name)
        return name

    def _like_its_input(self, node: Node) -> bool:
        return _has_equal_long_dims(self._graph.types[node.inputs[0]].shape, self._graph.types[node.outputs[0]].shape)


def _last_rows(shape: Sequence[int], axis: int, count: int) -> Slice:
    """Return the Slice that takes the last `count` rows along `axis` of a tensor of this shape."""
    starts = tuple(n - count if d == axis else 0 for d, n in enumerate(shape))
    return Slice(starts, (1,) * len(shape), tuple(count if d == axis else n for d, n in enumerate(shape)))


def _circular_state(window: _Window, graph: Graph, chip: Chip) -> CircularState | None:
    """Return the circular buffer for a window, its `number` not set yet.

    None where it gains nothing, or has more rows than the machine counts.
    """
    kind = graph.types[window.state.past]
    places = kind.shape[window.axis]
    rows = places * graph.types[window.newer].elements // kind.elements
    period = rows * ceil_div(places, rows)
    most = chip.control.indirect.max_index if chip.control.indirect is not None else 0
    if rows >= places or period - rows > most or not number_types(period, chip):
        return None
    return CircularState(window.axis, places, period, rows, "") if _gains(kind, window.axis, rows, chip) else None


def _gains(kind: TensorType, axis: int, rows: int, chip: Chip) -> bool:
    """Return whether writing `rows` rows twice and reading a base register costs less than writing the whole state."""
    run_bytes = rows * math.prod(kind.shape[axis + 1 :]) * kind.item_bytes
    put_bytes = 2 * math.prod(kind.shape[:axis]) * round_up(run_bytes, chip.dram.burst_bytes)
    # Nothing is dispatched while a register is read; a state moves beside other work.
    asked_bytes = 2 * chip.dram.latency_cycles * chip.dram.write_bytes_per_cycle
    return put_bytes + asked_bytes < kind.size_bytes


def _within_registers(
    candidates: Iterable[tuple[_Window, CircularState]], graph: Graph, chip: Chip
) -> list[tuple[_Window, CircularState]]:
    """Return the circular buffers that save most bytes, as many as there are free base registers.

    One register serves all buffers of one period, number of new rows and row size.
    """
    free = chip.control.bases - min(1, chip.control.host_bases) - sum(isinstance(n.op, PutRows) for n in graph.nodes)
    by_register: dict[tuple[int, int, int], list[tuple[_Window, CircularState]]] = {}
    for window, ring in candidates:
        kind = graph.types[window.state.past]
        row_bytes = math.prod(kind.shape[window.axis + 1 :]) * kind.item_bytes
        by_register.setdefault((ring.period, ring.rows, row_bytes), []).append((window, ring))

    def gained(group: Sequence[tuple[_Window, CircularState]]) -> int:
        return sum(graph.types[window.state.past].size_bytes for window, _ in group)

    best = sorted(by_register.values(), key=gained, reverse=True)[: max(0, free)]
    return [pair for group in best for pair in group]


def _put_in_circular_buffer(
    graph: Graph, window: _Window, ring: CircularState, numbers: dict[tuple[int, int], str], chip: Chip
) -> Graph:
    """Return the graph with a state's window as a circular buffer.

    `numbers`: by (period, rows), the tensor of the row where new rows go; it gains a new one, which becomes an input.
    """
    state, axis = window.state, window.axis
    kind, type_by_tensor = graph.types[state.past], dict(graph.types)
    ring_tensor = fresh_name(f"{state.past}@ring", type_by_tensor)
    type_by_tensor[ring_tensor] = type_by_tensor[state.present_tensor] = _of_rows(kind, axis, 2 * ring.period)
    inputs = tuple(ring_tensor if n == state.past else n for n in graph.inputs)
    origins = {ring_tensor: graph.origins[state.past]}
    number = numbers.get((ring.period, ring.rows))
    if number is None:
        number = fresh_name(f"{state.pair.past}: where its rows go", type_by_tensor)
        numbers[ring.period, ring.rows] = number
        codes = min(number_types(ring.period, chip), key=lambda c: c.bits)
        type_by_tensor[number] = TensorType((1,), codes.dtype.name, Quant(1.0, 0))
        inputs, origins[number] = (*inputs, number), Origin(state.pair.past, INNER)
    first, last = ring.window(0).start, ring.period - ring.rows
    nodes = list[Node]()
    for node in graph.nodes:
        if window.cut is not None and node.name == window.cut.name:
            shape = type_by_tensor[node.outputs[0]].shape
            take = TakeRows(axis, first + ring.rows, ring.places - ring.rows, last, shape)
            nodes.append(replace(node, op=take, inputs=(ring_tensor, number)))
        elif node.name == window.writer.name:
            newer, rows = window.newer, _of_rows(kind, axis, ring.rows)
            if type_by_tensor[newer].shape != rows.shape:
                newer = fresh_name(f"{newer}@rows", type_by_tensor)
                type_by_tensor[newer], origins[newer] = rows, Origin(graph.origins[window.newer].tensor, INNER)
                nodes.append(Node(step_name(node.name, "rows"), Reshape(rows.shape), (window.newer,), (newer,)))
            nodes.append(replace(node, op=PutRows(axis, True, ring.period), inputs=(ring_tensor, newer, number)))
        elif state.past in node.inputs and isinstance(node.op, Reshape) and _has_equal_long_dims(kind.shape, node.op.shape):
            nodes.append(replace(node, op=TakeRows(axis, first, ring.places, last, node.op.shape), inputs=(ring_tensor, number)))
        else:
            nodes.append(node)
    if any(state.past in n.inputs for n in nodes):
        take = TakeRows(axis, first, ring.places, last, kind.shape)
        nodes = [Node(step_name(state.pair.past, "window"), take, (ring_tensor, number), (state.past,)), *nodes]
    states = tuple(s._replace(past=ring_tensor, ring=ring._replace(number=number)) if s == state else s for s in graph.states)
    ring_graph = replace(graph, inputs=inputs, states=states)
    return ring_graph.with_nodes(_drop_unread_nodes(nodes, graph.outputs), type_by_tensor, None, origins)


def _drop_unread_nodes(nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
    """Return the nodes without those whose outputs nobody reads."""
    read, read_nodes = set(outputs), list[Node]()
    for node in reversed(nodes):
        if not read.isdisjoint(node.outputs):
            read_nodes.append(node)
            read.update(node.inputs)
    return read_nodes[::-1]


def _of_rows(kind: TensorType, axis: int, rows: int) -> TensorType:
    """Return the type with so many rows along `axis`."""
    return replace(kind, shape=tuple(rows if d == axis else n for d, n in enumerate(kind.shape)))
