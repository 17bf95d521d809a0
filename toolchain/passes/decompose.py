"""Operators that the chip lacks, taken apart into steps that it has, where its machine asks for that (limits.decompose)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from toolchain.frontend import NormalModel, apply_decompositions, to_graph
from toolchain.hw.chip import Chip
from toolchain.ir.graph import OnnxGraph, OnnxNode
from toolchain.ops.kit.decomposition import DecompositionBuilder
from toolchain.ops.kit.registry import STEPS, WHOLE
from toolchain.ops.kit.selection_context import NotSelected
from toolchain.ops.unary import Unary
from toolchain.passes.fold_qdq import select_graph
from toolchain.passes.select import Selection

WIDEST_BITS = 16  # of activations: steps for every machine are those of the finest


def decompose_model(
    model: NormalModel, chip: Chip, host_nodes: Collection[str] = (), finest: Collection[str] | None = ()
) -> NormalModel:
    """The model with steps in the place of the operators that limits.decompose names, where the chip runs all of these; others
    stay whole, with the reason. host_nodes: of the model's, that stay on the host as they are; finest: tensors that have the
    finest codes of the machine, None: any may."""
    whole: dict[str, str] = {}
    bits = max(codes.bits for codes in chip.operand_types), chip.numerics.activation.bits
    graph = to_graph(model)
    own = {n.name for n in graph.nodes if n.op.op_type in WHOLE and WHOLE[n.op.op_type].lacking(n, graph, chip) is None}
    while True:
        taken = _taken(graph, (*chip.limits.decompose, *WHOLE), bits, finest, {*host_nodes}, whole, own)
        divided = replace(_divided(model, taken.steps), whole=dict(taken.whole))
        failed = _failed(select_graph(divided, chip, host_nodes), taken.steps) if taken.steps else {}
        if not failed:
            return divided
        whole = {**taken.whole, **failed}


def decompose_all(model: NormalModel) -> NormalModel:
    """The model with all steps that there are, so that ranges of it serve every machine."""
    return _divided(model, _taken(to_graph(model), (*STEPS, *WHOLE), (WIDEST_BITS, WIDEST_BITS), None, (), {}).steps)


@dataclass(frozen=True)
class _Taken:
    """By node: its steps, or why it stays whole."""

    steps: Mapping[str, DecompositionBuilder]
    whole: Mapping[str, str]


def _taken(
    graph: OnnxGraph,
    kinds: Iterable[str],
    bits: tuple[int, int],
    finest: Collection[str] | None,
    hosted: Collection[str],
    whole: Mapping[str, str],
    own: Collection[str] = (),
) -> _Taken:
    """bits: the most, and those of tensors that are not in `finest`. own: nodes that the machine runs as they are."""
    found, refused, kinds = dict[str, DecompositionBuilder](), dict(whole), frozenset(kinds)
    for node in graph.nodes:
        left = node.name in (*refused, *own) or not set(node.sources or (node.name,)).isdisjoint(hosted)
        if left or not _is_one(node, kinds, graph):
            continue
        try:
            steps = _steps(node, graph, bits[0])
            if steps.nodes:
                fine = finest is None or any(not made.isdisjoint(finest) for made in (set(n.outputs) for n in steps.nodes))
                found[node.name] = steps if fine or steps.finest or bits[0] == bits[1] else _steps(node, graph, bits[1])
        except NotSelected as refusal:
            refused[node.name] = str(refusal)
    return _Taken(found, refused)


def _steps(node: OnnxNode, graph: OnnxGraph, bits: int) -> DecompositionBuilder:
    steps = DecompositionBuilder(node, graph, bits)
    kind = node.op.op_type
    (WHOLE[kind].steps if kind in WHOLE else STEPS[kind])(steps)
    return steps


def _is_one(node: OnnxNode, kinds: Collection[str], graph: OnnxGraph) -> bool:
    own = node.op.op_type in kinds and node.op.domain in ("", "ai.onnx")
    return own and all(graph.types[n].dtype == "float32" for n in node.outputs if n)


def _divided(model: NormalModel, steps: Mapping[str, DecompositionBuilder]) -> NormalModel:
    each = steps.values()
    return apply_decompositions(
        model,
        {name: s.nodes for name, s in steps.items()},
        {name: value for s in each for name, value in s.constants.items()},
        {name: known for s in each for name, known in s.inner.items()},
        frozenset(name for s in each if s.finest for name in (*s.moved, *(y for step in s.nodes for y in step.outputs))),
        {name: one for s in each for name, one in s.repeated.items()},
        frozenset(name for s in each for name in s.moved),
        {name: own for s in each for name, own in s.made_of.items()},
        max((s.error for s in each), default=0.0),
    )


def _failed(selection: Selection, steps: Mapping[str, DecompositionBuilder]) -> dict[str, str]:
    """The nodes of whose steps the chip does not run one -> that one's reason. Of those in WHOLE only the last
    has to be the chip's: the others compute numbers and truths."""
    owners = {step.name: node for node, s in steps.items() for step in s.nodes}
    nodes = {n.name: n for n in selection.graph.nodes}
    failed: dict[str, str] = {}
    for fallback in selection.fallbacks:
        owner = owners.get(fallback.node)
        if owner is None and fallback.op == Unary.__name__:  # a chain that goes on behind the steps
            read = nodes[fallback.node].inputs[0]
            owner = next((node for node, s in steps.items() if any(read in step.outputs for step in s.nodes)), None)
        inside = owner is not None and set(steps[owner].node.outputs).isdisjoint(nodes[fallback.node].outputs)
        if owner is not None and not (inside and steps[owner].node.op.op_type in WHOLE):
            failed.setdefault(owner, f"in steps (limits.decompose), of which {fallback.op}: {fallback.reason}")
    return failed
