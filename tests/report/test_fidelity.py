"""Fidelity holds one sample at a time, whatever a network's outputs weigh."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from toolchain.api import BuildOptions, build
from toolchain.frontend import load_model
from toolchain.report.fidelity import fidelity
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
