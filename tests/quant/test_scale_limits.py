"""Machines with narrow ranges of requantization scales take the next scale that they have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.fidelity import sqnr_db
from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.hw.chip import Chip
from toolchain.isa import load_machine
from toolchain.runtime import Session

SUMS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,6,6] x, float[1,4,6,6] z) => (float[1,4,6,6] y, float[1,8,6,6] c) {
    a = Add(x, z)
    b = Relu(a)
    d = Sub(b, z)
    e = Transpose<perm = [0,1,3,2]>(d)
    y = Add(e, x)
    c = Concat<axis = 1>(y, a)
}
"""


@pytest.mark.parametrize(
    ("hw", "numerics", "least_db"),
    [
        ("ws8_pow2", {"add_left_shift": 0, "scale": {"shift_min": 0}}, 16),
        ("edge16", {"add_left_shift": 0, "scale": {"multiplier_bits": 8, "shift_min": 8}}, 18),
    ],
)
def test_scales_are_widened_until_the_machine_has_them(
    hw: str, numerics: dict[str, Any], least_db: float, tmp_path: Path
) -> None:
    machine = load_machine(hw)
    data = json.loads(machine.chip.model_dump_json())
    data["numerics"]["scale"] |= numerics["scale"]
    data["numerics"]["add_left_shift"] = numerics["add_left_shift"]
    narrow = replace(machine, chip=Chip.model_validate_json(json.dumps(data)))
    onnx.save(parser.parse_model(SUMS), tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(0, 1, (4, 1, 4, 6, 6)).astype(np.float32) for n in "xz"}
    np.savez(tmp_path / "c.npz", **feeds)  # pyright: ignore[reportArgumentType]
    built = build(tmp_path / "m.onnx", BuildOptions(narrow, calibration=str(tmp_path / "c.npz")))
    one = {n: v[0] for n, v in feeds.items()}
    expected = open_session(str(tmp_path / "m.onnx")).run(None, one)
    for real, actual in zip(expected, Session(built.data).run(None, one), strict=True):
        assert sqnr_db(real, actual) > least_db


CONVOLUTION = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,8,6,6] x) => (float[1,8,6,6] y) { y = Conv(x, w) }
"""


@pytest.mark.parametrize(("shift_max", "weight", "least_db"), [(12, 1.0, 28), (9, 1.0, 24), (9, 0.2, 20)])
def test_scales_near_the_largest_shift_are_met_by_those_of_the_weights(
    shift_max: int, weight: float, least_db: float, tmp_path: Path
) -> None:
    """Check scales where shift_max 9 leaves requantizations of edge16 of 1, 2, 3 ... / 512, and this network needs about one step
    of them.
    """
    machine = load_machine("edge16")
    data = json.loads(machine.chip.model_dump_json())
    data["numerics"]["scale"] |= {"multiplier_bits": 8, "shift_max": shift_max}
    data["numerics"]["add_left_shift"] = shift_max  # sums, which this network has none of, could not undo more
    narrow = replace(machine, chip=Chip.model_validate_json(json.dumps(data)))
    rng = np.random.default_rng(0)
    model = parser.parse_model(CONVOLUTION)
    w = (weight * rng.standard_normal((8, 8, 1, 1)) * np.linspace(0.3, 1, 8).reshape(8, 1, 1, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    feeds = rng.normal(0, 1, (16, 8, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=feeds)
    built = build(tmp_path / "m.onnx", BuildOptions(narrow, calibration=str(tmp_path / "c.npz")))
    expected = open_session(str(tmp_path / "m.onnx")).run(None, {"x": feeds[:1]})[0]
    assert sqnr_db(expected, Session(built.data).run(None, {"x": feeds[:1]})[0]) > least_db
