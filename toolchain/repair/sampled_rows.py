"""What layers read, and what their outputs are added to, in float, at some places of the output, drawn by layer and sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np

from quant.fit_sample import Sample
from quant.float_session import FloatSession
from quant.repair.choices import Quantization
from quant.repair.moments import ConvolutionWindow
from toolchain.ir.graph import INNER, Graph, Node
from toolchain.ops.convolution.rules import Convolution
from toolchain.ops.data_movement import Pad, Slice
from toolchain.ops.elementwise.rules import Binary
from toolchain.ops.kit.layout import channels_last
from toolchain.ops.kit.operator import Array
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.repair.network import Network
from toolchain.report.requantized_weights import has_file_codes

HELD_BYTES = 192 << 20  # of float rows at once
_LEAN_BYTES = 128 << 20  # of one sample's tensors, from where on a run gives back what it used
_FEWEST_ROWS = 4096
_ROWS_EACH = 8  # for each input of an output, that its Hessian be more than noise
_LAYER_BYTES = 96 << 20


@dataclass(frozen=True, eq=False)
class SampledRows:
    """A tensor and how it is looked at for a layer. tensor, moves: how it is made from the model's tensor; None: by no way we
    know. beside: of what the layer's output is added to, at the same places of it, where that is made before it."""

    node: Node
    read: str
    shape: tuple[int, ...]
    window: ConvolutionWindow
    seed: int
    samples: int  # that it is looked at in: the first so many
    most: int  # places of each sample
    size_bytes: int  # of the rows of all these samples
    tensor: str | None
    moves: tuple[Callable[[Array], Array], ...]
    beside: SampledRows | None = None

    def rows(self, x: Array, sample: int, zero: int, out: Array | None = None) -> Array:
        """x: the tensor, as the chip has it, in codes or real -> float32[groups, places, k], less `zero`; in `out` if given."""
        return self.window.rows(x.reshape(self.shape), self.most, (self.seed, sample), zero, out)


def sample_rows(network: Network, given: Quantization, samples: int) -> dict[str, SampledRows]:
    """By convolution, in the graph's order. Those that have the codes of the model's file have none, they are taken as they are;
    nor have weights that several layers read, as the steps of a recurrent one do: the chip holds them once. Weights in two planes
    are as near as their bits come."""
    graph, found, left = network.graph, dict[str, SampledRows](), _shared(network) | _in_planes(network, given)
    added = _sums(graph)
    for seed, node in enumerate(graph.nodes):
        if not isinstance(node.op, Convolution) or node.name in left:
            continue
        if not has_file_codes(node, graph, given.held, given.weight_types, network.chip):
            clamped = node.op.activation != (None, None)  # what a sum lacks might lie behind the clamp
            other = None if clamped else added.get(node.outputs[0])
            found[node.name] = _place(node, node.op, seed, network, samples, other)
    return found


def _shared(network: Network) -> set[str]:
    """Layers whose weights are another's too, to the last bit."""
    readers: dict[bytes, list[str]] = {}
    for node in network.weighted:
        weights = network.graph.constants[node.inputs[1]]
        readers.setdefault(sha256(repr(weights.shape).encode() + weights.tobytes()).digest(), []).append(node.name)
    return {name for names in readers.values() if len(names) > 1 for name in names}


def _in_planes(network: Network, given: Quantization) -> set[str]:
    wide = network.chip.numerics.wide_weights
    return {name for name, codes in given.weight_types.items() if codes in wide}


def _place(node: Node, op: Convolution, seed: int, network: Network, samples: int, other: str | None) -> SampledRows:
    _, kh, kw, inner = network.graph.constants[node.inputs[1]].shape
    row_bytes = 4 * kh * kw * inner * op.groups
    rows = max(1, min(max(_FEWEST_ROWS, _ROWS_EACH * kh * kw * inner), _LAYER_BYTES // row_bytes))
    n, oh, ow, _ = network.graph.types[node.outputs[0]].shape
    most = min(-(-rows // samples), n * oh * ow)
    window = ConvolutionWindow((kh, kw), op.strides, op.pads, op.dilations, op.groups)
    size_bytes, shape = most * samples * row_bytes, network.graph.types[node.inputs[0]].shape
    way = _way(node.inputs[0], network.graph, network.origins)
    made = SampledRows(node, node.inputs[0], shape, window, seed, samples, most, size_bytes, *way)
    return made if other is None else replace(made, beside=_beside(made, other, network, samples))


def _sums(graph: Graph) -> dict[str, str]:
    """What is read once, by a sum with a tensor that is made before it -> that tensor, of another shape perhaps."""
    producers, readers = graph.producers(), graph.consumers()
    order = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs}
    found: dict[str, str] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Binary) or node.op.kind != "add" or graph.constants.keys() & set(node.inputs):
            continue
        for made, other in (node.inputs, node.inputs[::-1]):
            if graph.types[made].shape != graph.types[other].shape or not graph.read_once(made, readers):
                continue
            while other in producers and isinstance(producers[other].op, Reshape):
                other = producers[other].inputs[0]
            if order.get(other, -1) < order.get(made, -1):
                found[made] = other
    return found


def _beside(place: SampledRows, other: str, network: Network, samples: int) -> SampledRows:
    shape = network.graph.types[place.node.outputs[0]].shape
    window, size_bytes = ConvolutionWindow((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1), 4 * place.most * samples * shape[3]
    tensor, moves = _way(other, network.graph, network.origins)
    return replace(place, read=other, shape=shape, window=window, size_bytes=size_bytes, tensor=tensor, moves=moves)


def _way(
    tensor: str, graph: Graph, origins: Mapping[str, tuple[str, str]]
) -> tuple[str | None, tuple[Callable[[Array], Array], ...]]:
    """The model's tensor that a chip tensor is made of by moves alone, and these."""
    producers = graph.producers()
    moves: list[Callable[[Array], Array]] = []
    while origins[tensor][1] == INNER:
        node = producers[tensor]
        if isinstance(node.op, Reshape | Transpose | Slice):
            moves.append(_moved(node.op))
        elif isinstance(node.op, Pad):
            moves.append(_padded(node.op))
        else:
            return None, ()
        tensor = node.inputs[0]
    model, layout = origins[tensor]
    first: list[Callable[[Array], Array]] = [lambda x: x.transpose(channels_last(x.ndim))] if layout == "nhwc" else []
    return model, (*first, *reversed(moves))


def _moved(op: Any) -> Callable[[Array], Array]:
    return lambda x: op.reference([x])


def _padded(op: Pad) -> Callable[[Array], Array]:
    return lambda x: np.pad(x, tuple(zip(op.before, op.after)), constant_values=op.value)


class Rows:
    """The rows of a layer over `samples`, in their order: `all` is float32[groups, rows, k], filled sample by sample."""

    def __init__(self, place: SampledRows, samples: int) -> None:
        self._place, self._samples = place, samples
        self.all = np.zeros((0, 0, 0), np.float32)

    def put(self, x: Array, sample: int, zero: int) -> None:
        """x, zero: as of `Place.rows`."""
        place = self._place
        if not self.all.size:
            k = math.prod(place.window.kernel) * place.shape[3] // place.window.groups
            self.all = np.empty((place.window.groups, place.most * self._samples, k), np.float32)
        place.rows(x, sample, zero, self.all[:, place.most * sample : place.most * (sample + 1)])


class FloatRows:
    """The float rows of one layer after the other, computed for as many of the next ones as memory holds."""

    def __init__(self, network: Network, samples: Iterable[Sample], found: Mapping[str, SampledRows]):
        self._network, self._samples = network, samples
        self._waiting = [p for place in found.values() for p in (place, place.beside) if p is not None and p.tensor is not None]
        self._held: dict[SampledRows, Rows | list[Array]] = {}

    def take(self, place: SampledRows) -> Array | None:
        """float32[groups, rows, k] over all samples, in their order; None where float's input is not known. Once for each."""
        if place.tensor is None:
            return None
        while place not in self._held:
            self._compute()
        held = self._held.pop(place)
        return held.all if isinstance(held, Rows) else self._rows(place, held).all

    def _rows(self, place: SampledRows, tensors: Sequence[Array]) -> Rows:
        rows = Rows(place, place.samples)
        for index, x in enumerate(tensors):
            rows.put(x, index, 0)
        return rows

    def _size_bytes(self, place: SampledRows) -> int:
        """Of its rows, or of the tensor itself where windows overlap so much that it is smaller."""
        return min(place.size_bytes, self._tensor_bytes(place))

    def _tensor_bytes(self, place: SampledRows) -> int:
        return 4 * math.prod(place.shape) * place.samples

    def _compute(self) -> None:
        group = [self._waiting.pop(0)]
        room = HELD_BYTES - self._size_bytes(group[0])
        samples = group[0].samples
        while self._waiting and self._waiting[0].samples == samples and self._size_bytes(self._waiting[0]) <= room:
            room -= self._size_bytes(self._waiting[0])
            group.append(self._waiting.pop(0))
        names = list(dict.fromkeys(p.tensor for p in group if p.tensor is not None))
        one = sum({p.tensor: self._tensor_bytes(p) for p in group}.values()) // samples
        session = FloatSession(self._network.model, names, lean=one > _LEAN_BYTES)
        for place in group:
            self._held[place] = [] if self._tensor_bytes(place) < place.size_bytes else Rows(place, place.samples)
        for index, sample in enumerate(islice(self._samples, samples)):
            values = dict(zip(names, session.run(sample)))
            for place in group:
                assert place.tensor is not None
                x = values[place.tensor]
                for move in place.moves:
                    x = move(x)
                held, x = self._held[place], np.ascontiguousarray(x, np.float32)
                if isinstance(held, Rows):
                    held.put(x, index, 0)
                else:
                    held.append(x)
