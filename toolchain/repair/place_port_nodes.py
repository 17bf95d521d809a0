"""Decide which nodes next to inputs and outputs the host computes while it converts codes, by the signal that parts keep.

It runs before calibration, on a few float samples. A chain of nodes at a port goes to the host where codes at its far end keep
more of the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.numerics import Numerics
from quant.float_session import FloatSession
from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.ir.graph import OnnxGraph
from toolchain.passes.port_nodes import CodedProduct, PortChain, find_coded_products, find_port_chains
from toolchain.repair.input_scales import scale_inputs
from toolchain.repair.network import Network
from toolchain.repair.port_noise import (
    FEW_SAMPLES,
    GAIN_DB,
    LOW_DB,
    POOR_DB,
    SAME_DB,
    ModelPart,
    PartLevels,
    list_part_axes,
    measure_parts,
    round_to_codes,
    run_float,
)
from toolchain.repair.port_scales import is_poor_product, scale_outputs

_FREE_GAIN_DB = 4.0  # docs/accuracy.md: one rounding less is 3 dB where parts are alike
_MOST_CROSSING = 1.1  # docs/accuracy.md: of elements that cross between host and chip


def place_port_nodes(network: Network, samples: Iterable[Sample], raw_ports: Collection[str] = ()) -> Network:
    """Return the network with the host computing nodes beside ports, and with scales by channel (repair.input_scales,
    repair.port_scales).

    Ports of states, and those whose type or scale somebody gives, stay as they are. So does a port whose values are not finite.

    `samples`: iterated once for each port, so no iterator.
    `raw_ports`: names in the file of inputs and outputs that keep one affine scale, with all nodes beside them on the chip.
    """
    graph, model = network.model.graph, network.model
    raw = {n for n in (*graph.inputs, *graph.outputs) if model.name(n) in raw_ports}
    pinned = {n for pair in (*model.states, *model.states_asked) for n in pair} | raw
    network = scale_inputs(network, samples, pinned)
    graph, model = network.model.graph, network.model
    pinned |= {*graph.inputs, *graph.outputs} - _find_poor_ports(network, pinned, samples)
    chosen: list[PortChain] = []
    for cuts in _list_cuts(network, pinned):
        values = run_float(model, _list_ends(cuts), samples)
        if values is None:
            continue
        figures = [_compare(model, chain, values, network.chip.numerics) for chain in cuts]
        best = max(host.worst for _, host in figures)
        chain, (chip, host) = next(pair for pair in zip(cuts, figures, strict=True) if pair[1][1].worst >= best - SAME_DB)
        improves = host.improves_on(chip, LOW_DB, GAIN_DB) or _gains_for_free(graph, chain, chip, host)
        if improves and host.keeps(chip):
            chosen.append(chain)
            network = network.host(chain.list_sources(graph) or (), _give_reason(model, chain, chip.worst, host.worst))
    return scale_outputs(network, _list_products(network, chosen, pinned), samples)


def _find_poor_ports(network: Network, pinned: Collection[str], samples: Iterable[Sample]) -> set[str]:
    """Return the ports whose codes lose a part of the data in FEW_SAMPLES samples; empty where a value is not finite."""
    graph, numerics = network.model.graph, network.chip.numerics
    candidates = _list_cuts(network, pinned)
    products = [p for p in _list_products(network, (), pinned) if list_part_axes(graph.types[p.tensor].shape)]
    names = list(dict.fromkeys([*(n for cuts in candidates for n in _list_ends(cuts)), *(p.tensor for p in products)]))
    values = run_float(network.model, names, samples, FEW_SAMPLES) if names else None
    if values is None:
        return set()
    figures = [(cuts[0], *_compare(network.model, cuts[0], values, numerics)) for cuts in candidates]
    poor = {c.port for c, chip, host in figures if chip.worst < POOR_DB or _gains_for_free(graph, c, chip, host)}
    return poor | {p.port for p in products if is_poor_product(values[p.tensor], p.tensor, numerics, POOR_DB)}


def _gains_for_free(graph: OnnxGraph, chain: PortChain, chip: PartLevels, host: PartLevels) -> bool:
    """Return whether the worst part gains by affine nodes behind an input, which the host's conversion computes anyhow."""
    return chain.is_input and chain.is_affine(graph) and host.worst >= chip.worst + _FREE_GAIN_DB


def _list_cuts(network: Network, pinned: Collection[str]) -> list[list[PortChain]]:
    """Return for each port the chains of nodes that may be placed. Nobody pins them, and about as many elements cross as the
    port has."""
    graph = network.model.graph
    groups = ([c for c in cuts if not _is_pinned(network, c)] for cuts in find_port_chains(graph, pinned))
    slim = ([c for c in cuts if c.count_crossing(graph) <= _MOST_CROSSING] for cuts in groups)
    return [cuts for cuts in slim if cuts]


def _list_products(network: Network, chosen: Sequence[PortChain], pinned: Collection[str]) -> list[CodedProduct]:
    """Return the products behind which chip and host hand each other about as many elements as the port has."""
    types = network.model.graph.types
    products = find_coded_products(network.model.graph, chosen, pinned)
    return [p for p in products if types[p.tensor].elements <= _MOST_CROSSING * types[p.port].elements]


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


def _compare(
    model: NormalModel, chain: PortChain, values: Mapping[str, np.ndarray], numerics: Numerics
) -> tuple[PartLevels, PartLevels]:
    """Return the levels of what the chain hands on: computed on the chip from the port's codes, and by the host."""
    coded = {n: round_to_codes(values[n], numerics) for n in (chain.port, *chain.boundary)}
    session = FloatSession(ModelPart(chain.reads, model.normal_part), chain.results, few_runs=True)
    count = len(values[chain.port])
    rows = [session.run({n: np.asarray(coded[n][i]) for n in chain.reads}) for i in range(count)]
    results = {n: np.stack([row[i] for row in rows]) for i, n in enumerate(chain.results)}
    on_chip = {n: round_to_codes(value, numerics) for n, value in results.items()}
    hosted = coded if chain.is_input else results
    return measure_parts(values, on_chip), measure_parts(values, {n: hosted[n] for n in chain.results})
