"""Legalize the graph: select the nodes that the chip runs, with their layout, and give the reason for every other node.

In go the frontend's ONNX nodes, with composed functions; out come float operators of the chip, and ONNX nodes for the host.
Feature maps of four dimensions are laid out channels-last ("nhwc") where an operator slides over space.
Everything else is in the model's order ("plain").
A tensor that is read in the other layout gets a Transpose, or a free Reshape when only dimensions of size one move.
What the host makes is permuted on its way in, for free.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from toolchain.hw.chip import Chip
from toolchain.ir.file_quantization import BITS
from toolchain.ir.graph import Graph, Node, OnnxGraph, OnnxOp, Origin, Quant
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.kit.operator import FloatOp, operator_of
from toolchain.ops.kit.registry import DECOMPOSITIONS, HOSTED, RULES
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import NotSelected, SelectionContext
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.ops.scalar_functions import ONNX_UNARY, clip_bounds
from toolchain.ops.unary import Unary
from toolchain.passes.fuse import can_clamp
from toolchain.passes.partition import moves_for_host
from toolchain.passes.pass_options import EVERY_PASS, PassOptions
from toolchain.plugin import find_rule

_ROUNDINGS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class Fallback:
    """A node that the host runs. `node`: its name in the graph; `op`: its operator; `reason`: why the chip does not run it."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """The result of selection: which operators the chip runs, and what a quantized file says of their tensors.

    `graph`: chip nodes hold float operators, host nodes OnnxOp.
    `fallbacks`: the host's nodes with their reasons, in graph order.
    `file_ranges`: by model tensor that is not calibrated, its scale or range, as a quantized file gives it.
    For tensors in `fixed` it follows from the operators.
    `rounded`: by model tensor, the name of the same tensor behind the quantized file's rounding.
    `types`: types of the codes of given scales, on a machine that has several types, and of `float_tensors`.
    `float_tensors`: tensors that a quantized model leaves in float.
    `ended`, `shared`: as in `passes.fold_qdq.FoldedQdq`.
    `notes`: sentences for the user.
    `pass_options`: which optional passes ran, and run behind this one.
    """

    graph: Graph
    fallbacks: tuple[Fallback, ...]
    file_ranges: Mapping[str, Quant | Range] = field(default_factory=dict[str, Quant | Range])
    fixed: frozenset[str] = frozenset()
    rounded: Mapping[str, str] = field(default_factory=dict[str, str])
    types: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])
    float_tensors: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    pass_options: PassOptions = EVERY_PASS

    @property
    def origins(self) -> Mapping[str, Origin]:
        """The model's tensor and the layout of every chip tensor."""
        return self.graph.origins

    @property
    def shown(self) -> Mapping[str, Origin]:
        """Return `origins`, with tensors that a quantized file rounds replaced by those behind the rounding.

        Codes are compared with these.
        """
        return {name: Origin(self.rounded.get(tensor, tensor), layout) for name, (tensor, layout) in self.origins.items()}


INDICES = ("int64", "int32")
ASKED_FOR = "asked for by --host-node"
IDLE = "only moves data that the host makes or reads"


def select(
    graph: Graph,
    chip: Chip,
    host_nodes: Collection[str],
    tidy: Callable[[Graph], Graph],
    plugin_nodes: Mapping[str, str] = MappingProxyType({}),
) -> Selection:
    """Return the selection: the rule of every node is tried in graph order.

    Nodes that only move data of the host stay there, and so do nodes that stand for one of `host_nodes`, the model's own
    names.
    `graph`: the frontend's, composed.
    `tidy`: the passes that move data movement out of the way, before it is decided which moves the host keeps.
    `plugin_nodes`: by node of the model that a plug-in makes of steps, the plug-in. If one step is the host's, all are.
    """
    # One node of the model may be several here; while it is decided which stay, each stands for itself alone.
    alone = graph.with_nodes(replace(n, sources=(n.name,)) for n in graph.nodes)
    requested_hosts = {n.name: ASKED_FOR for n in graph.nodes if not set(host_nodes).isdisjoint(n.sources or (n.name,))}
    hosted: dict[str, str] = requested_hosts
    while True:
        selection = _select_nodes(alone, chip, hosted, tidy)
        torn = _reasons_of_torn(graph, selection.fallbacks, plugin_nodes)
        more = {**dict.fromkeys(moves_for_host(selection.graph), IDLE), **torn}
        if more.keys() <= hosted.keys():
            break
        hosted = {**more, **hosted}
    sources_by_name = {n.name: n.sources or (n.name,) for n in graph.nodes}
    nodes = [
        replace(n, sources=tuple(dict.fromkeys(s for name in n.sources for s in sources_by_name[name])))
        for n in selection.graph.nodes
    ]
    return replace(selection, graph=selection.graph.with_nodes(nodes))


def _reasons_of_torn(graph: Graph, fallbacks: Sequence[Fallback], plugin_nodes: Mapping[str, str]) -> dict[str, str]:
    """Return the steps of plug-in nodes of which the host has one, each with the reason, so that the host gets them all."""
    reasons, of_host = dict[str, str](), {f.node: f for f in fallbacks}
    for source, plugin in plugin_nodes.items():
        steps = [n.name for n in graph.nodes if source in n.sources]
        first = next((of_host[n] for n in steps if n in of_host and of_host[n].reason not in (IDLE, ASKED_FOR)), None)
        if first is not None:
            reasons |= dict.fromkeys(steps, f"in steps (plug-in {plugin}), of which {first.op}: {first.reason}")
    return reasons


def _select_nodes(graph: OnnxGraph, chip: Chip, hosted: Mapping[str, str], tidy: Callable[[Graph], Graph]) -> Selection:
    """Return the selection with the nodes `hosted` on the host, for the reasons given, and others where their rule refuses."""
    origins: dict[str, Origin] = {}
    layouts: dict[str, str] = {}
    types = dict(graph.types)
    constants = dict(graph.constants)
    counted: dict[str, int] = {}
    nodes: list[Node] = []
    fallbacks: list[Fallback] = []
    spatial = _spatial(graph)
    for node in graph.nodes:
        scope = SelectionContext(
            graph,
            chip,
            node,
            ChainMap({}, origins),
            ChainMap({}, layouts),
            ChainMap({}, types),
            ChainMap({}, constants),
            spatial,
            ChainMap({}, counted),
        )
        reason = hosted.get(node.name) or _try(node, scope)
        if reason is None or (node.name not in hosted and _becomes_clamp(scope, nodes)):
            scope.adopt()
            nodes += scope.nodes
            continue
        # Islands are cut out of the model by tensor names: a composed function stands for its nodes there.
        is_model_node = isinstance(node.op, OnnxOp)  # pyright: ignore[reportUnnecessaryIsInstance]
        nodes.append(node if is_model_node else replace(node, op=OnnxOp(_kind(node), {}, "npu")))
        fallbacks.append(Fallback(node.name, _kind(node), reason))
    return Selection(tidy(graph.with_nodes(nodes, types, constants, origins)), tuple(fallbacks))


def _spatial(graph: Graph) -> frozenset[str]:
    """Return the four-dimensional tensors that an operator over rows and columns reads, at once or through operators of any
    layout.
    """
    spatial_tensors: set[str] = set()
    for node in reversed(graph.nodes):
        rule = _rule_of(node)
        layout = rule.layout_of(node) if rule is not None else "plain"
        if layout == "nhwc":
            spatial_tensors.update(n for n in node.inputs[:1] if len(graph.types[n].shape) == 4)
        elif layout == "any" and spatial_tensors.intersection(node.outputs):
            spatial_tensors.update(n for n in node.inputs if n and len(graph.types[n].shape) == 4)
    return frozenset(spatial_tensors)


def _becomes_clamp(scope: SelectionContext, nodes: list[Node]) -> bool:
    """Return whether a refused node is a Relu or Clip that the chip node before it will carry as its bounds."""
    node = scope.node
    if not isinstance(node.op, Unary) or clip_bounds(node.op.function) is None or not scope.nodes:
        return False
    read = scope.nodes[-1].inputs[0]
    behind_moves = False
    while True:
        producer = next((n for n in nodes if read in n.outputs), None)
        uses = sum(node.inputs.count(read) for node in scope.graph.nodes) + scope.graph.outputs.count(read)
        if producer is None or uses > 1:
            return False
        if not isinstance(producer.op, Reshape | Transpose):
            return can_clamp(producer.op) and (isinstance(producer.op, Convolution) or not behind_moves)
        if sum(node.inputs.count(producer.inputs[0]) for node in nodes) > 1:
            return False
        # lift_functions takes it in front of these.
        read, behind_moves = producer.inputs[0], True


def _kind(node: Node) -> str:
    return node.op.op_type if isinstance(node.op, OnnxOp) else type(node.op).__name__


def _is_foreign(node: Node) -> bool:
    return isinstance(node.op, OnnxOp) and node.op.domain not in ("", "ai.onnx")


def _rule_of(node: Node) -> Rule | None:
    """Return the rule that selects the node's operator, for another domain that of a plug-in."""
    if isinstance(node.op, OnnxOp) and _is_foreign(node):
        return find_rule(node.op.domain, node.op.op_type)
    return RULES.get(_kind(node))


def _wrong_type(node: Node, rule: Rule | None, scope: SelectionContext, computed: Sequence[str]) -> str | None:
    """Return why a rule does not take the types of the node's computed tensors, or None."""
    accepted_types = ["float32", *(["bool"] if rule is not None and rule.bools else [])]
    numbers = {node.inputs[i] for i in rule.numbers if i < len(node.inputs)} if rule is not None else set[str]()
    types = {n: scope.graph.types[n].dtype for n in computed if n not in numbers}
    for name, dtype in types.items():
        if dtype in accepted_types:
            continue
        if rule is None or not rule.indices or dtype not in INDICES:
            return f"tensor {name} is {dtype}, not {' or '.join(accepted_types)}"
        if name in node.inputs and name not in scope.counted:
            return f"tensor {name} is {dtype}, and nothing of the chip makes it, from which its largest number were known"
    return None


def _roundings(node: Node, graph: Graph) -> str:
    """Return why a QuantizeLinear, DequantizeLinear or DynamicQuantizeLinear did not become the scale of a tensor of the chip."""
    if _kind(node) == "DynamicQuantizeLinear":
        return "each run computes its scale; --static-ranges has it calibrated"
    codes = (node.outputs if _kind(node) == "QuantizeLinear" else node.inputs)[0]
    dtype, scale = graph.types[codes].dtype, graph.constants.get(node.inputs[1])
    if dtype not in BITS:
        return f"its codes are {dtype}, and a tensor of the chip has integers of 8 or 16 bits"
    if scale is None:
        return "its scale is computed, and a tensor of the chip has one that is known"
    if scale.size > 1:
        return f"it has {scale.size} scales, and a tensor of the chip has one"
    return "its codes are made or read outside of the chip"


def _try(node: Node, scope: SelectionContext) -> str | None:
    """Return why the chip does not run the node, or None, with its chip nodes in `scope`."""
    kind = _kind(node)
    foreign, rule = _is_foreign(node), _rule_of(node)
    has_steps = not foreign and kind in DECOMPOSITIONS and DECOMPOSITIONS[kind].is_by_request
    steps = "; limits.decompose makes it of steps where the chip has each" if has_steps else ""
    unknown = "" if foreign else _roundings(node, scope.graph) if kind in _ROUNDINGS else HOSTED.get(kind, "")
    unknown = unknown or f"no operator of the chip computes {kind}{steps}"
    # Functions of one tensor have a rule once they are composed, which takes float32.
    if rule is None and (foreign or kind not in ONNX_UNARY):
        return unknown
    computed = [n for n in (*node.inputs, *node.outputs) if n and n not in scope.graph.constants]
    wrong = _wrong_type(node, rule, scope, computed)
    if wrong is not None:
        return wrong
    if rule is None:
        return unknown
    if not any(n for n in node.inputs if n and n not in scope.graph.constants):
        return "all of its inputs are constant"
    if any(0 in scope.graph.types[n].shape for n in computed):
        return "a tensor has no elements"
    try:
        rule.select(scope)
    except NotSelected as refusal:
        return str(refusal)
    full_graph = replace(scope.graph, types=scope.types, constants=scope.constants)
    for chip_node in scope.nodes:
        reason = operator_of(chip_node, FloatOp).find_unsupported_reason(chip_node, full_graph, scope.chip)
        if reason is not None:
            return reason
    return None
