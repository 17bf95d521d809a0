"""Nodes between a port and the chip: the names by which a user would put them on the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType
from toolchain.passes.port_nodes import PortChain

F = TensorType((2,), "float32")


@pytest.mark.parametrize(("operator", "names"), [("Reshape", ("scale",)), ("Sigmoid", None)])
def test_only_data_movement_may_share_its_name_with_a_node_outside(operator: str, names: tuple[str, ...] | None) -> None:
    shared = Node("first", OnnxOp(operator), ("x",), ("p",), ("block",))
    scaled = Node("scale", OnnxOp("Relu"), ("p",), ("q",))
    outside = Node("last", OnnxOp("Relu"), ("q",), ("y",), ("block",))
    graph = Graph("g", (shared, scaled, outside), ("x",), ("y",), dict.fromkeys("xpqy", F), {})
    chain = PortChain("x", True, (shared, scaled), ("q",))
    assert chain.list_sources(graph) == names
    assert chain.list_sources(graph.with_nodes((shared, scaled, replace(outside, sources=())))) == ("block", "scale")
