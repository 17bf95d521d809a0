"""Functions that are computed again for a quantizer: in which codes a function's input is."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType
from toolchain.passes.copy_rounded_functions import _Finder


@pytest.mark.parametrize(("first", "ends"), [("DequantizeLinear", (-64.0, 63.5)), ("Relu", None)])
def test_moves_keep_the_codes_of_what_they_move(first: str, ends: tuple[float, float] | None) -> None:
    inputs = ("x", "scale") if first == "DequantizeLinear" else ("x",)
    nodes = (
        Node("first", OnnxOp(first), inputs, ("d",)),
        Node("turned", OnnxOp("Transpose", {"perm": (1, 0)}), ("d",), ("t",)),
        Node("shaped", OnnxOp("Reshape"), ("t", "shape"), ("r",)),
    )
    float_type = TensorType((2, 3), "float32")
    types = {**dict.fromkeys("dtr", float_type), "x": TensorType((2, 3), "int8"), "scale": TensorType((), "float32")}
    constants = {"scale": np.float32(0.5).reshape(()), "shape": np.array([3, 2])}
    graph = Graph("g", nodes, ("x",), ("r",), {**types, "shape": TensorType((2,), "int64")}, constants)
    assert _Finder(graph)._find_ends("r") == ends
