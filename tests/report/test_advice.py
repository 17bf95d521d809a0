"""Check that the report's advice can be followed: options accept the names that it gives."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.quantized.forms import script
from tests.quantized.test_forms import small_network
from tests.support.recurrent import recurrent
from toolchain.api import Build, BuildOptions, build


def save_quantized(form: str, folder: Path) -> tuple[Path, str]:
    model, samples = small_network()
    onnx.save(model if form == "float" else script().quantize_form(model, samples, form), folder / "m.onnx")
    np.savez(folder / "d.npz", x=np.concatenate([s["x"] for s in samples]))
    return folder / "m.onnx", str(folder / "d.npz")


def sequence(folder: Path) -> tuple[Path, str]:
    onnx.save(recurrent("LSTM", batch=1, length=3), folder / "m.onnx")
    np.savez(folder / "d.npz", x=np.random.default_rng(0).normal(0, 1, (6, 3, 1, 12)).astype(np.float32))
    return folder / "m.onnx", str(folder / "d.npz")


@pytest.mark.parametrize("form", ["float", "qdq_s8_channel", "qop_u8_channel", "integer", "dynamic", "LSTM"])
def test_advice_can_be_followed(form: str, tmp_path: Path) -> None:
    """Follow each --host-node and --observer of the advice, and --type for every tensor that it names."""
    model, data = sequence(tmp_path) if form == "LSTM" else save_quantized(form, tmp_path)
    built = build(model, BuildOptions("transformer64", data, error_report=True))
    assert built.errors is not None
    advice = " ".join(row.remedy for row in (*built.errors.findings, *built.errors.rows))
    assert set(re.findall(r"--type (\S+)=int16", advice)) <= {row.name for row in built.errors.rows}
    assert codes(model, data, types=tuple(dict.fromkeys(f"{row.name}=int16" for row in built.errors.rows)))
    assert codes(model, data, host_nodes=tuple(sorted(set(re.findall(r"--host-node ([^\s,]+)", advice)))))
    for observer in set(re.findall(r"--observer (\w+)", advice)):
        assert codes(model, data, observer=observer)


def codes(model: Path, data: str, **options: object) -> Build:
    return build(model, BuildOptions("transformer64", data, samples=2, level=0, **options))  # type: ignore[arg-type]


def make_options(graph: str, x: np.ndarray, folder: Path, **constants: np.ndarray) -> BuildOptions:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {graph}')
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    onnx.save(model, folder / "m.onnx")
    np.savez(folder / "d.npz", x=x.astype(np.float32))
    return BuildOptions("edge16", calibration=str(folder / "d.npz"), repair="none", error_report=True)


def test_a_part_that_its_whole_has_lost_is_kept_by_what_is_advised(tmp_path: Path) -> None:
    """Check the advice for a Concat, whose consumers read the result at one scale wherever it is joined."""
    draw = np.random.default_rng(0)
    graph = "(float[1,4,8,8] x) => (float[1,4,8,8] y) { p = Mul(x, a) c = Concat<axis=1>(p, x) y = Conv(c, w) }"
    weights = draw.standard_normal((4, 8, 1, 1)) * np.repeat([0.002, 1.0], 4).reshape(1, 8, 1, 1)
    options = make_options(graph, draw.standard_normal((24, 4, 8, 8)), tmp_path, a=np.array(500.0), w=weights)
    built = build(tmp_path / "m.onnx", options)
    assert built.errors is not None
    first = built.errors.findings[0]
    assert (first.layer, first.remedy.split(",")[0]) == ("Concat_1", "--host-node Concat_1 and --host-node Conv_2")
    assert not any("mask" in row.why for row in built.errors.rows)
    followed = build(tmp_path / "m.onnx", replace(options, host_nodes=("Concat_1", "Conv_2")))
    assert built.figures["outputs"][0]["sqnr_db"] < 1 and followed.figures["outputs"][0]["sqnr_db"] > 40
    narrow = build(tmp_path / "m.onnx", replace(options, hardware="transformer64")).errors
    assert narrow is not None and narrow.findings[0].remedy.endswith("--type c=int16")


def test_a_steep_function_is_to_blame_where_little_of_its_loss_is_that_of_clipped_values(tmp_path: Path) -> None:
    x = 1.5 * np.random.default_rng(0).standard_normal((24, 4, 8, 8))
    options = make_options("(float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Tan(x) }", x, tmp_path)
    (tmp_path / "p.yaml").write_text("version: 1\ntensors:\n  x: {low: -4, high: 4}\n  y: {low: -5000, high: 5000}\n")
    errors = build(tmp_path / "m.onnx", replace(options, parameters=str(tmp_path / "p.yaml"))).errors
    assert errors is not None and (errors.findings[0].layer, errors.findings[0].cause) == ("Tan_0", "steep function")


READERS = [
    ((4,), "Identity(x)", ["Gemm_1", "ReduceMax_3"]),
    ((2, 2), "Flatten(x)", ["Flatten_0", "Gemm_1", "ReduceMax_3"]),
]


@pytest.mark.parametrize(("shape", "move", "hosted"), READERS)
def test_who_reads_columns_of_unlike_unit_is_advised_to_the_host(
    shape: tuple[int, ...], move: str, hosted: list[str], tmp_path: Path
) -> None:
    """Check the advice for a product whose weights have the units of its columns. A maximum reads them too."""
    draw, units = np.random.default_rng(0), np.array([0.001, 1.0, 40.0, 100000.0])
    form = ",".join(map(str, shape))
    graph = f"(float[1,{form}] x) => (float[1,3] y, float[1,1] z) {{ c = {move} h = Gemm(c, a) y = Gemm(h, w) z = ReduceMax(c) }}"
    weights = {"a": draw.standard_normal((4, 8)) / units[:, None], "w": draw.standard_normal((8, 3))}
    options = make_options(graph, (draw.standard_normal((24, 4)) * units).reshape(24, *shape), tmp_path, **weights)
    built = build(tmp_path / "m.onnx", options)
    assert built.figures["outputs"][0]["sqnr_db"] < 10
    advice = f"tried on 8 samples: {' and '.join(f'--host-node {name}' for name in hosted)} ("
    assert any(advice in warning for warning in built.warnings), built.warnings
    followed = build(tmp_path / "m.onnx", replace(options, host_nodes=tuple(hosted)))
    assert followed.figures["outputs"][0]["sqnr_db"] > 30
