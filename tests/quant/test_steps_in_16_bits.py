"""Functions that step, in 16 bits: no number beside a step is another, and halves that are codes are rounded to even."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.hw import load_chip
from toolchain.isa import make_default_table
from toolchain.runtime import Session

MACHINES = {"wide32_w4a16": (), "transformer64": ("*=int16",)}
MARGIN = 1 / 64  # of every number drawn from the next quarter, where a step may be: some twenty codes

BODIES = {
    "Round": "y = Round(x)",
    "Floor": "y = Floor(x)",
    "Ceil": "y = Ceil(x)",
    "Sign": "y = Sign(x)",
    "rounded to quarters": "k = Constant<value_float = 0.25>() t = Div(x, k) r = Round(t) y = Mul(r, k)",
    "negated": "n = Neg(x) y = Floor(n)",
    "fraction": "f = Floor(x) y = Sub(x, f)",
    "clamped": "r = Round(x) l = Constant<value_float = -3.0>() h = Constant<value_float = 4.0>() y = Clip(r, l, h)",
    "squared": "r = Round(x) y = Mul(r, r)",
    "exponential": "k = Constant<value_float = 0.25>() t = Mul(x, k) r = Round(t) y = Exp(r)",
    "of a curve": "t = Abs(x) y = Floor(t)",
    "ThresholdedRelu": "y = ThresholdedRelu <alpha = 1.5> (x)",
    "sign of a sum": "k = Constant<value_float = 1.25>() t = Sub(x, k) y = Sign(t)",
    "sign times a curve": "s = Sign(x) t = Sigmoid(x) y = Mul(s, t)",
}


def change_rounding(machine: str, rounding: str, folder: Path) -> str:
    """Return the path of a copy of the machine's file with another rounding, beside its table."""
    configs = files("hw_configs")
    (folder / "isa").mkdir()
    (folder / "isa" / "mine.yaml").write_text(make_default_table(load_chip(machine)))
    text = re.sub("\n  rounding: single_half_up", f"\n  rounding: {rounding}", (configs / f"{machine}.yaml").read_text())
    (folder / "mine.yaml").write_text(re.sub(r"isa/\w+\.yaml", "isa/mine.yaml", text))
    return str(folder / "mine.yaml")


def level(machine: str, body: str, x: np.ndarray, folder: Path, opset: int = 18, rounding: str = "") -> float:
    """dB of y in the last of the samples. `rounding`: of the machine, in place of its own."""
    shape = ",".join(str(d) for d in x.shape[1:])
    text = f"""<ir_version: 10, opset_import: ["": {opset}]> g (float[{shape}] x) => (float[{shape}] y) {{ {body} }}"""
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    np.savez(folder / "c.npz", x=x[:-1])
    hw = machine if not rounding else change_rounding(machine, rounding, folder)
    options = BuildOptions(hw, calibration=str(folder / "c.npz"), types=MACHINES[machine], repair="none")
    session = Session(build(folder / "m.onnx", options).data, backend="reference")
    (y,), (real,) = session.run(["y"], {"x": x[-1]}), open_session(str(folder / "m.onnx")).run(["y"], {"x": x[-1]})
    noise = np.sum((np.asarray(y, np.float64) - real) ** 2)
    return float(10 * np.log10(np.sum(np.asarray(real, np.float64) ** 2) / max(noise, 1e-30)))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("body", BODIES)
def test_no_number_beside_a_step_is_another(machine: str, body: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(-36, 36, (5, 1, 512)) / 4 + draw.uniform(MARGIN, 0.25 - MARGIN, (5, 1, 512))
    x = np.where(np.abs(x % 0.5 - 0.25) < MARGIN, x + 2 * MARGIN, x)
    assert level(machine, BODIES[body], x.astype(np.float32), tmp_path) >= 66  # a curve's table leaves this; no step, one


LINES = {
    "Round": "y = Round(d)",
    "Floor": "y = Floor(d)",
    "Ceil": "y = Ceil(d)",
    "Round of -d": "n = Neg(d) y = Round(n)",
    "Round of d + 1": "k = Constant<value_float = 1.0>() n = Add(d, k) y = Round(n)",
    "Round of 0.5 - d": "k = Constant<value_float = 0.5>() n = Sub(k, d) y = Round(n)",
    "Floor of |d|": "n = Abs(d) y = Floor(n)",
    "Ceil of |d|": "n = Abs(d) y = Ceil(n)",
    "Round of a clamp": "l = Constant<value_float = -3.0>() h = Constant<value_float = 4.5>() n = Clip(d, l, h) y = Round(n)",
}


@pytest.mark.parametrize("rounding", ["", "floor"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("body", LINES)
def test_codes_that_are_halves_and_whole_numbers_are_as_in_onnx(machine: str, rounding: str, body: str, tmp_path: Path) -> None:
    text = f"""s = Constant<value_float = 0.00390625>() z = Constant<value = int16 {{0}}>()
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {LINES[body]}"""
    x = np.random.default_rng(0).integers(-40, 40, (3, 1, 512)).astype(np.float32) / 2
    assert level(machine, text, x, tmp_path, 21, rounding) >= (78 if rounding else 80)  # cut codes are half a code low
