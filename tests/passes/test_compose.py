"""Chains of pointwise nodes: which of them have the name of a single function."""

from __future__ import annotations

import pytest

from toolchain.ir.graph import Node, OnnxNode, OnnxOp
from toolchain.ops.scalar_functions import ONNX_UNARY, X
from toolchain.passes.compose import Chain


def nodes(*kinds: str) -> tuple[OnnxNode, ...]:
    return tuple(Node(f"n{i}", OnnxOp(kind), (f"t{i}",), (f"t{i + 1}",)) for i, kind in enumerate(kinds))


@pytest.mark.parametrize(
    ("kinds", "name"),
    [("Sigmoid", "sigmoid"), ("Neg Exp Add Reciprocal", "sigmoid"), ("Neg Exp Add Reciprocal Identity", None)],
)
def test_a_chain_of_four_nodes_at_most_has_a_functions_name(kinds: str, name: str | None) -> None:
    assert Chain("t0", ONNX_UNARY["Sigmoid"](X, {}), nodes(*kinds.split())).name == name
