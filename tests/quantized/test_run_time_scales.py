"""Products of codes whose scale each run computes are the chip's, in units of that scale: other runs' magnitudes cost nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quant.float_session import open_session
from scripts.onnx_builder import build_model
from toolchain.api import Build, BuildOptions, build
from toolchain.runtime import Session

ROWS, K, N, SAMPLES = 6, 32, 24, 24
SCALED = ("scaled", "factors")  # what multiplies by the scale of the run


def model(zero_points: bool = True, computed: bool = False, read_again: bool = False) -> onnx.ModelProto:
    """x [6, 32] by weights, or by another input (computed); zero_points: the product takes them off; read_again: something else
    reads the codes too."""
    rng = np.random.default_rng(5)
    weights = np.clip(np.rint(rng.normal(0, 40, (K, N))), -127, 127).astype(np.int8)
    constants = {"w": weights, "w_scale": np.float32(0.01)}
    points = ("x_point", "w_point" if computed else "") if zero_points else ()
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "x_scale", "x_point"], "quantize")]
    inputs = {"x": [ROWS, K]}
    if computed:
        nodes += [helper.make_node("DynamicQuantizeLinear", ["v"], ["v_codes", "w_scale", "w_point"], "quantize_v")]
        inputs["v"] = [K, N]
        constants = {}
    nodes += [
        helper.make_node("MatMulInteger", ["codes", "v_codes" if computed else "w", *points], ["sums"], "product"),
        helper.make_node("Cast", ["sums"], ["whole"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x_scale", "w_scale"], ["factor"], "factors"),
        helper.make_node("Mul", ["whole", "factor"], ["y"], "scaled"),
    ]
    outputs = {"y": [ROWS, N]}
    if read_again:
        nodes += [helper.make_node("DequantizeLinear", ["codes", "x_scale", "x_point"], ["again"], "again")]
        outputs["again"] = [ROWS, K]
    return build_model(nodes, inputs, outputs, constants, opset=13)


def build_file(proto: onnx.ModelProto, folder: Path, machine: str = "edge16", **options: object) -> Build:
    onnx.save(proto, folder / "m.onnx")
    np.savez(folder / "c.npz", **{name: np.stack(v) for name, v in data(proto, SAMPLES, 1.0).items()})  # type: ignore[arg-type]
    return build(folder / "m.onnx", BuildOptions(machine, calibration=str(folder / "c.npz"), **options))  # type: ignore[arg-type]


def data(proto: onnx.ModelProto, count: int, magnitude: float) -> dict[str, list[np.ndarray]]:
    """Return random data for the inputs of a model.

    `magnitude`: magnitude of x.
    """
    rng = np.random.default_rng(7)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    return {
        name: [np.asarray(rng.normal(0, magnitude if name == "x" else 1, shape), np.float32) for _ in range(count)]
        for name, shape in shapes.items()
    }


def sqnr_db(built: Build, proto: onnx.ModelProto, magnitude: float) -> float:
    """Return the SQNR of the first output against onnxruntime on the file."""
    session, truth = Session(built.data), open_session(proto.SerializeToString())
    samples = data(proto, 4, magnitude)
    signal = noise = 0.0
    for at in range(4):
        feeds = {name: values[at] for name, values in samples.items()}
        expected, got = (np.asarray(s.run(["y"], feeds)[0]) for s in (truth, session))
        signal += float(np.square(expected, dtype=np.float64).sum())
        noise += float(np.square(expected - got, dtype=np.float64).sum())
    return 10 * np.log10(signal / noise)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("machine", ["edge16", "transformer64"])
def test_products_run_on_the_chip(machine: str, computed: bool, tmp_path: Path) -> None:
    proto = model(computed=computed)
    built = build_file(proto, tmp_path, machine)
    assert built.figures["host"]["macs"] == 0
    assert not any("DynamicQuantizeLinear" in w for w in built.warnings)
    assert sqnr_db(built, proto, 1.0) >= 30


def test_runs_of_other_magnitudes_lose_nothing(tmp_path: Path) -> None:
    """A hundredth of what was calibrated on: ranges of calibration would leave one or two bits."""
    proto = model()
    of_runs = build_file(proto, tmp_path, host_nodes=SCALED)
    assert abs(sqnr_db(of_runs, proto, 0.01) - sqnr_db(of_runs, proto, 1.0)) < 2
    assert sqnr_db(of_runs, proto, 0.01) >= 35
    assert sqnr_db(build_file(proto, tmp_path, static_ranges=True), proto, 0.01) < 15


@pytest.mark.parametrize("otherwise", [{"zero_points": False}, {"read_again": True}])
def test_codes_that_something_else_reads_stay_on_the_host(otherwise: dict[str, bool], tmp_path: Path) -> None:
    built = build_file(model(**otherwise), tmp_path)
    assert built.figures["host"]["mac_share"] == 1
    assert any(w.endswith("--static-ranges calibrates them") for w in built.warnings)
