"""Sample the rows that a layer reads at some places of its output, for rounding its weights (repair.weight_rounding).

A row is the part of the input that one output element is the product of, so rows times weights give outputs. Places are drawn
by layer and sample, the same in float and in integers. The addend of the layer's output is sampled at the same places.

HELD_BYTES bounds the float rows in memory at once, `_LAYER_BYTES` those of a layer. A layer has `_FEWEST_ROWS` rows, or
`_ROWS_EACH` for each input of an output where that is more.
"""

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
from quant.repair.choices import AS_IN_THE_MODEL, Quantization
from quant.repair.moments import ConvolutionWindow
from toolchain.ir.graph import INNER, Graph, Node
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.data_movement import Pad, Slice
from toolchain.ops.elementwise.select_elementwise import Binary
from toolchain.ops.kit.layout import channels_last
from toolchain.ops.kit.operator import Array, operator_of
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.passes.assign import assign_types
from toolchain.passes.fold_qdq import finest_codes
from toolchain.passes.quantize_context import node_scope
from toolchain.repair.network import Network
from toolchain.report.requantized_weights import has_file_codes

HELD_BYTES = 192 << 20  # of float rows at once
_LEAN_BYTES = 128 << 20  # of one sample's tensors, from where on a run gives back what it used
_FEWEST_ROWS = 4096
_ROWS_EACH = 8  # for each input of an output, that its Hessian be more than noise
_LAYER_BYTES = 96 << 20


@dataclass(frozen=True, eq=False)
class SampledRows:
    """A plan for sampling one tensor for a layer.

    `node`: the layer; `read`: the chip tensor that is sampled, of the shape `shape`.
    `window`: the kernel's window over it.
    `seed`: with the sample's number it decides the places.
    `samples`: the first so many samples are looked at, `most` places in each.
    `size_bytes`: bytes of the rows of all these samples.
    `tensor`, `moves`: the model's tensor, and the moves that make `read` of it. None: it is not made by moves alone, so that
    its float rows are not known.
    `addend`: the same for what the layer's output is added to, where the addend is computed before the output; else None.
    """

    node: Node
    read: str
    shape: tuple[int, ...]
    window: ConvolutionWindow
    seed: int
    samples: int
    most: int
    size_bytes: int
    tensor: str | None
    moves: tuple[Callable[[Array], Array], ...]
    addend: SampledRows | None = None

    def rows(self, x: Array, sample: int, zero: int, out: Array | None = None) -> Array:
        """Return the rows of a tensor as float32[groups, places, k], less `zero`; in `out` if given.

        `x`: the tensor in the chip's layout, in codes or real.
        """
        return self.window.rows(x.reshape(self.shape), self.most, (self.seed, sample), zero, out)


def sample_rows(network: Network, quantization: Quantization, samples: int) -> dict[str, SampledRows]:
    """Return the rows to sample for each convolution whose weights may be rounded, by node in the order of the graph.

    Layers that keep the codes of the model's file are left out. So are layers that share their weights, such as the steps of a
    recurrent layer, and weights in two bit slices, whose bits suffice.

    `samples`: number of samples to look at; places are divided among them.
    """
    graph, rows_by_layer, excluded = (
        network.graph,
        dict[str, SampledRows](),
        _find_shared_layers(network) | _find_sliced_layers(network, quantization),
    )
    added = _sums(graph)
    for seed, node in enumerate(graph.nodes):
        if not isinstance(node.op, Convolution) or node.name in excluded:
            continue
        if not has_file_codes(node, graph, quantization.file_weights, quantization.weight_types, network.chip):
            clamped = node.op.activation != (None, None)  # what a sum lacks might lie behind the clamp
            other = None if clamped else added.get(node.outputs[0])
            rows_by_layer[node.name] = _place(node, node.op, seed, network, samples, other)
    return rows_by_layer


def _find_shared_layers(network: Network) -> set[str]:
    """Return the layers whose weights equal those of another layer to the last bit."""
    readers: dict[bytes, list[str]] = {}
    for node in network.weighted:
        weights = network.graph.constants[node.inputs[1]]
        readers.setdefault(sha256(repr(weights.shape).encode() + weights.tobytes()).digest(), []).append(node.name)
    return {name for names in readers.values() if len(names) > 1 for name in names}


def _find_sliced_layers(network: Network, quantization: Quantization) -> set[str]:
    """Return the layers whose weights are in bit slices: only weights of the compiler, or of a type that the user set, can
    be."""
    graph, chip = network.graph, network.chip
    types, sliced_layers = assign_types(graph, chip, quantization.types), set[str]()
    for node in network.weighted:
        if node.name in quantization.compiler_weights or node.name in quantization.weight_types:
            chosen, codes = quantization.layers.get(node.name, AS_IN_THE_MODEL), types[node.inputs[0]]
            scope = node_scope(graph, chip, types, {}, quantization, node, chosen)
            slicing = operator_of(node, Convolution).choose_slicing(node, finest_codes(chip) if codes.is_wide else codes, scope)
            sliced_layers |= {node.name} if slicing.most > 1 else set()
    return sliced_layers


def _place(node: Node, op: Convolution, seed: int, network: Network, samples: int, other: str | None) -> SampledRows:
    """Return the plan for a layer: so many places that its Hessian is more than noise, within _LAYER_BYTES. other: the addend's
    tensor."""
    _, kh, kw, inner = network.graph.constants[node.inputs[1]].shape
    row_bytes = 4 * kh * kw * inner * op.groups
    rows = max(1, min(max(_FEWEST_ROWS, _ROWS_EACH * kh * kw * inner), _LAYER_BYTES // row_bytes))
    n, oh, ow, _ = network.graph.types[node.outputs[0]].shape
    most = min(-(-rows // samples), n * oh * ow)
    window = ConvolutionWindow((kh, kw), op.strides, op.pads, op.dilations, op.groups)
    size_bytes, shape = most * samples * row_bytes, network.graph.types[node.inputs[0]].shape
    way = _way(node.inputs[0], network.graph, network.origins)
    sampled = SampledRows(node, node.inputs[0], shape, window, seed, samples, most, size_bytes, *way)
    return sampled if other is None else replace(sampled, addend=_sample_addend_rows(sampled, other, network, samples))


def _sums(graph: Graph) -> dict[str, str]:
    """Return the addend of each tensor whose only consumer is a sum with a tensor that is computed earlier.
    The addend may have another shape.
    """
    producers, readers = graph.producers(), graph.consumers()
    order = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs}
    addend_by_tensor: dict[str, str] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Binary) or node.op.kind != "add" or graph.constants.keys() & set(node.inputs):
            continue
        for term, other in (node.inputs, node.inputs[::-1]):
            if graph.types[term].shape != graph.types[other].shape or not graph.read_once(term, readers):
                continue
            while other in producers and isinstance(producers[other].op, Reshape):
                other = producers[other].inputs[0]
            if order.get(other, -1) < order.get(term, -1):
                addend_by_tensor[term] = other
    return addend_by_tensor


def _sample_addend_rows(place: SampledRows, other: str, network: Network, samples: int) -> SampledRows:
    """Return the plan for the addend of a layer's output, at the same places."""
    shape = network.graph.types[place.node.outputs[0]].shape
    window, size_bytes = ConvolutionWindow((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1), 4 * place.most * samples * shape[3]
    tensor, moves = _way(other, network.graph, network.origins)
    return replace(place, read=other, shape=shape, window=window, size_bytes=size_bytes, tensor=tensor, moves=moves)


def _way(
    tensor: str, graph: Graph, origins: Mapping[str, tuple[str, str]]
) -> tuple[str | None, tuple[Callable[[Array], Array], ...]]:
    """Return the model's tensor that a chip tensor is made of by moves alone, and these moves; None where there is none."""
    producers = graph.producers()
    moves: list[Callable[[Array], Array]] = []
    while origins[tensor][1] == INNER:
        node = producers[tensor]
        if isinstance(node.op, Reshape | Transpose | Slice):
            moves.append(_make_move(node.op))
        elif isinstance(node.op, Pad):
            moves.append(_make_padding(node.op))
        else:
            return None, ()
        tensor = node.inputs[0]
    model, layout = origins[tensor]
    first: list[Callable[[Array], Array]] = [lambda x: x.transpose(channels_last(x.ndim))] if layout == "nhwc" else []
    return model, (*first, *reversed(moves))


def _make_move(op: Any) -> Callable[[Array], Array]:
    return lambda x: op.reference([x])


def _make_padding(op: Pad) -> Callable[[Array], Array]:
    return lambda x: np.pad(x, tuple(zip(op.before, op.after)), constant_values=op.value)


class Rows:
    """The rows of a layer over `samples`: `all` is float32[groups, rows, k], in the order of the samples, filled by `put`."""

    def __init__(self, place: SampledRows, samples: int) -> None:
        self._place, self._samples = place, samples
        self.all = np.zeros((0, 0, 0), np.float32)

    def put(self, x: Array, sample: int, zero: int) -> None:
        """Store the rows of one sample.

        `x`, `zero`: as in `SampledRows.rows`.
        """
        place = self._place
        if not self.all.size:
            k = math.prod(place.window.kernel) * place.shape[3] // place.window.groups
            self.all = np.empty((place.window.groups, place.most * self._samples, k), np.float32)
        place.rows(x, sample, zero, self.all[:, place.most * sample : place.most * (sample + 1)])


class FloatRows:
    """The float rows of layers, to be taken in the layers' order; each run computes as many of the next ones as memory
    holds."""

    def __init__(self, network: Network, samples: Iterable[Sample], rows_by_layer: Mapping[str, SampledRows]):
        self._network, self._samples = network, samples
        self._waiting = [
            p for place in rows_by_layer.values() for p in (place, place.addend) if p is not None and p.tensor is not None
        ]
        self._pending_rows: dict[SampledRows, Rows | list[Array]] = {}

    def take(self, place: SampledRows) -> Array | None:
        """Return float32[groups, rows, k] over all samples, in their order; None where float's input is not known.

        Each plan can be taken once, and in the order in which the plans were given.
        """
        if place.tensor is None:
            return None
        while place not in self._pending_rows:
            self._compute()
        layer_rows = self._pending_rows.pop(place)
        return layer_rows.all if isinstance(layer_rows, Rows) else self._rows(place, layer_rows).all

    def _rows(self, place: SampledRows, tensors: Sequence[Array]) -> Rows:
        """Return the rows of a plan from the float tensors of all samples."""
        rows = Rows(place, place.samples)
        for index, x in enumerate(tensors):
            rows.put(x, index, 0)
        return rows

    def _size_bytes(self, place: SampledRows) -> int:
        """Return the bytes of the rows, or of the tensor itself where windows overlap so much that it is smaller."""
        return min(place.size_bytes, self._tensor_bytes(place))

    def _tensor_bytes(self, place: SampledRows) -> int:
        """Return the bytes of the plan's tensor in float32 over its samples."""
        return 4 * math.prod(place.shape) * place.samples

    def _compute(self) -> None:
        """Run float on all samples for the next plans, as many as HELD_BYTES holds."""
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
            self._pending_rows[place] = [] if self._tensor_bytes(place) < place.size_bytes else Rows(place, place.samples)
        for index, sample in enumerate(islice(self._samples, samples)):
            values = dict(zip(names, session.run(sample)))
            for place in group:
                assert place.tensor is not None
                x = values[place.tensor]
                for move in place.moves:
                    x = move(x)
                layer_rows, x = self._pending_rows[place], np.ascontiguousarray(x, np.float32)
                if isinstance(layer_rows, Rows):
                    layer_rows.put(x, index, 0)
                else:
                    layer_rows.append(x)
