"""Merge chains of Reshape and Transpose into one Transpose at most.

Channel shuffles, pixel shuffles, heads of detectors and attention are written as Reshape, Transpose, Reshape in the model's
order. On a channels-last chip they stand between two more Transposes; together they are often one, or none.
The pass runs while nodes are selected. It works on float operators of the chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolchain.ir.graph import INNER, Graph, Node, OnnxOp, Origin, TensorType, fresh_name, step_name
from toolchain.ops.kit.layout import channels_last, channels_second, permute_to_layout
from toolchain.ops.kit.operator import operator_of
from toolchain.ops.permutation import Reshape, Transpose

Shape = tuple[int, ...]


@dataclass
class FactoredShape:
    """A tensor as a rearrangement of another's elements, in terms of factors of the dimensions' sizes.

    `sizes`: by factor, its size. `source`: the factors in the order of the source tensor.
    `dims`: by dimension of the tensor, its factors. `transpose` and `reshape` change it in place.
    """

    sizes: list[int] = field(default_factory=list[int])
    source: list[int] = field(default_factory=list[int])
    dims: list[list[int]] = field(default_factory=list[list[int]])

    @classmethod
    def of(cls, shape: Shape) -> FactoredShape:
        """Return the factored form of a tensor of this shape, not rearranged: one factor for each dimension that is not one."""
        factored = cls()
        for size in shape:
            factored.dims.append([factored.new(size)] if size != 1 else [])
        factored.source = [f for dim in factored.dims for f in dim]
        return factored

    def new(self, size: int) -> int:
        """Add a factor and return its number."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def transpose(self, perm: Shape) -> None:
        """Rearrange as a Transpose by `perm` does."""
        self.dims = [self.dims[p] for p in perm]

    def reshape(self, shape: Shape) -> bool:
        """Rearrange as a Reshape does. Return False, with the value unusable, where sizes do not divide each other."""
        waiting = [f for dim in self.dims for f in dim]
        dims: list[list[int]] = []
        for size in shape:
            dim: list[int] = []
            while size > 1:
                factor = waiting.pop(0)
                if self.sizes[factor] > size:
                    if self.sizes[factor] % size:
                        return False
                    waiting.insert(0, self._split(factor, size))
                if size % self.sizes[factor]:
                    return False
                size //= self.sizes[factor]
                dim.append(factor)
            dims.append(dim)
        self.dims = dims
        return True

    def _split(self, factor: int, outer: int) -> int:
        """Cut a factor to its outer part and return the number of the inner part, which comes right behind it."""
        inner = self.new(self.sizes[factor] // outer)
        self.sizes[factor] = outer
        self.source.insert(self.source.index(factor) + 1, inner)
        return inner

    def permutation(self) -> tuple[Shape, Shape]:
        """Return the shape in which to see the source and the perm of one Transpose that makes the arrangement, of least rank."""
        position = {factor: i for i, factor in enumerate(self.source)}
        runs: list[list[int]] = []
        for factor in (f for dim in self.dims for f in dim):
            if runs and position[factor] == position[runs[-1][-1]] + 1:
                runs[-1].append(factor)
            else:
                runs.append([factor])
        rank = sorted(range(len(runs)), key=lambda i: position[runs[i][0]])
        shape = tuple(self._product(runs[i]) for i in rank)
        return shape, tuple(rank.index(i) for i in range(len(runs)))

    def _product(self, factors: list[int]) -> int:
        total = 1
        for factor in factors:
            total *= self.sizes[factor]
        return total


def merge_transposes(graph: Graph) -> Graph:
    """Return the graph with chains of Reshapes and Transposes replaced where that saves a Transpose.

    Tensors that the host alone reads or gives lie channels last where that saves one more.
    """
    producers = graph.producers()
    uses = {name: len(nodes) + graph.outputs.count(name) for name, nodes in graph.consumers().items()}
    made_types: dict[str, TensorType] = {}
    made_origins: dict[str, Origin] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        merged = _merge_moves(node, graph, producers, uses) if isinstance(node.op, Reshape | Transpose) else None
        if merged is None:
            nodes.append(node)
            continue
        nodes += merged
        y = node.outputs[0]
        for step in merged[:-1]:
            made_types[step.outputs[0]] = replace(graph.types[y], shape=_shape_after(step, graph.types, made_types))
            made_origins[step.outputs[0]] = Origin(graph.origins[y].tensor, INNER)
    return _transpose_inputs_on_host(
        _without_dead(_move_transposes_to_host(graph.with_nodes(nodes, made_types, origins=made_origins)))
    )


def _move_transposes_to_host(graph: Graph) -> Graph:
    """Return the graph where what the host alone reads stays channels last if that moves nothing on the chip.

    The host transposes what it takes anyway.
    """
    producers, consumers = graph.producers(), graph.consumers()
    views: dict[str, Node] = {}
    types: dict[str, TensorType] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Reshape | Transpose):
            continue
        y = node.outputs[0]
        by_host = graph.origins[y].layout == "plain" and all(isinstance(n.op, OnnxOp) for n in consumers.get(y, ()))
        rank = len(graph.types[y].shape)
        if not by_host or rank not in (3, 4):
            continue
        chain = [node]
        while (before := producers.get(chain[0].inputs[0])) is not None and isinstance(before.op, Reshape | Transpose):
            chain.insert(0, before)
        moves = any(isinstance(n.op, Transpose) for n in chain)
        target = replace(graph.types[y], shape=permute_to_layout(graph.types[y].shape, "nhwc"))
        free = _one_transpose([*chain, Node("", Transpose(channels_last(rank)), (y,), (y,), ())], graph) if moves else None
        if free is not None and len(free) == 1:
            views[node.name] = replace(node, op=Reshape(target.shape), inputs=chain[0].inputs, sources=free[0].sources)
            types[y] = target
    origins = {y: Origin(graph.origins[y].tensor, "nhwc") for y in types}
    return graph.with_nodes((views.get(n.name, n) for n in graph.nodes), types, origins=origins)


def _transpose_inputs_on_host(graph: Graph) -> Graph:
    """Return the graph where the host gives tensors of three dimensions channels last, if that saves a Transpose.

    An example is the input of a 1-D window. Tensors of four dimensions are so already (`SelectionContext.read`).
    """
    producers, consumers = graph.producers(), graph.consumers()
    views: dict[str, Node] = {}
    removed_nodes, types = set[str](), dict[str, TensorType]()
    for x, readers in consumers.items():
        if len(readers) != 1 or not isinstance(readers[0].op, Reshape | Transpose) or x in producers or x in graph.outputs:
            continue
        if x in graph.constants or len(graph.types[x].shape) != 3 or graph.origins[x].layout != "plain":
            continue
        chain = _moves_behind(readers[0], consumers, graph.outputs)
        if not any(isinstance(n.op, Transpose) for n in chain):
            continue
        nhwc_type = replace(graph.types[x], shape=permute_to_layout(graph.types[x].shape, "nhwc"))
        input_transpose = Node("", Transpose(channels_second(3)), (x,), (x,), ())
        free = _one_transpose([input_transpose, *chain], graph.with_nodes(graph.nodes, {x: nhwc_type}))
        if free is not None and len(free) == 1:
            views[chain[-1].name], types[x] = replace(free[0], name=chain[-1].name), nhwc_type
            removed_nodes.update(n.name for n in chain[:-1])
    origins = {x: Origin(graph.origins[x].tensor, "nhwc") for x in types}
    return graph.with_nodes((views.get(n.name, n) for n in graph.nodes if n.name not in removed_nodes), types, origins=origins)


def _moves_behind(node: Node, consumers: Mapping[str, Sequence[Node]], outputs: Sequence[str]) -> list[Node]:
    """Return the Reshapes and Transposes from `node` on, each of which only the next one reads."""
    chain: list[Node] = []
    following: Sequence[Node] = (node,)
    while len(following) == 1 and isinstance(following[0].op, Reshape | Transpose):
        chain.append(following[0])
        output = following[0].outputs[0]
        following = () if output in outputs else consumers.get(output, ())
    return chain


def _shape_after(step: Node, types: Mapping[str, TensorType], new_types: Mapping[str, TensorType]) -> Shape:
    """Return the shape of a Reshape's or Transpose's output."""
    if isinstance(step.op, Reshape):
        return step.op.shape
    x = step.inputs[0]
    before = (new_types[x] if x in new_types else types[x]).shape
    return tuple(before[p] for p in operator_of(step, Transpose).perm)


def _merge_moves(end: Node, graph: Graph, producers: Mapping[str, Node], uses: Mapping[str, int]) -> list[Node] | None:
    """Return the nodes that replace `end`, or None where no Transpose is saved.

    They begin at the tensor of the chain that saves most Transposes, counting only those that nothing else reads.
    """
    chain: list[Node] = []
    best: tuple[int, list[Node]] | None = None
    node: Node | None = end
    alone, dead = True, 0
    while node is not None and isinstance(node.op, Reshape | Transpose):
        alone = alone and (node is end or uses[node.outputs[0]] == 1)
        dead += alone and isinstance(node.op, Transpose)
        chain.insert(0, node)
        candidate = _one_transpose(chain, graph)
        if candidate is not None:
            saved = dead - sum(isinstance(n.op, Transpose) for n in candidate)
            if saved > 0 and (best is None or saved > best[0]):
                best = (saved, candidate)
        node = producers.get(node.inputs[0])
    return None if best is None else best[1]


def _one_transpose(chain: list[Node], graph: Graph) -> list[Node] | None:
    """Return Reshape, Transpose, Reshape that do what the chain does, or a Reshape alone; None where one Transpose cannot."""
    x, end = chain[0].inputs[0], chain[-1]
    factors = FactoredShape.of(graph.types[x].shape)
    for node in chain:
        if isinstance(node.op, Transpose):
            factors.transpose(node.op.perm)
        elif not factors.reshape(operator_of(node, Reshape).shape):
            return None
    shape, perm = factors.permutation()
    y = end.outputs[0]
    sources = tuple(dict.fromkeys(s for node in chain for s in node.sources))
    last = Reshape(graph.types[y].shape)
    if perm == tuple(range(len(perm))):
        return [Node(end.name, last, (x,), end.outputs, sources)]
    view, moved = (fresh_name(f"{y}@{what}", graph.types) for what in ("factors", "permuted"))
    return [
        Node(step_name(end.name, "factors"), Reshape(shape), (x,), (view,), ()),
        Node(end.name, Transpose(perm), (view,), (moved,), sources),
        Node(step_name(end.name, "shape"), last, (moved,), end.outputs, ()),
    ]


def _without_dead(graph: Graph) -> Graph:
    """Return the graph without Reshapes and Transposes that nothing reads."""
    read_tensors = set(graph.outputs)
    live_nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if isinstance(node.op, Reshape | Transpose) and not read_tensors.intersection(node.outputs):
            continue
        read_tensors.update(node.inputs)
        live_nodes.append(node)
    return graph.with_nodes(reversed(live_nodes))
