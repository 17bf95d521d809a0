"""Limits of fields hold where the toolchain or ONNX gave the names; a plug-in or another domain may use them otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from quant.fixed_point.core.codes import CodeType
from toolchain.ir.field_rules import find_field_fault
from toolchain.ir.graph import Graph, Node, OnnxOp, Operator, TensorType
from toolchain.passes.check_start import find_host_fault

INT8 = CodeType("int8")
TYPES = {"x": TensorType((1, 4, 4, 8), "int8"), "y": TensorType((1, 4, 4, 8), "int8")}


@dataclass(frozen=True)
class Pluggable(Operator):
    """An operator as a plug-in may have it; most names are the toolchain's too."""

    axis: int | tuple[int, ...] | None = -1
    activation: str | None = None
    codes: CodeType = INT8
    steps: int = 3
    strides: int = 2
    first: float = 0.5
    groups: int | None = None
    shape: str = "flat"
    nothing: tuple[()] = ()


@pytest.mark.parametrize("axis", [-1, None, (1, 2)])
def test_operators_of_plugins_use_names_as_they_like(axis: int | tuple[int, ...] | None) -> None:
    assert find_field_fault(Node("n", Pluggable(axis), ("x",), ("y",)), TYPES) is None


def test_hints_hold_for_operators_of_plugins_too() -> None:
    fault = find_field_fault(Node("n", Pluggable(steps="many"), ("x",), ("y",)), TYPES)  # type: ignore[arg-type]
    assert fault == "Pluggable: steps many: must be a whole number"


def test_attributes_of_other_domains_have_no_limits() -> None:
    attributes = {"strides": -1, "group": 0, "axis": 9, "perm": (3,)}
    assert find_field_fault(Node("n", OnnxOp("Conv", attributes, "my.org"), ("x",), ("y",)), TYPES) is None
    fault = find_field_fault(Node("n", OnnxOp("Conv", attributes), ("x",), ("y",)), TYPES)
    assert fault == "Conv: strides -1: must be whole numbers of 1 or more"


def test_nan_in_a_constant_of_the_host_is_the_same_value() -> None:
    types = {name: TensorType((2,), "float32") for name in ("x", "c", "y")}

    def make(*values: float) -> Graph[OnnxOp]:
        nodes = (Node("n", OnnxOp("Add"), ("x", "c"), ("y",)),)
        return Graph("g", nodes, ("x",), ("y",), types, {"c": np.array(values, np.float32)})

    assert find_host_fault(make(np.nan, 1), make(np.nan, 1)) is None
    fault = find_host_fault(make(np.nan, 2), make(np.nan, 1))
    assert fault is not None and "constant c has other values" in fault


@pytest.mark.parametrize("perm", [(0, 1, 3, 2, 2), (0, 1, 2), (0, 1, 2, 4), (0, 1, 2, "3")])
def test_an_order_of_dimensions_names_each_once(perm: tuple[object, ...]) -> None:
    node = Node("n", OnnxOp("Transpose", {"perm": perm}), ("x",), ("y",))
    fault = find_field_fault(node, TYPES)
    assert fault == f"Transpose: perm ({', '.join(map(str, perm))}): must hold each of 0 to 3 once"
