"""What layers read in float, at the places where they are looked at: some of the output's, drawn by layer and sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from quant.float_session import FloatSession
from quant.repair.moments import Window
from quant.repair.step import Quantization
from quant.sample import Sample
from toolchain.ir.graph import INNER, Graph, Node
from toolchain.ops.convolution.rules import Convolution
from toolchain.ops.kit.layout import NHWC
from toolchain.ops.kit.operator import Array
from toolchain.ops.movement import Pad, Slice
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.repair.network import Network
from toolchain.report.kept import has_file_codes

HELD_BYTES = 192 << 20  # of float rows at once
_FEWEST_ROWS = 8192
_ROWS_EACH = 8  # for each input of an output, that its Hessian be more than noise
_LAYER_BYTES = 96 << 20


@dataclass(frozen=True)
class Place:
    """A layer and how it is looked at. tensor, moves: what it reads, as made from the model's tensor; None: by no way we know."""

    node: Node
    window: Window
    seed: int
    most: int  # places of each sample
    size_bytes: int  # of the rows of all samples
    tensor: str | None
    moves: tuple[Callable[[Array], Array], ...]

    def rows(self, x: Array, sample: int, zero: int) -> Array:
        """x: what the layer reads, as the chip has it, in codes or real -> float32[groups, places, k], less `zero`."""
        return self.window.rows(x, self.most, (self.seed, sample), zero)


def places(network: Network, given: Quantization, samples: int) -> dict[str, Place]:
    """By convolution, in the graph's order. Those that have the codes of the model's file have none, they are taken as they are;
    nor have weights that several layers read, as the steps of a recurrent one do: the chip holds them once. Weights in two planes
    are as near as their bits come."""
    graph, found, left = network.graph, dict[str, Place](), _shared(network) | _in_planes(network, given)
    for seed, node in enumerate(graph.nodes):
        if not isinstance(node.op, Convolution) or node.name in left:
            continue
        if not has_file_codes(node, graph, given.held, given.weight_types, network.chip):
            found[node.name] = _place(node, node.op, seed, network, samples)
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


def _place(node: Node, op: Convolution, seed: int, network: Network, samples: int) -> Place:
    _, kh, kw, inner = network.graph.constants[node.inputs[1]].shape
    row_bytes = 4 * kh * kw * inner * op.groups
    rows = max(1, min(max(_FEWEST_ROWS, _ROWS_EACH * kh * kw * inner), _LAYER_BYTES // row_bytes))
    n, oh, ow, _ = network.graph.types[node.outputs[0]].shape
    most = min(-(-rows // samples), n * oh * ow)
    window = Window((kh, kw), op.strides, op.pads, op.dilations, op.groups)
    tensor, moves = _way(node.inputs[0], network.graph, network.origins)
    return Place(node, window, seed, most, most * samples * row_bytes, tensor, moves)


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
    first: list[Callable[[Array], Array]] = [lambda x: x.transpose(NHWC)] if layout == "nhwc" else []
    return model, (*first, *reversed(moves))


def _moved(op: Any) -> Callable[[Array], Array]:
    return lambda x: op.reference([x])


def _padded(op: Pad) -> Callable[[Array], Array]:
    return lambda x: np.pad(x, tuple(zip(op.before, op.after)), constant_values=op.value)


class Rows:
    """The rows of a layer over `samples`, in their order: `all` is float32[groups, rows, k], filled sample by sample."""

    def __init__(self, place: Place, samples: int) -> None:
        self._place, self._samples = place, samples
        self.all = np.zeros((0, 0, 0), np.float32)

    def put(self, x: Array, sample: int, zero: int) -> None:
        """x, zero: as of `Place.rows`."""
        found = self._place.rows(x, sample, zero)
        groups, count, k = found.shape
        if not self.all.size:
            self.all = np.empty((groups, count * self._samples, k), np.float32)
        self.all[:, count * sample : count * (sample + 1)] = found


class FloatRows:
    """The float rows of one layer after the other, computed for as many of the next ones as memory holds."""

    def __init__(self, network: Network, samples: Sequence[Sample], found: Mapping[str, Place]):
        self._network, self._samples = network, samples
        self._waiting = [p for p in found.values() if p.tensor is not None]
        self._held: dict[str, Array] = {}

    def take(self, place: Place) -> Array | None:
        """float32[groups, rows, k] over all samples, in their order; None where float's input is not known. Once for each."""
        if place.tensor is None:
            return None
        if place.node.name not in self._held:
            self._compute()
        return self._held.pop(place.node.name)

    def _compute(self) -> None:
        group = [self._waiting.pop(0)]
        room = HELD_BYTES - group[0].size_bytes
        while self._waiting and self._waiting[0].size_bytes <= room:
            room -= self._waiting[0].size_bytes
            group.append(self._waiting.pop(0))
        names = list(dict.fromkeys(p.tensor for p in group if p.tensor is not None))
        session = FloatSession(self._network.model, names, lean=True)
        rows = {p.node.name: Rows(p, len(self._samples)) for p in group}
        for index, sample in enumerate(self._samples):
            values = dict(zip(names, session.run(sample)))
            for place in group:
                assert place.tensor is not None
                x = values[place.tensor]
                for move in place.moves:
                    x = move(x)
                rows[place.node.name].put(np.ascontiguousarray(x, np.float32), index, 0)
        self._held |= {name: held.all for name, held in rows.items()}
