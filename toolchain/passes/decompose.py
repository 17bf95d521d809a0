"""Decompose operators that the chip lacks into steps that it has, each by the entry of its operator in `DECOMPOSITIONS`.

The pass works on the canonical form, before calibration and selection, so that tensors between steps are calibrated.
A machine's `limits.decompose` names operators; for others their entry says which machines need steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from toolchain.frontend import NormalModel, apply_decompositions, to_graph
from toolchain.hw.chip import Chip
from toolchain.ir.graph import OnnxGraph, OnnxNode
from toolchain.ops.kit.decomposition import DecompositionBuilder
from toolchain.ops.kit.registry import DECOMPOSITIONS
from toolchain.ops.kit.selection_context import NotSelected
from toolchain.ops.unary import Unary
from toolchain.passes.pipeline import select_graph
from toolchain.passes.select import IDLE, Selection

WIDEST_BITS = 16  # of activations: steps for every machine are those of the finest


def decompose_model(
    model: NormalModel, chip: Chip, host_nodes: Collection[str] = (), finest: Collection[str] | None = ()
) -> NormalModel:
    """Return the model with steps in place of operators that the machine wants decomposed.

    The chip must run all steps of an operator that `limits.decompose` names, and the last step of one that it lacks.
    Other operators stay undivided, with the reason in `reasons_undivided`. The model before is in `undivided`.
    `host_nodes`: the model's nodes that stay on the host as they are.
    `finest`: tensors whose codes may be of the chip's widest type of operands; None if those of any may.
    """
    reasons_undivided: dict[str, str] = {}
    bits = max(codes.bits for codes in chip.operand_types), chip.numerics.activation.bits
    graph = to_graph(model)
    native_nodes = {n.name for n in graph.nodes if _is_native(n, graph, chip)}
    kinds = (*chip.limits.decompose, *(name for name, rule in DECOMPOSITIONS.items() if not rule.is_by_request))
    while True:
        divisions = _divide_nodes(
            graph,
            kinds,
            bits,
            finest,
            {*host_nodes},
            reasons_undivided,
            native_nodes,
            model.plugin_nodes,
        )
        decomposed_model = replace(_replace_by_steps(model, divisions.steps), reasons_undivided=dict(divisions.reasons_undivided))
        if not divisions.steps:
            return decomposed_model
        each_step = replace(decomposed_model, plugin_nodes={})  # so that a step of the host does not take the others with it
        failed = _find_failures(select_graph(each_step, chip, host_nodes), divisions.steps, model.plugin_nodes)
        if not failed:
            return decomposed_model
        reasons_undivided = {**divisions.reasons_undivided, **failed}


def decompose_all(model: NormalModel) -> NormalModel:
    """Return the model with every operator decomposed that can be, as for 16-bit activations, so that its ranges serve every
    machine.
    """
    return _replace_by_steps(
        model, _divide_nodes(to_graph(model), DECOMPOSITIONS, (WIDEST_BITS, WIDEST_BITS), None, (), {}).steps
    )


@dataclass(frozen=True)
class _Divisions:
    """An assignment of nodes to their steps, or to why they stay undivided."""

    steps: Mapping[str, DecompositionBuilder]
    reasons_undivided: Mapping[str, str]


def _divide_nodes(
    graph: OnnxGraph,
    kinds: Iterable[str],
    bits: tuple[int, int],
    finest: Collection[str] | None,
    hosted: Collection[str],
    reasons_undivided: Mapping[str, str],
    native_nodes: Collection[str] = (),
    plugin_nodes: Collection[str] = (),
) -> _Divisions:
    """Return the steps of the nodes whose operator is one of `kinds`, and the reasons of nodes that stay whole.

    `bits`: the most bits of a type, and those of tensors that are not in `finest`.
    `hosted`: the model's nodes that the user keeps on the host.
    `reasons_undivided`: by node that is known to stay, the reason.
    `native_nodes`: nodes that the machine runs as they are.
    `plugin_nodes`: nodes of the file that are steps already, which every machine decomposes as far as it can.
    """
    steps_by_node, refused, kinds = dict[str, DecompositionBuilder](), dict(reasons_undivided), frozenset(kinds)
    for node in graph.nodes:
        stays = node.name in (*refused, *native_nodes) or not set(node.sources or (node.name,)).isdisjoint(hosted)
        is_of_plugin = not set(node.sources).isdisjoint(plugin_nodes)
        if stays or not _is_one(node, DECOMPOSITIONS if is_of_plugin else kinds, graph):
            continue
        try:
            steps = _steps(node, graph, bits[0])
            if steps.nodes:
                fine = finest is None or any(
                    not step_outputs.isdisjoint(finest) for step_outputs in (set(n.outputs) for n in steps.nodes)
                )
                steps_by_node[node.name] = steps if fine or steps.finest or bits[0] == bits[1] else _steps(node, graph, bits[1])
        except NotSelected as refusal:
            refused[node.name] = str(refusal)
    return _Divisions(steps_by_node, refused)


def _is_native(node: OnnxNode, graph: OnnxGraph, chip: Chip) -> bool:
    """Return whether the machine runs a node as it is that it would decompose otherwise."""
    rule = DECOMPOSITIONS.get(node.op.op_type)
    return rule is not None and rule.find_missing_support is not None and rule.find_missing_support(node, graph, chip) is None


def _steps(node: OnnxNode, graph: OnnxGraph, bits: int) -> DecompositionBuilder:
    """Return the steps of a node for codes of so many bits. Raise NotSelected where it is refused."""
    steps = DecompositionBuilder(node, graph, bits)
    DECOMPOSITIONS[node.op.op_type].add_steps(steps)
    return steps


def _is_one(node: OnnxNode, kinds: Collection[str], graph: OnnxGraph) -> bool:
    """Return whether the node is a standard operator of one of these kinds whose outputs are all float32."""
    is_standard_kind = node.op.op_type in kinds and node.op.domain in ("", "ai.onnx")
    return is_standard_kind and all(graph.types[n].dtype == "float32" for n in node.outputs if n)


def _replace_by_steps(model: NormalModel, steps: Mapping[str, DecompositionBuilder]) -> NormalModel:
    """Return the model with nodes replaced by their steps, and what the steps say of their tensors."""
    each = steps.values()
    return apply_decompositions(
        model,
        {name: s.nodes for name, s in steps.items()},
        {name: value for s in each for name, value in s.constants.items()},
        {name: range_source for s in each for name, range_source in s.inner.items()},
        frozenset(name for s in each if s.finest for name in (*s.moved, *(y for step in s.nodes for y in step.outputs))),
        {name: one for s in each for name, one in s.repeated.items()},
        frozenset(name for s in each for name in s.moved),
        {name: source for s in each for name, source in s.made_of.items()},
        max((s.error for s in each), default=0.0),
    )


def _find_failures(
    selection: Selection, steps: Mapping[str, DecompositionBuilder], plugin_nodes: Mapping[str, str]
) -> dict[str, str]:
    """Return the decomposed nodes that are to stay whole, since the chip does not run some of their steps, with the reasons.

    Of nodes that are decomposed on machines that lack the operator, only the step that makes the output has to run on the
    chip.
    """
    owners = {step.name: node for node, s in steps.items() for step in s.nodes}
    nodes = {n.name: n for n in selection.graph.nodes}
    origins: dict[str, str] = {}
    lacks: dict[str, dict[str, None]] = {}
    for fallback in selection.fallbacks:
        owner = owners.get(fallback.node)
        if owner is None and fallback.op == Unary.__name__:  # a chain that goes on behind the steps
            read = nodes[fallback.node].inputs[0]
            owner = next((node for node, s in steps.items() if any(read in step.outputs for step in s.nodes)), None)
        inside = owner is not None and set(steps[owner].node.outputs).isdisjoint(nodes[fallback.node].outputs)
        if owner is not None and (not inside or DECOMPOSITIONS[steps[owner].node.op.op_type].is_by_request):
            plugin = next((plugin_nodes[s] for s in steps[owner].node.sources if s in plugin_nodes), None)
            origins[owner] = "limits.decompose" if plugin is None else f"plug-in {plugin}"
            lacks.setdefault(owner, {})[f"{fallback.op}: {fallback.reason}"] = None
    causes = {owner: [r for r in reasons if not r.endswith(IDLE)] or [*reasons] for owner, reasons in lacks.items()}
    return {owner: f"in steps ({origins[owner]}), of which {'; '.join(reasons)}" for owner, reasons in causes.items()}
