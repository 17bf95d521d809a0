"""Run the integer reference node after node over all samples, so that each layer sees what the repaired ones before it give.

`run_layerwise` asks a function for the parameters of each chip node and runs the node with them. Host subgraphs run between.
`pick_resident_samples` chooses as many samples as memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.float_session import open_session
from quant.repair.choices import AS_IN_THE_MODEL, LayerParameters, Quantization
from toolchain.codegen import Port, build_host_subgraph
from toolchain.codegen.link import port_at
from toolchain.ir.graph import Graph, Node
from toolchain.ops.kit.operator import Array, NpuOp, operator_of
from toolchain.passes.partition import Segment, partition_graph
from toolchain.passes.quantize_context import lower_node, node_scope
from toolchain.repair.network import Network
from toolchain.repair.sample_folds import NONE, Fold, is_spread, join_folds, pick_samples, spread_over
from toolchain.runtime.ports import make_host_feeds, to_codes, to_real

HELD_BYTES = 512 << 20  # of all samples' live tensors
SAMPLES = 256  # of more the rows of a layer would not tell more: there are eight for each of its inputs

# A layer before it is quantized, and the codes of all tensors that are live then, over all samples -> its parameters.
Choose = Callable[[Node, Mapping[str, Sequence[Array]]], LayerParameters]


@dataclass(frozen=True)
class ResidentSamples:
    """The samples that a walk over the layers holds in memory.

    `first`: samples that run from the beginning.
    `later`: samples that join where tensors are smaller; they are run up to there then.
    `joining_nodes`: chip nodes from which the later samples are present.
    `together`: number of later samples that are run up to there at once.
    """

    first: Fold
    later: Fold = NONE
    joining_nodes: frozenset[str] = frozenset()
    together: int = 1

    @property
    def every(self) -> Fold:
        """Return all samples in the order of the live values."""
        return join_folds(self.first, self.later)


def run_layerwise(
    network: Network, quantization: Quantization, resident: ResidentSamples, choose: Choose
) -> dict[str, LayerParameters]:
    """Run the network over the samples, choosing the parameters of every chip node in turn, and return them by node.

    The result begins with the layers of `quantization`, and holds each choice that is not AS_IN_THE_MODEL.

    `choose`: gets the node and the codes of all live tensors, a list over the samples each, and returns the node's parameters.
    """
    integer, layer_parameters = network.integer(quantization), dict(quantization.layers)

    def run(values: _Values, node: Node, chosen: LayerParameters) -> None:
        values.run(node, chosen)
        if chosen is not AS_IN_THE_MODEL:
            layer_parameters[node.name] = chosen

    def run_to(last: Node, samples: Iterable[Sample]) -> _Values:
        values = _Values(network, quantization, integer, samples)
        for node in values.nodes():
            if node.name == last.name:
                break
            run(values, node, layer_parameters.get(node.name, AS_IN_THE_MODEL))
        return values

    values, later = _Values(network, quantization, integer, resident.first), iter(resident.later)
    for node in values.nodes():
        while node.name in resident.joining_nodes and (batch := list(islice(later, resident.together))):
            values.extend(run_to(node, batch))
        run(values, node, choose(node, values.codes))
    return layer_parameters


class _Values:
    """The live values of each sample.

    `codes`: by chip tensor, the codes of each sample.
    `real`: for each sample, real values by model tensor, of those that the host makes or reads.
    """

    def __init__(self, network: Network, quantization: Quantization, integer: Graph, samples: Iterable[Sample]):
        self._network, self._quantization, self._integer = network, quantization, integer
        self._quants = {name: t.quant for name, t in integer.types.items() if t.quant is not None}
        self._types = {name: CodeType(t.dtype) for name, t in integer.types.items() if t.quant is not None}
        self.codes: dict[str, list[Array]] = {}
        self.real: list[dict[str, Array]] = [{**s, **_parts_of_states(integer, s)} for s in samples]
        self._outputs: Collection[str] = ()  # of the part that runs: what is asked for behind the last chip node that reads it
        self._reads: dict[str, int] = {}
        for node in network.graph.nodes:
            for name in dict.fromkeys(node.inputs):
                self._reads[name] = self._reads.get(name, 0) + 1

    def _port(self, tensor: str) -> Port:
        return port_at(0, tensor, self._integer)

    def nodes(self) -> Iterator[Node]:
        """Yield the chip's nodes in order, each to be `run` before the next one; host subgraphs run between them."""
        parts = partition_graph(self._network.graph)
        for index, part in enumerate(parts):
            self.keep(parts[index:])
            if not part.on_chip:
                self.run_island(part)
                continue
            self.enter(part)
            self.keep(parts[index + 1 :])
            self._outputs = part.outputs
            yield from part.nodes
            self.leave(part, parts[index + 1 :])

    def extend(self, other: _Values) -> None:
        """Add other samples that have been run as far."""
        for name, codes in self.codes.items():
            codes.extend(other.codes[name])
        self.real.extend(other.real)

    def keep(self, parts: Sequence[Segment]) -> None:
        """Keep only the real values that these parts read."""
        read = {n for part in parts for n in part.inputs}
        read |= {self._port(n).model for part in parts if part.on_chip for n in part.inputs}
        self.real = [{n: x for n, x in real.items() if n in read} for real in self.real]

    def run_island(self, part: Segment) -> None:
        """Run a host subgraph on each sample under onnxruntime."""
        session = open_session(build_host_subgraph(self._network.model, part).model)
        for real in self.real:
            real.update(zip(part.outputs, session.run(list(part.outputs), make_host_feeds(session, part.inputs, real))))

    def enter(self, part: Segment) -> None:
        """Quantize the inputs of a chip region."""
        for name in part.inputs:
            if name not in self.codes:
                port = self._port(name)
                self.codes[name] = [to_codes(real[port.model], port) for real in self.real]

    def leave(self, part: Segment, later: Sequence[Segment]) -> None:
        """Dequantize the outputs of a region that later host subgraphs read, and drop codes that nobody reads."""
        read = {n for p in later if not p.on_chip for n in p.inputs}
        for name in part.outputs:
            port = self._port(name)
            if port.model in read:
                for real, codes in zip(self.real, self.codes[name]):
                    real[port.model] = to_real(codes, port)
            if not self._reads.get(name):
                del self.codes[name]

    def run(self, node: Node, chosen: LayerParameters) -> None:
        """Quantize one node with these parameters, run it on all samples, and drop the inputs that nobody reads any more."""
        network = self._network
        scope = node_scope(network.graph, network.chip, self._types, self._quants, self._quantization, node, chosen)
        nodes = lower_node(node, scope)
        constants = {**network.graph.constants, **scope.constants}
        output_codes: list[Array] = []
        for index in range(len(self.real)):
            step_codes: dict[str, Array] = {}
            for step in nodes:
                inputs = [step_codes[n] if n in step_codes else self._value(n, index, constants) for n in step.inputs if n]
                step_codes[step.outputs[0]] = operator_of(step, NpuOp).reference(inputs)
            output_codes.append(step_codes[node.outputs[0]])
        self.codes[node.outputs[0]] = output_codes
        for name in dict.fromkeys(node.inputs):
            self._reads[name] -= 1
            if not self._reads[name] and name not in self._outputs:
                self.codes.pop(name, None)

    def _value(self, name: str, index: int, constants: Mapping[str, Array]) -> Array:
        """Return the codes of a tensor on one sample, or the constant of this name."""
        return self.codes[name][index] if name in self.codes else constants[name]


def _parts_of_states(graph: Graph, sample: Sample) -> dict[str, Array]:
    """Return the parts of the states by the model's tensor that cuts them out, where the chip stores a part separately."""
    parts = [(s.past, s.pair.past, s.part.first) for s in graph.states if s.part is not None]
    return {graph.origins[n].tensor: sample[past][at : at + graph.types[n].shape[0]] for n, past, at in parts}


def pick_resident_samples(network: Network, quantization: Quantization, samples: Iterable[Sample]) -> ResidentSamples:
    """Return as many samples as HELD_BYTES holds through a walk, at most SAMPLES, spread over all where their number is known.

    Some tensors are too large for so many samples only at the beginning, as in image networks; then the other samples join
    later.
    """
    order, integer = [node for part in partition_graph(network.graph) for node in part.nodes], network.integer(quantization)
    live = _live_bytes(order, integer)
    real = sum(network.model.types[name].size_bytes for name in network.model.graph.inputs)  # until they are codes
    each = max(live[0], real + sum(integer.types[name].size_bytes for name in integer.inputs))
    most, room = max(1, HELD_BYTES // each), HELD_BYTES // 2  # room: for one of what is there and what is run to there
    joins = next((i for i, size in enumerate(live) if SAMPLES * size <= room), None)
    every = spread_over(samples, SAMPLES if joins is not None else min(most, SAMPLES))
    count = every.size
    if count <= most or joins is None:
        return ResidentSamples(every)
    early = [is_spread(index, count, most) for index in range(count)]
    joining_nodes = frozenset(node.name for node in order[joins:])
    return ResidentSamples(
        pick_samples(every, early), pick_samples(every, [not one for one in early]), joining_nodes, max(1, room // each)
    )


def _live_bytes(order: Sequence[Node], integer: Graph) -> list[int]:
    """Return for each node the most bytes of one sample's tensors that are live at this node or later."""
    readers: dict[str, int] = {}
    for index, node in enumerate(order):
        readers |= dict.fromkeys(node.inputs, index)
    live: dict[str, int] = {n: integer.types[n].size_bytes for n in integer.inputs}
    peak_bytes = list[int]()
    for index, node in enumerate(order):
        live |= {name: integer.types[name].size_bytes for name in node.outputs if name in integer.types}
        peak_bytes.append(max(sum(live.values()), 1))
        live = {name: size for name, size in live.items() if readers.get(name, -1) > index}
    return list(accumulate(peak_bytes[::-1], max))[::-1]
