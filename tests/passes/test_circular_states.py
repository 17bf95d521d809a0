"""Circular buffers share base registers, and those that save most bytes get them where registers are few."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.control_flow_machines import CONTROL, with_control
from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType
from toolchain.ir.states import ChipState, CircularState, StatePair
from toolchain.isa import load_machine
from toolchain.passes.circular_states import _Window, _within_registers

WRITER = Node("w", OnnxOp("Concat"), ("n",), ("p",))
# Each state has 8 rows along dimension 1: of 8 bytes, of 8 bytes in another type, of 16 bytes, and of 8 bytes with two new rows.
TYPES = {
    "a": TensorType((1, 8, 8), "int8"),
    "b": TensorType((1, 8, 2), "int32"),
    "c": TensorType((1, 8, 8), "int16"),
    "d": TensorType((1, 8, 8), "int8"),
}
NEW_ROWS = {"a": 1, "b": 1, "c": 1, "d": 2}


@pytest.mark.parametrize(("bases", "served"), [(1, "ab"), (2, "abc"), (3, "abcd"), (0, "")])
def test_one_register_serves_rows_of_one_size_in_bytes(bases: int, served: str) -> None:
    """The host sets one register more. Those that serve most bytes come first, and of as many the first."""
    machine = with_control(load_machine("edge16"), control={**CONTROL, "bases": bases + 1, "host_bases": 1})
    graph: Graph[Any] = Graph("g", (), (), (), TYPES, {})
    candidates = [
        (
            _Window(ChipState(name, f"{name}2", StatePair(name, f"{name}2")), 1, "n", WRITER, None),
            CircularState(1, 8, 8, rows, "i"),
        )
        for name, rows in NEW_ROWS.items()
    ]
    chosen = _within_registers(candidates, graph, machine.chip)
    assert "".join(sorted(window.state.past for window, _ in chosen)) == served
