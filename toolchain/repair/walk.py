"""The integer reference, node after node over all samples: each node sees what the ones before it, repaired already, give."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from quant.fixed_point.core.codes import CodeType
from quant.float_session import open_session
from quant.repair.step import AS_IN_THE_MODEL, LayerParameters, Quantization
from quant.sample import Sample
from toolchain.codegen import Port, island
from toolchain.codegen.link import port_at
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.ops.kit.operator import Array, NpuOp, operator_of
from toolchain.passes.node_scope import integer_nodes, node_scope
from toolchain.passes.segments import Segment, segments
from toolchain.repair.folds import spread_over
from toolchain.repair.network import Network
from toolchain.runtime.ports import fed, to_codes, to_real

HELD_BYTES = 512 << 20  # of all samples' live tensors
SAMPLES = 256  # of more the rows of a layer would not tell more: there are eight for each of its inputs

# A layer before it is quantized, and the codes of all tensors that are live then, over all samples -> its parameters.
Choose = Callable[[Node, Mapping[str, Sequence[Array]]], LayerParameters]


def walk(network: Network, given: Quantization, samples: Sequence[Sample], choose: Choose) -> dict[str, LayerParameters]:
    """Chooses the parameters of every chip node in turn, by name; those of `given` are where it starts."""
    integer = network.integer(given)
    quants = {name: t.quant for name, t in integer.types.items() if t.quant is not None}
    found: dict[str, LayerParameters] = dict(given.layers)
    values = _Values(network, given, integer, samples)
    parts = segments(network.graph)
    for index, part in enumerate(parts):
        values.keep(parts[index:])
        if not part.on_chip:
            values.run_island(part)
            continue
        values.enter(part)
        for node in part.nodes:
            chosen = choose(node, values.codes)
            if chosen is not AS_IN_THE_MODEL:
                found[node.name] = chosen
            values.run(node, quants, chosen, part.outputs)
        values.leave(part, parts[index + 1 :])
    return found


class _Values:
    """What is live of each sample: `codes` by chip tensor, `real` by the model's tensors that the host makes or reads."""

    def __init__(self, network: Network, given: Quantization, integer: Graph, samples: Sequence[Sample]):
        self._network, self._given, self._integer = network, given, integer
        self._types = {name: CodeType(t.dtype) for name, t in integer.types.items() if t.quant is not None}
        self.codes: dict[str, list[Array]] = {}
        self.real: list[dict[str, Array]] = [{**s, **_parts_of_states(integer, s)} for s in samples]
        self._reads: dict[str, int] = {}
        for node in network.graph.nodes:
            for name in dict.fromkeys(node.inputs):
                self._reads[name] = self._reads.get(name, 0) + 1

    def _port(self, tensor: str) -> Port:
        return port_at(0, tensor, self._integer)

    def keep(self, parts: Sequence[Segment]) -> None:
        """Of the real values those that these parts read."""
        read = {n for part in parts for n in part.inputs}
        read |= {self._port(n).model for part in parts if part.on_chip for n in part.inputs}
        self.real = [{n: x for n, x in real.items() if n in read} for real in self.real]

    def run_island(self, part: Segment) -> None:
        session = open_session(island(self._network.model, part).model)
        for real in self.real:
            real.update(zip(part.outputs, session.run(list(part.outputs), fed(session, part.inputs, real))))

    def enter(self, part: Segment) -> None:
        for name in part.inputs:
            if name not in self.codes:
                port = self._port(name)
                self.codes[name] = [to_codes(real[port.model], port) for real in self.real]

    def leave(self, part: Segment, later: Sequence[Segment]) -> None:
        read = {n for p in later if not p.on_chip for n in p.inputs}
        for name in part.outputs:
            port = self._port(name)
            if port.model in read:
                for real, codes in zip(self.real, self.codes[name]):
                    real[port.model] = to_real(codes, port)
            if not self._reads.get(name):
                del self.codes[name]

    def run(self, node: Node, quants: Mapping[str, Quant], chosen: LayerParameters, kept: Collection[str]) -> None:
        """kept: what is asked for behind the last chip node that reads it."""
        network = self._network
        scope = node_scope(network.graph, network.chip, self._types, quants, self._given, node, chosen)
        nodes = integer_nodes(node, scope)
        constants = {**network.graph.constants, **scope.constants}
        made: list[Array] = []
        for index in range(len(self.real)):
            own: dict[str, Array] = {}
            for step in nodes:
                inputs = [own[n] if n in own else self._value(n, index, constants) for n in step.inputs if n]
                own[step.outputs[0]] = operator_of(step, NpuOp).reference(inputs)
            made.append(own[node.outputs[0]])
        self.codes[node.outputs[0]] = made
        for name in dict.fromkeys(node.inputs):
            self._reads[name] -= 1
            if not self._reads[name] and name not in kept:
                self.codes.pop(name, None)

    def _value(self, name: str, index: int, constants: Mapping[str, Array]) -> Array:
        return self.codes[name][index] if name in self.codes else constants[name]


def _parts_of_states(graph: Graph, sample: Sample) -> dict[str, Array]:
    """By the model's tensor that a cut of a state makes, where the chip keeps it apart."""
    parts = [(s.past, s.pair.past, s.part.first) for s in graph.states if s.part is not None]
    return {graph.origins[n].tensor: sample[past][at : at + graph.types[n].shape[0]] for n, past, at in parts}


def held_samples(network: Network, given: Quantization, samples: Iterable[Sample]) -> list[Sample]:
    """As many as memory holds through a walk, at most SAMPLES, spread over the whole where that is known."""
    return spread_over(samples, max(1, min(SAMPLES, HELD_BYTES // _peak_bytes(network.integer(given)))))


def _peak_bytes(integer: Graph) -> int:
    """The most that is live at a node of one sample."""
    reads: dict[str, int] = {}
    for node in integer.nodes:
        for name in dict.fromkeys(node.inputs):
            reads[name] = reads.get(name, 0) + 1
    live: dict[str, int] = {n: integer.types[n].size_bytes for n in integer.inputs}
    peak = sum(live.values())
    for node in integer.nodes:
        for name in node.outputs:
            if name:
                live[name] = integer.types[name].size_bytes
        peak = max(peak, sum(live.values()))
        for name in dict.fromkeys(node.inputs):
            reads[name] -= 1
            if not reads[name]:
                live.pop(name, None)
    return max(peak, 1)
