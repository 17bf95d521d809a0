"""Tests of the tensors that the normal form shares with the file."""

from __future__ import annotations

import pytest

from toolchain.frontend.source import get_shared_tensors
from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType

FLOAT, INT64 = TensorType((2, 3), "float32"), TensorType((2, 3), "int64")


@pytest.mark.parametrize(
    ("source_types", "shared"),
    [
        ({"x": FLOAT, "values": FLOAT, "places": INT64}, {"values", "places"}),
        ({"x": FLOAT, "values": FLOAT, "places": FLOAT}, set()),  # another type
        ({"x": FLOAT, "values": FLOAT}, set()),  # of another name there
        ({"x": FLOAT}, set()),
    ],
)
def test_the_outputs_of_a_node_are_shared_together_or_not_at_all(source_types: dict[str, TensorType], shared: set[str]) -> None:
    node = Node("top", OnnxOp("TopK"), ("x", "k"), ("values", "places"))
    types = {"x": FLOAT, "values": FLOAT, "places": INT64}
    normal = Graph("g", (node,), ("x",), ("values", "places"), types, {})
    assert get_shared_tensors(normal, source_types) == shared
