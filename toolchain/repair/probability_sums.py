"""Leave sums of probabilities to the host: expected values over bins, which lose most by codes that do not sum to one.

It is a step of a repair. A pitch tracker ends so: Softmax, times the frequency of each bin, sum. Other examples are the soft
argmax of key points and disparities, and box distances of detectors. Attention is none of them, since its weighted operand is
computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from quant.fit_sample import Sample
from quant.repair.choices import Quantization, StepOutcome
from toolchain.frontend import NormalModel
from toolchain.ir.graph import OnnxGraph, OnnxNode
from toolchain.repair.equalize import apply_factors
from toolchain.repair.network import Network, Progress
from toolchain.report.host_metrics import MACS

LEAST_GAIN_DB = 1.0  # docs/repair.md: mean of the outputs; less is not worth a crossing
_MOST_MACS = 16  # docs/repair.md: of a product for each probability
_MOVES = frozenset({"Concat", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
_SCALES = frozenset({"Add", "Div", "Mul", "Neg", "Sub"})
_SUMS = frozenset({"ReduceMean", "ReduceSum"})
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


def host_probability_sums(
    network: Network,
    before: Quantization,
    samples: Iterable[Sample],
    progress: Progress,
    *,
    measured: Iterable[Sample] | None = None,
) -> StepOutcome:
    """Return the quantization with sums of probabilities on the host, and with new ranges; unchanged where there are none.

    The host gets the Softmax, the products with constants, the sum, and what follows up to an output.

    `samples`: the samples that ranges are measured on where `measured` is None; not read otherwise.
    `measured`: the samples that the final ranges are measured on; None means `samples`.
    """
    nodes = list_hostable_sums(network)
    if not nodes:
        return StepOutcome(before)
    sources = tuple(dict.fromkeys(s for n in nodes for s in n.sources or (n.name,)))
    reason = "codes of probabilities do not sum to one"
    return apply_factors(network, before, {}, sources, reason, samples if measured is None else measured, progress)


def find_probability_sums(graph: OnnxGraph) -> list[tuple[OnnxNode, ...]]:
    """Return for each Softmax the nodes from it to the weighted sums of its probabilities, and elementwise work by constants
    behind.

    Such a sum is a Conv, Gemm, MatMul, ReduceSum or ReduceMean with one computed operand. A Softmax without one is left out.
    """
    traced = (_trace(graph, node) for node in graph.nodes if node.op.op_type == "Softmax")
    return [nodes for nodes in traced if nodes]


def _trace(graph: OnnxGraph, softmax: OnnxNode) -> tuple[OnnxNode, ...]:
    """Return the nodes from this Softmax to its weighted sums in graph order; empty without such a sum."""
    is_sum, nodes = {softmax.outputs[0]: False}, list[OnnxNode]()
    for node in graph.nodes:
        computed, kind = {n for n in node.inputs if n and n not in graph.constants}, node.op.op_type
        if len(computed) != 1 or not computed <= is_sum.keys():
            continue
        summed = is_sum[next(iter(computed))]
        sums = kind in _SUMS | _PRODUCTS and not summed
        if sums or kind in _SCALES | _MOVES:
            nodes.append(node)
            is_sum.update(dict.fromkeys(node.outputs, summed or sums))
    live_tensors, chain = {n for n, summed in is_sum.items() if summed}, list[OnnxNode]()
    for node in reversed([softmax, *nodes]):
        if not live_tensors.isdisjoint(node.outputs):
            live_tensors.update(node.inputs)
            chain.insert(0, node)
    return tuple(chain)


def list_hostable_sums(network: Network) -> list[OnnxNode]:
    """Return the nodes of all sums of probabilities that the host may compute, with what follows them up to an output, in graph
    order.

    The chip computes such a sum so far, no type or raw port is pinned in it, and its products take few MACs a probability. What
    follows stays on the chip where a product of its own is among it.
    """
    model = network.model.undivided or network.model
    graph, on_chip = model.graph, {*network.chip_tensors}
    pinned = {*network.types, *network.selection.types} | {n for n in graph.outputs if model.name(n) in network.raw_ports}
    chosen = set[str]()
    for nodes in find_probability_sums(graph):
        followers = _list_followers(graph, nodes)
        chain = (*nodes, *followers)
        if (
            nodes[0].outputs[0] in on_chip
            and not _is_dear(model, nodes)
            and pinned.isdisjoint(o for n in chain for o in n.outputs)
        ):
            chosen.update(n.name for n in chain)
    return [n for n in graph.nodes if n.name in chosen]


def _list_followers(graph: OnnxGraph, nodes: Collection[OnnxNode]) -> list[OnnxNode]:
    """Return the nodes between the sums and the outputs; none where a product is among them, whose layer the chip runs."""
    inside = {n.name for n in nodes}
    reached = {o for n in nodes for o in n.outputs}
    followers = list[OnnxNode]()
    for node in graph.nodes:
        if node.name not in inside and not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
            followers.append(node)
    return [] if any(n.op.op_type in MACS for n in followers) else followers


def _is_dear(model: NormalModel, nodes: Collection[OnnxNode]) -> bool:
    """Return whether all products together take more than 16 MACs a probability, which is more than the Softmax is worth."""
    names = {n.name for n in nodes}
    probabilities = sum(model.types[n.outputs[0]].elements for n in nodes if n.op.op_type == "Softmax")
    macs = 0
    for node in model.proto.graph.node:
        if node.name in names and node.op_type in MACS:
            inputs, outputs = ([model.types[n].shape if n else () for n in side] for side in (node.input, node.output))
            macs += MACS[node.op_type](node, inputs, outputs)
    return macs > _MOST_MACS * probabilities
