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

from quant.error import sqnr_db
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
    for real, found in zip(expected, Session(built.data).run(None, one), strict=True):
        assert sqnr_db(real, found) > least_db
