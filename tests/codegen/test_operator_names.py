"""Operators stand in compiled files by a name and a version of their own, whatever becomes of their classes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from test_container_page import CONVOLUTIONS, compile_network
from typing_extensions import TypeAliasType, TypeVar

from quant.fixed_point.core.requant import Requant
from toolchain.codegen import container_to_bytes
from toolchain.codegen.graph_json import describe_type, graph_to_text, records
from toolchain.errors import InternalError
from toolchain.ir.graph import Graph, Node
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit import registry
from toolchain.ops.kit.operator import Array, NpuOp

Element = TypeVar("Element", bound=np.generic)
Named = TypeAliasType("Named", np.ndarray[tuple[int, ...], np.dtype[Element]], type_params=(Element,))


def module(*operators: type) -> ModuleType:
    new_module = ModuleType("toolchain.ops.new")
    for operator in operators:
        operator.__module__ = new_module.__name__
        setattr(new_module, operator.__name__, operator)
    return new_module


def operator(name: str, **members: object) -> type:
    def reference(self: object, inputs: Sequence[Array]) -> Array:
        return inputs[0]

    return dataclass(frozen=True)(type(name, (NpuOp,), {"reference": reference, "__annotations__": {}, **members}))


WAY_OUT = "needs a NAME and a VERSION (1, 2, ...) of its own, by which compiled files hold it"


@pytest.mark.parametrize(
    "members", [{}, {"NAME": "New"}, {"VERSION": 1}, {"NAME": "New", "VERSION": 0}, {"NAME": "", "VERSION": 1}]
)
def test_an_operator_without_a_name_or_version_fails_at_import(members: dict) -> None:
    with pytest.raises(InternalError, match=rf"^toolchain\.ops\.new\.New: {re.escape(WAY_OUT)}$"):
        registry._integer_operators([module(operator("New", **members))])


def test_an_heir_has_a_name_of_its_own() -> None:
    base = operator("Base", NAME="Base", VERSION=1)
    heir = dataclass(frozen=True)(type("Heir", (base,), {"__annotations__": {}}))
    with pytest.raises(InternalError, match=r"new\.Heir: needs a NAME"):
        registry._integer_operators([module(base, heir)])


def test_two_operators_of_one_name_are_refused() -> None:
    both = [operator(n, NAME="Twice", VERSION=1) for n in ("One", "Other")]
    with pytest.raises(InternalError, match=r"new\.Other: toolchain\.ops\.new\.One is named Twice in compiled files already"):
        registry._integer_operators([module(*both)])


def test_a_field_that_no_file_holds_fails_at_import() -> None:
    odd = operator("Odd", NAME="Odd", VERSION=1, __annotations__={"anything": dict[str, int]})
    with pytest.raises(InternalError, match=r"a field of type dict\[str, int\]: a compiled file cannot hold it"):
        records(odd)


def test_an_operator_of_no_file_of_the_project_is_not_written() -> None:
    stranger = operator("Stranger", NAME="Stranger", VERSION=1)
    graph = Graph("g", (Node("n", stranger(), ("x",), ("y",)),), (), (), {}, {})
    with pytest.raises(InternalError, match=r"node n: Stranger is no integer operator of toolchain\.ops"):
        graph_to_text(graph, lambda *_: None)


@pytest.mark.parametrize("moved", [IntegerConvolution, Requant])
def test_a_class_that_moves_or_is_renamed_changes_no_byte(moved: type, tmp_path: Path) -> None:
    built, before = compile_network(tmp_path, CONVOLUTIONS, "edge16"), (moved.__name__, moved.__qualname__, moved.__module__)
    try:
        moved.__name__, moved.__qualname__, moved.__module__ = "Renamed", "Renamed", "elsewhere"
        assert container_to_bytes(built.container) == built.data
    finally:
        moved.__name__, moved.__qualname__, moved.__module__ = before


def test_no_class_is_named_in_the_file(tmp_path: Path) -> None:
    data = compile_network(tmp_path, f"{CONVOLUTIONS.replace('y =', 'z =')} y = Erf(z)", "edge16").data
    kinds = {n: kind for op in registry.INTEGER_OPERATORS.values() for n, kind in records(op).items()}
    assert len(kinds) > 15
    names = {n for n in (*kinds, "TensorType", "Node", "class") if n not in registry.INTEGER_OPERATORS}
    assert [n for n in sorted(names) if n.encode() in data] == []


def test_arrays_may_be_written_by_the_name_of_a_type() -> None:
    """Check the name of a type, as `numpy.typing.NDArray` is one from 2.5 on."""
    assert describe_type(Named[np.int8]) == describe_type(Array) == "array"
    assert describe_type(Named[np.int8] | None) == "array or null"
