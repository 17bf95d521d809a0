"""Check that a network is quantized to the same integers where equal convolutions are taken from another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import network, plain, samples

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from quant.repair.choices import LayerParameters, Quantization
from toolchain.ir.graph import Graph, Node
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.kit.operator import operator_of
from toolchain.passes import quantize as quantize_module
from toolchain.passes.quantize_context import QuantizeContext
from toolchain.passes.quantized_graph import QuantizedGraph
from toolchain.repair.network import Network

B = "Conv_1"  # the node that makes b
GRAPH = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    a = Conv(x, w)
    b = Conv(a, v)
    c = Conv(b, w, q)
    y = Conv(c, v)
}"""


def open_network(folder: Path) -> Network:
    rng = np.random.default_rng(0)
    return network(
        GRAPH, {n: rng.standard_normal((4, 4, 1, 1)) for n in "wv"} | {"q": rng.standard_normal(4)}, folder, "transformer64"
    )


def host_b(net: Network, before: Quantization) -> tuple[Network, Quantization]:
    return net.host([B], "tried"), before


def widen_b(net: Network, before: Quantization) -> tuple[Network, Quantization]:
    return net, replace(before, ranges={**before.ranges, "b": Range(-99.0, 99.0)})


def retype_b(net: Network, before: Quantization) -> tuple[Network, Quantization]:
    return net, replace(before, types={"b": CodeType("int16")})


def give_bias(net: Network, before: Quantization) -> tuple[Network, Quantization]:
    return net, replace(before, layers={B: LayerParameters(bias=np.ones(4))})


def dilate_b(net: Network, before: Quantization) -> tuple[Network, Quantization]:
    graph = net.selection.graph
    nodes = tuple(
        replace(n, op=replace(operator_of(n, Convolution), dilations=(2, 2))) if n.name == B else n for n in graph.nodes
    )
    return replace(net, selection=replace(net.selection, graph=replace(graph, nodes=nodes))), before


def leave_alone(net: Network, before: Quantization) -> tuple[Network, Quantization]:
    return net, before


def list_contents(graph: Graph) -> tuple[object, ...]:
    constants = {name: (value.dtype, value.tolist()) for name, value in graph.constants.items()}
    return repr(graph.nodes), dict(graph.types), constants, dict(graph.origins)


@pytest.mark.parametrize(
    ("change", "lowered"),
    [
        (leave_alone, []),
        (host_b, ["Conv_2"]),
        (widen_b, [B, "Conv_2"]),
        (retype_b, [B, "Conv_2"]),
        (give_bias, [B]),
        (dilate_b, [B]),
    ],
)
def test_convolutions_that_come_out_the_same_are_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Network, Quantization], tuple[Network, Quantization]],
    lowered: list[str],
) -> None:
    net = open_network(tmp_path)
    before = plain(net, samples((1, 4, 8, 8)))
    earlier = QuantizedGraph(net.graph, net.integer(before), before)
    changed, quantization = change(net, before)
    expected = changed.integer(quantization)
    lower_node, called = quantize_module.lower_node, list[str]()

    def note_and_lower(node: Node, scope: QuantizeContext) -> list[Node]:
        called.append(node.name)
        return lower_node(node, scope)

    monkeypatch.setattr(quantize_module, "lower_node", note_and_lower)
    assert list_contents(changed.integer(quantization, earlier)) == list_contents(expected)
    assert called == lowered


def test_changed_weights_are_quantized(tmp_path: Path) -> None:
    net = open_network(tmp_path)
    before = plain(net, samples((1, 4, 8, 8)))
    earlier = QuantizedGraph(net.graph, net.integer(before), before)
    graph = net.graph
    (name,) = [n for n in graph.constants if n.startswith("w")]
    constants = {**graph.constants, name: 2 * graph.constants[name]}
    changed = replace(net, selection=replace(net.selection, graph=replace(net.selection.graph, constants=constants)))
    assert list_contents(changed.integer(before, earlier)) == list_contents(changed.integer(before))
