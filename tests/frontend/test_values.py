"""Inputs that are bound to values are constants from then on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_text import model, save

from quant.float_session import FloatSession
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.runtime import EntriesSession, Session

GRAPH = """(float[2,4] x, int64 n, float[N] b, bool c, float[M,K] m) => (float[a,d] y) {
    y0 = If(c) <then_branch = t () => (float[2,4] p) { p = Relu(x) }, else_branch = e () => (float[2,4] q) { q = Neg(x) }>
    f = Cast<to = 1>(n) y1 = Mul(y0, f) y2 = Add(y1, b) y = MatMul(y2, m) }"""
SHAPES = {"m": (4, 3)}


def test_values(tmp_path: Path) -> None:
    values = {"n": ("3",), "b": ("1", "2.5", "-1", "0"), "c": ("false",), "m": ("0.5",)}
    loaded = load_model(save(model(GRAPH), tmp_path), SHAPES, values=values)
    assert loaded.inputs == ("x",)
    (part,) = loaded.parts(["y"])
    assert part.inputs == ("x",) and part.extra_inputs.keys() == values.keys()  # onnxruntime folds no branch that they decide
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


def test_a_run_may_feed_the_value_that_was_fixed_and_no_other(tmp_path: Path) -> None:
    path = save(
        model("(float[2,4] x, float[4] b, int64 n) => (float[2,4] y) { f = Cast<to = 1>(n) t = Mul(x, f) y = Add(t, b) }"),
        tmp_path,
    )
    built = build(path, BuildOptions("edge16", values={"b": ("1", "2", "3", "4"), "n": ("3",)}))
    x, b = np.ones((2, 4), np.float32), np.arange(1, 5, dtype=np.float32)
    refusals = (
        "input 'b' is float32[4] [2.0, 3.0, 4.0, 5.0]; the model was built for float32[4] [1.0, 2.0, 3.0, 4.0] alone",
        "input 'n' is int64[] 2; the model was built for int64[] 3 alone",
    )
    for backend in ("simulator", "reference"):
        session = Session(built.data, backend=backend)
        (left_out,) = session.run(None, {"x": x})
        assert np.array_equal(session.run(None, {"n": np.asarray(3), "b": b, "x": x})[0], left_out)
        binding = session.io_binding()
        binding.bind_output("y")
        for name, value in {"x": x, "n": np.asarray(2), "b": b + 1}.items():
            binding.bind_cpu_input(name, value)
        for refused in (
            lambda session=session: session.run(None, {"x": x, "b": b + 1, "n": np.asarray(2)}),
            lambda session=session, binding=binding: session.run_with_iobinding(binding),
            lambda session=session: session.memory_behind(0, 0, {"x": x, "b": b + 1, "n": np.asarray(2)}),
        ):
            with pytest.raises(CompileError) as fault:
                refused()
            assert [line.partition(": leave")[0] for line in sorted(str(fault.value).splitlines())] == list(refusals)


def test_values_of_one_of_several_entries(tmp_path: Path) -> None:
    path = save(model("(float[N,4] x, float[4] b) => (float[N,4] y) { y = Add(x, b) }"), tmp_path)
    options = BuildOptions(
        "edge16",
        entries={"one": {"x": (1, 4)}, "two": {"x": (2, 4)}},
        entry_values={"one": {"b": ("1",)}, "two": {"b": ("2",)}},
    )
    session = EntriesSession(build(path, options).data)
    one, two = (np.zeros((n, 4), np.float32) for n in (1, 2))
    assert np.allclose(session.run(None, {"x": one, "b": np.ones(4, np.float32)})[0], 1, atol=0.02)
    assert np.allclose(session.run(None, {"x": two, "b": np.full(4, 2, np.float32)})[0], 2, atol=0.02)
    with pytest.raises(CompileError, match=r"input 'b' is .*1.0, .* built for .*2.0, .* alone"):
        session.run(None, {"x": two, "b": np.ones(4, np.float32)})
