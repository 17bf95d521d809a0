"""Inputs that are bound to values are constants from then on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_text import model, save

from quant.float_session import FloatSession
from toolchain.errors import CompileError
from toolchain.frontend import load_model

GRAPH = """(float[2,4] x, int64 n, float[N] b, bool c, float[M,K] m) => (float[a,d] y) {
    y0 = If(c) <then_branch = t () => (float[2,4] p) { p = Relu(x) }, else_branch = e () => (float[2,4] q) { q = Neg(x) }>
    f = Cast<to = 1>(n) y1 = Mul(y0, f) y2 = Add(y1, b) y = MatMul(y2, m) }"""
SHAPES = {"m": (4, 3)}


def test_values(tmp_path: Path) -> None:
    values = {"n": ("3",), "b": ("1", "2.5", "-1", "0"), "c": ("false",), "m": ("0.5",)}
    loaded = load_model(save(model(GRAPH), tmp_path), SHAPES, values=values)
    assert loaded.inputs == ("x",)
    (part,) = loaded.parts(["y"])
    assert part.inputs == ("x",) and part.given.keys() == values.keys()  # onnxruntime folds no branch that they decide
    x = np.arange(8, dtype=np.float32).reshape(2, 4)

    (y,) = FloatSession(loaded, ["y"]).run({"x": x})
    assert np.allclose(y, (-x * 3 + [1, 2.5, -1, 0]) @ np.full((4, 3), 0.5))


@pytest.mark.parametrize(
    ("values", "reasons"),
    [
        (
            {"n": ("2.5",), "c": ("2",), "b": ("nan",), "z": ("1",)},
            [
                "--value n=2.5: 2.5 is no int64",
                "--value c=2: 2 is no bool",
                "--value b=nan: nan is no float32",
                '--value z=1: the model has no input "z"',
                "  help: its inputs are x, n, b, c, m",
            ],
        ),
        ({"x": ("1", "2")}, ["--value x=1,2: has 2 numbers, the input 8: [2, 4]"]),
        ({"n": ("9223372036854775808",)}, ["--value n=9223372036854775808: 9223372036854775808 is no int64"]),
        ({"m": ("1",)}, ["--value m=1: its shape is not known: [M, K]", "  help: bind it: --shape m=D0,D1,..."]),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, values: dict[str, tuple[str, ...]], reasons: list[str]) -> None:
    with pytest.raises(CompileError) as fault:
        load_model(save(model(GRAPH), tmp_path), values=values)
    assert str(fault.value).splitlines() == reasons
