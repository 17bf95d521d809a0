"""A Relu or Clip that cannot ride on its producer is a clamp of codes, exact beside its kink, where tables are interpolated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.float_session import open_session
from tests.semantics.machines import int8_machine, int16_machine
from toolchain.api import Build, BuildOptions, build
from toolchain.isa import Machine
from toolchain.runtime import Session

CLAMPS = {"Relu": "r = Relu(a)", "Clip": "r = Clip(a, low, high)", "Relu6 of the rest": "d = Relu(a) r = Min(d, high)"}


def built(clamp: str, machine: Machine, folder: Path) -> tuple[Build, np.ndarray]:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,4,16,16] x) => (float[1,4,16,16] r, float[1,4,16,16] s)
      <float low = {{-0.25}}, float high = {{0.75}}> {{ a = MaxPool<kernel_shape=[1,1]>(x) {CLAMPS[clamp]} s = Neg(a) }}"""
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    x = np.random.default_rng(0).uniform(-1, 1, (8, 1, 4, 16, 16)).astype(np.float32)
    np.savez(folder / "c.npz", x=x)
    build_result = build(folder / "m.onnx", BuildOptions(machine, calibration=str(folder / "c.npz")))
    session, exact = Session(build_result.data, backend="reference"), open_session(str(folder / "m.onnx"))
    quant = build_result.container.graph.types["r"].quant
    assert quant is not None
    return build_result, np.stack([(session.run(["r"], {"x": v})[0] - exact.run(["r"], {"x": v})[0]) / quant.scale for v in x])


@pytest.mark.parametrize("clamp", CLAMPS)
def test_a_clamp_is_exact_beside_its_kink(clamp: str, tmp_path: Path) -> None:
    build_result, off = built(clamp, int16_machine(), tmp_path)
    kinds = [type(n.op).__name__ for n in build_result.container.graph.nodes]
    assert "Rescale" in kinds
    # an input's half code is at most one of the output's; a bound beside a code is up to a half off wherever it acts
    assert np.abs(off).max() < 2 and np.mean(np.abs(off) > 1.5) < 0.05 and abs(off.mean()) < 0.15


def test_a_table_with_an_entry_for_each_code_stays(tmp_path: Path) -> None:
    build_result, _ = built("Relu", int8_machine(), tmp_path)
    assert "Rescale" not in [type(n.op).__name__ for n in build_result.container.graph.nodes]


def test_a_bound_beyond_its_inputs_codes_is_kept(tmp_path: Path) -> None:
    """Check a bound that is no code of the clamp's input."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,16,16] x) => (float[1,4,16,16] r, float[1,4,16,16] s)
      <float low = {3.0}> { a = MaxPool<kernel_shape=[1,1]>(x) r = Max(a, low) s = Neg(a) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    x = np.random.default_rng(0).uniform(-1, 1, (2, 1, 4, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=x)
    build_result = build(tmp_path / "m.onnx", BuildOptions(int8_machine(), calibration=str(tmp_path / "c.npz")))
    (r,) = Session(build_result.data, backend="reference").run(["r"], {"x": x[0]})
    assert np.abs(r - 3.0).max() < 0.02
