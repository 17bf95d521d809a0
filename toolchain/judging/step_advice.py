"""List advice to leave to the host what the chip computes in steps, by kind of operator.

Those are operators that `limits.decompose` names, and operators that the machine lacks while it runs their last step.
A build lists it before its accuracy is judged; judging.try_advice then tries it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.ir.graph import OnnxNode
from toolchain.passes.match_nodes import match_nodes
from toolchain.repair.network import Network
from toolchain.repair.probability_sums import list_hostable_sums
from toolchain.report.advice import advise_host
from toolchain.report.findings import Advice, StepAdvice

_DEAR_SHARE = 0.25  # docs/accuracy.md: of the network's cycles; less of them on the host is not LESS_TIME of all
_NAMED = 6  # nodes in one piece of advice


def list_step_advice(network: Network, figures: Mapping[str, Any]) -> list[StepAdvice]:
    """Return advice for sums of probabilities first, then for each kind of operator in steps, that of most cycles first.

    Sums, and kinds that take a quarter of the cycles, are to be tried on any output; others on low ones. Kinds that take no
    cycles are left out. So are sums and kinds of too many nodes to name that their operator does not name either.
    A layer that computes several kinds counts for each.

    `figures`: cycles of the network and of its layers, as in the JSON report.
    """
    model, sums = network.model, list_hostable_sums(network)
    groups = _group_step_operators(model)
    cycles_by_group = [_count_cycles(figures["layers"], _list_names(nodes)) for nodes in groups]
    ranked = sorted(zip(cycles_by_group, groups, strict=True), key=lambda pair: -pair[0])
    dear = [_is_dear(network, cycles, figures["cycles"]) for cycles, _ in ranked]
    advised = [_advise(model, nodes, is_dear) for is_dear, (cycles, nodes) in zip(dear, ranked, strict=True) if cycles]
    return [advice for advice in (_advise(model, sums, True) if sums else None, *advised) if advice is not None]


def _is_dear(network: Network, cycles: int, all_cycles: int) -> bool:
    """Return whether the host may save much of the time: the cycles are a quarter of all and take longer than a crossing."""
    chip = network.chip
    return cycles >= _DEAR_SHARE * all_cycles and cycles / chip.clock.frequency > chip.host.price_seconds(1, 0, 0)


def _group_step_operators(model: NormalModel) -> list[list[OnnxNode]]:
    """Return the operators of the model that are computed in steps, those of a kind together."""
    if model.undivided is None:
        return []
    types, remaining = model.undivided.types, {(n.name, n.op.op_type) for n in model.graph.nodes}
    steps = (n for n in model.graph.nodes if any(name and name not in types for name in n.outputs))
    sources = {name for step in steps for name in _list_names([step])}
    groups: dict[str, list[OnnxNode]] = {}
    for node in model.undivided.graph.nodes:
        if (node.name, node.op.op_type) not in remaining and not sources.isdisjoint(_list_names([node])):
            groups.setdefault(node.op.op_type, []).append(node)
    return list(groups.values())


def _advise(model: NormalModel, nodes: Sequence[OnnxNode], is_always_tried: bool) -> StepAdvice | None:
    """Return the advice for these nodes, by their operator's name where that means just these; None where they are too many to
    name.

    An operator that stands for several nodes of the file, as a norm does, is named by the last: with it the others go.
    """
    names, last_names = tuple(_list_names(nodes)), tuple(dict.fromkeys((n.sources or (n.name,))[-1] for n in nodes))
    advice = _advise_kind(model, nodes[0].op.op_type, names) if len(names) > 1 else None
    advice = advise_host(last_names) if advice is None and len(last_names) <= _NAMED else advice
    if advice is None:
        return None
    tensors = frozenset(name for node in nodes for name in node.outputs)
    return StepAdvice(replace(advice, hosts_steps=True), tensors, is_always_tried)


def _advise_kind(model: NormalModel, kind: str, names: Collection[str]) -> Advice | None:
    """Return advice by the operator; None where it means other nodes of the file."""
    try:
        matching_names = match_nodes(model.nodes, [kind])
    except CompileError:
        return None
    return advise_host([kind]) if {*matching_names} == {*names} else None


def _list_names(nodes: Iterable[OnnxNode]) -> dict[str, None]:
    """Return the names of nodes in the model's file, in their order."""
    return dict.fromkeys(name for node in nodes for name in node.sources or (node.name,))


def _count_cycles(layers: Iterable[Mapping[str, Any]], names: Collection[str]) -> int:
    """Return the cycles of the layers that these nodes of the file are computed by."""
    return sum(layer["cycles"] for layer in layers if any(s in names for s in layer["sources"]))
