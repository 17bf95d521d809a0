"""States that the chip keeps from run to run: what each leaves at its end lies as what the next one reads."""

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
    graph: Graph, pairs: Sequence[StatePair], asked: Collection[StatePair], chip: Chip, hosted: Collection[str] = ()
) -> tuple[Graph, list[str]]:
    """graph: as selected. Of each pair that one region reads and makes: the graph gives out a tensor that lies as its input,
    made of the output by a Stack of one part, which is nothing but a change of scale where the two have one. And a note of each,
    also of those that stay with the host. hosted: nodes that are there because somebody asked. Raises CompileError: of those in
    `asked`, with every reason."""
    faults, notes, causes = list[str](), list[str](), dict[str, None]()
    kept: list[_Ends] = []
    for pair in pairs:
        found = _ends(pair, graph, chip)
        named = f"{pair.past}={pair.present}"
        if isinstance(found, _Ends):
            kept.append(found)
            notes.append(f"state {named}: stays in the chip's memory from run to run; --state none hands it to the host")
        elif pair in asked:
            faults.append(f"state {named}: {found.reason}")
            causes |= dict.fromkeys(n for n in found.hosts if n in hosted)
        else:
            notes.append(f"state {named}: goes through the host at every run, as input and output: {found.reason}")
    if faults:
        first = f"leave out the --host-node that keeps {', '.join(causes)} there; or " if causes else ""
        way_out = f"  help: {first}leave it out, and it goes through the host at every run, as input and output"
        raise CompileError("\n".join([*faults, way_out]))
    for ends in kept:
        graph = _with_state(graph, ends)
    return graph, notes


def suggest_states(pairs: Sequence[StatePair]) -> list[str]:
    """A sentence for each pair that may be a state and that nobody said to be one."""
    return [
        f"input {past!r} and output {present!r} have a shape of their own, and may be a state: --state {past}={present} keeps it "
        f"in the chip's memory from run to run; --state none says that it is none"
        for past, present in pairs
    ]


@dataclass(frozen=True)
class _Ends:
    """readers: tensors of the chip that are the input, by layout. rows: what makes the output by writing into the input, which
    nothing else reads."""

    pair: StatePair
    readers: Mapping[str, str]
    rows: Node | None = None
    parts: tuple[_Part, ...] = ()


class _Part(NamedTuple):
    """Of a state that is cut along its first dimension where it is read, and joined so where it is made, so that each part may
    have a scale of its own: the node that cuts it off, and the tensor that is joined."""

    cut: Node
    made: str
    place: StatePart


@dataclass(frozen=True)
class _Refusal:
    """Why the chip cannot keep a state, and the nodes of the host that are in its way."""

    reason: str
    hosts: Sequence[str] = ()


def _ends(pair: StatePair, graph: Graph, chip: Chip) -> _Ends | _Refusal:
    if "rescale" not in chip.functions:
        return _Refusal(f"its next value may need another scale: {chip.key('vector')}.functions: rescale")
    made = {n for node in graph.nodes for n in node.outputs}
    readers = {o.layout: n for n, o in graph.origins.items() if o.tensor == pair.past and n not in made and n in graph.types}
    hosts = [n.name for n in graph.nodes if isinstance(n.op, OnnxOp)]
    parts = partition_graph(graph)
    reading = {i for i, part in enumerate(parts) for n in part.nodes if {pair.past, *readers.values()}.intersection(n.inputs)}
    making = {i for i, part in enumerate(parts) for n in part.nodes if pair.present in n.outputs}
    if not reading:
        return _Refusal(f"nothing reads the input {pair.past!r}")
    if not making:
        return _Refusal(f"the output {pair.present!r} is made by no node")
    for name, found in ((pair.past, reading), (pair.present, making)):
        part = next((parts[i] for i in sorted(found) if not parts[i].on_chip), None)
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
    """None where it is not read and made in the same parts."""
    producers, consumers = graph.producers(), graph.consumers()
    joined = producers[pair.present]
    cuts = [n for name in readers.values() for n in consumers.get(name, ())]
    if len(readers) != 1 or not isinstance(joined.op, ModelConcat) or joined.op.axis != 0 or pair.present in consumers:
        return ()
    shape, found, at = graph.types[next(iter(readers.values()))].shape, list[_Part](), 0
    for made in joined.inputs:
        size = graph.types[made].shape[0]
        wanted = Slice((at, *(0,) * (len(shape) - 1)), (1,) * len(shape), (size, *shape[1:]))
        cut = [n for n in cuts if n.op == wanted]
        if len(cut) != 1 or cut[0].outputs[0] in graph.outputs:
            return ()
        found.append(_Part(cut[0], made, StatePart(at, shape[0])))
        at += size
    same = {graph.origins[name].layout for name in (*(p.cut.outputs[0] for p in found), *(p.made for p in found))}
    return tuple(found) if len(found) == len(cuts) and len(same) == 1 else ()


def _with_state(graph: Graph, ends: _Ends) -> Graph:
    past, present = ends.pair
    if ends.rows is not None and isinstance(ends.rows.op, ScatterRows):
        written = replace(ends.rows, op=replace(ends.rows.op, in_place=True))
        nodes = [written if n is ends.rows else n for n in graph.nodes]
        return replace(graph.with_nodes(nodes), states=(*graph.states, ChipState(ends.rows.inputs[0], present, ends.pair)))
    if ends.parts:
        return _with_parts(graph, ends)
    types, origins, nodes = dict(graph.types), dict(graph.origins), list(graph.nodes)
    own = next((layout for layout, name in ends.readers.items() if name == past), None)  # no node may make the model's input
    layout = own or (origins[present].layout if origins[present].layout in ends.readers else next(iter(ends.readers)))
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
    made = fresh_name(f"{present}@state", types)
    types[made] = TensorType(types[read].shape, "float32")
    origins[made] = Origin(past, INNER)  # its scale is the input's
    nodes.append(Node(step_name(present, "state"), RescalingConcat(0), (source,), (made,), ()))
    outputs = tuple(made if n == present else n for n in graph.outputs)
    states = (*graph.states, ChipState(read, made, ends.pair))
    return replace(graph, outputs=outputs, states=states).with_nodes(nodes, types, None, origins)


def _with_parts(graph: Graph, ends: _Ends) -> Graph:
    """Each part is a state of the chip of its own; neither the whole nor what it is joined to is there any more."""
    past, present = ends.pair
    types, origins, cuts = dict(graph.types), dict(graph.origins), {part.cut.name for part in ends.parts}
    nodes = [n for n in graph.nodes if n.name not in cuts and present not in n.outputs]
    read, left, states = list[str](), list[str](), list(graph.states)
    for part in ends.parts:
        name = part.cut.outputs[0]
        made = fresh_name(f"{present}@state {part.place.first}", types)
        types[made], origins[made] = TensorType(types[name].shape, "float32"), Origin(origins[name].tensor, INNER)
        nodes.append(Node(step_name(present, f"state {part.place.first}"), RescalingConcat(0), (part.made,), (made,), ()))
        states.append(ChipState(name, made, ends.pair, part.place))
        read.append(name)
        left.append(made)
    whole = next(iter(ends.readers.values()))
    inputs = tuple(n for name in graph.inputs for n in (read if name in (past, whole) else (name,)))
    outputs = tuple(n for name in graph.outputs for n in (left if name == present else (name,)))
    return replace(graph, inputs=inputs, outputs=outputs, states=tuple(states)).with_nodes(nodes, types, None, origins)


def drop_states(graph: Graph, tensors: Collection[str]) -> list[str]:
    """graph: in integers. What is left of the states whose next value is one of `tensors`, which own their storage."""
    left = {state.made for state in graph.states}
    return [n.outputs[0] for n in graph.nodes if n.outputs[0] in left and n.inputs[0] in tensors]


def insert_state_copies(graph: Graph, names: Collection[str]) -> Graph:
    """graph: in integers. States whose next value may not lie in the place of the last before all of it is read are copied there
    at the end. Where that is asked for again, what is copied is a state as it was: it is kept before any is written."""
    made, copies, kept = list[Node](), list[Node](), list[Node]()
    types, origins, producers = dict(graph.types), dict(graph.origins), graph.producers()
    for node in graph.nodes:
        none = (0,) * len(graph.types[node.outputs[0]].shape)
        whole = IntegerPad(none, none, 0)
        if node.outputs[0] not in names or not isinstance(node.op, IntegerConcat | IntegerPad):
            made.append(node)
            continue
        source = node.inputs[0]
        before = producers.get(source)
        if not isinstance(node.op, IntegerConcat) and (before is None or before.op != whole):
            source = fresh_name(f"{source}@kept", types)
            types[source], origins[source] = types[node.inputs[0]], Origin(source, INNER)
            kept.append(Node(step_name(node.name, "kept"), whole, node.inputs, (source,), ()))
        copies.append(replace(node, op=whole, inputs=(source,)))
    return graph.with_nodes([*made, *kept, *copies], types, None, origins)
