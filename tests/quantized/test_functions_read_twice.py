"""A function's output that a quantized file rounds for one reader keeps its values for another that reads it unrounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.semantics.judge import in_float, sqnr_db
from toolchain.api import Build, BuildOptions, build
from toolchain.ops.lookup import Lookup
from toolchain.runtime import Session

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] z)
<float s = {{0.03}}, int8 p = {{5}}, float t = {{{scale}}}, int8 q = {{-3}}>
{{
    a = QuantizeLinear(x, s, p)
    b = DequantizeLinear(a, s, p)
    c = {function}(b)
    e = QuantizeLinear(c, t, q)
    f = DequantizeLinear(e, t, q)
    y = Neg(f)
    z = Mul(c, b)
}}
"""


def build_and_judge(text: str, machine: str, folder: Path) -> tuple[Build, float, float]:
    """Return the build, and the SQNR in dB of its two outputs against the file."""
    proto = parser.parse_model(text)
    onnx.save(proto, folder / "m.onnx")
    x = np.random.default_rng(3).uniform(-3, 3, (8, 1, 4, 8, 8)).astype(np.float32)
    np.savez(folder / "x.npz", x=x)
    built = build(folder / "m.onnx", BuildOptions(machine, calibration=str(folder / "x.npz")))
    samples, session = [{"x": sample} for sample in x], Session(built.data)
    expected, results = in_float(proto, samples), [session.run(None, sample) for sample in samples]
    y, z = (sqnr_db(*(np.stack([run[i] for run in runs]) for runs in (expected, results))) for i in range(2))
    return built, y, z


def count_tables(built: Build, function: str) -> int:
    return sum(isinstance(node.op, Lookup) and node.op.function == function for node in built.container.graph.nodes)


@pytest.mark.parametrize("function", ["Tanh", "Sigmoid", "Softplus", "Exp"])
@pytest.mark.parametrize(("machine", "least_db"), [("edge16", 44.0), ("ws8_pow2", 30.0)])
def test_what_is_read_unrounded_keeps_its_values(function: str, machine: str, least_db: float, tmp_path: Path) -> None:
    built, y, z = build_and_judge(MODEL.format(function=function, scale=0.002), machine, tmp_path)
    assert min(y, z) >= least_db
    assert not [w for w in built.warnings if "left in float for others" in w]


@pytest.mark.parametrize("other", ["w = {{0.01}}, int8 v = {{0}}", "w = {{0.002}}, int8 v = {{125}}"])
@pytest.mark.parametrize("line_before", ["c = ", "f = "])
def test_of_two_roundings_each_has_its_own_range(other: str, line_before: str, tmp_path: Path) -> None:
    """The other codes reach further, or as far in another direction; they come first or last in the file."""
    text = MODEL.replace("q = {{-3}}", f"q = {{{{-3}}}}, float {other}").replace("z = Mul(c, b)", "z = Neg(i)")
    lines = text.splitlines()
    at = next(k for k, line in enumerate(lines) if line.strip().startswith(line_before)) + 1
    lines[at:at] = ["    h = QuantizeLinear(c, w, v)", "    i = DequantizeLinear(h, w, v)"]
    _, y, z = build_and_judge("\n".join(lines).format(function="Tanh", scale=0.002), "edge16", tmp_path)
    assert min(y, z) > 40


def test_what_holds_all_of_a_function_is_made_once(tmp_path: Path) -> None:
    """The file's codes end at -0.99 and 1.03, those of a Sigmoid at 0 and 1."""
    built, y, z = build_and_judge(MODEL.format(function="Sigmoid", scale=0.0079), "edge16", tmp_path)
    assert min(y, z) > 40 and count_tables(built, "sigmoid") == 1


@pytest.mark.parametrize("function", ["Cos", "Tanh"])
def test_tables_that_are_interpolated_are_made_once(function: str, tmp_path: Path) -> None:
    """A table of 16 bits would bend between two entries where the file's codes end: 31 dB."""
    text = MODEL.format(function=function, scale=0.0002).replace("    b = DequantizeLinear(a, s, p)\n", "")
    built, y, z = build_and_judge(text.replace("a = QuantizeLinear(x, s, p)", "b = Identity(x)"), "wide32_w4a16", tmp_path)
    assert min(y, z) > 60 and count_tables(built, function.lower()) == 1


def test_codes_that_the_file_gives_out_are_made_of_what_it_rounds(tmp_path: Path) -> None:
    text = MODEL.format(function="Tanh", scale=0.002).replace("float[1,4,8,8] z)", "float[1,4,8,8] z, int8[1,4,8,8] e)")
    built, _, _ = build_and_judge(text, "edge16", tmp_path)
    assert count_tables(built, "tanh") == 1
