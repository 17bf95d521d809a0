"""The root of a sum of two squares on a chip that takes it apart: as fine for small numbers as for large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.meaning.judge import sqnr_db
from toolchain.api import BuildOptions, build
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]
SAMPLES = 16


def made(body: str, folder: Path, types: tuple[str, ...] = ("*=int16",)) -> tuple[list[dict[str, Any]], Array, Array]:
    """The report's nodes, the inputs, [samples, 2, 3, 40], and what the chip makes of them."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,40] a, float[1,3,40] b) => (float[1,3,40] y) {{ {body} }}'
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    rng = np.random.default_rng(1)
    size = 10.0 ** rng.uniform(-3, 0, (SAMPLES, 1, 3, 40))
    x = (size * rng.normal(0, 1, (SAMPLES, 2, 3, 40))).clip(-2, 2).astype(np.float32)
    np.savez(folder / "d.npz", a=x[:, 0], b=x[:, 1])
    built = build(folder / "m.onnx", BuildOptions("transformer64", calibration=str(folder / "d.npz"), types=types))
    session = Session(built.data)
    y = [session.run(None, {"a": s[:1], "b": s[1:]})[0][0] for s in x]
    return built.figures["nodes"], x, np.stack(y)


TWO = "two = Constant<value_float = 2.0>()"


@pytest.mark.parametrize("squares", ["p = Mul(a, a) q = Mul(b, b)", f"{TWO} p = Pow(b, two) q = Pow(a, two)"])
def test_small_ones_are_as_good(squares: str, tmp_path: Path) -> None:
    nodes, x, y = made(f"{squares} s = Add(p, q) y = Sqrt(s)", tmp_path)
    assert not [row for row in nodes if row["engine"] == "host"]
    expected = np.sqrt((x.astype(np.float64) ** 2).sum(1))
    small = expected < 0.02
    assert sqnr_db(expected, y) > 74 and sqnr_db(expected[small], y[small]) > 36 and small.sum() > 400


@pytest.mark.usefixtures("no_room")
def test_another_root_is_a_function(tmp_path: Path) -> None:
    nodes, x, y = made("p = Mul(a, a) q = Abs(b) s = Add(p, q) y = Sqrt(s)", tmp_path)
    assert not [row for row in nodes if row["engine"] == "host"]
    assert sqnr_db(np.sqrt(x[:, 0].astype(np.float64) ** 2 + np.abs(x[:, 1])), y) > 30
