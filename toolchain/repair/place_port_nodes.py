"""Decide which nodes next to inputs and outputs the host computes while it converts codes, by the signal that parts keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.numerics import Numerics
from quant.float_session import FloatSession
from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.passes.port_nodes import PortChain, find_coded_products, find_port_chains
from toolchain.repair.network import Network
from toolchain.repair.port_noise import ModelPart, find_worst_part, round_to_codes, run_float
from toolchain.repair.port_scales import scale_outputs

_LOW_DB = 35.0  # docs/accuracy.md: a part at 30 dB by its port's codes alone is below that behind other layers
_GAIN_DB = 3.0  # docs/accuracy.md: half a bit
_SAME_DB = 0.5  # docs/accuracy.md: cuts that differ by less are alike, and the shorter one is taken


def place_port_nodes(network: Network, samples: Iterable[Sample], raw_ports: Collection[str] = ()) -> Network:
    """Return the network with the host computing nodes beside ports, where a part of the port's data gains by that.

    `raw_ports`: inputs and outputs that keep one affine scale, with all nodes beside them on the chip.
    """
    graph, model = network.model.graph, network.model
    raw = {n for n in (*graph.inputs, *graph.outputs) if model.name(n) in raw_ports}
    pinned = {n for pair in (*model.states, *model.states_asked) for n in pair} | raw
    chosen: list[PortChain] = []
    for candidates in find_port_chains(graph, pinned):
        cuts = [c for c in candidates if not _is_pinned(network, c)]
        if not cuts:
            continue
        values = run_float(model, _list_ends(cuts), samples)
        if values is None:
            continue
        figures = [_compare(model, chain, values, network.chip.numerics) for chain in cuts]
        best = max(host for _, host in figures)
        chain, (chip_db, host_db) = next(pair for pair in zip(cuts, figures, strict=True) if pair[1][1] >= best - _SAME_DB)
        if chip_db < _LOW_DB and host_db >= chip_db + _GAIN_DB:
            chosen.append(chain)
            network = network.host(chain.list_sources(graph) or (), _give_reason(model, chain, chip_db, host_db))
    return scale_outputs(network, find_coded_products(graph, chosen, pinned), samples)


def require_ports(network: Network, names: Sequence[str]) -> None:
    """Raise CompileError for a name of --raw-port that is no input or output of the model."""
    graph = network.model.graph
    ports = [network.model.name(n) for n in (*graph.inputs, *graph.outputs)]
    for name in names:
        if name not in ports:
            raise CompileError(f"--raw-port {name}: the model has no such input or output{suggestion(name, ports)}")


def _is_pinned(network: Network, chain: PortChain) -> bool:
    """Return whether the user or the file gives a type or scale to a tensor of the chain."""
    tensors = {chain.port, *(n for node in chain.nodes for n in (*node.inputs, *node.outputs))}
    names = {*network.types, *network.selection.types, *(network.selection.file_ranges.keys() - network.selection.fixed)}
    return not tensors.isdisjoint(names) or chain.list_sources(network.model.graph) is None


def _give_reason(model: NormalModel, chain: PortChain, chip_db: float, host_db: float) -> str:
    side = "input" if chain.is_input else "output"
    name, operations = model.name(chain.port), chain.count_operations(model.graph)
    return (
        f"part of the conversion of {side} {name}: by its port's codes the worst part has {host_db:.1f} dB, and {chip_db:.1f} "
        f"on the chip; costs the host {operations:.2g} operations an element; --raw-port {name} keeps it on the chip"
    )


def _list_ends(cuts: Sequence[PortChain]) -> list[str]:
    """Return the tensors at both ends of chains."""
    return list(dict.fromkeys(n for chain in cuts for n in (chain.port, *chain.boundary)))


def _compare(model: NormalModel, chain: PortChain, values: Mapping[str, np.ndarray], numerics: Numerics) -> tuple[float, float]:
    """Return the worst part's signal to noise in dB: with the chip's codes at both ends of the chain, and with the boundary's
    alone."""
    coded = {n: round_to_codes(values[n], numerics) for n in (chain.port, *chain.boundary)}
    session = FloatSession(ModelPart(chain.reads, model.normal_part), chain.results, few_runs=True)
    count = len(values[chain.port])
    rows = [session.run({n: np.asarray(coded[n][i]) for n in chain.reads}) for i in range(count)]
    results = {n: np.stack([row[i] for row in rows]) for i, n in enumerate(chain.results)}
    on_chip = {n: round_to_codes(value, numerics) for n, value in results.items()}
    hosted = coded if chain.is_input else results
    return find_worst_part(values, on_chip), find_worst_part(values, {n: hosted[n] for n in chain.results})
