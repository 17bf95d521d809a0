"""An interpolated table's entries beside the range in use are held by the output's codes, so that its ends are not bent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.fixed_point.pointwise.tables import neighbour_entries16
from tests.semantics.judge import in_float, save, sqnr_db
from toolchain.api import Build, BuildOptions, build
from toolchain.hw.chip import Chip
from toolchain.isa import Machine, load_machine
from toolchain.ops.interpolated_tables import BENT_CODES
from toolchain.ops.scalar_functions import SQUARE, X
from toolchain.ops.unary import Unary
from toolchain.runtime import Session

ROUNDED = (
    1.6  # of a step of the input and one of the output: half of each, and TFLite's entries, which part up to a code from 128s
)
# With its slope and curvature.
EXACT: dict[str, tuple[Callable, Callable, Callable]] = {
    "Log": (np.log, lambda x: 1 / x, lambda x: 1 / x**2),
    "Sin": (np.sin, np.cos, np.sin),
    "Reciprocal": (np.reciprocal, lambda x: 1 / x**2, lambda x: 2 / x**3),
    "Sqrt": (np.sqrt, lambda x: 0.5 * x**-0.5, lambda x: 0.25 * x**-1.5),
    "Exp": (np.exp, np.exp, np.exp),
}


def wide(symmetric: bool) -> Machine:
    machine = load_machine("wide32_w4a16")
    data = json.loads(machine.chip.model_dump_json())
    data["numerics"]["symmetric_activations"] = symmetric
    return replace(machine, chip=Chip.model_validate_json(json.dumps(data)))


def built(machine: Machine, function: str, low: float, high: float, folder: Path) -> tuple[Build, np.ndarray]:
    """Build y = function(x) with x from low to high, and return the build with x."""
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1,8,16,16] x) => (float[1,8,16,16] y) {{ y = {function}(x) }}'
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    x = np.linspace(low, high, 2048, dtype=np.float32).reshape(1, 8, 16, 16)
    np.savez(folder / "c.npz", x=x[None])
    return build(folder / "m.onnx", BuildOptions(machine, calibration=str(folder / "c.npz"))), x


def scales(compiled: Build) -> tuple[float, float]:
    quants = {name.partition("@")[0]: t.quant for name, t in compiled.container.graph.types.items()}
    x, y = quants["x"], quants["y"]
    assert x is not None and y is not None
    return x.scale, y.scale


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        ("Log", 1.0005, 1.015),  # the entry below is a negative number
        ("Log", 0.99, 0.9995),  # the one above a positive
        ("Sin", 3.0, 3.14),
        ("Reciprocal", 0.05, 1.0),  # the entry below is above the largest number in use
        ("Reciprocal", 0.3, 3.0),
        ("Exp", -1.0, 1.99),  # the entry above by a hundredth of it
    ],
)
def test_codes_at_the_ends_of_the_range_are_interpolated_as_others(
    symmetric: bool, function: str, low: float, high: float, tmp_path: Path
) -> None:
    compiled, x = built(wide(symmetric), function, low, high, tmp_path)
    x_scale, y_scale = scales(compiled)
    (y,) = Session(compiled.container, backend="reference").run(["y"], {"x": x})
    f, slope, curvature = EXACT[function]
    real, segment = x.astype(np.float64), 128 * x_scale
    nearest = real - segment  # a line's error is that of the steepest curve that it spans
    allowed = (
        ROUNDED * (np.abs(slope(nearest)) * x_scale + y_scale)
        + np.abs(curvature(nearest)) * segment**2 / 8
        + BENT_CODES * y_scale
    )
    assert (np.abs(np.asarray(y, np.float64) - f(real)) <= allowed).all()


@pytest.mark.parametrize(
    ("function", "low"), [("Log", 0.001), ("Sqrt", 0.0), ("Sqrt", 0.001), ("Reciprocal", 0.002), ("Exp", -1.0)]
)
def test_an_end_whose_neighbour_is_none_or_far_off_or_held_costs_no_codes(function: str, low: float, tmp_path: Path) -> None:
    """Below the least number lie a logarithm of zero, a square root of a negative number, one over half a code."""
    compiled, _ = built(wide(True), function, low, 1.0, tmp_path)
    largest = max(abs(float(EXACT[function][0](v))) for v in (low, 1.0))
    assert scales(compiled)[1] == pytest.approx(largest / 32767, rel=1e-3)


def test_a_code_that_is_an_entry_needs_no_other() -> None:
    assert [neighbour_entries16(c).tolist() for c in (-32768, -32767, -128, 127, 32767)] == [
        [0],
        [0, 1],
        [255],
        [256, 257],
        [511, 512],
    ]


@pytest.mark.parametrize(
    ("nodes", "low", "high", "least_db"),
    [
        ("y = Reciprocal(x)", 0.3, 3.0, 88.0),
        ("y = Exp(x)", -8.0, 0.0, 90.0),
        ("y = Log(x)", 0.01, 1.0, 65.0),
        ("s = Sigmoid(x) a = Add(s, h) y = Log(a) z = Mul(s, h)", -6.0, 6.0, 88.0),
    ],
)
def test_values_at_the_ends_are_as_exact_as_others(nodes: str, low: float, high: float, least_db: float, tmp_path: Path) -> None:
    """A third of the values lies at an end of the range, between whose entries the function rises by hundreds of codes."""
    x = np.clip(np.random.default_rng(1).normal((low + high) / 2, (high - low) / 2, (4, 1, 8, 16, 16)), low, high)
    assert measure_db(nodes, x, tmp_path) >= least_db


def test_a_measured_range_that_ends_before_its_input_does_is_as_exact(tmp_path: Path) -> None:
    """The range of a score that is given out reaches from 0 to 1, and so beyond what the logarithm's range was measured at."""
    x = np.random.default_rng(1).uniform(1, 5, (4, 1, 8, 16, 16))
    assert measure_db("s = Sigmoid(x) a = Add(s, h) y = Log(a) z = Identity(s)", x, tmp_path) >= 93


def test_which_functions_bend_at_zero() -> None:
    bent = {"leaky": ("where_positive", X, X, ("mul", X, 0.1)), "magnitude": ("abs", X)}
    others = {"square": SQUARE, "exp": ("exp", X), "log": ("log", X), "tanh": ("tanh", X), "clamp": ("max", X, 0.0)}
    assert {name for name, function in {**bent, **others}.items() if Unary(function).bends_at_zero} == bent.keys()


@pytest.mark.parametrize("low", [-0.3, -1.0, -2.7])
def test_a_function_that_bends_at_zero_has_an_entry_there(low: float, tmp_path: Path) -> None:
    """Zero lies between two entries of a table over [low, 2] unless the zero point is a multiple of 128."""
    x = np.random.default_rng(1).uniform(low, 2, (4, 1, 8, 16, 16))
    assert measure_db("y = LeakyRelu<alpha = -0.5>(x)", x, tmp_path) >= 93


def test_tensors_of_one_scale_stay_so_beside_a_concat(tmp_path: Path) -> None:
    """The function's output is read twice, so that it has a scale of its own beside that of the Concat."""
    text = """g (float[1,8,16,16] x) => (float[1,16,16,16] y) {
        e = Exp(x) m = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(e) y = Concat<axis = 1>(e, m) }"""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    x = np.clip(np.random.default_rng(1).normal(-4, 4, (1, 8, 16, 16)), -8, 0).astype(np.float32)
    model, data = save(proto, [{"x": x}], tmp_path)
    compiled = build(model, BuildOptions("transformer64", calibration=str(data), types=("*=int16",)))
    quants = {n: t.quant for n, t in compiled.container.graph.types.items() if t.quant is not None and n[0] != "x"}
    assert len(set(quants.values())) == 1, quants
    assert quants["y"].scale > 1.0001 / 65535, "the last entry is beyond 1"


def measure_db(nodes: str, x: np.ndarray, folder: Path) -> float:
    """Return the SQNR of the output y where all tensors of a network have 16 bits.

    `x`: [samples, 1, 8, 16, 16], of which the last is not calibrated on.
    """
    outputs = "float[1,8,16,16] y" + (", float[1,8,16,16] z" if " z = " in nodes else "")
    text = f"g (float[1,8,16,16] x) => ({outputs}) <float h = {{0.5}}> {{ {nodes} }}"
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    samples = [{"x": sample.astype(np.float32)} for sample in x]
    model, data = save(proto, samples[:-1], folder)
    compiled = build(model, BuildOptions("transformer64", calibration=str(data), types=("*=int16",)))
    (y,) = Session(compiled.container, backend="reference").run(["y"], samples[-1])
    return sqnr_db(in_float(proto, samples[-1:])[0][0], np.asarray(y))
