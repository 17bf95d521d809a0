"""The networks that bench/draw_bound_networks.py draws, and the table that it prints of them."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from toolchain.isa import load_machine

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from draw_bound_networks import KINDS, draw_network, make_table


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_drawn_network_follows_from_its_number(number: int) -> None:
    name, model = draw_network(0, number)
    onnx.checker.check_model(model, full_check=True)
    assert name == f"{KINDS[number][0]}{number}"
    assert draw_network(0, number)[1] == model != draw_network(1, number)[1]


def test_a_table_has_a_row_for_each_network() -> None:
    heads, _, drawn, means = make_table(load_machine("transformer64"), [512 * 1024], seed=5, count=1)
    assert heads == "| network | products | 512 KiB: cycles | x units |"
    name, _, cycles, ratio = drawn.strip("| ").split(" | ")
    assert name == "inverted0" and int(cycles.replace(",", "")) > 0
    assert means == f"| geometric mean | | | {ratio} |" and float(ratio) >= 1
