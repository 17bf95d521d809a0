"""Expected values over bins keep their precision, since the host computes them where codes of probabilities lose it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from unequal_networks import nothing

from quant.repair.choices import Quantization
from tests.support.run_in_process import run_script
from toolchain.api import Build, BuildOptions, build
from toolchain.compiler import select_model
from toolchain.frontend import load_model
from toolchain.isa import load_machine
from toolchain.repair.network import Network
from toolchain.repair.probability_sums import find_probability_sums, host_probability_sums
from toolchain.runtime import Session

SCRIPT = Path(__file__).parents[2] / "scripts/calibrate.py"
Array = np.ndarray[Any, Any]
BINS, ROWS = 64, 16
SCORES = "s = MatMul(x, w)"
FORMS = {
    "product and sum": f"{SCORES} p = Softmax(s) q = Mul(p, bins) y = ReduceSum<keepdims=1>(q, last)",
    "matrix product": f"{SCORES} p = Softmax(s) y = MatMul(p, column)",
    "convolution": f"{SCORES} t = Transpose<perm=[0,2,1]>(s) p = Softmax<axis=1>(t) y = Conv(p, row)",
    "with a product of two behind": f"{SCORES} p = Softmax(s) m = MatMul(p, column) g = MatMul(x, column) y = Mul(m, g)",
}
OTHERS = {
    "probabilities": f"{SCORES} y = Softmax(s)",
    "attention": f"{SCORES} p = Softmax(s) v = Transpose<perm=[0,2,1]>(x) y = MatMul(p, v)",
}


def write_model(folder: Path, nodes: str) -> Path:
    """Write a network that reads scores as float32[1, rows, bins], times a unit matrix."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1,{ROWS},{BINS}] x) => (float y) {{ {nodes} }}'
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    bins = np.linspace(3.0, 8.0, BINS).astype(np.float32)
    values: dict[str, Array] = {
        "w": np.eye(BINS, dtype=np.float32),
        "bins": bins,
        "column": bins[:, None],
        "row": bins[None, :, None],
        "wide": np.random.default_rng(0).standard_normal((BINS, 32)).astype(np.float32),
        "two": np.array(2.0, np.float32),
        "last": np.array([-1]),
    }
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items() if n in read)
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "m.onnx")
    return folder / "m.onnx"


def draw_scores(count: int, seed: int) -> Array:
    """Return float32[count, rows, bins]: a peak a few bins wide in each row."""
    rng = np.random.default_rng(seed)
    center, width = rng.uniform(4, BINS - 4, (count, ROWS, 1)), rng.uniform(1, 3, (count, ROWS, 1))
    return (-((np.arange(BINS) - center) ** 2) / (2 * width**2)).clip(-20, 0).astype(np.float32)


def build_repaired(model: Path, hardware: str = "edge16", **options: Any) -> Build:
    np.savez(model.parent / "data.npz", x=draw_scores(40, 1))
    return build(model, BuildOptions(hardware, calibration=str(model.parent / "data.npz"), repair="fast", **options))


def measure_error(model: Path, built: Build) -> float:
    """Return the median difference from float over the whole range of the output."""
    import onnxruntime

    session, chip, inputs = onnxruntime.InferenceSession(model), Session(built.data), draw_scores(8, 2)
    exact, integer = (np.stack([np.asarray(run.run(None, {"x": x[None]})[0]) for x in inputs]) for run in (session, chip))
    return float(np.median(np.abs(exact - integer)) / np.ptp(exact))


@pytest.mark.parametrize("form", FORMS)
def test_weighted_sums_are_found(form: str, tmp_path: Path) -> None:
    graph = load_model(write_model(tmp_path, FORMS[form])).graph
    (nodes,) = find_probability_sums(graph)
    assert nodes[0].op.op_type == "Softmax" and {"MatMul", "Conv", "Gemm", "ReduceMean"} & {n.op.op_type for n in nodes}


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_computed_weighs_nothing(form: str, tmp_path: Path) -> None:
    assert find_probability_sums(load_model(write_model(tmp_path, OTHERS[form])).graph) == []


@pytest.mark.parametrize("hardware", ["edge16", "transformer64"])
def test_the_host_keeps_the_precision(hardware: str, tmp_path: Path) -> None:
    """The chip's codes leave an error of 0.004 on edge16 and 0.007 on transformer64."""
    model = write_model(tmp_path, FORMS["product and sum"])
    built = build_repaired(model, hardware)
    assert measure_error(model, built) < 0.0005
    step = built.figures["repair"]["steps"][0]
    assert step["step"] == "sums of probabilities" and step["kept"]
    assert step["notes"][0] == "on the host, since codes of probabilities do not sum to one: Softmax_1, Mul_2, ReduceSum_3"


def test_what_follows_goes_along(tmp_path: Path) -> None:
    built = build_repaired(write_model(tmp_path, FORMS["with a product of two behind"]))
    assert "Mul_4" in {fallback["node"] for fallback in built.figures["fallbacks"]}


def open_network(model: Path) -> Network:
    loaded, machine = load_model(model), load_machine("transformer64")
    return Network(loaded, select_model(loaded, machine), machine)


def test_a_raw_port_keeps_its_sum(tmp_path: Path) -> None:
    built = build_repaired(write_model(tmp_path, FORMS["matrix product"]), host_ports=True, raw_ports=("y",))
    assert built.figures["repair"]["steps"][0]["why"] == "it finds nothing to change"


@pytest.mark.parametrize("pinned", [False, True])
def test_a_requested_type_keeps_the_sum(pinned: bool, tmp_path: Path) -> None:
    net = open_network(write_model(tmp_path, FORMS["matrix product"]))
    net = net.override_types(("p=int16",)) if pinned else net
    before, data = Quantization({}), [{"x": x[None]} for x in draw_scores(2, 1)]
    outcome = host_probability_sums(net, before, data, nothing)
    assert outcome.quantization.hosted == (() if pinned else ("Softmax_1", "MatMul_2"))


def test_a_product_of_many_columns_stays(tmp_path: Path) -> None:
    """32 MACs a probability are more than the Softmax."""
    net = open_network(write_model(tmp_path, f"{SCORES} p = Softmax(s) y = MatMul(p, wide)"))
    before = Quantization({})
    assert host_probability_sums(net, before, [], nothing).quantization is before


def test_the_parameters_file_keeps_the_choice(tmp_path: Path) -> None:
    model, data, file = write_model(tmp_path, FORMS["matrix product"]), str(tmp_path / "data.npz"), tmp_path / "p.yaml"
    built = build_repaired(model)
    done = run_script(SCRIPT, model, "--data", data, "--hw", "edge16", "--repair", "fast", "-o", file)
    assert done.returncode == 0, done.stderr
    again = build(model, BuildOptions("edge16", parameters=str(file)))
    assert again.figures["host"]["nodes"] == built.figures["host"]["nodes"] > 0
