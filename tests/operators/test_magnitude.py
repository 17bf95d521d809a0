"""The root of a sum of two squares on a chip that takes it apart: as fine for small numbers as for large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.semantics.judge import sqnr_db
from toolchain.api import BuildOptions, build
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]
SAMPLES = 16


FOLDED = "folded away: constant, without effect, or merged into another node"


def make_report(
    body: str, folder: Path, types: tuple[str, ...] = ("*=int16",), hosted: tuple[str, ...] = ()
) -> tuple[list[dict[str, Any]], Array, Array]:
    """The report's nodes, the inputs, [samples, 2, 3, 40], and what the chip makes of them."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,40] a, float[1,3,40] b) => (float[1,3,40] y) {{ {body} }}'
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    rng = np.random.default_rng(1)
    size = 10.0 ** rng.uniform(-3, 0, (SAMPLES, 1, 3, 40))
    x = (size * rng.normal(0, 1, (SAMPLES, 2, 3, 40))).clip(-2, 2).astype(np.float32)
    np.savez(folder / "d.npz", a=x[:, 0], b=x[:, 1])
    built = build(
        folder / "m.onnx", BuildOptions("transformer64", calibration=str(folder / "d.npz"), types=types, host_nodes=hosted)
    )
    session = Session(built.data)
    y = [session.run(None, {"a": s[:1], "b": s[1:]})[0][0] for s in x]
    return built.figures["nodes"], x, np.stack(y)


TWO = "two = Constant<value_float = 2.0>()"


@pytest.mark.parametrize("squares", ["p = Mul(a, a) q = Mul(b, b)", f"{TWO} p = Pow(b, two) q = Pow(a, two)"])
def test_small_ones_are_as_good(squares: str, tmp_path: Path) -> None:
    nodes, x, y = make_report(f"{squares} s = Add(p, q) y = Sqrt(s)", tmp_path)
    assert not [row for row in nodes if row["engine"] == "host"]
    expected = np.sqrt((x.astype(np.float64) ** 2).sum(1))
    small = expected < 0.02
    assert sqnr_db(expected, y) > 74 and sqnr_db(expected[small], y[small]) > 36 and small.sum() > 400


def test_what_makes_much_of_the_last_angle_is_no_fault(tmp_path: Path) -> None:
    """The turns are 4e-5 off in float: of what is cut at a tenth of it beside it, 4e-4."""
    body = "p = Mul(a, a) q = Mul(b, b) s = Add(p, q) r = Sqrt(s) o = Constant<value_float = -0.01>() t = Add(r, o) "
    ends = "l = Constant<value_float = -0.001>() h = Constant<value_float = 0.001>() y = Clip(t, l, h)"
    _, x, y = make_report(body + ends, tmp_path)
    expected = (np.sqrt((x.astype(np.float64) ** 2).sum(1)) - 0.01).clip(-0.001, 0.001)
    assert np.abs(y - expected).max() < 3e-4


@pytest.mark.parametrize(
    ("body", "replaced_nodes"), [("y = Sqrt(s)", "Mul Mul Add"), ("r = Sqrt(s) t = Neg(q) y = Add(r, t)", "Mul Add")]
)
def test_what_the_turns_do_in_the_place_of_is_part_of_them(body: str, replaced_nodes: str, tmp_path: Path) -> None:
    """All but a square that others read, which is made for them."""
    nodes, _, _ = make_report(f"p = Mul(a, a) q = Mul(b, b) s = Add(p, q) {body}", tmp_path)
    (root,) = (row for row in nodes if row["op"] == "Sqrt")
    parts = [row["op"] for row in nodes if row["made_by"] == "model" and row["layer"] == root["layer"] and row is not root]
    assert parts == replaced_nodes.split() and all(row["reason"] != FOLDED for row in nodes)


def test_a_square_that_the_host_shall_make_is_made_there(tmp_path: Path) -> None:
    nodes, x, y = make_report("p = Mul(a, a) q = Mul(b, b) s = Add(p, q) y = Sqrt(s)", tmp_path, hosted=("Mul_0",))
    assert [row["node"] for row in nodes if row["engine"] == "host"] == ["Mul_0"]
    assert sqnr_db(np.sqrt((x.astype(np.float64) ** 2).sum(1)), y) > 25


@pytest.mark.usefixtures("no_room")
def test_another_root_is_a_function(tmp_path: Path) -> None:
    nodes, x, y = make_report("p = Mul(a, a) q = Abs(b) s = Add(p, q) y = Sqrt(s)", tmp_path)
    assert not [row for row in nodes if row["engine"] == "host"]
    assert sqnr_db(np.sqrt(x[:, 0].astype(np.float64) ** 2 + np.abs(x[:, 1])), y) > 30


def test_in_wide_codes_small_ones_are_as_near_as_large_ones(tmp_path: Path) -> None:
    """Check that results are as near as the rotation itself is in float, 4e-5, and 2^-23 of the largest."""
    _, x, y = make_report("p = Mul(a, a) q = Mul(b, b) s = Add(p, q) y = Sqrt(s)", tmp_path, types=("*=int32",))
    expected = np.sqrt((x.astype(np.float64) ** 2).sum(1))
    assert (np.abs(y - expected) <= 4e-5 * expected + 2.0**-23 * expected.max()).all()
