"""Find the nodes next to the network's inputs and outputs that a host can compute while it converts codes.

Such nodes are elementwise with constants, or move data. Layers that a chip fuses into a product stay with it.
This only finds candidates; a later stage decides by accuracy which of them go to the host.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from toolchain.ir.graph import FLOAT_PRODUCTS, Node, OnnxGraph, OnnxOp

_AFFINE = frozenset({"Add", "Sub", "Mul", "Div", "BatchNormalization", "Neg"})
_FUNCTIONS = frozenset({"Exp", "Log", "Sigmoid", "Tanh", "Pow", "Sqrt", "Reciprocal", "Softplus", "HardSigmoid", "Abs"})
_CLAMPS = frozenset({"Relu", "Clip", "Min", "Max", "LeakyRelu"})
_MOVES = frozenset({"Concat", "Split", "Slice", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_ARITHMETIC = _AFFINE | _FUNCTIONS | _CLAMPS


@dataclass(frozen=True)
class PortChain:
    """The nodes between a port and the tensors at which the chip begins or ends.

    `port`: an input or an output of the network, as `is_input` says.
    `boundary`: float tensors that host and chip hand to each other if the host computes `nodes`.
    """

    port: str
    is_input: bool
    nodes: tuple[Node[OnnxOp], ...]
    boundary: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors from which the nodes compute."""
        return (self.port,) if self.is_input else self.boundary

    @property
    def results(self) -> tuple[str, ...]:
        """The tensors that the nodes make for others."""
        return self.boundary if self.is_input else (self.port,)

    def list_sources(self, graph: OnnxGraph) -> tuple[str, ...] | None:
        """Return the model's nodes that name these nodes and no others, for `--host-node`; None if there are no such names.

        Data movement that shares its name with a node outside needs no name: it follows what is beside it.
        """
        inside = {n.name for n in self.nodes}
        others = {s for n in graph.nodes if n.name not in inside for s in n.sources or (n.name,)}
        names = dict[str, None]()
        for node in self.nodes:
            alone = [s for s in node.sources or (node.name,) if s not in others]
            if not alone and node.op.op_type not in _MOVES:
                return None
            names |= dict.fromkeys(alone)
        return tuple(names) or None

    def is_affine(self, graph: OnnxGraph) -> bool:
        """Return whether the nodes only move, multiply by constants and add them, as the conversion to codes does anyhow."""
        return all(n.op.op_type in _AFFINE | _MOVES | {"Conv"} for n in self.nodes if _is_arithmetic(n, graph))

    def count_crossing(self, graph: OnnxGraph) -> float:
        """Return the elements that host and chip hand to each other, divided by the elements of the port."""
        return sum(graph.types[n].elements for n in self.boundary) / max(graph.types[self.port].elements, 1)

    def count_operations(self, graph: OnnxGraph) -> float:
        """Return the elements that the host computes, divided by the elements of the port."""
        operations = sum(graph.types[o].elements for n in self.nodes if _is_arithmetic(n, graph) for o in n.outputs if o)
        return operations / max(graph.types[self.port].elements, 1)


@dataclass(frozen=True)
class CodedProduct:
    """A Conv or Gemm by constant weights whose result the chip hands to the host.

    `tensor`: what is handed on: the product's result, or that of `clamp`, a Relu behind it.
    `port`: the network's output behind it.
    """

    tensor: str
    port: str
    product: Node[OnnxOp]
    clamp: Node[OnnxOp] | None = None


def find_port_chains(graph: OnnxGraph, pinned: Collection[str]) -> list[list[PortChain]]:
    """Return for each port the chains that the host could compute, the shortest first. Ports without any are left out.

    `pinned`: ports that keep one affine scale.
    """
    inputs = [_trace_input(graph, name) for name in graph.inputs if name not in pinned]
    outputs = [_trace_output(graph, name) for name in dict.fromkeys(graph.outputs) if name not in pinned]
    return [chains for chains in (*inputs, *outputs) if chains]


def _list_computed(node: Node[OnnxOp], graph: OnnxGraph) -> list[str]:
    """Return the inputs of a node that are no constants."""
    return [n for n in dict.fromkeys(node.inputs) if n and n not in graph.constants]


def _converts(node: Node[OnnxOp], graph: OnnxGraph) -> bool:
    """Return whether a host can compute a node element by element, from constants and one tensor."""
    computed, kind = _list_computed(node, graph), node.op.op_type
    if node.op.domain not in ("", "ai.onnx") or not (kind in _MOVES or _is_arithmetic(node, graph)):
        return False
    if not computed or (kind != "Concat" and len(computed) > 1):
        return False
    if any(graph.types[n].dtype != "float32" for n in (*computed, *node.outputs) if n):
        return False
    read = max(graph.types[n].elements for n in computed)
    return kind == "Concat" or all(0 < graph.types[n].elements <= read for n in node.outputs if n)


def _is_arithmetic(node: Node[OnnxOp], graph: OnnxGraph) -> bool:
    """Return whether a node computes each element by itself; such is a convolution by one constant a channel, from a Scaler."""
    if node.op.op_type != "Conv":
        return node.op.op_type in _ARITHMETIC
    weights = graph.types[node.inputs[1]]
    return node.inputs[1] in graph.constants and weights.elements == weights.shape[0] == node.op.attributes["group"]


def _trace_input(graph: OnnxGraph, port: str) -> list[PortChain]:
    """Return the longest chain from an input, without clamps; the list has one chain or none.

    There is none where a part of the input goes to the chip as it is, or the chain makes an output of the network.
    """
    tensors, nodes = {port}, list[Node[OnnxOp]]()
    for node in graph.nodes:
        computed = set(_list_computed(node, graph))
        if computed and computed <= tensors and _converts(node, graph) and node.op.op_type not in _CLAMPS:
            nodes.append(node)
            tensors.update(n for n in node.outputs if n)
    nodes = _drop_idle_moves(nodes, graph)
    inside = {n.name for n in nodes}
    makes = {port, *(o for n in nodes for o in n.outputs if o)}
    others = [n for n in graph.nodes if n.name not in inside]
    boundary = dict.fromkeys(i for n in others for i in n.inputs if i in makes)
    if not nodes or not boundary or port in boundary or makes.intersection(graph.outputs):
        return []
    return [PortChain(port, True, tuple(nodes), tuple(boundary))]


def _drop_idle_moves(nodes: Sequence[Node[OnnxOp]], graph: OnnxGraph) -> list[Node[OnnxOp]]:
    """Leave out data movement behind which nothing is computed, unless it is part of a node of the model that computes."""
    computing_sources = {source for node in nodes if _is_arithmetic(node, graph) for source in node.sources}
    needed_tensors, remaining = set[str](), list[Node[OnnxOp]]()
    for node in reversed(nodes):
        is_part = not computing_sources.isdisjoint(node.sources)
        if _is_arithmetic(node, graph) or is_part or needed_tensors.intersection(node.outputs):
            needed_tensors.update(node.inputs)
            remaining.insert(0, node)
    return remaining


def _trace_output(graph: OnnxGraph, port: str) -> list[PortChain]:
    """Return the chains to an output: without what the chip fuses into a product, and with it where that is more."""
    consumers, nodes = graph.consumers(), list[Node[OnnxOp]]()
    inside = set[str]()
    for node in reversed(graph.nodes):
        uses = [c.name for o in node.outputs for c in consumers.get(o, ())]
        public = set(node.outputs).intersection(graph.outputs)
        if public <= {port} and (uses or public) and inside.issuperset(uses) and _converts(node, graph):
            inside.add(node.name)
            nodes.insert(0, node)
    shorter = _drop_fused(graph, nodes)
    parts = [shorter, nodes] if len(shorter) < len(nodes) else [nodes]
    chains = [_end_chain(graph, port, part) for part in parts]
    return [chain for chain in chains if chain is not None]


def _drop_fused(graph: OnnxGraph, nodes: Sequence[Node[OnnxOp]]) -> list[Node[OnnxOp]]:
    """Leave out the bias and the clamp that the chip computes with a product."""
    producers, consumers = graph.producers(), graph.consumers()
    fused = {o for n in graph.nodes if n.op.op_type in FLOAT_PRODUCTS for o in n.outputs}
    remaining = list[Node[OnnxOp]]()
    for node in nodes:
        computed = _list_computed(node, graph)
        follows = computed[0] in fused and len(consumers[computed[0]]) == 1
        maker = producers[computed[0]].op.op_type if follows else ""
        if follows and (node.op.op_type in ("Relu", "Clip") or (node.op.op_type == "Add" and maker in FLOAT_PRODUCTS)):
            fused.update(node.outputs)
        else:
            remaining.append(node)
    return remaining


def _end_chain(graph: OnnxGraph, port: str, nodes: Sequence[Node[OnnxOp]]) -> PortChain | None:
    """Return the nodes as a chain to an output, or None where they compute nothing or begin at a port."""
    makes = {o for n in nodes for o in n.outputs}
    boundary = tuple(dict.fromkeys(i for n in nodes for i in _list_computed(n, graph) if i not in makes))
    computes = any(_is_arithmetic(n, graph) or n.op.op_type == "Concat" for n in nodes)
    if port not in makes or not computes or not set(boundary).isdisjoint((*graph.inputs, *graph.outputs)):
        return None
    return PortChain(port, False, tuple(nodes), boundary)


def find_coded_products(graph: OnnxGraph, chains: Sequence[PortChain], pinned: Collection[str]) -> list[CodedProduct]:
    """Return the products whose results the chip hands to the host, at once or behind moves.

    `chains`: those whose nodes the host computes.
    `pinned`: ports that keep one affine scale.
    """
    producers, consumers = graph.producers(), graph.consumers()
    ends = {n: c.port for c in chains if not c.is_input for n in c.boundary}
    hosted = {n.name for c in chains for n in c.nodes}
    ends |= {n: n for n in graph.outputs if n not in pinned and n not in {c.port for c in chains}}
    products = list[CodedProduct]()
    for end, port in ends.items():
        tensor, users = end, {c.name for c in consumers.get(end, ())}
        while users <= hosted and tensor in producers:
            node = producers[tensor]
            product = _end_product(graph, tensor, port)
            products += [product] if product is not None else []
            if node.op.op_type not in _MOVES or len(node.outputs) > 1 or len(_list_computed(node, graph)) > 1:
                break
            hosted, tensor = hosted | {node.name}, node.inputs[0]
            users = {c.name for c in consumers.get(tensor, ())}
            if tensor in graph.outputs:
                break
    return products


def _end_product(graph: OnnxGraph, tensor: str, port: str) -> CodedProduct | None:
    """Return the product that makes a tensor, alone or with a Relu, or None.

    It has constant weights and takes a bias, and the Relu is its only reader.
    """
    producers, consumers = graph.producers(), graph.consumers()
    node = producers[tensor]
    clamp = node if node.op.op_type == "Relu" else None
    product = producers.get(node.inputs[0]) if clamp else node
    if product is None or product.op.op_type not in ("Conv", "Gemm") or not _has_weights(product, graph):
        return None
    if product.op.attributes.get("beta", 1.0) == 0:  # its bias cannot hold an offset
        return None
    is_shared = clamp is not None and (len(consumers[clamp.inputs[0]]) > 1 or clamp.inputs[0] in graph.outputs)
    return None if is_shared else CodedProduct(tensor, port, product, clamp)


def _has_weights(node: Node[OnnxOp], graph: OnnxGraph) -> bool:
    weighted = node.inputs[1] in graph.constants and all(n in graph.constants for n in node.inputs[2:] if n)
    return weighted and graph.types[node.outputs[0]].dtype == "float32" and graph.types[node.inputs[1]].dtype == "float32"
