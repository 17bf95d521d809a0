"""Nodes between a port and the chip: the names by which a user would put them on the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType
from toolchain.passes.port_nodes import PortChain, find_port_chains

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


CONSTANTS = {"c": np.ones(2, np.float32)}
# What stands between the input x and a MatMul, and whether a host may compute it with the conversion to codes.
BETWEEN = {
    "a product with a constant": (Node("n", OnnxOp("Mul"), ("x", "c"), ("m",)), F, True),
    "a function of all elements": (Node("n", OnnxOp("Softmax"), ("x",), ("m",)), F, False),
    "a product with itself": (Node("n", OnnxOp("Mul"), ("x", "x"), ("m",)), F, True),
    "a product with another input": (Node("n", OnnxOp("Mul"), ("x", "z"), ("m",)), F, False),
    "an operator of another domain": (Node("n", OnnxOp("Mul", {}, "com.acme"), ("x", "c"), ("m",)), F, False),
    "more elements than the input has": (Node("n", OnnxOp("Mul"), ("x", "c"), ("m",)), TensorType((3, 2), "float32"), False),
    "another type of elements": (Node("n", OnnxOp("Add"), ("x", "c"), ("m",)), TensorType((2,), "float64"), False),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_a_host_computes_arithmetic_of_one_tensor_with_constants(between: str) -> None:
    node, kind, is_chain = BETWEEN[between]
    last = Node("last", OnnxOp("MatMul"), ("m", "z"), ("y",))
    types = {**dict.fromkeys("xzyc", F), "m": kind}
    graph = Graph("g", (node, last), ("x", "z"), ("y",), types, CONSTANTS)
    assert find_port_chains(graph, ()) == ([[PortChain("x", True, (node,), ("m",))]] if is_chain else [])
    assert find_port_chains(graph, ("x",)) == []
