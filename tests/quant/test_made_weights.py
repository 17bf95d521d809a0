"""Weights that the compiler makes are as fine as the codes that they multiply: in as many planes as that needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.runtime import Session


@pytest.mark.parametrize(
    ("attributes", "factors", "least"),
    [
        ('mode = "linear"', (2, 2), 70),
        ('mode = "linear"', (4, 4), 70),
        ('mode = "linear"', (2, 3), 70),
        ('mode = "linear", coordinate_transformation_mode = "asymmetric"', (4, 2), 70),
        ('mode = "linear"', (8, 2), 70),
        ('mode = "linear"', (1.625, 1.375), 70),  # in two planes of four bits 53
        ('mode = "linear", coordinate_transformation_mode = "align_corners"', (1.625, 2.625), 70),  # in two planes 57
        ('mode = "linear", coordinate_transformation_mode = "align_corners"', (2, 2), 70),
        ('mode = "linear", antialias = 1', (0.375, 0.625), 70),  # in two planes 52
        ('mode = "cubic"', (2, 2), 70),  # in two planes 49, in one 26
        ('mode = "cubic"', (0.5, 0.5), 70),  # in two planes 47, in one 37
    ],
)
def test_a_resize_on_a_machine_of_int4_weights(
    attributes: str, factors: tuple[float, float], least: float, tmp_path: Path
) -> None:
    height, width = (int(8 * f) for f in factors)
    onnx.save(
        parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 18]> g (float[1,3,8,8] x) => (float[1,3,{height},{width}] y)
            <float[4] s = {{1.0, 1.0, {float(factors[0])}, {float(factors[1])}}}> {{ y = Resize<{attributes}>(x, , s) }}"""
        ),
        tmp_path / "m.onnx",
    )
    x = np.random.default_rng(0).standard_normal((4, 1, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=x[:-1])
    built = build(tmp_path / "m.onnx", BuildOptions("wide32_w4a16", str(tmp_path / "c.npz"), repair="none"))
    assert built.container.graph.nodes, built.figures["host"]
    (y,) = Session(built.data, backend="reference").run(["y"], {"x": x[-1]})
    (real,) = open_session(str(tmp_path / "m.onnx")).run(["y"], {"x": x[-1]})
    assert 10 * np.log10(np.sum(np.square(real)) / np.sum((np.asarray(y, np.float64) - real) ** 2)) >= least


def test_rows_may_leave_the_range_of_the_output(tmp_path: Path) -> None:
    """Of a linear resize, rows first: a peak beside zeros is halved by its columns, whose ends its rows are beyond."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[1,1,4,4] x) => (float[1,1,8,8] y)
        <float[4] s = {1.0, 1.0, 2.0, 2.0}> { y = Resize<mode = "linear">(x, , s) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    x = np.zeros((2, 1, 1, 4, 4), np.float32)
    x[:, :, :, :, 1] = 1  # 0.75 of it is the most that is left
    np.savez(tmp_path / "c.npz", x=x)
    built = build(tmp_path / "m.onnx", BuildOptions("wide32_w4a16", str(tmp_path / "c.npz"), repair="none"))
    (y,) = Session(built.data, backend="reference").run(["y"], {"x": x[0]})
    (real,) = open_session(str(tmp_path / "m.onnx")).run(["y"], {"x": x[0]})
    np.testing.assert_allclose(np.asarray(y), real, atol=1e-3)
