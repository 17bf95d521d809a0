"""A multiple of what a product makes or reads is its codes at another scale: no operation computes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from quant.fidelity import sqnr_db
from quant.file import Parameters, write_parameters
from quant.observe import Range
from toolchain.api import Build, BuildOptions, build
from toolchain.runtime import Session

OPERANDS = "float[1,4,24,16] q, float[1,4,16,24] k"
FORMS = {
    "behind": "s = MatMul(q, k) y = Mul(s, c)",
    "divided": "s = MatMul(q, k) y = Div(s, c)",
    "before": "u = Mul(q, c) v = Mul(c, k) y = MatMul(u, v)",
    "behind moves": "s = MatMul(q, k) r = Transpose<perm=[0,2,1,3]>(s) m = Mul(r, c) y = Transpose<perm=[0,2,1,3]>(m)",
}


def save_model(
    body: str, folder: Path, outputs: str = "float[1,4,24,24] y", constants: str = "float c = {0.3}"
) -> tuple[Path, Path]:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({OPERANDS}) => ({outputs}) <{constants}> {{ {body} }}'
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    rng = np.random.default_rng(2)
    arrays = {"q": rng.normal(size=(20, 4, 24, 16)), "k": rng.normal(size=(20, 4, 16, 24))}
    np.savez(folder / "data.npz", allow_pickle=False, **{n: x.astype(np.float32) for n, x in arrays.items()})
    return folder / "m.onnx", folder / "data.npz"


def built(body: str, folder: Path, hardware: str = "edge16", **how: str) -> tuple[Build, float]:
    model, data = save_model(body, folder, **how)
    network_build = build(model, BuildOptions(hardware, calibration=str(data), repair="none"))
    return network_build, decibels(network_build, model, data)


def decibels(built: Build, model: Path, data: Path) -> float:
    runs = (onnxruntime.InferenceSession(str(model)), Session(built.container, backend="reference"))
    feeds = [{n: x[i : i + 1] for n, x in np.load(data).items()} for i in range(6)]
    return sqnr_db(*(np.stack([np.asarray(run.run(["y"], f)[0]) for f in feeds]) for run in runs))


def working(built: Build) -> list[str]:
    return [layer["op"] for layer in built.figures["layers"] if layer["cycles"]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hardware", ["edge16", "transformer64"])
def test_a_multiple_costs_nothing(form: str, hardware: str, tmp_path: Path) -> None:
    network_build, db = built(FORMS[form], tmp_path, hardware)
    assert working(network_build) == ["MatrixProduct"]
    assert db > 34, db


def test_what_is_read_as_it_is_too_has_both_scales(tmp_path: Path) -> None:
    network_build, db = built("s = MatMul(q, k) m = Mul(s, c) y = MatMul(m, s)", tmp_path)
    assert working(network_build) == ["MatrixProduct", "MatrixProduct"]
    assert db > 30, db


def test_powers_of_two_alone_are_other_scales_where_these_are(tmp_path: Path) -> None:
    network_build, db = built(FORMS["behind"], tmp_path, "ws8_pow2", constants="float c = {0.25}")
    assert working(network_build) == ["MatrixProduct"] and not network_build.figures["fallbacks"]
    assert db > 30, db
    network_build, _ = built(FORMS["behind"], tmp_path, "ws8_pow2")
    assert [row["node"] for row in network_build.figures["fallbacks"]] == ["Mul_1"]


def test_a_negative_multiple_is_computed(tmp_path: Path) -> None:
    network_build, db = built(FORMS["behind"], tmp_path, constants="float c = {-0.3}")
    assert working(network_build) == ["MatrixProduct", "Lookup"]
    assert db > 33, db


def test_a_range_of_its_own_is_kept(tmp_path: Path) -> None:
    """A file that has the multiple end at half of what it reaches: what lies beyond is cut there, as before."""
    model, data = save_model(FORMS["behind"], tmp_path)
    path = tmp_path / "ranges.yaml"
    ranges = {"q": Range(-4.0, 4.0), "k": Range(-4.0, 4.0), "s": Range(-16.0, 16.0), "y": Range(-1.5, 1.5)}
    write_parameters(path, Parameters(ranges))
    network_build = build(model, BuildOptions("edge16", parameters=str(path)))
    assert working(network_build) == ["MatrixProduct", "Lookup"]
    feeds = {n: x[:1] for n, x in np.load(data).items()}
    y = Session(network_build.container).run(["y"], feeds)[0]
    assert 1.4 < np.abs(y).max() < 1.6


@pytest.mark.parametrize(("scale", "names"), [(0.03, ["MatrixProduct"]), (0.02, ["MatrixProduct", "Lookup"])])
def test_scales_of_a_file_are_kept(scale: float, names: list[str], tmp_path: Path) -> None:
    """Check that nothing is computed where the file's two scales have the ratio of the multiple; else what it rounds is
    rounded."""
    rounded = " ".join(
        f"{n}_codes = QuantizeLinear({n}_real, {n}_scale, zero) {n} = DequantizeLinear({n}_codes, {n}_scale, zero)" for n in "sy"
    )
    first, second = rounded.split(" y_codes")
    body = f"s_real = MatMul(q, k) {first} y_real = Mul(s, c) y_codes{second}"
    constants = f"float c = {{0.3}}, int8 zero = {{0}}, float s_scale = {{0.1}}, float y_scale = {{{scale}}}"
    network_build, db = built(body, tmp_path, constants=constants)
    assert working(network_build) == names
    assert db > 33, db


def test_what_products_read_of_the_host_comes_in_the_models_order(tmp_path: Path) -> None:
    """A function between an input of four dimensions and a product turns nothing."""
    network_build, db = built("u = Tanh(q) y = MatMul(u, k)", tmp_path)
    assert working(network_build) == ["Lookup", "MatrixProduct"]
    assert db > 33, db
