"""Check that an interpolated table is read at the numbers that occur.

A part of a tensor has the scale of the whole, of which it may fill less than a step of the table. A saturating function depends
on few numbers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.runtime import Session

MACHINES = {"wide32_w4a16": (), "transformer64": ("*=int16",)}


def level(machine: str, text: str, x: np.ndarray, folder: Path) -> tuple[float, list[str]]:
    """dB of y in the last of the samples, and the operators that there are."""
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    np.savez(folder / "c.npz", x=x[:-1])
    options = BuildOptions(machine, calibration=str(folder / "c.npz"), types=MACHINES[machine], repair="none")
    build_result = build(folder / "m.onnx", options)
    (y,) = Session(build_result.data, backend="reference").run(["y"], {"x": x[-1]})
    (real,) = open_session(str(folder / "m.onnx")).run(["y"], {"x": x[-1]})
    noise = np.sum((np.asarray(y, np.float64) - real) ** 2)
    return float(10 * np.log10(np.sum(np.asarray(real, np.float64) ** 2) / noise)), [
        type(n.op).__name__ for n in build_result.container.graph.nodes
    ]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("body", "least"),
    [
        ("k = Constant<value_float = 2.0>() y = Mul(s, k)", 31),  # what the scale of the whole leaves of the part
        ("k = Constant<value_float = 0.1>() y = Mul(s, k)", 31),
        ("y = Neg(s)", 31),
        ("y = Exp(s)", 44),
        ("y = Sqrt(s)", 23),  # codes of 0 are whole steps off
    ],
)
def test_a_function_of_a_part_is_as_fine_as_the_part(machine: str, body: str, least: float, tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,50,5] x) => (float[1,50,1] y)
      <int64[1] a = {{4}}, int64[1] b = {{5}}, int64[1] d = {{2}}> {{ s = Slice(x, a, b, d) {body} }}"""
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.uniform(0, 640, (33, 1, 50, 4)), draw.beta(0.5, 3, (33, 1, 50, 1))], 3).astype(np.float32)
    x[:, :, 0] = 640, 640, 640, 640, 1  # each sample reaches the ends, so that none gets room
    level_db, operators = level(machine, text, x, tmp_path)
    assert level_db >= least
    if "Mul" in body:
        assert "Lookup" not in operators  # it is a change of scale


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("function", ["Tanh", "Sigmoid", "Erf"])
def test_a_function_that_ends_is_as_fine_as_its_input(machine: str, function: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,256] x) => (float[1,256] y) {{ y = {function}(x) }}"""
    draw = np.random.default_rng(0)
    x = draw.uniform(-3000, 3000, (17, 1, 256)).astype(np.float32)
    x[:, :, :64] = draw.standard_normal((17, 1, 64))
    assert level(machine, text, x, tmp_path)[0] >= 36


def test_a_table_of_what_has_few_steps_too_many_stays_as_it_is(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,256] x) => (float[1,256] y) { y = Tanh(x) }"""
    x = np.random.default_rng(0).uniform(-8, 8, (17, 1, 256)).astype(np.float32)
    level_db, operators = level("wide32_w4a16", text, x, tmp_path)
    assert level_db >= 70 and operators == ["Lookup"]


@pytest.mark.parametrize("function", ["Sqrt", "Asin"])
def test_an_entry_beside_the_first_number_that_has_a_value_is_that_of_the_end(function: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,256] x) => (float[1,256] y) {{ y = {function}(x) }}"""
    x = np.random.default_rng(0).uniform(0, 1, (17, 1, 256)).astype(np.float32)
    x[:, :, :64] = 0 if function == "Sqrt" else 1
    assert level("wide32_w4a16", text, x, tmp_path)[0] >= 40
