"""Random recurrent layer x random machine that takes it apart: the bytes equal the integer reference, and the steps the layer.

The build holds the steps in float to the file. `RANDOM_RECURRENT=5000` draws as many, others each time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.support.decompose_cases import require_equal_in_steps
from tests.support.random_cases import DRAWN, DrawnMachine, machines
from tests.support.recurrent import recurrent

CASES = int(os.environ.get("RANDOM_RECURRENT", "6"))
DEFAULTS = {"LSTM": 3, "GRU": 2, "RNN": 1}
FUNCTIONS = ("Tanh", "Sigmoid", "Relu", "HardSigmoid", "Softsign", "LeakyRelu", "Elu", "Affine")


@st.composite
def layers(draw: Any) -> onnx.ModelProto:
    op, direction = draw(st.sampled_from(sorted(DEFAULTS))), draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    length, batch = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    attributes: dict[str, Any] = {"direction": direction}
    if draw(st.integers(0, 2)) == 0:
        count = DEFAULTS[op] * (2 if direction == "bidirectional" else 1)
        attributes["activations"] = [draw(st.sampled_from(FUNCTIONS)) for _ in range(count)]
    if draw(st.integers(0, 2)) == 0:
        attributes["clip"] = draw(st.sampled_from([0.25, 1.0, 3.0]))
    if op == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    if op == "LSTM" and draw(st.integers(0, 2)) == 0:
        attributes["input_forget"] = 1
    return recurrent(
        op,
        length,
        batch,
        draw(st.integers(1, 9)),
        draw(st.integers(1, 9)),
        draw(st.booleans()),
        tuple(draw(st.integers(1, length)) for _ in range(batch)) if draw(st.booleans()) else (),
        draw(st.sampled_from(["", "constants", "inputs"])),
        op == "LSTM" and draw(st.booleans()),
        draw(st.integers(0, 99)),
        **attributes,
    )


@pytest.mark.slow
def test_simulator_equals_reference(tmp_path: Path) -> None:
    check = equal_on_drawn_layer if "RANDOM_RECURRENT" in os.environ else seed(1)(equal_on_drawn_layer)
    check(tmp_path)


@settings(DRAWN, max_examples=CASES)
@given(model=layers(), machine=machines(), level=st.sampled_from([2, 2, 0, 1]))
def equal_on_drawn_layer(folder: Path, model: onnx.ModelProto, machine: DrawnMachine, level: int) -> None:
    require_equal_in_steps(folder, model, machine.machine, level)
