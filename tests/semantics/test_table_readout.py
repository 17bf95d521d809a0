"""An interpolated table is read at no finer codes than the machine can make, however little of its input tells something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from quant.fixed_point import ScaleForm
from quant.fixed_point.pointwise.tables import build_table16, lookup16
from quant.observe import Range
from tests.semantics.judge import judge_build
from toolchain.ir.graph import Quant
from toolchain.isa import load_machine
from toolchain.ops.interpolated_tables import TableReadout, make_table
from toolchain.ops.rescale import Rescale
from toolchain.ops.scalar_functions import X, affine_bounds


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3000.0])
@pytest.mark.parametrize("range_factors", [(0, 0), (0, 1e-9), (-1e-3, 0), (-0.1, 0.2)])
@pytest.mark.parametrize("form", [ScaleForm("multiplier", 8, 0, 62), ScaleForm("multiplier", 4, 0, 62)])
def test_no_finer_than_a_change_of_scale_reaches(scale: float, range_factors: tuple[float, float], form: ScaleForm) -> None:
    numerics = replace(load_machine("wide32_w4a16").chip.numerics, scale=form)
    x = Quant(scale, 0)
    reading = TableReadout(np.sign, x, Quant(1 / 32767, 0), Range(-3e4 * scale, 3e4 * scale), Range(-1, 1), numerics)
    finest = reading.finest(Range(range_factors[0] * scale, range_factors[1] * scale))
    assert 2 <= x.scale / finest.scale <= form.extremes[1] * (1 + 1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = HardSigmoid(x)",
        "y = HardSigmoid<alpha = 0.3, beta = 0.1>(x)",
        "a = Constant<value = float {3}>() z = Constant<value = float {0}>() s = Constant<value = float {6}>() "
        "b = Add(x, a) c = Clip(b, z, s) y = Div(c, s)",
    ],
)
def test_a_line_with_ends_is_a_change_of_scale(nodes: str, tmp_path: Path) -> None:
    """A table of 512 parts bends around an end: over [-30, 40] it is 0.0014 off there, 50 dB."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,64] x) => (float[1,64] y) {{ {nodes} }}')
    samples = [{"x": np.linspace(-30, 40, 64, dtype=np.float32)[None] + i / 8} for i in range(3)]
    verdict = judge_build(proto, load_machine("transformer64"), samples, tmp_path, types=("x=int16", "y=int16"))
    assert [type(n.op) for n in verdict.built.container.graph.nodes] == [Rescale]
    assert verdict.outputs[0].sqnr_db >= 75


FUNCTIONS = {
    "magnitude": (np.abs, 8.0, 8.0),
    "tanh": (np.tanh, 4.0, 1.0),
    "exponential": (np.exp, 2.0, 7.4),
    "sine": (np.sin, 9.0, 1.0),
    "square root of a magnitude": (lambda x: np.sqrt(np.abs(x)), 10.0, 3.2),
    "jump": (lambda x: np.where(x > 0.1, x + 1, 0.0), 4.0, 5.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_table_is_sampled_in_the_form_that_leaves_least(name: str) -> None:
    f, largest, result = FUNCTIONS[name]
    numerics, x, y = load_machine("wide32_w4a16").chip.numerics, Quant(largest / 32767, 0), Quant(result / 32767, 0)
    codes = np.arange(-32768, 32768).astype(np.int16)
    exact = np.clip(f(x.scale * codes) / y.scale, -32768, 32767)
    forms = [build_table16(f, x.scale, y.scale, form=form) for form in ("tosa", "tflite", "midpoint")]
    noise = [float(np.mean((lookup16(codes, table, "tflite") - exact) ** 2)) for table in forms]
    mine = float(np.mean((make_table(f, x, y, numerics).apply(codes) - exact) ** 2))
    assert mine <= 1.05 * min(noise) and max(noise) >= 1.2 * mine  # 2,048 codes are compared


def test_a_symmetric_machine_says_no_offset_by_a_zero_point(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,64] x) => (float[1,64] y) { y = HardSigmoid(x) }'
    samples = [{"x": np.linspace(-30, 40, 64, dtype=np.float32)[None] + i / 8} for i in range(3)]
    verdict = judge_build(parser.parse_model(text), load_machine("wide32_w4a16"), samples, tmp_path)
    graph = verdict.built.container.graph
    assert Rescale not in [type(n.op) for n in graph.nodes]
    assert {t.quant.zero_point for t in graph.types.values() if t.quant is not None} == {0}


def test_lines_with_ends() -> None:
    x3 = ("add", X, 3.0)
    assert affine_bounds(("div", ("min", ("max", x3, 0.0), 6.0), 6.0)) == (1 / 6, 0.5, (0.0, 1.0))
    assert affine_bounds(("sub", 1.0, ("max", ("mul", X, 2.0), 4.0))) == (-2.0, 1.0, (None, -3.0))
    assert affine_bounds(("sub", ("min", X, 5.0), 2.0)) == (1.0, -2.0, (None, 3.0))
    assert affine_bounds(("add", X, X)) is None
    assert affine_bounds(("mul", X, 0.0)) is None
