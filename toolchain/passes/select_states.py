"""Keep states in the chip's memory: tensors whose value at the end of a run is what the next run reads.

`select_states` runs behind selection on the float graph. `find_states_to_copy` and `insert_state_copies` work on the integer
graph.
With them the compiler copies a new value that may not be made in the place of the old one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, OnnxOp, Origin, TensorType, fresh_name, step_name
from toolchain.ir.states import ChipState, StatePair, StatePart
from toolchain.ops.data_movement import IntegerConcat, IntegerPad, ModelConcat, RescalingConcat, Slice
from toolchain.ops.kit.layout import channels_last, channels_second
from toolchain.ops.permutation import permutation
from toolchain.ops.tensor_scatter import ScatterRows
from toolchain.passes.partition import partition_graph

_ORDERS = {"nhwc": channels_last, "plain": channels_second}  # from the other of the two layouts


def select_states(
    graph: Graph, pairs: Sequence[StatePair], requested_pairs: Collection[StatePair], chip: Chip, hosted: Collection[str] = ()
) -> tuple[Graph, list[str]]:
    """Return the graph with the states that one region reads and makes, and a note on each pair.

    For such a pair the graph's output becomes a tensor of the input's layout and scale, made by a Concat of one part.
    A pair that the host reads or makes, or that two regions share, stays an input and an output; its note says why.
    Raise CompileError, with every reason, for pairs in `requested_pairs` that stay so.
    `graph`: as selected.
    `hosted`: nodes that are on the host because the user requested it; messages name them as the cause.
    """
    faults, notes, causes = list[str](), list[str](), dict[str, None]()
    resident_ends: list[_Ends] = []
    for pair in pairs:
        ends_or_refusal = _ends(pair, graph, chip)
        named = f"{pair.past}={pair.present}"
        if isinstance(ends_or_refusal, _Ends):
            resident_ends.append(ends_or_refusal)
            notes.append(f"state {named}: stays in the chip's memory from run to run; --state none hands it to the host")
        elif pair in requested_pairs:
            faults.append(f"state {named}: {ends_or_refusal.reason}")
            causes |= dict.fromkeys(n for n in ends_or_refusal.hosts if n in hosted)
        else:
            notes.append(f"state {named}: goes through the host at every run, as input and output: {ends_or_refusal.reason}")
    if faults:
        first = f"leave out the --host-node that keeps {', '.join(causes)} there; or " if causes else ""
        way_out = f"  help: {first}leave it out, and it goes through the host at every run, as input and output"
        raise CompileError("\n".join([*faults, way_out]))
    for ends in resident_ends:
        graph = _with_state(graph, ends)
    return graph, notes


def suggest_states(pairs: Sequence[StatePair]) -> list[str]:
    """Return a sentence for each pair that looks like a state and that the user neither requested nor declined."""
    return [
        f"input {past!r} and output {present!r} have a shape of their own, and may be a state: --state {past}={present} keeps it "
        f"in the chip's memory from run to run; --state none says that it is none"
        for past, present in pairs
    ]


@dataclass(frozen=True)
class _Ends:
    """The ends of a state: what reads it and what makes it.

    `readers`: by layout, the chip's tensor that holds the input.
    `rows`: the node that makes the output by writing rows into the input, where nothing else reads that; else None.
    `parts`: where the state is read and made in parts, these; else ().
    """

    pair: StatePair
    readers: Mapping[str, str]
    rows: Node | None = None
    parts: tuple[_Part, ...] = ()


class _Part(NamedTuple):
    """A part of a state that is cut along its first dimension where it is read, and joined along it where it is made.

    Each part may have a scale of its own.
    `cut`: the node that cuts the part off.
    `source_tensor`: the part's new value, which is joined to the others.
    `place`: the part's rows.
    """

    cut: Node
    source_tensor: str
    place: StatePart


@dataclass(frozen=True)
class _Refusal:
    """The reason why the chip cannot keep a state. `hosts`: the nodes of the host that are in its way."""

    reason: str
    hosts: Sequence[str] = ()


def _ends(pair: StatePair, graph: Graph, chip: Chip) -> _Ends | _Refusal:
    """Return how a state is read and made on the chip, or why the chip cannot keep it."""
    if "rescale" not in chip.functions:
        return _Refusal(f"its next value may need another scale: {chip.key('vector')}.functions: rescale")
    produced_tensors = {n for node in graph.nodes for n in node.outputs}
    readers = {
        o.layout: n for n, o in graph.origins.items() if o.tensor == pair.past and n not in produced_tensors and n in graph.types
    }
    hosts = [n.name for n in graph.nodes if isinstance(n.op, OnnxOp)]
    parts = partition_graph(graph)
    reading = {i for i, part in enumerate(parts) for n in part.nodes if {pair.past, *readers.values()}.intersection(n.inputs)}
    making = {i for i, part in enumerate(parts) for n in part.nodes if pair.present in n.outputs}
    if not reading:
        return _Refusal(f"nothing reads the input {pair.past!r}")
    if not making:
        return _Refusal(f"the output {pair.present!r} is made by no node")
    for name, part_indices in ((pair.past, reading), (pair.present, making)):
        part = next((parts[i] for i in sorted(part_indices) if not parts[i].on_chip), None)
        if part is not None:
            nodes = [n.name for n in part.nodes if name in (*n.inputs, *n.outputs) and n.name in hosts]
            done = "read" if name == pair.past else "made"
            return _Refusal(f"{name!r} is {done} on the host, by {', '.join(nodes[:3])}", nodes)
    if reading != making:
        between = parts[min(reading | making) : max(reading | making)]
        reason = "it is read in one region and made in another, with nodes of the host between them"
        return _Refusal(reason, [n.name for part in between if not part.on_chip for n in part.nodes])
    reading_nodes = [n for n in graph.nodes if {pair.past, *readers.values()}.intersection(n.inputs)]
    rows = reading_nodes[0] if len(reading_nodes) == 1 else None
    in_rows = rows is not None and isinstance(rows.op, ScatterRows) and rows.outputs == (pair.present,)
    return _Ends(pair, readers, rows if in_rows else None, () if in_rows else _parts(pair, readers, graph))


def _parts(pair: StatePair, readers: Mapping[str, str], graph: Graph) -> tuple[_Part, ...]:
    """Return the parts of a state; none where it is not read and made in the same parts."""
    producers, consumers = graph.producers(), graph.consumers()
    joined = producers[pair.present]
    cuts = [n for name in readers.values() for n in consumers.get(name, ())]
    if len(readers) != 1 or not isinstance(joined.op, ModelConcat) or joined.op.axis != 0 or pair.present in consumers:
        return ()
    shape, state_parts, at = graph.types[next(iter(readers.values()))].shape, list[_Part](), 0
    for source_tensor in joined.inputs:
        size = graph.types[source_tensor].shape[0]
        part_slice = Slice((at, *(0,) * (len(shape) - 1)), (1,) * len(shape), (size, *shape[1:]))
        cut = [n for n in cuts if n.op == part_slice]
        if len(cut) != 1 or cut[0].outputs[0] in graph.outputs:
            return ()
        state_parts.append(_Part(cut[0], source_tensor, StatePart(at, shape[0])))
        at += size
    same = {
        graph.origins[name].layout for name in (*(p.cut.outputs[0] for p in state_parts), *(p.source_tensor for p in state_parts))
    }
    return tuple(state_parts) if len(state_parts) == len(cuts) and len(same) == 1 else ()


def _with_state(graph: Graph, ends: _Ends) -> Graph:
    """Return the graph with the state as one that the chip keeps."""
    past, present = ends.pair
    if ends.rows is not None and isinstance(ends.rows.op, ScatterRows):
        written = replace(ends.rows, op=replace(ends.rows.op, in_place=True))
        nodes = [written if n is ends.rows else n for n in graph.nodes]
        return replace(graph.with_nodes(nodes), states=(*graph.states, ChipState(ends.rows.inputs[0], present, ends.pair)))
    if ends.parts:
        return _with_parts(graph, ends)
    types, origins, nodes = dict(graph.types), dict(graph.origins), list(graph.nodes)
    model_layout = next(
        (layout for layout, name in ends.readers.items() if name == past), None
    )  # no node may make the model's input
    layout = model_layout or (origins[present].layout if origins[present].layout in ends.readers else next(iter(ends.readers)))
    read = ends.readers[layout]
    for other in ends.readers.values():
        if other != read:  # the one place of a state has one layout
            op = permutation(types[read].shape, _ORDERS[origins[other].layout](len(types[read].shape)))
            nodes.insert(0, Node(step_name(past, f"as {origins[other].layout}"), op, (read,), (other,), ()))
    source = present
    if origins[present].layout != layout:
        source = fresh_name(f"{present}@{layout}", types)
        op = permutation(types[present].shape, _ORDERS[layout](len(types[present].shape)))
        nodes.append(Node(step_name(present, "in the state's order"), op, (present,), (source,), ()))
        types[source], origins[source] = types[read], Origin(present, layout)
    present_tensor = fresh_name(f"{present}@state", types)
    types[present_tensor] = TensorType(types[read].shape, "float32")
    origins[present_tensor] = Origin(past, INNER)  # its scale is the input's
    nodes.append(Node(step_name(present, "state"), RescalingConcat(0), (source,), (present_tensor,), ()))
    outputs = tuple(present_tensor if n == present else n for n in graph.outputs)
    states = (*graph.states, ChipState(read, present_tensor, ends.pair))
    return replace(graph, outputs=outputs, states=states).with_nodes(nodes, types, None, origins)


def _with_parts(graph: Graph, ends: _Ends) -> Graph:
    """Return the graph where each part is a state of its own; the whole state and the Concat of its parts are gone."""
    past, present = ends.pair
    types, origins, cuts = dict(graph.types), dict(graph.origins), {part.cut.name for part in ends.parts}
    nodes = [n for n in graph.nodes if n.name not in cuts and present not in n.outputs]
    read, present_tensors, states = list[str](), list[str](), list(graph.states)
    for part in ends.parts:
        name = part.cut.outputs[0]
        present_tensor = fresh_name(f"{present}@state {part.place.first}", types)
        types[present_tensor], origins[present_tensor] = (
            TensorType(types[name].shape, "float32"),
            Origin(origins[name].tensor, INNER),
        )
        nodes.append(
            Node(
                step_name(present, f"state {part.place.first}"), RescalingConcat(0), (part.source_tensor,), (present_tensor,), ()
            )
        )
        states.append(ChipState(name, present_tensor, ends.pair, part.place))
        read.append(name)
        present_tensors.append(present_tensor)
    past_tensor = next(iter(ends.readers.values()))
    inputs = tuple(n for name in graph.inputs for n in (read if name in (past, past_tensor) else (name,)))
    outputs = tuple(n for name in graph.outputs for n in (present_tensors if name == present else (name,)))
    return replace(graph, inputs=inputs, outputs=outputs, states=tuple(states)).with_nodes(nodes, types, None, origins)


def find_states_to_copy(graph: Graph, tensors: Collection[str]) -> list[str]:
    """Return the new values of states that are made from a tensor with storage of its own, so that a copy has to move them.

    `graph`: integer. `tensors`: names of tensors with storage of their own.
    """
    present_tensors = {state.present_tensor for state in graph.states}
    return [n.outputs[0] for n in graph.nodes if n.outputs[0] in present_tensors and n.inputs[0] in tensors]


def insert_state_copies(graph: Graph, names: Collection[str]) -> Graph:
    """Return the graph where the states `names` get their new value by a copy that stands last.

    A state so copied already has its source copied too, before any state is written.
    `graph`: integer. `names`: new values of states, as `find_states_to_copy` returns.
    """
    other_nodes, copies, early_copies = list[Node](), list[Node](), list[Node]()
    types, origins, producers = dict(graph.types), dict(graph.origins), graph.producers()
    for node in graph.nodes:
        none = (0,) * len(graph.types[node.outputs[0]].shape)
        full_copy = IntegerPad(none, none, 0)
        if node.outputs[0] not in names or not isinstance(node.op, IntegerConcat | IntegerPad):
            other_nodes.append(node)
            continue
        source = node.inputs[0]
        before = producers.get(source)
        if not isinstance(node.op, IntegerConcat) and (before is None or before.op != full_copy):
            source = fresh_name(f"{source}@kept", types)
            types[source], origins[source] = types[node.inputs[0]], Origin(source, INNER)
            early_copies.append(Node(step_name(node.name, "kept"), full_copy, node.inputs, (source,), ()))
        copies.append(replace(node, op=full_copy, inputs=(source,)))
    return graph.with_nodes([*other_nodes, *early_copies, *copies], types, None, origins)
