"""Weights of zeros, or so small that only the bias is left, build on every machine, and give the bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.support.numerics_variants import with_numerics
from toolchain.api import BuildOptions, build
from toolchain.isa import Machine, load_machine
from toolchain.runtime import Session, random_feeds

MACHINES = ("edge16", "wide32_w4a16", "ws8_pow2", "short shifts")
FACTORS = {"zeros": 0.0, "one small channel": np.array([1e-12, 1, 1, 1]), "noise": 1e-12, "least floats": 1e-40}
BIASES = {"none": 0.0, "noise": 1e-9, "usual": 1.0, "large": 1e6}


def machine(name: str) -> Machine:
    if name != "short shifts":
        return load_machine(name)
    return with_numerics(load_machine("edge16"), scale={"shift_min": 20, "shift_max": 40})


@pytest.mark.parametrize("hw", MACHINES)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("bias", BIASES)
def test_builds_and_gives_the_bias(hw: str, factor: str, bias: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(4, 3, 3, 3)) * np.reshape(FACTORS[factor], (-1, 1, 1, 1))
    values = {"w": weights, "b": rng.normal(size=4) * BIASES[bias]}
    graph = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,6,6] x) => (float[N,C,H,W] y) { y = Conv(x, w, b) }'
    proto = parser.parse_model(graph)
    proto.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), n) for n, v in values.items())
    onnx.save(proto, tmp_path / "m.onnx")
    session = Session(build(tmp_path / "m.onnx", BuildOptions(machine(hw))).data)
    y = session.run(None, random_feeds(session.get_inputs()))[0]
    assert np.isfinite(y).all()
    if bias in ("usual", "large") and factor != "one small channel":
        bias_values = values["b"].reshape(1, 4, 1, 1)
        assert np.abs(y - bias_values).max() < 0.02 * np.abs(bias_values).max()
