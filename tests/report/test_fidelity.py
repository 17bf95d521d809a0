"""Fidelity holds one sample at a time, whatever a network's outputs weigh, and says how sure its figures are."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from quant.fidelity import sqnr_db
from toolchain.api import BuildOptions, build
from toolchain.frontend import load_model
from toolchain.report.build_text import build_text
from toolchain.report.fidelity import fidelity
from toolchain.report.report_text import RANDOM
from toolchain.runtime import Session

SIDE = 512
OUTPUT_BYTES = 4 * 4 * SIDE * SIDE


def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    """Measured 2.1 outputs; all eight samples kept in float64 take 18."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1,3,{SIDE},{SIDE}] x) => (float[1,4,{SIDE},{SIDE}] y) '
        "{ y = Conv<pads=[1,1,1,1]>(x, w) }"
    )
    rng = np.random.default_rng(0)
    proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    container = build(tmp_path / "m.onnx", BuildOptions("edge16")).container
    reference, model = Session(container, backend="reference"), load_model(tmp_path / "m.onnx")
    inputs = [{"x": rng.standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)}]
    runs = [(inputs[0], reference.run_detailed(inputs[0]))] * 8
    tracemalloc.start()
    measured = fidelity(model, container, ((sample, run) for sample, run in runs), {})
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert measured.outputs[0].sqnr_db > 30 and len(measured.levels) == 8
    assert peak_bytes < 3 * OUTPUT_BYTES, peak_bytes / OUTPUT_BYTES


def test_samples_that_are_far_apart_give_a_standard_error(tmp_path: Path) -> None:
    """One of four samples lies beyond the codes and has most of the noise; without it SQNR is 20 dB higher."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,64] x) => (float[1,64] y) { y = Tanh(x) }'
    )
    onnx.save(proto, tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    np.save(tmp_path / "calib.npy", rng.uniform(-0.5, 0.5, (32, 64)).astype(np.float32))
    judged = rng.uniform(-0.5, 0.5, (4, 64)).astype(np.float32) * np.array([[1], [1], [1], [4]], np.float32)
    np.save(tmp_path / "judge.npy", judged)
    options = BuildOptions("edge16", str(tmp_path / "calib.npy"), judge=str(tmp_path / "judge.npy"), repair="none")
    built = build(tmp_path / "m.onnx", options)
    session = Session(built.data, backend="reference")
    got = np.concatenate([session.run(["y"], {"x": x[None]})[0] for x in judged])
    masks = [np.arange(4) != i for i in range(4)]
    levels = [sqnr_db(np.tanh(judged[keep]), got[keep]) for keep in masks]
    error = built.figures["outputs"][0]["standard_error_db"]
    assert error == pytest.approx(np.sqrt(3 * np.var(levels)), rel=1e-3) and error > 5
    line = "4 samples judged, so SQNR has a standard error of dB: y "
    assert line in build_text(built.figures, ()) and line not in build_text({**built.figures, "judged_on": RANDOM}, ())
