"""Models of one recurrent layer, in every form that ONNX has."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from scripts.onnx_builder import build_model

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(
    op: str,
    length: int = 5,
    batch: int = 2,
    inputs: int = 12,
    units: int = 16,
    biases: bool = True,
    lengths: tuple[int, ...] = (),
    initial: str = "",
    peepholes: bool = False,
    seed: int = 3,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one recurrent layer.

    `initial`: states that are constants, or inputs, or none.
    `attributes`: attributes of the node.
    """
    rng = np.random.default_rng(seed)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    rows, states = GATES[op] * units, ("h", "c")[: 2 if op == "LSTM" else 1]
    shape = (batch, directions, units) if attributes.get("layout") else (directions, batch, units)
    values: dict[str, Array] = {
        "W": rng.normal(0, inputs**-0.5, (directions, rows, inputs)),
        "R": rng.normal(0, units**-0.5, (directions, rows, units)),
        "B": rng.normal(0, 0.3, (directions, 2 * rows)) if biases else np.zeros(0),
        "L": np.asarray(lengths, np.int32),
        **{s: rng.normal(0, 0.5, shape) if initial == "constants" else np.zeros(0) for s in states},
        "P": rng.normal(0, 0.3, (directions, 3 * units)) if peepholes else np.zeros(0),
    }
    order = ["W", "R", "B", "L", *states, *(["P"] if op == "LSTM" else [])]
    read = [batch, length, inputs] if attributes.get("layout") else [length, batch, inputs]
    shapes = {"x": read} | {s: shape for s in states if initial == "inputs"}
    named = ["x", *(n if values[n].size or (n in states and initial == "inputs") else "" for n in order)]
    constants = {n: v if v.dtype == np.int32 else v.astype(np.float32) for n, v in values.items() if v.size}
    outputs = ["Y", "Yh", "Yc"][: 1 + len(states)]
    cell = helper.make_node(op, named, outputs, name="cell", hidden_size=units, **attributes)
    return build_model([cell], shapes, dict.fromkeys(outputs), constants)
