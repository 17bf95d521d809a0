"""A function's output that a quantized file rounds for one reader keeps its values for another that reads it unrounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.semantics.judge import in_float, sqnr_db
from tests.support.run_in_process import run_script
from toolchain.api import Build, BuildOptions, build
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.lookup import Lookup
from toolchain.runtime import Session

CALIBRATE = Path(__file__).parents[2] / "scripts" / "calibrate.py"
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


MOVES = {
    "Reshape": ("m = Reshape(c, shape)", "[32,8]"),
    "Transpose": ("m = Transpose<perm = [0,2,3,1]>(c)", "[1,8,8,4]"),
    "Flatten": ("m = Flatten(c)", "[1,256]"),
    "Squeeze": ("m = Squeeze(c, zero)", "[4,8,8]"),
    "Slice": ("m = Slice(c, one, three, two)", "[1,4,2,8]"),
    "MaxPool": ("m = MaxPool<kernel_shape = [2,2]>(c)", "[1,4,7,7]"),
    "Pad": ("m = Pad(c, pads)", "[1,4,10,8]"),
    "two": ("l = Transpose<perm = [0,2,3,1]>(c)\n    m = Reshape(l, shape)", "[32,8]"),
}
PARAMETERS = """int8 q = {{-3}}, int64[2] shape = {{-1, 8}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
int64[1] three = {{3}}, int64[8] pads = {{0, 0, 1, 0, 0, 0, 1, 0}}"""


@pytest.mark.parametrize("move", MOVES)
def test_what_is_moved_to_its_rounding_keeps_its_values_too(move: str, tmp_path: Path) -> None:
    """A reader of the function itself, and one of what the moves make."""
    lines, shape = MOVES[move]
    text = MODEL.replace("int8 q = {{-3}}", PARAMETERS).replace(
        "    e = QuantizeLinear(c", f"    {lines}\n    e = QuantizeLinear(m"
    )
    outputs = f"float{shape} y, float[1,4,8,8] z, float{shape} w)"
    text = text.replace("float[1,4,8,8] y, float[1,4,8,8] z)", outputs).replace("z = Mul(c, b)", "z = Mul(c, b)\n    w = Neg(m)")
    built, y, z = build_and_judge(text.format(function="Tanh", scale=0.002), "edge16", tmp_path)
    assert min(y, z) >= 44 and count_tables(built, "tanh") == 2
    text = text.replace(", float" + shape + " w)", ")").replace("\n    w = Neg(m)", "")
    _, y, z = build_and_judge(text.format(function="Tanh", scale=0.002), "edge16", tmp_path)
    assert min(y, z) >= 44


@pytest.mark.parametrize("machine", ["edge16", "nvdla_small"])
def test_a_parameters_file_serves_the_copies_too(machine: str, tmp_path: Path) -> None:
    """The file has no entry for a copy. Nothing but the quantizer reads the moved tensor, which only the copy replaces."""
    text = MODEL.replace("int8 q = {{-3}}", PARAMETERS).replace("    e = Quant", "    m = Reshape(c, shape)\n    e = Quant")
    text = text.replace("QuantizeLinear(c", "QuantizeLinear(m").replace("float[1,4,8,8] y", "float[32,8] y")
    calibrated, _, _ = build_and_judge(text.format(function="Tanh", scale=0.002), machine, tmp_path)
    model, file = tmp_path / "m.onnx", tmp_path / "p.yaml"
    completed = run_script(CALIBRATE, model, "--data", tmp_path / "x.npz", "-o", file)
    assert completed.returncode == 0, completed.stderr
    assert build(model, BuildOptions(machine, parameters=str(file))).data == calibrated.data


@pytest.mark.parametrize(
    "lines", ["h = Sigmoid(b)\n    c = Mul(b, h)", "h = Mul(b, half)\n    c = Tanh(h)", "c = Neg(b)", "c = Relu(b)"]
)
def test_chains_and_clamps_of_codes_keep_their_values(lines: str, tmp_path: Path) -> None:
    """A function of several nodes is one table for each of its two ranges."""
    text = MODEL.replace("c = {function}(b)", lines).replace("int8 q = {{-3}}", "int8 q = {{-3}}, float half = {{0.5}}")
    built, y, z = build_and_judge(text.format(scale=0.002), "edge16", tmp_path)
    assert min(y, z) >= 44
    assert len([n for n in built.container.graph.nodes if isinstance(n.op, Lookup)]) <= 3


def test_a_clamp_of_a_sum_is_made_once(tmp_path: Path) -> None:
    """The sum's operator makes it too, of more bits than a second one would read."""
    text = MODEL.replace("c = {function}(b)", "d = Add(b, x)\n    c = Relu(d)")
    built, y, _ = build_and_judge(text.format(scale=0.002), "edge16", tmp_path)
    assert y > 40 and [w for w in built.warnings if "left in float for others" in w]


def test_a_function_within_the_codes_of_its_input_is_made_once(tmp_path: Path) -> None:
    """A Softplus of the input's codes, which end at -3.99 and 3.66, ends at 3.69; the output's codes end at 3.90."""
    built, y, z = build_and_judge(MODEL.format(function="Softplus", scale=0.03), "edge16", tmp_path)
    assert min(y, z) > 40 and count_tables(built, "softplus") == 1
    assert any(isinstance(node.op, IntegerBinary) for node in built.container.graph.nodes)  # x * softplus(x) is no second table


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


def test_codes_that_the_file_gives_out_take_nothing_from_other_readers(tmp_path: Path) -> None:
    """The codes are the file's, bit for bit."""
    text = MODEL.format(function="Tanh", scale=0.002).replace("float[1,4,8,8] z)", "float[1,4,8,8] z, int8[1,4,8,8] e)")
    built, y, z = build_and_judge(text, "edge16", tmp_path)
    assert min(y, z) >= 44
    x = np.random.default_rng(4).uniform(-3, 3, (1, 4, 8, 8)).astype(np.float32)
    expected = in_float(onnx.load(tmp_path / "m.onnx"), [{"x": x}])[0][2]
    np.testing.assert_array_equal(Session(built.data).run(["e"], {"x": x})[0], expected)
