"""Count what the host does for a compiled model, which the chip's cycles leave out: host subgraphs, products and crossings.

An island is a host subgraph, a segment of the container that onnxruntime runs. `MACS` has a rule for each ONNX operator that
multiplies and adds; the other nodes count by the elements that they make. Nodes in graphs of If, Loop and Scan do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quant.producer_links import SHAPE_OPS
from toolchain.codegen import Container, HostSubgraph, Region
from toolchain.errors import ProgramError

if TYPE_CHECKING:
    import onnx

    from toolchain.runtime import SegmentRun

Shape = tuple[int, ...]
_MACS_AN_ELEMENT = 12  # docs/machine.md: products that take as long as an element of a function


def host_figures(container: Container, chip_macs: int) -> dict[str, Any]:
    """Return the figures of the host (`HostFigures` of report.figure_types).

    Crossings are tensors that a region takes from the host or gives to it, without the model's own inputs and outputs. Their
    bytes are those of the chip's codes. A tensor from region to region crosses twice. The seconds are priced by the machine's
    `host` section. `mac_share`: the host's part of the products of host and chip, 0 to 1; 0 where it has none.

    `chip_macs`: macs of the layers on the chip.
    Raise ProgramError where a shape of a product of a host subgraph is unknown.
    """
    islands = [s for s in container.segments if isinstance(s, HostSubgraph)]
    counts = [count_work(island) for island in islands]
    macs, elements = sum(macs for macs, _ in counts), sum(elements for _, elements in counts)
    crossings = _crossings(container)
    host = container.machine.chip.host
    return {
        "islands": len(islands),
        "nodes": sum(len(island.nodes) for island in islands),
        "macs": macs,
        "mac_share": macs / (macs + chip_macs) if macs else 0.0,
        "crossings": len(crossings),
        "crossing_bytes": sum(crossings),
        "seconds": host.price_seconds(len(crossings), sum(crossings), macs + _MACS_AN_ELEMENT * elements),
    }


def list_segment_figures(segments: Iterable[SegmentRun]) -> list[dict[str, Any]]:
    """Return for each segment what ran it: a backend of the chip or a provider of onnxruntime, and nodes left to the CPU."""
    return [{"where": s.where, "nodes": len(s.nodes), "on_cpu": list(s.on_cpu)} for s in segments]


def _crossings(container: Container) -> list[int]:
    """Return the size in bytes of each crossing."""
    input_names = {t.name for t in container.inputs}
    sizes = [p.size_bytes for s in container.segments if isinstance(s, Region) for p in s.inputs if p.model not in input_names]
    for index, segment in enumerate(container.segments):
        if isinstance(segment, Region):
            later = [n for s in container.segments[index + 1 :] for n in _read(s)]
            sizes += [p.size_bytes for p in segment.outputs if p.model in later]
    return sizes


def _read(segment: Region | HostSubgraph) -> Sequence[str]:
    """Return the tensors of the model that a segment reads."""
    return segment.inputs if isinstance(segment, HostSubgraph) else [p.model for p in segment.inputs]


def host_subgraph_macs(island: HostSubgraph) -> int:
    """Return the multiply-accumulates of a host subgraph. Operators without a rule in MACS, and those of other domains, count
    0.

    Raise ProgramError where a shape of a product is unknown.
    """
    return count_work(island)[0]


def count_work(island: HostSubgraph) -> tuple[int, int]:
    """Return the multiply-accumulates of a host subgraph, and the elements that its other nodes make.

    An output of unknown shape counts no elements, nor do nodes that compute shapes.
    Raise ProgramError where a shape of a product is unknown.
    """
    import onnx

    graph = onnx.ModelProto.FromString(island.model).graph
    shapes: dict[str, Shape] = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    others = (node for node in graph.node if _find_rule(node) is None and node.op_type not in SHAPE_OPS)
    elements = sum(math.prod(shapes[name]) for node in others for name in node.output if name in shapes)
    return sum(_macs(node, shapes) for node in graph.node), elements


def _find_rule(node: onnx.NodeProto) -> Rule | None:
    """Return the rule by which a node's products count; None for another operator, or one of another domain than ONNX's."""
    return MACS.get(node.op_type) if node.domain in ("", "ai.onnx") else None


def _macs(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Return the multiply-accumulates of a node; 0 without a rule. Raise ProgramError where a shape is unknown."""
    rule = _find_rule(node)
    if rule is None:
        return 0
    missing = next((n for n in (*node.input, *node.output) if n and n not in shapes), None)
    if missing is not None:
        raise ProgramError(f"host node {node.name} ({node.op_type}): the shape of {missing!r} is not known; build the file again")
    return rule(node, [shapes.get(n, ()) for n in node.input], [shapes.get(n, ()) for n in node.output])


Rule = Callable[["onnx.NodeProto", Sequence[Shape], Sequence[Shape]], int]


def _convolution(weights: int) -> Rule:
    """Return the rule of a convolution whose weights [oc, ic/g, ...] are the input of number `weights`."""
    return lambda node, inputs, outputs: math.prod(outputs[0]) * math.prod(inputs[weights][1:])


def _count_transposed_macs(node: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return the products of a transposed convolution, whose weights are [ic, oc/g, ...]."""
    return math.prod(inputs[0]) * math.prod(inputs[1][1:])  # weights [ic, oc/g, ...]


def _product(node: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    return math.prod(outputs[0]) * inputs[0][-1]


def _gemm(node: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    return math.prod(outputs[0]) * inputs[0][0 if _attribute(node, "transA", 0) else 1]


def _recurrent(node: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return the products of a recurrent layer.

    X is [steps, batch, inputs] in either order of the first two, W [directions, gates, inputs], R [directions, gates, hidden].
    """
    return inputs[0][0] * inputs[0][1] * (math.prod(inputs[1]) + math.prod(inputs[2]))


def _einsum(node: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return one product for each value of all indices; 0 for one operand.

    An index or ellipsis counts by its largest operand, as one of size 1 is broadcast.
    """
    if len(inputs) < 2:
        return 0
    equation = _attribute(node, "equation", b"").decode().replace(" ", "")
    sizes: dict[str, int] = {}
    more = 1
    for term, shape in zip(equation.partition("->")[0].split(","), inputs):
        before, dots, after = term.partition("...")
        end = len(shape) - len(after)
        for index, size in (*zip(before, shape), *zip(after, shape[end:])):
            sizes[index] = max(sizes.get(index, 0), size)
        more = max(more, math.prod(shape[len(before) : end])) if dots else more
    return more * math.prod(sizes.values())


def _attention(node: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return the products of the scores and of their sums of V.

    Q, K, V are [batch, heads, length, size] or [batch, length, heads size].
    """
    length = inputs[1][-2] + (inputs[4][-2] if len(inputs) > 4 and inputs[4] else 0)  # with the keys of earlier steps
    return (math.prod(inputs[0]) + math.prod(outputs[0])) * length


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    import onnx

    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


MACS: Mapping[str, Rule] = {
    **dict.fromkeys(("Conv", "ConvInteger", "DeformConv"), _convolution(1)),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _count_transposed_macs,
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    "Gemm": _gemm,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Einsum": _einsum,
    "Attention": _attention,
}
