"""Parts of unlike unit at inputs and outputs survive, since the host computes what lies beside ports while it converts codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from toolchain.api import Build, BuildOptions, build
from toolchain.errors import CompileError
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]
FLOOR_DB = 20  # measured on edge16: 23.7 in the worst case here, below 20 with --raw-port
UNITS = np.array([1e-3, 1.0, 30.0, 1000.0])
DENSE = "h = MatMul(x, w) r = Relu(h) p = MatMul(r, v)"
CASES = {
    "input scaler": "s = Sub(x, mean) n = Div(s, unit) h = MatMul(n, w) r = Relu(h) y = MatMul(r, v)",
    "denormalization": f"{DENSE} q = Mul(p, unit) y = Add(q, mean)",
    "concat": f"{DENSE} q = Mul(p, thousand) e = Exp(p) y = Concat<axis=1>(e, q)",
    "sigmoid beside a square": f"{DENSE} s = Sigmoid(p) b = Mul(s, thousand) c = Mul(b, b) y = Concat<axis=1>(s, c)",
}


def write_model(folder: Path, nodes: str, outputs: int) -> Path:
    """Write a network of two products that reads float[1, 4] and makes float[1, outputs]."""
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x)'
    proto = onnx.parser.parse_model(f"{head} => (float[1,{outputs}] y) {{ {nodes} }}")
    rng = np.random.default_rng(1)
    values = {
        "w": rng.standard_normal((4, 16)),
        "v": rng.standard_normal((16, 4)) / 4,
        "mean": 5 * UNITS,
        "unit": UNITS,
        "thousand": np.array(1000.0),
    }
    for name, value in values.items():
        proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


def draw_inputs(case: str) -> Array:
    """Return float32[32, 1, 4] that fits the case."""
    x = np.random.default_rng(2).standard_normal((32, 1, 4))
    return ((x + 5) * UNITS if case == "input scaler" else x).astype(np.float32)


def build_case(folder: Path, case: str, **options: Any) -> tuple[Path, Build]:
    path = write_model(folder, CASES[case], 8 if "Concat" in CASES[case] else 4)
    np.savez(folder / "data.npz", x=draw_inputs(case))
    calibration = str(folder / "data.npz")
    return path, build(path, BuildOptions("edge16", calibration=calibration, repair="none", host_ports=True, **options))


def measure_worst_element(path: Path, built: Build, samples: Array) -> float:
    """Return the signal to noise of the worst element in dB, its mean not counted."""
    session, float_model = Session(built.data), ReferenceEvaluator(onnx.load(path))
    exact = np.stack([np.asarray(next(iter(float_model.run(None, {"x": x})))) for x in samples]).astype(np.float64)
    error = exact - np.stack([session.run(None, {"x": x})[0] for x in samples])
    return float(np.min(10 * np.log10(exact.var(axis=0) / (error**2).mean(axis=0))))


@pytest.mark.parametrize("case", CASES)
def test_every_part_survives(case: str, tmp_path: Path) -> None:
    path, built = build_case(tmp_path, case)
    assert measure_worst_element(path, built, draw_inputs(case)) > FLOOR_DB
    port = "input x" if case == "input scaler" else "output y"
    assert any(f"part of the conversion of {port}" in reason for _, _, reason in built.container.fallbacks)


@pytest.mark.parametrize("case", ["input scaler", "concat", "denormalization"])
def test_raw_port_keeps_one_scale(case: str, tmp_path: Path) -> None:
    path, built = build_case(tmp_path, case, raw_ports=("x", "y"))
    assert not built.container.fallbacks
    assert measure_worst_element(path, built, draw_inputs(case)) < FLOOR_DB


def test_port_of_like_parts_stays_on_the_chip(tmp_path: Path) -> None:
    path = write_model(tmp_path, f"{DENSE} y = Sigmoid(p)", 4)
    np.savez(tmp_path / "data.npz", x=draw_inputs("like"))
    built = build(path, BuildOptions("edge16", calibration=str(tmp_path / "data.npz"), repair="none", host_ports=True))
    assert not built.container.fallbacks


def test_unknown_raw_port(tmp_path: Path) -> None:
    message = "--raw-port z: the model has no such input or output"
    with pytest.raises(CompileError, match=message):
        build_case(tmp_path, "concat", raw_ports=("z",))
