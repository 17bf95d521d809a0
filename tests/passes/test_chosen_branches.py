"""An If whose condition the chip computes is the chip's, branches and choice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.semantics.case import Case
from tests.semantics.judge import sqnr_db
from toolchain.api import BuildOptions, build
from toolchain.runtime import Session

LOUD = Case(  # turned down where it is loud
    "loud", "x 1,4,6,6; w 4,4,3,3",
    "m = ReduceMean(x) zero = Constant<value_float = 0.0>() c = Greater(m, zero) "
    "y = If(c) <then_branch = a () => (float[1,4,6,6] o) { p = Conv<pads = [1, 1, 1, 1]>(x, w) o = Relu(p) }, "
    "else_branch = b () => (float[1,4,6,6] q) { q = Neg(x) }>",
)  # fmt: skip


@pytest.mark.parametrize("machine", ["edge16", "transformer64", "wide32_w4a16"])
def test_a_run_takes_the_branch_that_float_takes(machine: str, tmp_path: Path) -> None:
    onnx.save(LOUD.proto, tmp_path / "m.onnx")
    shift = np.where(np.arange(32) % 2, 0.5, -0.5).reshape(32, 1, 1, 1, 1)
    x = (np.random.default_rng(0).uniform(-1, 1, (32, 1, 4, 6, 6)) + shift).astype(np.float32)
    np.savez(tmp_path / "data.npz", allow_pickle=False, x=x)
    built = build(tmp_path / "m.onnx", BuildOptions(machine, str(tmp_path / "data.npz"), repair="none"))
    assert built.figures["fallbacks"] == []
    session, runner = Session(built.data), onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    for sample in x[:8]:
        expected = np.asarray(runner.run(None, {"x": sample})[0])
        assert sqnr_db(expected, session.run(None, {"x": sample})[0]) > 15  # weights of 4 bits; the other branch has 3
