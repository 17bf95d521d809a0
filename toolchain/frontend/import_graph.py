"""Import the nodes of a ModelProto into a `Graph`: in topological order, with static types, constants folded, at one opset.

Older spellings are upgraded, function bodies, contrib operators and plug-ins are expanded, control flow is unrolled.
A node with a fault does not end the walk: faults are gathered, and what would read its outputs is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from toolchain.errors import CompileError
from toolchain.foundation.inference import InferenceError
from toolchain.frontend.check_nodes import check
from toolchain.frontend.convert import (
    NO_STRINGS,
    array_dtype,
    array_from_proto,
    dtype_name,
    node_from_proto,
    numpy_dtype,
    type_of,
)
from toolchain.frontend.errors import NodeFault, all_of, refuse, refuse_node, unusable
from toolchain.frontend.expand_contrib import DECOMPOSITIONS as WRITTEN_OUT
from toolchain.frontend.expand_contrib import expand_node
from toolchain.frontend.expand_ml import expand_ml_node
from toolchain.frontend.function_bodies import body, has_body
from toolchain.frontend.infer import check_complete, defaults, evaluate, foldable, infer, run_node, schema_of
from toolchain.frontend.match_row_updates import RowUpdateState, match_row_update
from toolchain.frontend.plugin_nodes import PluginNode, plugin_node
from toolchain.frontend.read_onnx import DOMAINS, FOREIGN, NORMAL_OPSET, graphs_of, opset_of, opset_with
from toolchain.frontend.subgraphs import list_captured_names
from toolchain.frontend.unroll_control_flow import CONTROL_FLOW, UnrollContext
from toolchain.frontend.upgrade import upgrade
from toolchain.input_limits import FOLDED_BYTES, ONNX_NODES
from toolchain.ir.graph import Graph, OnnxGraph, OnnxNode, TensorType, distinctly_named
from toolchain.plugin import find_rule


@dataclass
class ImportState:
    """The state of the walk through the nodes, all changed in place; it is discarded when the graph is made.

    `opset`: of the nodes at hand. `types`, `constants`: by tensor. `nodes`: the graph's nodes so far.
    `names`: node names in use, each with the suffix to try next.
    `folded_bytes`: by how much folded constants exceed those of the file.
    `faults`: of nodes. `lost`: tensors that nodes with faults would make, and what depends on them.
    `sources`: the node of the model whose expansion is visited; () at the top level.
    `repeated`, `plugin_nodes`: as in `ImportedGraph`.
    """

    opset: int
    types: dict[str, TensorType]
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    nodes: list[OnnxNode] = field(default_factory=list[OnnxNode])
    names: dict[str, int] = field(default_factory=dict[str, int])
    folded_bytes: int = 0
    faults: list[NodeFault] = field(default_factory=list[NodeFault])
    lost: set[str] = field(default_factory=set[str])
    sources: tuple[str, ...] = ()
    repeated: dict[str, str] = field(default_factory=dict[str, str])
    plugin_nodes: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def normal_opset(self) -> int:
        """The opset of nodes in the graph: that of the model, `NORMAL_OPSET` at least."""
        return max(self.opset, NORMAL_OPSET)


@dataclass(frozen=True)
class ImportedGraph:
    """A static graph made from an ONNX file.

    `repeated`: by tensor that one step of a Loop or a Scan makes, the name of that tensor over all steps.
    `plugin_nodes`: by node of the file whose operator a plug-in defines, the name of that plug-in.
    """

    graph: OnnxGraph
    repeated: Mapping[str, str]
    plugin_nodes: Mapping[str, str] = field(default_factory=dict[str, str])


def import_graph(proto: onnx.ModelProto, inputs: Mapping[str, TensorType]) -> ImportedGraph:
    """Import a model whose inputs have these static types. Inputs without an entry must be initializers.

    Raise CompileError on type errors, cycles, undefined tensors, shapes that depend on data, and NaN in a constant of the
    file. One message lists the faults of all nodes. Cycles, undefined tensors, NaN, and outputs of another type than declared are
    reported alone.
    """
    walk = ImportState(opset_of(proto), dict(inputs))
    visit_graph(proto.graph, walk)
    if walk.faults:
        raise all_of(walk.faults)
    for output in proto.graph.output:
        check_output(output, walk)
    outputs = tuple(o.name for o in proto.graph.output)
    name = proto.graph.name or "model"
    graph = Graph(name, distinctly_named(walk.nodes), tuple(inputs), outputs, walk.types, walk.constants)
    return ImportedGraph(graph, walk.repeated, walk.plugin_nodes)


def check_output(output: onnx.ValueInfoProto, walk: ImportState) -> None:
    """Raise CompileError where an output of the model is not made, or has another type than declared."""
    thing = f'output "{output.name}"'
    if output.name not in walk.types:
        raise refuse(thing, "no node makes it")
    declared_type = output.type.tensor_type.elem_type if output.type.HasField("tensor_type") else 0
    try:
        actual_dtype = array_dtype(walk.types[output.name].dtype)
        declared = dtype_name(declared_type) if declared_type else actual_dtype
    except CompileError as fault:
        raise refuse(thing, str(fault)) from fault
    if declared != actual_dtype:
        raise refuse(thing, f"is declared {declared}, but the nodes make it {actual_dtype}")


def visit_graph(graph: onnx.GraphProto, walk: ImportState) -> None:
    """Add a graph's initializers and nodes to the walk; it may be a subgraph of the model. Faults of nodes are gathered, not
    raised.
    """
    used = names_used(graph)
    for tensor in graph.initializer:
        if tensor.name in used:
            add_constant(tensor.name, array_from_proto(tensor, f"weight {tensor.name}"), walk)
    nodes, cuts = sort_nodes(graph, walk.types.keys() | walk.lost, walk.names), dict[str, tuple[OnnxNode, NodeFault]]()
    readers = Counter(name for node in graph.node for name in (*node.input, *list_captured_names(node)))
    readers.update(output.name for output in graph.output)
    for node in nodes:
        node = replace(node, sources=walk.sources or node.sources)
        if not walk.lost.isdisjoint(node.inputs):
            if not is_row_update(node, cuts, readers, walk):
                walk.lost.update(node.outputs)
            continue
        try:
            visit(node, walk)
        except NodeFault as fault:
            walk.faults.append(fault)
            walk.lost.update(node.outputs)
            cuts.update((name, (node, fault)) for name in node.outputs if node.op.op_type == "Slice")


def is_row_update(
    node: OnnxNode, cuts: Mapping[str, tuple[OnnxNode, NodeFault]], readers: Counter[str], walk: ImportState
) -> bool:
    """Return whether the node is a row update, and if so add its replacement and drop the faults of its slices.

    A row update puts rows between slices whose lengths depend on values, while its result's shape does not.
    The slices that it alone reads then have no faults.
    `cuts`: by tensor, the slice and its fault.
    `readers`: number of readers of each tensor.
    """
    row_state = RowUpdateState(walk.types, walk.constants, walk.nodes, {name: cut for name, (cut, _) in cuts.items()})
    written = match_row_update(node, row_state) if all(readers[n] == 1 for n in node.inputs if n in cuts) else None
    if written is None:
        return False
    for name in (n for n in node.inputs if n in cuts):
        walk.faults.remove(cuts[name][1])
        walk.lost.discard(name)
    for name, value in written.constants.items():
        add_constant(name, value, walk)
    for new in written.nodes:
        add_node(complete(new, walk), walk)
    return True


def names_used(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that a graph's nodes read, those of its subgraphs included, and its outputs."""
    used = {o.name for o in graph.output}
    for node in graph.node:
        used.update(node.input)
        for subgraph in graphs_of(node):
            used |= names_used(subgraph)
    return used


def add_constant(name: str, value: np.ndarray, walk: ImportState) -> None:
    """Add a constant. Raise CompileError where it holds strings or NaN."""
    if value.dtype.kind in "OSU":
        raise refuse(f"weight {name}", NO_STRINGS)
    if value.dtype.kind == "f" and np.isnan(value).any():
        raise unusable(name, value, np.isnan(value), "NaN")
    walk.constants[name] = value
    walk.types[name] = type_of(value)


def sort_nodes(graph: onnx.GraphProto, defined_names: set[str], names: dict[str, int]) -> list[OnnxNode]:
    """Return the nodes in the file's order where that is topological, else in the earliest order that is.

    Names are made unique. Raise CompileError for a cycle, or a tensor that is undefined or defined twice.
    """
    waiting = [(node_from_proto(p, unique_name(p, i, names)), list_captured_names(p)) for i, p in enumerate(graph.node)]
    produced_names = {n for node, _ in waiting for n in node.outputs if n}
    check_definitions(waiting, defined_names, produced_names)
    rounds = count_sweeps(waiting)
    cyclic_nodes = [w for w, when in zip(waiting, rounds) if when is None]
    if cyclic_nodes:
        raise cycle_fault(cyclic_nodes)
    return [waiting[i][0] for _, i in sorted((when, i) for i, when in enumerate(rounds) if when is not None)]


def count_sweeps(nodes: list[tuple[OnnxNode, set[str]]]) -> list[int | None]:
    """Return for each node how many sweeps over the list are needed before it can be computed, None for never.

    Each sweep takes the nodes that can be computed.
    """
    producer = {n: i for i, (node, _) in enumerate(nodes) for n in node.outputs if n}
    needs = [{producer[n] for n in (*node.inputs, *outer) if n in producer} for node, outer in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, producer_indices in enumerate(needs):
        for j in producer_indices:
            readers[j].append(i)
    missing = [len(producer_indices) for producer_indices in needs]
    rounds: list[int | None] = [None] * len(nodes)
    ready = [i for i, count in enumerate(missing) if not count]
    earliest = [0] * len(nodes)
    while ready:
        j = ready.pop()
        rounds[j] = earliest[j]
        for i in readers[j]:
            earliest[i] = max(earliest[i], earliest[j] + (j > i))
            missing[i] -= 1
            if not missing[i]:
                ready.append(i)
    return rounds


def unique_name(proto: onnx.NodeProto, index: int, names: dict[str, int]) -> str:
    """Return a name for the node that no earlier node has: its own, else its operator and index, else one of these with a
    suffix.

    `names`: names in use, with the suffix to try next where another node asks for the same name; it gains this one.
    """
    base = proto.name or f"{proto.op_type}_{index}"
    name, suffix = base, names.get(base, 2)
    while name in names:
        name, suffix = f"{base}_{suffix}", suffix + 1
    names[base] = suffix
    names.setdefault(name, 2)
    return name


def check_definitions(nodes: list[tuple[OnnxNode, set[str]]], defined_names: set[str], produced_names: set[str]) -> None:
    """Raise CompileError where an input is defined nowhere or an output twice."""
    defined_so_far = set(defined_names)
    for node, outer in nodes:
        for name in (*node.inputs, *sorted(outer)):
            if name and name not in defined_names and name not in produced_names:
                raise refuse_node(node, f'its input "{name}" is defined nowhere')
        for name in node.outputs:
            if name and name in defined_so_far:
                raise refuse_node(node, f'its output "{name}" is defined twice')
            defined_so_far.add(name)


def cycle_fault(cyclic_nodes: list[tuple[OnnxNode, set[str]]]) -> CompileError:
    """Return the error that names a cycle among these nodes."""
    producer = {n: node for node, _ in cyclic_nodes for n in node.outputs if n}
    outer = {node.name: names for node, names in cyclic_nodes}
    path: dict[str, int] = {}
    node = cyclic_nodes[0][0]
    while node.name not in path:
        path[node.name] = len(path)
        node = next(producer[n] for n in (*node.inputs, *sorted(outer[node.name])) if n in producer)
    loop = [*list(path)[path[node.name] :], node.name]
    return refuse("the graph", f"has a cycle: {' <- '.join(loop)}")


def visit(node: OnnxNode, walk: ImportState) -> None:
    """Add what a node becomes: nodes in today's spelling, or constants where its inputs are constant. Raise NodeFault."""
    op_type = node.op.op_type
    if op_type in CONTROL_FLOW and not node.op.domain:
        check_complete(node, schema_of(node, walk.opset))
        check(node, walk.types, walk.constants)
        flow = UnrollContext(walk.opset, walk.types, walk.constants, walk.lost, walk.repeated, within(walk), adding(walk))
        CONTROL_FLOW[op_type](node, flow)
        return
    if op_type == "Constant":
        add_constant(node.outputs[0], evaluate(node, {}, walk.opset)[node.outputs[0]], walk)
        return
    if has_body(node):
        check_complete(node, schema_of(node, walk.opset))
        add_body(node, walk)
        return
    definition = plugin_node(node)
    if definition is not None:
        add_plugin_node(definition, walk)
        return
    if node.op.domain not in (*DOMAINS, *FOREIGN):
        add_custom_node(node, walk)
        return
    if (node.op.domain, op_type) in WRITTEN_OUT:
        upgraded = expand_node(node, walk.types, walk.constants)
    else:
        check_complete(node, schema_of(node, walk.opset))
        upgraded = expand_ml_node(node, walk.types, walk.constants) or upgrade(node, walk.opset, walk.types, walk.constants)
    for name, value in upgraded.constants.items():
        walk.constants[name] = value
        walk.types[name] = type_of(value)
    for new in upgraded.nodes:
        if has_body(new):
            add_body(complete(new, walk), walk)
        else:
            add_node(complete(new, walk), walk)


def add_custom_node(node: OnnxNode, walk: ImportState) -> None:
    """Add a node that a library of custom operators runs on the host. Its types are those of a run on ones.

    Raise CompileError where onnxruntime does not run it.
    """
    ones = {n: np.ones(walk.types[n].shape, numpy_dtype(walk.types[n].dtype)) for n in node.inputs if n}
    try:
        values = run_node(node, {**ones, **{n: walk.constants[n] for n in ones if n in walk.constants}}, walk.normal_opset)
    except InferenceError as fault:
        raise refuse_node(node, f"onnxruntime does not run it by the libraries of --custom-ops: {fault.reason}") from fault
    walk.types.update({name: type_of(value) for name, value in values.items()})
    walk.nodes.append(node)


def add_plugin_node(definition: PluginNode, walk: ImportState) -> None:
    """Add the steps of a plug-in's operator, or its node whole where the plug-in has tiles of its own for it.

    Raise CompileError where the steps give other output types than the plug-in's rule.
    """
    node, output_types = definition.node, definition.infer(walk.types)
    walk.plugin_nodes.update(dict.fromkeys(node.sources or (node.name,), definition.plugin.plugin.name))
    computed = [n for n in node.inputs if n and n not in walk.constants]
    if computed and find_rule(node.op.domain, node.op.op_type) is not None:
        walk.types.update(output_types)
        walk.nodes.append(node)
        return
    written = definition.write_out(walk.types)
    for name, value in written.constants.items():
        add_constant(name, value, walk)
    outer_opset, walk.opset = walk.opset, walk.normal_opset
    try:
        for step in written.nodes:
            visit(step, walk)
    finally:
        walk.opset = outer_opset
    definition.check_types(walk.types, output_types)


def add_body(node: OnnxNode, walk: ImportState) -> None:
    """Visit the nodes of the function by which ONNX defines the node, in the opset that has that function."""
    walk.types.update(infer(node, walk.types, walk.constants, walk.normal_opset))
    outer_opset, walk.opset = walk.opset, opset_with([node.op.op_type], walk.opset)
    try:
        for inner in body(node, walk.types, walk.opset):
            visit(inner, walk)
    finally:
        walk.opset = outer_opset


def within(walk: ImportState) -> Callable[[OnnxNode, onnx.GraphProto, tuple[str, ...]], None]:
    """Return a function that visits the subgraph of a node of control flow, whose nodes get the given sources.

    It raises CompileError where the model then has more nodes than a model may have.
    """

    def visit_inner(node: OnnxNode, graph: onnx.GraphProto, sources: tuple[str, ...]) -> None:
        before, walk.sources = walk.sources, walk.sources or sources
        visit_graph(graph, walk)
        walk.sources = before
        if len(walk.nodes) > ONNX_NODES:
            raise refuse_node(node, f"written out it has more than {ONNX_NODES:,} nodes, the most that a model may have")

    return visit_inner


def adding(walk: ImportState) -> Callable[[OnnxNode], None]:
    """Return a function that adds a node which control flow was turned into."""
    return lambda node: add_node(complete(node, walk), walk)


def add_node(node: OnnxNode, walk: ImportState) -> None:
    """Add a node at the normal opset with the types of its outputs, or its values where they are known."""
    if node.op.op_type in ("Shape", "Size"):
        values = shape_value(node, walk)
    elif foldable(node, walk.constants):
        count_folded(node, infer(node, walk.types, walk.constants, walk.normal_opset), walk)
        values = evaluate(node, walk.constants, walk.normal_opset)
    else:
        walk.types.update(infer(node, walk.types, walk.constants, walk.normal_opset))
        walk.nodes.append(node)
        return
    for name, value in values.items():
        walk.constants[name] = value
        walk.types[name] = type_of(value)


def count_folded(node: OnnxNode, output_types: Mapping[str, TensorType], walk: ImportState) -> None:
    """Count the bytes that folding this node adds, before its values are computed.

    Values may be larger than their constants by FOLDED_BYTES in the whole model. Raise CompileError beyond that.
    """
    output_bytes = sum(t.elements * numpy_dtype(t.dtype).itemsize for t in output_types.values())
    walk.folded_bytes += max(0, output_bytes - sum(walk.constants[n].nbytes for n in set(node.inputs) if n))
    if walk.folded_bytes > FOLDED_BYTES:
        reason = f"makes {output_bytes:,} bytes of constants; {FOLDED_BYTES:,} more than the file holds are the most"
        raise refuse(f"node {node.name} ({node.op.op_type})", reason, "make it an input of the model")


def shape_value(node: OnnxNode, walk: ImportState) -> dict[str, np.ndarray]:
    """Return the value of a Shape or Size, whose input has a static shape, by its output."""
    shape = walk.types[node.inputs[0]].shape
    if node.op.op_type == "Size":
        return {node.outputs[0]: np.asarray(int(np.prod(shape)), np.int64)}
    start, end = node.op.attributes.get("start", 0), node.op.attributes.get("end")
    return {node.outputs[0]: np.asarray(shape[start:end], np.int64)}


def complete(node: OnnxNode, walk: ImportState) -> OnnxNode:
    """Return the node with default attributes written out, without trailing absent inputs, and with a non-negative `axis`."""
    attributes = {**defaults(node, walk.normal_opset), **node.op.attributes}
    axis, rank = attributes.get("axis"), rank_for_axis(node, walk)
    if isinstance(axis, int) and -rank <= axis < 0:
        attributes["axis"] = axis + rank
    inputs = list(node.inputs)
    while inputs and not inputs[-1]:
        inputs.pop()
    return replace(node, op=replace(node.op, attributes=attributes), inputs=tuple(inputs))


def rank_for_axis(node: OnnxNode, walk: ImportState) -> int:
    """Return the rank that a negative `axis` of the node counts from; 0 where it is not known."""
    if not node.inputs or node.inputs[0] not in walk.types:
        return 0
    return len(walk.types[node.inputs[0]].shape) + (node.op.op_type == "OneHot")
