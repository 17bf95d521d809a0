"""Leave a Softmax that makes an output to the host, where its rows are too long for the chip's softmax of 16 bits.

That softmax counts each score that is 10 or more below the largest as exp(-10) in codes, 6.1e-5, as TFLite's does. In a row of
6,625 classes these add up to 0.4, so that a class of probability 1 gets 0.71. It runs before calibration, on a few float
samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from quant.fidelity import decibels
from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.curves.softmax import softmax16, softmax16_tables
from toolchain.errors import format_count
from toolchain.frontend.source_names import MOVES
from toolchain.ir.graph import OnnxGraph, OnnxNode
from toolchain.repair.network import Network
from toolchain.repair.port_noise import FEW_SAMPLES, GAIN_DB, POOR_DB, find_nearest_codes, round_to_codes, run_float


@dataclass(frozen=True)
class _LongSoftmax:
    """A Softmax over long rows that makes an output.

    `moves`: data movement between it and the output.
    `codes`: type of its codes on the chip.
    """

    node: OnnxNode
    moves: tuple[OnnxNode, ...]
    codes: CodeType

    def list_sources(self) -> set[str]:
        """Return the nodes of the model that the Softmax and its moves stand for."""
        return {s for n in (self.node, *self.moves) for s in n.sources or (n.name,)}


def place_output_softmaxes(network: Network, samples: Iterable[Sample], raw_ports: Collection[str] = ()) -> Network:
    """Return the network with each such Softmax on the host whose probabilities are poor on the chip and gain on the host.

    Poor is an SQNR below POOR_DB; the gain must be GAIN_DB or more.

    `samples`: start afresh each time that they are iterated, once for each candidate; the first FEW_SAMPLES are read.
    `raw_ports`: names in the file of outputs that give codes (`--raw-port`) and so stay on the chip.
    A Softmax stays too where the user gave a type or a scale to it or to its neighbours. A network without change is returned.
    """
    for softmax in _list_candidates(network, raw_ports):
        levels = _compare(network, softmax, samples)
        if levels is None or levels[0] >= POOR_DB or levels[1] < levels[0] + GAIN_DB:
            continue
        chip_db, host_db = levels
        output = softmax.node.outputs[0]
        columns, name = format_count(network.model.types[output].shape[-1], "column"), network.model.name(output)
        reason = (
            f"a softmax of 16 bits counts no score as less than exp(-10): rows of {columns} have {chip_db:.1f} dB on the "
            f"chip and {host_db:.1f} on the host; --type {name}=int16 keeps it on the chip"
        )
        network = network.host(softmax.list_sources(), reason)
    return network


def _list_candidates(network: Network, raw_ports: Collection[str]) -> list[_LongSoftmax]:
    """Return each Softmax in 16 bits over long rows that makes an output, where nobody gives a type or a scale."""
    model, types, on_chip = network.model, network.code_types, {*network.chip_tensors}
    pinned = {*network.types, *network.selection.types, *(network.selection.file_ranges.keys() - network.selection.fixed)}
    pinned |= {n for n in model.graph.outputs if model.name(n) in raw_ports}
    least_exponential = softmax16_tables()[0][0] * 2.0**-15
    candidates: list[_LongSoftmax] = []
    for node in model.graph.nodes:
        if node.op.op_type != "Softmax" or node.outputs[0] not in on_chip:
            continue
        columns, moves = model.types[node.outputs[0]].shape[-1], _list_moves_to_output(model.graph, node.outputs[0])
        if moves is None or columns * least_exponential <= 10 ** (-POOR_DB / 20):
            continue
        tensors = [n for one in (node, *moves) for n in (*one.inputs, *one.outputs)]
        codes = max((types[n] for n in tensors if n in types), key=lambda t: t.bits)
        if codes.bits > 8 and pinned.isdisjoint(tensors):
            candidates.append(_LongSoftmax(node, moves, codes))
    return candidates


def _list_moves_to_output(graph: OnnxGraph, tensor: str) -> tuple[OnnxNode, ...] | None:
    """Return the data movement between a tensor and the outputs, or None where anything else reads the tensor."""
    reached, moves = {tensor}, list[OnnxNode]()
    for node in graph.nodes:
        if not reached.isdisjoint(node.inputs):
            if node.op.op_type not in MOVES:
                return None
            reached.update(node.outputs)
            moves.append(node)
    return tuple(moves) if reached.intersection(graph.outputs) else None


def _compare(network: Network, softmax: _LongSoftmax, samples: Iterable[Sample]) -> tuple[float, float] | None:
    """Return the SQNR in dB of the probabilities, on the chip and on the host; None where values are not finite.

    The host gets scores that are rounded to the machine's own codes.
    """
    (scores,), (output,) = softmax.node.inputs, softmax.node.outputs
    values = run_float(network.model, (scores, output), samples, FEW_SAMPLES)
    if values is None:
        return None
    narrow = network.chip.numerics
    wide = narrow.of(softmax.codes)
    signal, noise = 0.0, np.zeros(2)
    for x, exact in zip(values[scores], values[output], strict=True):
        signal += float(np.square(exact, dtype=np.float64).sum())
        probabilities = (_compute_on_chip(x, wide), _compute_softmax(round_to_codes(x, narrow)))
        noise += [float(np.square(p - exact).sum()) for p in probabilities]
    chip_db, host_db = (decibels(signal, float(n)) for n in noise)
    return chip_db, host_db


def _compute_on_chip(scores: np.ndarray, numerics: Numerics) -> np.ndarray:
    """Return the probabilities that a softmax of 16 bits makes of scores in codes."""
    codes, quant = find_nearest_codes(scores, numerics)
    return softmax16(codes.astype(np.int16), float(quant.scale)) * 2.0**-15


def _compute_softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis in float64."""
    power = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))
